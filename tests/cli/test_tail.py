from __future__ import annotations

import json
import threading
import time

import pytest

from proxy.cli.remote import RemoteUnreachable
from proxy.cli.tail import read_events, render_event
from tests.cli.conftest import CommandRunner, EndedCommand

EVENT = {"id": 7, "kind": "context:pruned", "tenant": "t", "session": "s\x1b", "branch": "", "exchange": "", "at": 1.0,
         "data": {"original": 9, "removed_ids": ["a"] * 9}}  # fmt: skip


def test_events_are_read_as_they_come() -> None:
    raw = json.dumps(EVENT).encode()
    lines = [b"retry: 1000\n", b"\n", b": still here\n", b"\n", b"id: 7\n", b"event: context:pruned\n", b"data: " + raw,
             b"\r\n", b"\n"]  # fmt: skip
    assert list(read_events(b"".join(lines).splitlines(keepends=True))) == [EVENT]
    with pytest.raises(RemoteUnreachable):
        list(read_events([b"data: {\n", b"\n"]))


def test_an_event_is_one_line_without_what_steers_a_terminal() -> None:
    shown = render_event(EVENT).plain
    assert "context:pruned" in shown
    assert "removed_ids 9 of them" in shown
    assert "s\\x1b" in shown
    assert "\n" not in shown


def test_what_happens_is_shown_while_it_happens(shop: CommandRunner) -> None:
    name = shop.fresh()
    ran: list[EndedCommand] = []
    listening = threading.Thread(
        target=lambda: ran.append(shop.run("tail", "--session", name, "--kind", "context:*", "-n", "2", "--json")),
        daemon=True,
    )
    listening.start()
    for groups in range(1, 40):
        time.sleep(0.1)
        shop.world.ask("POST", f"/api/sessions/{name}/window", {"groups": groups % 3})
        if not listening.is_alive():
            break
    listening.join(10)
    (done,) = ran
    found = [json.loads(one) for one in done.out.splitlines()]
    assert [one["kind"] for one in found] == ["context:edited"] * 2
    assert {one["session"] for one in found} == {name}
    after = shop.run("tail", "--session", name, "--after", str(found[0]["id"]), "-n", "1", "--json").json()
    assert after == found[1]


def test_a_dash_is_the_session_used_last_and_without_one_that_is_said(shop: CommandRunner) -> None:
    name = shop.fresh()
    shop.world.ask("POST", f"/api/sessions/{name}/window", {"groups": 1})
    ran = shop.run("tail", "--session", "-", "--after", "0", "--kind", "context:*", "-n", "1", "--json")
    assert ran.json()["session"] == name
    ran = shop.run("tail", "--session", "-", "--tenant", "nobody", key="cp-all-admin")
    assert (ran.code, "there is no session yet" in ran.err) == (1, True)


def test_an_unknown_kind_of_event_is_an_error(shop: CommandRunner) -> None:
    ran = shop.run("tail", "--kind", "nonesuch")
    assert (ran.code, ran.out) == (2, "")
    assert "GET /api" not in ran.err
    assert "context:edited" in ran.err
