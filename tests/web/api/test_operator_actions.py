"""Every action of the table has a route, opened by the keys of its planes, that gives its result."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from proxy.operator import session_stats
from proxy.operator.actions import ACTIONS, SettingsBody
from proxy.operator.preview import preview_prompt
from proxy.tools.tool_context import MAX_MESSAGE_READS
from proxy.web.api.operator_actions import DECISIONS, WATCHED_SWITCH_S, FrequentSwitches, add_routes
from tests.operator.test_actions import planted
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.web.api.conftest import ProxyWithData

BODIES: dict[str, Any] = {
    "groups": 2, "text": "A canary.", "policy": "rolling",
    "content": "The canary of the mine is replaced each Monday, before the shift.",
}  # fmt: skip
"""The values of the fields of bodies, except for ids."""


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_each_action_is_reached_by_its_route(proxy: ProxyWithData, action: Any) -> None:
    ids = proxy.named(proxy.fresh())
    path = action.route_path.format(**{**ids, "memo": proxy.memo(), "action": action.name})
    fields = action.body.model_fields if action.body is not None else {}
    known = {**BODIES, "ids": [ids["group"]]}
    body = {name: known[name] for name in fields if name in known} if action.method != "GET" else None
    for key, opens in (("read", "read" in action.planes), ("data", False)):
        got = proxy.ask(action.method, path, body, key=f"cp-acme-{key}")
        assert (got.status == 200) == opens, (key, got.body)
    got = proxy.ask(action.method, path, body)
    assert got.status == 200, got.body
    if action.name == "list_groups":
        assert msgspec.convert(got.json()["items"], action.result)
    else:
        msgspec.convert(got.json(), action.result)


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_routes_of_a_group_and_of_a_message_take_every_decision(proxy: ProxyWithData, decision: str) -> None:
    ids = proxy.named(proxy.fresh())
    for place in ("groups/" + ids["group"], "messages/" + ids["message"]):
        got = proxy.ask("POST", f"/api/sessions/{ids['session']}/{place}/{decision}", {})
        assert (got.status, got.json()["action"]) == (200, decision), got.body


def test_a_new_action_of_the_table_has_its_route() -> None:
    router = APIRouter()
    for _ in range(2):  # a route that is there is not added once more
        add_routes(router, (planted(),))
    (route,) = router.routes
    assert isinstance(route, APIRoute)
    assert (route.path, route.methods) == ("/api/sessions/{session}/wind-back", {"POST"})
    assert (route.name, route.description) == ("wind_back", "Wind the session back.")


def test_a_list_of_groups_continues_where_the_page_before_ended(proxy: ProxyWithData) -> None:
    first = proxy.ask("GET", "/api/sessions/talk/groups?limit=1").json()
    rest = proxy.ask("GET", f"/api/sessions/talk/groups?cursor={first['next']}").json()
    assert [one["title"] for one in first["items"] + rest["items"]] == [
        "Read the log.", "And the other one?", "Thank you.",
    ]  # fmt: skip


def test_settings_that_are_left_out_are_replaced_too(proxy: ProxyWithData) -> None:
    base = f"/api/sessions/{proxy.fresh()}/settings"
    proxy.ask("PATCH", base, {"urgency": "firm"})
    assert "urgency" not in proxy.ask("PUT", base, {"policy": "rolling"}).json()
    assert set(SettingsBody.model_fields) == {"policy", "schedule", "window", "max_iterations", "urgency"}


def read_newest_exchange(proxy: ProxyWithData, session: str) -> Any:
    """The newest exchange and the messages that went upstream in it."""
    newest = proxy.ask("GET", f"/api/sessions/{session}/exchanges?limit=1").json()["items"][0]
    body = proxy.ask("GET", f"/api/sessions/{session}/exchanges/{newest['exchange']}/body").json()
    return newest, body["messages"]


def go_on(
    proxy: ProxyWithData, session: str, history: list[dict[str, Any]], text: str = "Go on."
) -> list[dict[str, Any]]:
    messages = [*history, {"role": "user", "content": text}]
    return [*messages, proxy.chat(session, messages)]


def test_settings_are_in_force_with_the_next_request(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    base = f"/api/sessions/{name}"
    assert proxy.ask("PATCH", base + "/settings", {"policy": "rolling", "urgency": "firm"}).status == 200
    shown = proxy.ask("PATCH", base + "/settings", {"window": 1}).json()
    assert (shown["policy"], shown["window"], shown["urgency"]) == ("rolling", 1, "firm")
    history = go_on(proxy, name, history)
    exchange, messages = read_newest_exchange(proxy, name)
    assert exchange["policy"] == "rolling"
    assert [m["role"] for m in messages if m["role"] != "system"] == ["user"], "one group stays"
    put = proxy.ask("PUT", base + "/settings", {"policy": "rolling"}).json()
    assert "urgency" not in put
    assert proxy.ask("GET", base + "/settings").json() == put
    go_on(proxy, name, history)
    assert len(read_newest_exchange(proxy, name)[1]) > 3, "what is not named is as the policy says"
    assert proxy.ask("GET", base).json()["settings"]["policy"] == "rolling"


def test_a_window_is_set_by_a_call_of_its_own(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    assert proxy.ask("POST", f"/api/sessions/{name}/window", {"groups": 2}).json()["window"] == 2
    go_on(proxy, name, history)
    assert next(m["content"] for m in read_newest_exchange(proxy, name)[1] if m["role"] == "user").startswith(
        "Thank you."
    )


def test_undo_takes_the_last_group_out_though_the_agent_resends_it(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    changed = proxy.ask("POST", f"/api/sessions/{name}/undo", {}).json()
    assert changed["action"] == "undo"
    go_on(proxy, name, history)
    texts = [m["content"] for m in read_newest_exchange(proxy, name)[1] if m["role"] == "user"]
    assert not any("Thank you." in text for text in texts)
    assert any("And the other one?" in text for text in texts)


def test_a_forced_action_is_shown_until_the_next_request_has_done_it(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    assert proxy.ask("POST", f"/api/sessions/{name}/compress", {}).json()["force"] == "compress"
    assert proxy.ask("GET", f"/api/sessions/{name}/settings").json()["force"] == "compress"
    go_on(proxy, name, history)
    assert "force" not in proxy.ask("GET", f"/api/sessions/{name}/settings").json()


def test_nothing_can_be_pruned_where_the_policy_changes_nothing(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    proxy.ask("PATCH", f"/api/sessions/{name}/settings", {"policy": "passthrough"})
    got = proxy.ask("POST", f"/api/sessions/{name}/prune", {})
    assert (got.status, got.json()["error"]["code"]) == (409, "conflict")


def test_a_state_is_rebuilt_with_the_next_request_where_nobody_else_can(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    rebuilt = proxy.ask("POST", f"/api/sessions/{name}/rebuild", {}).json()
    assert (rebuilt["how"], rebuilt["text"]) == ("next_request", None)
    assert proxy.ask("GET", f"/api/sessions/{name}/settings").json()["ask"] is True


def groups(proxy: ProxyWithData, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = proxy.ask("GET", f"/api/sessions/{name}/groups").json()["items"]
    return found


def test_groups_are_listed_with_their_tokens_by_pages_and_status(proxy: ProxyWithData) -> None:
    found = groups(proxy, "talk")
    assert [line["title"] for line in found] == ["Read the log.", "And the other one?", "Thank you."]
    assert all(line["tokens"] > 0 and line["sent"] <= line["tokens"] for line in found)
    first = proxy.ask("GET", "/api/sessions/talk/groups?limit=2").json()
    rest = proxy.ask("GET", f"/api/sessions/talk/groups?limit=2&cursor={first['next']}").json()
    assert first["items"] + rest["items"] == found
    assert proxy.ask("GET", "/api/sessions/talk/groups?status=dropped").json()["items"] == []
    system, prompt, *_ = proxy.ask("GET", f"/api/sessions/talk/groups/{found[0]['id']}").json()
    assert (system["id"], prompt["content"]["content"]) == ("", "Read the log.")


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "passthrough"])
def test_dropped_messages_stay_out_and_restored_ones_return_whatever_the_agent_resends(
    proxy: ProxyWithData, policy: str
) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    proxy.ask("PATCH", f"/api/sessions/{name}/settings", {"policy": policy})
    middle = groups(proxy, name)[1]["id"]
    changed = proxy.ask("POST", f"/api/sessions/{name}/groups/{middle}/drop", {}).json()
    assert (changed["action"], changed["groups"]) == ("drop", [middle])
    shown = proxy.ask("GET", f"/api/sessions/{name}/prompt").json()
    out = [m for m in shown["messages"] if m["status"] == "dropped"]
    assert [m["group"] for m in out] == [middle] * len(out)
    assert out
    assert all(m["why"]["stage"] == "operator" for m in out)
    history = go_on(proxy, name, history)
    assert "And the other one?" not in str(read_newest_exchange(proxy, name)[1])
    assert groups(proxy, name)[1]["status"] == "dropped"
    assert proxy.ask("POST", f"/api/sessions/{name}/groups/{middle}/restore", {}).status == 200
    go_on(proxy, name, history)
    assert "And the other one?" in str(read_newest_exchange(proxy, name)[1])


def test_a_removed_message_is_gone_from_the_store_too(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    tool = proxy.ask("GET", f"/api/sessions/{name}/messages?role=tool").json()["items"][0]["id"]
    assert proxy.ask("POST", f"/api/sessions/{name}/messages/{tool}/remove", {}).status == 200
    assert "a line of the log" not in str(proxy.ask("GET", f"/api/sessions/{name}/messages/{tool}").json()["message"])
    go_on(proxy, name, history)
    assert proxy.ask("POST", f"/api/sessions/{name}/messages/{tool}/restore", {}).status == 409


def test_one_request_pins_or_unpins_several_groups(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    ids = [line["id"] for line in groups(proxy, name)]
    changed = proxy.ask("POST", f"/api/sessions/{name}/decide/pin", {"ids": ids[:2]}).json()
    assert changed["groups"] == ids[:2]
    assert [line["pinned"] for line in groups(proxy, name)] == [True, True, False]
    proxy.ask("POST", f"/api/sessions/{name}/decide/unpin", {"ids": ids[:1]})
    assert [line["pinned"] for line in groups(proxy, name)] == [False, True, False]


def test_a_past_prompt_says_why_something_was_left_out(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    proxy.ask("POST", f"/api/sessions/{name}/window", {"groups": 1})
    go_on(proxy, name, history)
    exchange, messages = read_newest_exchange(proxy, name)
    shown = proxy.ask("GET", f"/api/sessions/{name}/exchanges/{exchange['exchange']}/prompt").json()
    left_out = [m for m in shown["messages"] if m["status"] != "in"]
    assert left_out
    assert all("window" in m["why"]["reason"] and m["why"]["find"] for m in left_out)
    assert len(shown["messages"]) - len(left_out) == len(messages)


def test_a_prompt_comes_in_pages_that_together_are_the_whole(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    proxy.ask("POST", f"/api/sessions/{name}/window", {"groups": 1})
    proxy.ask("POST", f"/api/sessions/{name}/notes", {"text": "A note at the tail."})
    go_on(proxy, name, history)
    exchange, _ = read_newest_exchange(proxy, name)
    for path in (f"/api/sessions/{name}/exchanges/{exchange['exchange']}/prompt", f"/api/sessions/{name}/prompt"):
        whole = proxy.ask("GET", path).json()
        assert whole["count"] == len(whole["messages"]) > 8
        assert whole["next"] is None
        changed = {m["index"] for m in whole["messages"] if m["status"] != "in"}
        assert whole["changes"] == len(changed | {one["index"] for one in whole["inserts"]}) > 1
        pages: list[Any] = []
        while not pages or pages[-1]["next"] is not None:
            first = pages[-1]["next"] if pages else 0
            pages.append(proxy.ask("GET", f"{path}?first={first}&limit=4").json())
            assert (pages[-1]["body"], pages[-1]["original"]) == ("", "")
            assert (pages[-1]["count"], pages[-1]["changes"]) == (whole["count"], whole["changes"])
        assert len(pages) == -(-whole["count"] // 4)
        assert [m for page in pages for m in page["messages"]] == whole["messages"]
        assert sorted(map(str, whole["inserts"])) == sorted(str(one) for page in pages for one in page["inserts"])
        end = proxy.ask("GET", f"{path}?first=-2").json()
        assert (end["messages"], end["next"]) == (whole["messages"][-2:], None)
        assert proxy.ask("GET", f"{path}?first=100000").json()["messages"] == []


def test_a_page_of_a_prompt_begins_at_the_next_change(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    third = groups(proxy, name)[2]
    proxy.ask("POST", f"/api/sessions/{name}/groups/{third['id']}/drop")
    proxy.ask("POST", f"/api/sessions/{name}/notes", {"text": "A note at the tail."})
    go_on(proxy, name, history)
    exchange, _ = read_newest_exchange(proxy, name)
    for path in (f"/api/sessions/{name}/exchanges/{exchange['exchange']}/prompt", f"/api/sessions/{name}/prompt"):
        whole = proxy.ask("GET", path).json()
        changed = {m["index"] for m in whole["messages"] if m["status"] != "in"}
        changed |= {one["index"] for one in whole["inserts"] if one["index"] >= 0}
        assert min(changed) == third["first"] > 2
        found: set[int] = set()
        first: int | None = 0
        while first is not None:
            page = proxy.ask("GET", f"{path}?first={first}&limit=1&changed=true").json()
            assert (page["count"], page["changes"], page["body"]) == (whole["count"], whole["changes"], "")
            found |= {m["index"] for m in page["messages"]}
            first = page["next"]
        assert found == changed, "a request a change, and none for what is the same"
        behind = proxy.ask("GET", f"{path}?first={max(changed) + 1}&changed=true").json()
        assert (behind["messages"], behind["next"]) == ([], None)
        assert behind["inserts"] == [one for one in whole["inserts"] if one["index"] < 0]
        assert proxy.ask("GET", f"{path}?changed=true").json()["messages"] == whole["messages"][min(changed) :]


def test_a_state_is_read_set_and_reported(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    base = f"/api/sessions/{name}/state"
    assert proxy.ask("GET", base).json()["by"] in ("", "model")
    shown = proxy.ask("PUT", base, {"text": "Goal: a canary in the state"}).json()
    assert (shown["text"], shown["by"]) == ("Goal: a canary in the state", "operator")
    assert proxy.ask("GET", base).json() == shown


def test_a_scratchpad_is_read_and_set(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    base = f"/api/sessions/{name}/scratchpad"
    assert proxy.ask("GET", base).json() == {"text": "", "number": 0, "author": "", "created_at": None}
    shown: dict[str, Any] = {}
    for n in (1, 2):
        shown = proxy.ask("PUT", base, {"text": f"- [ ] step {n}"}).json()
        assert (shown["text"], shown["number"], shown["author"]) == (f"- [ ] step {n}", n, "operator")
    assert proxy.ask("GET", base).json() == shown


def test_a_note_is_shown_and_withdrawn(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    history = proxy.converse(name)
    base = f"/api/sessions/{name}/notes"
    note = proxy.ask("POST", base, {"text": "Mind the canary."}).json()
    assert proxy.ask("GET", base).json() == [note]
    history = go_on(proxy, name, history)
    assert "Mind the canary." in str(read_newest_exchange(proxy, name)[1])
    assert proxy.ask("DELETE", f"{base}/{note['id']}").json() == {"note": note["id"]}
    assert proxy.ask("GET", base).json() == []
    go_on(proxy, name, history)
    assert "Mind the canary." not in str(read_newest_exchange(proxy, name)[1])


def test_feedback_is_filed_with_its_branch(proxy: ProxyWithData) -> None:
    name = proxy.fresh()
    base = f"/api/sessions/{name}/feedback"
    said = proxy.ask("POST", base, {"text": "That was the wrong file."}).json()
    assert (said["kind"], said["text"]) == ("feedback", "That was the wrong file.")
    assert proxy.ask("GET", base).json() == [said]
    branch = proxy.ask("GET", f"/api/sessions/{name}/branches").json()["items"][0]["branch"]
    assert proxy.ask("GET", f"{base}?branch={branch}").json() == [said]
    assert proxy.ask("GET", "/api/sessions/talk/feedback").json() == []


def test_memos_are_listed_by_pages_and_filters(proxy: ProxyWithData) -> None:
    made = sorted(proxy.memo() for _ in range(3))
    whole = proxy.ask("GET", "/api/memos?limit=200").json()["items"]
    names = [memo["memo"] for memo in whole]
    assert set(made) <= set(names)
    assert names == sorted(names)
    first = proxy.ask("GET", "/api/memos?limit=1").json()
    second = proxy.ask("GET", f"/api/memos?limit=1&cursor={first['next']}").json()
    assert first["items"] + second["items"] == whole[:2]
    assert proxy.ask("GET", "/api/memos?q=xyzzy").json() == {"items": [], "next": None}
    assert proxy.ask("GET", "/api/memos?q=POSTGRESQL&limit=200").json()["items"]
    assert proxy.ask("GET", "/api/memos?project=nothing").json()["items"] == []


def test_a_memo_is_mended_and_what_is_left_out_stays(proxy: ProxyWithData) -> None:
    name = proxy.memo()
    text = "The tests need PostgreSQL 15 since yesterday's change of the view."
    shown = proxy.ask("PUT", f"/api/memos/{name}", {"content": text}).json()
    assert (shown["content"], shown["tags"], shown["session"]) == (text, ["tests"], "talk")
    shown = proxy.ask("PUT", f"/api/memos/{name}", {"tags": ["Data Base"]}).json()
    assert (shown["content"], shown["tags"]) == (text, ["data-base"])
    assert proxy.ask("GET", f"/api/memos/{name}").json() == shown


def test_a_memo_from_elsewhere_is_saved_once(proxy: ProxyWithData) -> None:
    body = {"content": "The release needs a tag that git signs with the key of the team.", "tags": ["Release"]}
    shown = proxy.ask("POST", "/api/memos", body).json()
    assert (shown["content"], shown["tags"], shown["session"]) == (body["content"], ["release"], "")
    assert proxy.ask("GET", f"/api/memos/{shown['memo']}").json() == shown
    again = proxy.ask("POST", "/api/memos", {**body, "tags": ["git"]}).json()
    assert (again["memo"], set(again["tags"])) == (shown["memo"], {"release", "git"})
    elsewhere = proxy.ask("POST", "/api/memos", {**body, "project": "other"}).json()
    assert elsewhere["memo"] != shown["memo"]
    assert proxy.ask("GET", f"/api/memos/{shown['memo']}", key="cp-other-admin").status == 404
    assert proxy.ask("POST", "/api/memos", {"content": ""}).status == 422
    assert proxy.ask("POST", "/api/memos", body, key="cp-acme-read").status == 403


def test_a_deleted_memo_does_not_come_back(proxy: ProxyWithData) -> None:
    name = proxy.memo()
    assert proxy.ask("DELETE", f"/api/memos/{name}").json() == {"memo": name}
    assert proxy.ask("GET", f"/api/memos/{name}").status == 404
    assert proxy.ask("PUT", f"/api/memos/{name}", {"tags": ["again"]}).status == 404


def test_all_memos_are_exported_a_line_each(proxy: ProxyWithData) -> None:
    listed = proxy.ask("GET", "/api/memos?limit=200").json()["items"]
    got = proxy.ask("GET", "/api/memos/export")
    assert got.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line) for line in got.body.splitlines()] == listed
    assert proxy.ask("GET", "/api/memos/export", key="cp-other-admin").body == b""


def test_threads_take_turns_often_while_an_action_runs() -> None:
    usual, switches = sys.getswitchinterval(), FrequentSwitches()
    with switches.shorten_interval():
        with suppress(KeyError), switches.shorten_interval():
            raise KeyError
        assert sys.getswitchinterval() == pytest.approx(WATCHED_SWITCH_S), "the other one still runs"
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_a_view_of_a_session_lets_threads_take_turns_often(
    proxy: ProxyWithData, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = proxy.fresh()
    proxy.converse(name)
    seen: list[float] = []

    async def seeing(*given: Any, **more: Any) -> Any:
        seen.append(sys.getswitchinterval())
        return await preview_prompt(*given, **more)

    monkeypatch.setattr(session_stats, "preview_prompt", seeing)
    usual = sys.getswitchinterval()
    proxy.ask("GET", f"/api/sessions/{name}/stats")
    assert seen == [pytest.approx(WATCHED_SWITCH_S)]
    assert sys.getswitchinterval() == pytest.approx(usual)


WHOLE_VIEWS = ("groups", "groups/{group}", "prompt", "prompt_chart", "stats", "state", "exchanges/{exchange}/prompt",
               "exchanges/{exchange}/body", "search?q=log", "messages", "export")  # fmt: skip


async def test_everything_that_reads_a_whole_history_has_its_turns() -> None:
    """Also in the conversation: a tenant's key of the plane data would do as well as one of the read plane."""
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, commands={"in_band": True}) as proxy,
    ):
        messages = [{"role": "user", "content": "Read the log"}]
        said = {"model": "m", "messages": messages}
        assert (await proxy.post(said, b"x-context-session: a")).status == 200
        (exchange,) = (await proxy.get("/api/sessions/a/exchanges")).json()["items"]
        (group,) = (await proxy.get("/api/sessions/a/groups")).json()["items"]
        places = [one.format(group=group["id"], exchange=exchange["exchange"]) for one in WHOLE_VIEWS]
        whole = [await proxy.get("/api/sessions/a/" + place) for place in places]
        assert {one.status for one in whole} == {200}
        slots, typed = proxy.app.services.read_slots, {"role": "user", "content": "/message list"}
        messages += [{"role": "assistant", "content": "Well."}, typed]
        async with AsyncExitStack() as taken:
            for _ in range(MAX_MESSAGE_READS):
                await taken.enter_async_context(slots.hold("other"))
            asked = [asyncio.ensure_future(proxy.get("/api/sessions/a/" + place)) for place in places]
            asked.append(asyncio.ensure_future(proxy.post(said, b"x-context-session: a")))
            quick = [await proxy.get("/api/sessions/a" + place) for place in ("", "/settings", "/scratchpad", "/notes")]
            assert {one.status for one in quick} == {200}
            await asyncio.sleep(0.2)
            assert [one.done() for one in asked] == [False] * len(asked)
        done = await asyncio.gather(*asked)
        assert [one.body for one in done[:-1]] == [one.body for one in whole]
        assert group["id"] in done[-1].body.decode()
        assert slots.free == MAX_MESSAGE_READS


def test_every_action_that_reads_a_history_says_so() -> None:
    """The others are short, or ask a model, and hold a turn by themselves while they read."""
    others = {one.name for one in ACTIONS if one.scope == "session" and not one.reads_history}
    assert {name for name in others if name not in ("undo", "rebuild")} == {
        "show_settings", "change_settings", "replace_settings", "set_window", "compress_prompt", "delete_session",
        "show_scratchpad", "set_scratchpad", "list_notes", "add_note", "withdraw_note", "list_feedback", "add_feedback",
    }  # fmt: skip
