"""Chains of responses, through the running proxy and an upstream that keeps them as the provider does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.exchange.services import TURN_BYTES
from tests.loop_turns import count_bytes_read
from tests.proxy_server import RawAnswer, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, replace_head, run_upstream
from tests.scripted_model import ScriptedModel, send_reply
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]

PATH = "/v1/responses"
LISTING = "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(1, 300))
STEPS: list[list[Any]] = [
    [Think(f"file {n}"), Say(f"Step {n}."), Ask("read", {"path": f"file{n % 3}.py"})] for n in range(25)
]


def body(items: str | list[Json], **more: Any) -> Json:
    made: Json = {
        "model": "gpt-6.2-sol", "input": items, "instructions": "You are a careful engineer.",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    }  # fmt: skip
    return made | more


def read(heard: RawAnswer, *, stream: bool) -> Json:
    """The response in an answer."""
    assert heard.status == 200, heard.body
    if not stream:
        found: Json = heard.json()
        return found
    ids, last = set(), {}
    for raw in heard.body.split(b"\n\n"):
        _, _, data = raw.partition(b"data: ")
        event = json.loads(data) if data else {}
        if "response" in event:
            ids.add(event["response"]["id"])
            last = event["response"]
        if "item" in event:
            assert not event["item"].get("encrypted_content"), "the client did not ask for it"
    assert len(ids) == 1
    return last


async def ask(proxy: RunningProxy, items: str | list[Json], *, stream: bool = False, **more: Any) -> Json:
    made = body(items, **more) | ({"stream": True} if stream else {})
    return read(await proxy.post(made, path=PATH), stream=stream)


async def run_loop(proxy: RunningProxy, *, stream: bool, **more: Any) -> tuple[list[str], list[Json]]:
    """A tool loop in which each request names the response before it. Return (the paths asked for, the responses)."""
    answer = await ask(proxy, "Find the fault.", stream=stream, **more)
    paths, found = [], [answer]
    while calls := [item for item in answer["output"] if item["type"] == "function_call"]:
        paths += [json.loads(one["arguments"])["path"] for one in calls]
        new = [{"type": "function_call_output", "call_id": one["call_id"], "output": LISTING} for one in calls]
        answer = await ask(proxy, new, stream=stream, previous_response_id=answer["id"], **more)
        found.append(answer)
    return paths, found


def prompts(found: list[Json]) -> int:
    """Tokens of all prompts, as the model counts them."""
    return sum(one["usage"]["input_tokens"] for one in found)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_is_sent_unchanged_and_is_measured_and_stored(stream: bool, tmp_path: Path) -> None:
    model = StrictResponses(*STEPS[:6], [Think(), Say("All done.")])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", db=str(tmp_path / "a")) as proxy,
    ):
        paths, found = await run_loop(proxy, stream=stream)
        assert paths == [f"file{n % 3}.py" for n in range(6)]
        assert [one.get("previous_response_id") for one in model.received] == [None, *(one["id"] for one in found[:-1])]
        assert model.refused == []
        assert [(status, fallback) for status, _, fallback in await proxy.outcomes()] == [
            ("complete", None), *[("complete", "chain")] * 6,
        ]  # fmt: skip
        assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)], "one conversation, on one branch"
        ((messages,),) = await proxy.rows("SELECT count(*) FROM messages")
        assert messages == 1 + 2 * 6 + 1
        counted = await proxy.rows(
            "SELECT tokens_before, tokens_after, prompt_tokens FROM exchanges ORDER BY started_at"
        )
        assert all(before == after for before, after, _ in counted)
        assert [prompt for _, _, prompt in counted] == [one["usage"]["input_tokens"] for one in found]
        assert counted[-1][0] > 5 * counted[0][0], "the history counts although it is not in the request"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_that_is_taken_over_is_managed_and_looks_as_it_would_directly(
    stream: bool, tmp_path: Path
) -> None:
    steps = [*STEPS[:8], [Think(), Say("All done.")]]
    direct, model = StrictResponses(*steps), StrictResponses(*steps)
    tree: Json = {"db": str(tmp_path / "a"), "responses": {"takeover": True}}
    async with run_upstream(direct) as upstream, run_proxy(upstream.port) as proxy:
        wanted, before = await run_loop(proxy, stream=stream)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty", **tree) as proxy:
        paths, found = await run_loop(proxy, stream=stream)
        outcomes = await proxy.outcomes()
        assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)], "one conversation, on one branch"
    assert paths == wanted
    assert (model.refused, model.dropped) == ([], [])
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert [one["output"] for one in found] == [one["output"] for one in before]
    for name in ("id", "previous_response_id", "store", "instructions", "tools"):
        assert [one[name] for one in found] == [one[name] for one in before], name
    for sent in model.received[1:]:
        assert sent["store"] is False
        assert "previous_response_id" not in sent
        assert sent["include"] == ["reasoning.encrypted_content"]
        assert all(item.get("encrypted_content") for item in sent["input"] if item.get("type") == "reasoning")
    assert prompts(found) < 0.8 * prompts(before), "something is saved"


async def test_a_chain_continues_after_a_restart_and_two_requests_may_name_the_same_response(tmp_path: Path) -> None:
    model = StrictResponses("First.", "Second.", "Other.", "Third.")
    tree: Json = {"policy": "thrifty", "db": str(tmp_path / "a"), "responses": {"takeover": True}}
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **tree) as proxy:
            first = await ask(proxy, "Hello.")
            second = await ask(proxy, "Go on.", previous_response_id=first["id"])
        async with run_proxy(upstream.port, **tree) as proxy:
            await ask(proxy, "Do something else.", previous_response_id=first["id"])
            await ask(proxy, "And now?", previous_response_id=second["id"])
            assert await proxy.rows("SELECT count(*) FROM sessions") == [(1,)]
            assert await proxy.rows("SELECT kind FROM branches ORDER BY created_at") == [("main",), ("fork",)]
    said = [[read_text(item) for item in sent["input"]] if isinstance(sent["input"], list) else sent["input"]
            for sent in model.received]  # fmt: skip
    assert said == [
        "Hello.",
        ["Hello.", "First.", "Go on."],
        ["Hello.", "First.", "Do something else."],
        ["Hello.", "First.", "Go on.", "Second.", "And now?"],
    ]
    assert model.refused == []


def read_text(item: Json) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("takeover", [False, True])
async def test_a_chain_of_which_the_beginning_was_never_seen_is_stored_from_here_on(takeover: bool) -> None:
    model = StrictResponses("First.", "Second.", "Third.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", responses={"takeover": takeover}) as proxy,
    ):
        first = await ask(proxy, "Hello.")
        of_another_tenant = await proxy.post(body("Go on.", previous_response_id=first["id"]), path=PATH, key="sk-two")
        assert of_another_tenant.header("x-context-chain") == "provider, unknown"
        assert of_another_tenant.header("x-context-fallback") == "chain"
        second = of_another_tenant.json()
        third = await proxy.post(body("More.", previous_response_id=second["id"]), path=PATH, key="sk-two")
        assert third.header("x-context-chain") == "provider, unknown"
        assert await proxy.rows("SELECT count(*) FROM sessions") == [(2,)]
    assert [one.get("previous_response_id") for one in model.received] == [None, first["id"], second["id"]]


async def test_an_error_of_the_provider_is_the_answer() -> None:
    async with run_upstream(StrictResponses("Well.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        refused = await proxy.post(body("Hello.", previous_response_id="resp_9"), path=PATH)
        assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
        assert refused.error["message"] == "Previous response with id 'resp_9' not found."
        assert len(upstream.requests) == 1
        assert (await proxy.outcome())[:2] == ("rejected", 400)


@pytest.mark.parametrize("takeover", [False, True])
async def test_a_conversation_object_stays_at_the_provider(takeover: bool) -> None:
    model = StrictResponses("First.", "Second.")
    model.conversations["conv_1"] = []
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", responses={"takeover": takeover}) as proxy,
    ):
        for name in ("conv_1", {"id": "conv_1"}):
            heard = await proxy.post(body("Hello.", conversation=name), path=PATH)
            assert heard.status == 200
            assert heard.header("x-context-chain") == "provider, unknown"
            assert heard.header("x-context-session") == "conv_1"
        assert await proxy.rows("SELECT count(*) FROM messages") == [(4,)]
    assert [one["conversation"] for one in model.received] == ["conv_1", {"id": "conv_1"}]
    assert len(model.conversations["conv_1"]) == 4


async def test_an_answer_that_the_provider_does_not_store_cannot_be_named() -> None:
    model = StrictResponses("First.", "Second.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", responses={"takeover": True}) as proxy,
    ):
        first = await ask(proxy, "Hello.", store=False)
        refused = await proxy.post(body("Go on.", previous_response_id=first["id"]), path=PATH)
        assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")


async def test_a_chain_that_was_taken_over_continues_when_the_setting_or_the_policy_changes(tmp_path: Path) -> None:
    model = StrictResponses("One.", "Two.", "Three.", "Four.", "Five.")
    db = str(tmp_path / "a")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=db, responses={"takeover": True}) as proxy:
            one = await ask(proxy, "1")
            two = await ask(proxy, "2", previous_response_id=one["id"])
        async with run_proxy(upstream.port, policy="observe", db=db) as proxy:
            three = await ask(proxy, "3", previous_response_id=two["id"])
            assert three["previous_response_id"] == two["id"]
            off = await proxy.post(body("4", previous_response_id=three["id"]), b"x-context-off: 1", path=PATH)
            assert off.status == 200
            four = off.json()
            last = await proxy.post(body("5", previous_response_id=four["id"]), path=PATH)
            assert last.header("x-context-chain") == "provider, unknown"
    assert model.refused == []
    assert [len(sent["input"]) for sent in model.received] == [1, 3, 5, 7, 1]
    assert [sent.get("store") for sent in model.received] == [None, False, False, None, None]


class _Packing(Connection):
    """A connection whose answers in one body are compressed."""

    async def send(self, *parts: bytes) -> None:
        if len(parts) == 3:
            packed = gzip.compress(parts[2])
            parts = (parts[0], b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed), packed)
        await super().send(*parts)


@pytest.mark.parametrize("is_asked", [True, False], ids=["asked for", "unasked"])
async def test_a_request_without_a_plan_names_its_response_again_where_the_client_takes_compressed_answers(
    is_asked: bool, tmp_path: Path
) -> None:
    model = StrictResponses("One.", "Two.", "Three.")

    async def packs(request: RawRequest, connection: Connection) -> None:
        may_pack = b"gzip" in b"".join(request.all(b"accept-encoding")) or not is_asked
        await model(request, _Packing(connection.reader, connection.writer) if may_pack else connection)

    tree: Json = {"db": str(tmp_path / "a"), "responses": {"takeover": True}}
    async with run_upstream(packs) as upstream, run_proxy(upstream.port, policy="thrifty", **tree) as proxy:
        one = await ask(proxy, "1")
        two = await ask(proxy, "2", previous_response_id=one["id"])
        lines = (b"x-context-off: 1", b"accept-encoding: gzip")
        three = await proxy.post(body("3", previous_response_id=two["id"]), *lines, path=PATH)
    assert three.header("content-encoding") is None
    assert three.json()["previous_response_id"] == two["id"]


async def test_a_model_that_refuses_encrypted_reasoning_is_asked_once() -> None:
    model = StrictResponses("One.", "Two.", "Three.", encrypts=False)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", responses={"takeover": True}) as proxy,
    ):
        one = await ask(proxy, "1")
        two = await ask(proxy, "2", previous_response_id=one["id"])
        await ask(proxy, "3", previous_response_id=two["id"])
        assert {fallback for _, _, fallback in await proxy.outcomes()} == {None}
    assert [rule for rule, _ in model.refused] == ["R2"]
    assert [sent.get("include") for sent in model.received[1:]] == [None] * 3


async def test_the_request_after_a_failed_round_does_not_ask_for_encrypted_reasoning_that_was_refused() -> None:
    model = StrictResponses([Ask("recall", {"id": "0123456789"})], "Well.", encrypts=False)
    bodies: list[Json] = []

    async def script(request: RawRequest, connection: Connection) -> None:
        bodies.append(json.loads(request.body))
        if any(item.get("type") == "function_call_output" for item in bodies[-1]["input"]):
            await send_reply(connection, b"500 Internal Server Error", b"{}", b"content-type: application/json")
        else:
            await model(request, connection)

    offer = {"takeover": True}
    async with (
        run_upstream(script) as upstream,
        run_proxy(upstream.port, policy="thrifty", responses=offer, tools={"offer": "first_request"}) as proxy,
    ):
        heard = await proxy.post(body([{"role": "user", "content": "1"}]), path=PATH)
    assert heard.status == 200, heard.body
    assert [rule for rule, _ in model.refused] == ["R2"]
    assert ["include" in sent for sent in bodies] == [True, False, False, False], "refused, sent again, round, original"


async def test_items_that_cannot_be_written_again_stay_at_the_provider_from_there_on() -> None:
    model = StrictResponses([Ask("run", {})], "One.", "Two.", "Three.")
    odd = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hm.", "annotated": True}]}]
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", responses={"takeover": True}) as proxy,
    ):
        first = await ask(proxy, "1")
        new = [{"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "done"}]
        second = await ask(proxy, new, previous_response_id=first["id"])
        third = await ask(proxy, odd, previous_response_id=second["id"])
        last = await proxy.post(body("4", previous_response_id=third["id"]), path=PATH)
        assert last.header("x-context-chain") == "provider"
    assert model.refused == []
    assert [sent.get("store") for sent in model.received] == [None, False, None, None]
    assert [sent.get("previous_response_id") for sent in model.received] == [None, None, None, third["id"]]


@pytest.mark.parametrize("head", [b"text/plain", b"text/event-stream\r\ncontent-encoding: unknown"])
async def test_other_requests_run_while_a_stream_is_rewritten(head: bytes) -> None:
    model = StrictResponses("First.")
    created = b'data: {"type":"response.%b","response":{"id":"r","previous_response_id":null}}\n\n'
    stream = created % b"created" + b"data: x\n\n" * 100_000 + created % b"completed"

    async def script(request: RawRequest, connection: Connection) -> None:
        if not model.received:
            await model(request, connection)
            return
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n" % head, stream)
        connection.writer.close()

    tree: Json = {"policy": "thrifty", "responses": {"takeover": True}}
    async with run_upstream(script) as upstream, run_proxy(upstream.port, **tree) as proxy:
        first = await ask(proxy, "Hello.")
        asked = body("Go on.", previous_response_id=first["id"], stream=True)
        async with count_bytes_read() as read:
            found = await proxy.post(asked, path=PATH)
    assert found.body == stream.replace(b"null", json.dumps(first["id"]).encode())
    assert sum(read.values()) >= len(stream)
    assert max(read.values()) <= 4 * TURN_BYTES


async def test_a_count_and_a_compaction_of_a_chain_are_about_its_whole_history() -> None:
    model = StrictResponses("First.", "Second.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", responses={"takeover": True}) as proxy,
    ):
        first = await ask(proxy, "Hello.")
        second = await ask(proxy, "Go on.", previous_response_id=first["id"])
        asked = {"model": "gpt-6.2-sol", "input": "And?", "previous_response_id": second["id"]}
        for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
            assert (await proxy.post(asked, path=path)).status == 200
    for sent in (*model.counted, *model.compacted):
        assert sent.keys() == {"model", "input"}
        assert [read_text(item) for item in sent["input"]] == ["Hello.", "First.", "Go on.", "Second.", "And?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_proxy_tools_and_the_state_work_in_a_chain_that_is_taken_over(stream: bool, tmp_path: Path) -> None:
    note = "\n\n### STATE\nGoal: go on\nContext: as before\nResolved: none\nTechnical Anchors: a.txt"
    model = StrictResponses(
        "Warm.",
        [Ask("recall", {"id": "zq"})],
        [Say("First." + note), Ask("read", {"path": "a.py"})],
        "Second.",
        "Third.",
        binds=False,
        encrypts=False,  # bound reasoning lets no state be asked for
    )
    tree: Json = {"db": str(tmp_path / "a"), "state": {"ask": "always"}, "responses": {"takeover": True}}
    tree |= {"policy": "rolling", "tools": {"offer": "first_request", "enabled": ["recall"]}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        await ask(proxy, "Another conversation, from which the proxy learns that nothing is encrypted.")
        first = await ask(proxy, "Hello.", stream=stream)
        assert [item["type"] for item in first["output"]] == ["message", "function_call"]
        new = [{"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "text"}]
        second = await ask(proxy, new, stream=stream, previous_response_id=first["id"])
        third = await ask(proxy, "And?", stream=stream, previous_response_id=second["id"])
        assert {(status, fallback) for status, _, fallback in await proxy.outcomes()} == {("complete", None)}
        states = [text.decode() for (text,) in await proxy.rows("SELECT text FROM states")]
    assert [rule for rule, _ in model.refused] == ["R2"]
    for one in (first, second, third):
        assert "recall" not in json.dumps(one)
        assert "STATE" not in json.dumps(one)
    assert [one["previous_response_id"] for one in (first, second, third)] == [None, first["id"], second["id"]]
    for sent in model.received[4:]:
        assert sent["store"] is False
        calls = [item["name"] for item in sent["input"] if item.get("type") == "function_call"]
        assert calls == ["recall", "read"]
        assert [tool["name"] for tool in sent["tools"]] == ["read", "recall"]
    assert states[0].startswith("Goal: go on")
    assert "Goal: go on" in json.dumps(model.received[-1])


async def test_a_request_with_too_many_keys_is_passed_on_unchanged() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        raw = b'{"model":"m","input":"Hello."%b}' % b"".join(b',"k%d":1' % n for n in range(2000))
        found = await proxy.post(raw, path=PATH)
        assert (found.status, found.header("x-context-fallback")) == (200, "size")
        assert upstream.requests[-1].body == raw


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream", b"HTTP/1.1 201 Created\r\ncontent-type: text/event-stream",
     b"HTTP/1.1 200 OK\r\ncontent-type: text/plain"],
)  # fmt: skip
async def test_a_chain_that_is_taken_over_is_hidden_in_a_stream_with_another_head(head: bytes, tmp_path: Path) -> None:
    model = StrictResponses("First.", "Second.")
    tree: Json = {"db": str(tmp_path / "a"), "responses": {"takeover": True}}
    async with (
        run_upstream(replace_head(model, head)) as upstream,
        run_proxy(upstream.port, policy="thrifty", **tree) as proxy,
    ):
        first = [
            json.loads(data)
            for line in (await proxy.post(body("Hello.", stream=True), path=PATH)).body.splitlines()
            if (data := line.removeprefix(b"data: ")) != line
        ][-1]["response"]
        found = await proxy.post(body("Go on.", stream=True, previous_response_id=first["id"]), path=PATH)
    assert "previous_response_id" not in model.received[-1]
    assert b'"previous_response_id":"%b"' % first["id"].encode() in found.body.replace(b": ", b":")


async def test_nothing_changes_before_an_answer_that_is_made_in_the_background() -> None:
    model = StrictResponses(*STEPS[:6], "Done.")
    items: list[Json] = [{"type": "message", "role": "user", "content": "Find the fault."}]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for _ in range(7):
            found = await proxy.post(body(items, background=True), path=PATH)
            assert (found.status, found.json()["status"]) == (200, "queued")
            assert found.header("x-context-fallback") == "background"
            items += (await proxy.get(f"{PATH}/{found.json()['id']}")).json()["output"]
            if items[-1]["type"] == "function_call":
                items.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": LISTING})
        assert [fallback for _, _, fallback in await proxy.outcomes()] == ["background"] * 7
    assert model.refused == model.dropped == []
    assert [one["input"] for one in model.received] == [items[:n] for n in range(1, len(items), 4)]
