from __future__ import annotations

from typing import Any

from tests.web.api.conftest import World
from tests.web.api.test_settings import go_on, sent


def test_a_state_is_read_set_and_told(world: World) -> None:
    name = world.fresh()
    base = f"/api/sessions/{name}/state"
    assert world.ask("GET", base).json()["by"] in ("", "model")
    shown = world.ask("PUT", base, {"text": "Goal: a canary in the state"}).json()
    assert (shown["text"], shown["by"]) == ("Goal: a canary in the state", "operator")
    assert world.ask("GET", base).json() == shown


def test_a_scratchpad_is_read_and_set(world: World) -> None:
    name = world.fresh()
    base = f"/api/sessions/{name}/scratchpad"
    assert world.ask("GET", base).json() == {"text": "", "number": 0, "author": "", "created_at": None}
    shown: dict[str, Any] = {}
    for n in (1, 2):
        shown = world.ask("PUT", base, {"text": f"- [ ] step {n}"}).json()
        assert (shown["text"], shown["number"], shown["author"]) == (f"- [ ] step {n}", n, "operator")
    assert world.ask("GET", base).json() == shown


def test_a_note_is_told_and_withdrawn(world: World) -> None:
    name = world.fresh()
    history = world.converse(name)
    base = f"/api/sessions/{name}/notes"
    note = world.ask("POST", base, {"text": "Mind the canary."}).json()
    assert world.ask("GET", base).json() == [note]
    history = go_on(world, name, history)
    assert "Mind the canary." in str(sent(world, name)[1])
    assert world.ask("DELETE", f"{base}/{note['id']}").json() == {"note": note["id"]}
    assert world.ask("GET", base).json() == []
    go_on(world, name, history)
    assert "Mind the canary." not in str(sent(world, name)[1])


def test_feedback_is_filed_with_its_thread(world: World) -> None:
    name = world.fresh()
    base = f"/api/sessions/{name}/feedback"
    said = world.ask("POST", base, {"text": "That was the wrong file."}).json()
    assert (said["kind"], said["text"]) == ("feedback", "That was the wrong file.")
    assert world.ask("GET", base).json() == [said]
    thread = world.ask("GET", f"/api/sessions/{name}/threads").json()["items"][0]["thread"]
    assert world.ask("GET", f"{base}?thread={thread}").json() == [said]
    assert world.ask("GET", "/api/sessions/talk/feedback").json() == []
