from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.replay.read import read_conversations
from proxy.tools.tool_context import MAX_MESSAGE_READS
from proxy.web.api import transfer
from tests.proxy_server import make_key, run_proxy, run_proxy_in_thread
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.web.api.conftest import ApiAnswer, ProxyWithData
from tests.web.api.test_operator_actions import go_on, read_newest_exchange

LINES = "application/x-ndjson"


def bring(proxy: ProxyWithData, *lines: object, key: str | None = "cp-acme-admin") -> ApiAnswer:
    body = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return proxy.ask("POST", "/api/import", body, key=key, content_type=LINES)


def test_an_export_can_be_replayed_and_equals_the_clients_history(proxy: ProxyWithData, tmp_path: Path) -> None:
    history = proxy.converse("exported")
    got = proxy.ask("GET", "/api/sessions/exported/export")
    assert got.headers["content-type"].startswith(LINES)
    file = tmp_path / "a.jsonl"
    file.write_bytes(got.body)
    (one,) = read_conversations(file)
    assert [json.loads(raw) for raw in one.messages] == history
    assert one.tools is not None


def test_a_tenants_sessions_are_exported_and_nobody_elses(proxy: ProxyWithData) -> None:
    lines = [json.loads(line) for line in proxy.ask("GET", "/api/export").body.splitlines()]
    named = {line["session"] for line in lines}
    assert "talk" in named
    assert "theirs" not in named


def test_an_imported_conversation_is_shown_edited_by_the_operator_and_continued(proxy: ProxyWithData) -> None:
    proxy.converse("original")
    line = json.loads(proxy.ask("GET", "/api/sessions/original/export").body)
    line["session"] = "copy"
    got = bring(proxy, line)
    assert got.json() == {"conversations": 1, "messages": len(line["messages"]), "sessions": ["copy"]}
    assert proxy.ask("GET", "/api/sessions/copy/exchanges").json()["items"][0]["model"] == "demo", "its window is known"
    assert proxy.ask("GET", "/api/sessions/copy").json()["rows"]["messages"] == len(line["messages"]) - 1, "no system"
    titles = [one["title"] for one in proxy.ask("GET", "/api/sessions/copy/groups").json()["items"]]
    assert titles == ["Read the log.", "And the other one?", "Thank you."]
    history = go_on(proxy, "copy", line["messages"])
    branches = proxy.ask("GET", "/api/sessions/copy/branches").json()["items"]
    assert [branch["kind"] for branch in branches] == ["main"], "the agent goes on where the import ended"
    first = proxy.ask("GET", "/api/sessions/copy/groups").json()["items"][0]["id"]
    assert proxy.ask("POST", f"/api/sessions/copy/groups/{first}/drop", {}).status == 200
    go_on(proxy, "copy", history)
    assert "Read the log." not in str(read_newest_exchange(proxy, "copy")[1])
    assert bring(proxy, line).status == 409


def test_an_imported_conversation_counts_as_no_request_wherever_requests_are_counted(proxy: ProxyWithData) -> None:
    messages = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "First."}]
    assert bring(proxy, {"id": "only-imported", "messages": messages}).status == 200
    place = "/api/sessions/only-imported"
    stats = proxy.ask("GET", f"{place}/stats").json()
    assert (stats["exchanges"], stats["cost"], stats["cost_without"], stats["more"]) == (0, 0.0, 0.0, False)
    assert proxy.ask("GET", f"{place}/points").json() == []
    (listed,) = proxy.ask("GET", "/api/sessions?q=only-imported").json()["items"]
    (line,) = proxy.ask("GET", "/api/live?q=only-imported").json()["items"]
    assert listed["exchanges"] == line["exchanges"] == line["figures"]["exchanges"] == 0
    go_on(proxy, "only-imported", messages)
    stats = proxy.ask("GET", f"{place}/stats").json()
    (line,) = proxy.ask("GET", "/api/live?q=only-imported").json()["items"]
    assert stats["exchanges"] == line["exchanges"] == line["figures"]["exchanges"] == 1
    assert stats["tokens"] > 0


def test_geminis_form_is_understood_and_marked(proxy: ProxyWithData) -> None:
    contents: list[dict[str, Any]] = [
        {"role": "user", "parts": [{"text": "Weather?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {"city": "Ulm"}}}]},
        {"role": "function", "parts": [{"functionResponse": {"name": "weather", "response": {"output": "sun"}}}]},
        {"role": "model", "parts": [{"text": "Sun."}]},
    ]
    assert bring(proxy, {"id": "gemini", "messages": contents}).status == 200
    lines = proxy.ask("GET", "/api/sessions/gemini/messages").json()["items"]
    assert [(one["role"], one["strategy"]) for one in lines] == [
        ("user", "gemini"), ("assistant", "gemini"), ("tool", "gemini"), ("assistant", "gemini")
    ]  # fmt: skip
    assert lines[2]["call_id"] == "call_1_weather"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([b""], 400),
        ([b"{"], 400),
        ([b"[1]"], 400),
        ([{"id": "x"}], 422),
        ([{"id": "x", "messages": []}], 422),
        ([{"id": "x", "messages": ["a"]}], 422),
        ([{"id": "x", "messages": [{"role": "wizard", "content": "a"}]}], 422),
        ([{"id": "x", "messages": [{"role": "user", "content": "a"}], "tools": 3}], 422),
        ([{"id": "fine", "messages": [{"role": "user", "content": "a"}]}, {"id": "x", "messages": 3}], 422),
    ],
)
def test_an_import_with_any_wrong_line_stores_nothing(proxy: ProxyWithData, lines: list[object], status: int) -> None:
    got = bring(proxy, *lines)
    assert (got.status, "line" in got.json()["error"]["message"]) == (status, True)
    assert proxy.ask("GET", "/api/sessions/fine").status == 404


@pytest.mark.parametrize(
    "line", [b'{"id":"x","messages":[%b]}', b'{"id":"x","messages":[{"role":"user","content":[%b]}]}']
)
def test_more_values_than_are_read_at_once_are_413(
    proxy: ProxyWithData, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "MAX_VALUES", 1000)
    for count, status in ((900, 422), (1100, 413)):
        assert bring(proxy, line % b",".join([b"1"] * count)).status == status
    assert bring(proxy, {"id": f"commas {line!r}", "messages": [{"role": "user", "content": "," * 2000}]}).status == 200


def test_a_conversation_without_an_answer_is_imported_as_well(proxy: ProxyWithData) -> None:
    assert bring(proxy, {"id": "asked", "messages": [{"role": "user", "content": "Are you there?"}]}).status == 200
    assert proxy.ask("GET", "/api/sessions/asked/exchanges").json()["items"][0]["status"] == "partial"
    (one,) = proxy.ask("GET", "/api/sessions/asked/groups").json()["items"]
    assert one["title"] == "Are you there?"


def test_a_session_is_imported_into_ones_own_tenant(proxy: ProxyWithData) -> None:
    line = {"id": "talk", "messages": [{"role": "user", "content": "Mine."}, {"role": "assistant", "content": "Yes."}]}
    assert bring(proxy, line, key="cp-other-admin").status == 200
    assert proxy.ask("GET", "/api/sessions/talk", key="cp-other-admin").json()["rows"]["messages"] == 2
    assert proxy.ask("GET", "/api/sessions/talk").json()["rows"]["messages"] > 2


def test_an_empty_store_without_keys_takes_an_import_for_clients_without_a_credential(tmp_path: Path) -> None:
    line = {"id": "talk", "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]}
    with run_proxy_in_thread("demo", db=str(tmp_path / "a.sqlite3")) as proxy:
        filled = ProxyWithData(proxy)
        assert bring(filled, line, key=None).json()["sessions"] == ["talk"]
        body = {"model": "demo", "messages": [*line["messages"], {"role": "user", "content": "Thank you."}]}
        got = filled.ask("POST", "/v1/chat/completions", body, key=None)
        assert got.headers["x-context-session"] == "talk", "the agent goes on with it"


def test_an_empty_store_with_keys_needs_the_tenant_of_an_import(tmp_path: Path) -> None:
    line = {"id": "talk", "messages": [{"role": "user", "content": "Hello"}]}
    with run_proxy_in_thread("demo", db=str(tmp_path / "a.sqlite3"), keys=[make_key("cp-all", "*", "admin")]) as proxy:
        got = bring(ProxyWithData(proxy), line, key="cp-all")
    assert got.status == 409
    assert "?tenant=" in got.json()["error"]["hint"]


async def test_no_turn_is_held_while_a_client_takes_a_line() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        said = {"model": "m", "messages": [{"role": "user", "content": "Read the log"}]}
        assert (await proxy.post(said, b"x-context-session: a")).status == 200
        services = proxy.app.services
        (place,) = await services.store.read_session_names()
        lines = transfer._export_lines(services, place)
        assert b"Read the log" in await anext(lines)
        assert services.read_slots.free == MAX_MESSAGE_READS
        assert [line async for line in lines] == []
