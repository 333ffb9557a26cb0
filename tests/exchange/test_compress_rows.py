"""`POST /v1/compress` and `GET /v1/retrieve/{hash}` through the running proxy, as a gateway calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.chat import json_spans
from proxy.chat.chain import public_id
from tests.proxy_server import RawAnswer, RunningProxy, parse_answer, run_proxy
from tests.raw_upstream import run_upstream, send_raw
from tests.scripted_model import ScriptedModel

COMPRESS = "/v1/compress"
FILE = "\n".join(f"line {n}: def function_{n}(a, b): return compute(a, {n})" for n in range(120))


def listing(turn: int) -> str:
    return "\n".join(f"src/part{turn}/module_{n}.py:{n * turn}: value = {n}" for n in range(150))


def result(turn: int, text: str | None = None) -> dict[str, Any]:
    """The result that one turn brings: a file that is read again and again, or a listing."""
    said = text if text is not None else FILE if turn % 4 == 0 else listing(turn)
    return {"role": "tool", "tool_call_id": f"call_{turn:08}", "content": said}


async def compress(
    proxy: RunningProxy, rows: list[dict[str, Any]], *lines: bytes, key: str = "sk-one", **more: Any
) -> RawAnswer:
    answer = await proxy.post({"model": "gpt-5", "messages": rows, **more}, *lines, path=COMPRESS, key=key)
    assert answer.status == 200, answer.body
    assert len(answer.json()["messages"]) == len(rows)
    assert [m["role"] for m in answer.json()["messages"]] == [m["role"] for m in rows]
    return answer


async def grow(proxy: RunningProxy, rows: list[dict[str, Any]], *lines: bytes) -> RawAnswer:
    """Send the rows as a gateway does, one more with each request; the last answer."""
    for count in range(1, len(rows)):
        await compress(proxy, rows[:count], *lines)
    return await compress(proxy, rows, *lines)


async def retrieve(proxy: RunningProxy, name: str, key: str = "sk-one") -> RawAnswer:
    raw = b"GET /v1/retrieve/%b HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %b\r\nconnection: close\r\n\r\n"
    return parse_answer(await send_raw(proxy.port, raw % (name.encode(), key.encode())))


async def test_rows_come_back_shortened_in_the_same_bytes_with_every_later_request() -> None:
    rows: list[dict[str, Any]] = []
    before: list[dict[str, Any]] = []
    moved, sessions = 0, set()
    told: dict[str, Any] = {}
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for turn in range(40):
            rows.append(result(turn))
            answer = await compress(proxy, rows)
            told = answer.json()
            got = told["messages"]
            moved += got[: len(before)] != before
            before = got
            sessions.add(answer.session)
        assert len(upstream.requests) == 0
    assert len(sessions) == 1
    # Up to 35 % of a result stay for its names, and the newest results stay whole.
    assert told["tokens_after"] < 0.7 * told["tokens_before"]
    assert told["tokens_saved"] == told["tokens_before"] - told["tokens_after"]
    assert told["compression_ratio"] == round(told["tokens_after"] / told["tokens_before"], 4)
    assert set(told["transforms_applied"]) == {"refer_repeats", "shorten_results"}
    assert 1 <= moved <= 5, "edits come in batches, when the rent has reached the price"


async def test_a_user_message_that_was_withheld_at_first_moves_nothing() -> None:
    rows = [result(turn) for turn in range(20)]
    prompts = [{"role": "user", "content": text} for text in ("Find the fault.", "And the other.", "Well?")]
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        first = await grow(proxy, rows)
        assert first.json()["tokens_saved"] > 0
        sent = list(rows)
        for at, prompt in zip((0, 7, 22), prompts, strict=True):
            sent.insert(at, prompt)
            again = await compress(proxy, sent)
            assert [m for m in again.json()["messages"] if m not in prompts] == first.json()["messages"]
            assert again.session == first.session
        known = proxy.app.services.live_sessions.find_session(*_owner(proxy))
        assert known is not None
        assert len(known.branches) == 1


def _owner(proxy: RunningProxy) -> tuple[str, str]:
    sessions = list(proxy.app.services.live_sessions._sessions)
    assert len(sessions) == 1
    return sessions[0]


async def test_after_a_restart_the_same_rows_come_back_in_the_same_bytes(tmp_path: Path) -> None:
    rows = [result(turn) for turn in range(24)]
    places: dict[str, Any] = {"db": str(tmp_path / "a.db"), "policy": "thrifty"}
    async with run_upstream(ScriptedModel("x")) as upstream:
        async with run_proxy(upstream.port, **places) as proxy:
            first = await grow(proxy, rows)
        async with run_proxy(upstream.port, **places) as proxy:
            again = await compress(proxy, [*rows, result(24, "short")])
            original = await retrieve(proxy, first.json()["ccr_hashes"][0])
    assert first.json()["tokens_saved"] > 0
    assert again.json()["messages"][:-1] == first.json()["messages"]
    assert again.session == first.session
    assert original.json()["original_content"] in {row["content"] for row in rows}


async def test_a_hash_in_a_shortened_row_brings_its_original_back_within_its_tenant() -> None:
    rows = [result(turn) for turn in range(24)]
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        told = (await grow(proxy, rows)).json()
        hashes = told["ccr_hashes"]
        changed = [(row, got) for row, got in zip(rows, told["messages"], strict=True) if row != got]
        assert len(changed) == len(hashes) == len(set(hashes)) >= 5
        for (row, got), name in zip(changed, hashes, strict=True):
            assert len(name) == 16
            assert got["content"].endswith(f"[shortened; original: hash={name}]")
            assert len(got["content"]) < len(row["content"])
            answer = await retrieve(proxy, f"{name}?query=anything")
            assert answer.json()["original_content"] == row["content"]
            assert answer.json()["tool_call_id"] == row["tool_call_id"]
        assert (await retrieve(proxy, hashes[0].upper())).status == 200
        assert (await retrieve(proxy, hashes[0], key="sk-two")).status == 404
        for wrong in ("0" * 16, "0" * 40, "nothexatall!", hashes[0][:8]):
            assert (await retrieve(proxy, wrong)).status == 404


async def test_two_tenants_with_the_same_rows_are_two_sessions() -> None:
    rows = [result(turn) for turn in range(8)]
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        one, other = await compress(proxy, rows), await compress(proxy, rows, key="sk-two")
    assert one.session != other.session


async def test_originals_are_searchable_in_the_session() -> None:
    rows = [result(1, "The invoice 8841 of Marlow was paid twice."), *(result(turn) for turn in range(2, 9))]
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await compress(proxy, rows, b"x-context-session: audit")
        assert answer.session == "audit"
        tenant, session = _owner(proxy)
        found = await proxy.app.store.search(tenant, session, "Marlow invoice")
    assert "paid twice" in found[0].text


@pytest.mark.parametrize("line", [b"x-headroom-bypass: true", b"x-context-off: 1"])
async def test_a_request_can_be_switched_off(line: bytes) -> None:
    rows = [result(turn) for turn in range(24)]
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await compress(proxy, rows, line)
        assert await proxy.rows("SELECT count(*) FROM messages") == [(0,)]
    assert answer.json()["messages"] == rows
    assert answer.json()["ccr_hashes"] == []
    assert answer.header("x-context-fallback") == "off"


async def test_rows_without_a_result_or_an_answer_are_returned_unchanged() -> None:
    rows = [{"role": "user", "content": "Hello."}]
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await compress(proxy, rows)
    assert answer.json()["messages"] == rows
    assert answer.header("x-context-fallback") == "rows"


async def test_rows_over_a_limit_are_returned_without_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million numbers as rows held every other request for 58 s, and took 2 GB."""
    monkeypatch.setattr(json_spans, "find_elements", None)
    rows = [{"role": "user", "content": "x"}] * 4
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, limits={"values": 5}) as proxy:
        answer = await compress(proxy, rows)
    assert answer.header("x-context-fallback") == "size"
    assert answer.json()["messages"] == rows


async def test_a_body_without_rows_is_refused() -> None:
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for body in (b"[]", b'{"messages": 1}', b'{"messages": []}', b"no json"):
            assert (await proxy.post(body, path=COMPRESS)).status == 400


async def test_a_fault_of_the_proxy_gives_the_rows_back_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [result(turn) for turn in range(4)]

    def broken(*_: object) -> object:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("proxy.exchange.compress_rows._finish", broken)
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await compress(proxy, rows)
        assert proxy.count("internal_errors_total", where="compress") == 1
    assert answer.json()["messages"] == rows
    assert answer.header("x-context-fallback") == "error"


async def test_a_whole_conversation_keeps_its_calls_and_their_results() -> None:
    rows: list[dict[str, Any]] = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Look."}]
    before: list[dict[str, Any]] = []
    moved, saved = 0, 0
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for turn in range(30):
            call = {"name": "read", "arguments": json.dumps({"path": f"f{turn % 4}"})}
            asked = {"id": f"call_{turn:08}", "type": "function", "function": call}
            rows += [{"role": "assistant", "content": None, "tool_calls": [asked]}, result(turn)]
            answer = await compress(proxy, rows, config={"mode": "full"})
            got, saved = answer.json()["messages"], answer.json()["tokens_saved"]
            moved += got[: len(before)] != before
            before = got
            assert [m.get("tool_calls") for m in got] == [m.get("tool_calls") for m in rows]
    assert saved > 0
    assert moved <= 5


async def test_a_literal_policy_is_replaced_since_old_rows_must_not_change() -> None:
    rows = [result(turn) for turn in range(30)]
    before: list[dict[str, Any]] = []
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        for count in range(20, 30):
            got = (await compress(proxy, rows[:count])).json()["messages"]
            assert got[: len(before)] == before or count == 20
            before = got


async def test_a_policy_of_its_own_can_be_set_and_the_paths_switched_off() -> None:
    rows = [result(turn) for turn in range(24)]
    model = ScriptedModel("x")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", compress={"policy": "passthrough"}) as proxy:
            assert (await compress(proxy, rows)).json()["messages"] == rows
        async with run_proxy(upstream.port, policy="thrifty", compress={"enabled": False}) as proxy:
            await proxy.post({"model": "m", "messages": rows}, path=COMPRESS)
            assert [request.line.split()[1] for request in upstream.requests] == [b"/v1/compress"]


async def test_a_message_that_the_operator_dropped_leaves_a_stand_in_in_its_row() -> None:
    rows = [result(turn) for turn in range(6)]
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await compress(proxy, rows, b"x-context-session: a")
        tenant, session = _owner(proxy)
        stored = await proxy.app.store.read_messages(tenant, session)
        assert [m.role for m in stored[:2]] == ["assistant", "tool"]
        path = f"/api/sessions/a/messages/{public_id(stored[1].key)}/drop"
        head = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n" % path.encode()
        dropped = parse_answer(await send_raw(proxy.port, head + b"connection: close\r\ncontent-length: 2\r\n\r\n{}"))
        assert dropped.status == 200, dropped.body
        got = (await compress(proxy, rows, b"x-context-session: a")).json()["messages"]
    assert got[0]["content"].startswith("[removed]")
    assert got[1] == rows[1]
