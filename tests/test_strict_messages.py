"""The strict upstream itself, driven over a socket: it answers what is right and refuses what the provider refuses."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from tests.raw_upstream import run_upstream
from tests.strict_messages import BINDING_BETA, StrictMessages

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
THINK = {"type": "thinking", "thinking": "Let me see."}
TEXT = {"type": "text", "text": "Done, I believe."}


def _call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "read", "input": {"path": "a.py"}}


def _result(name: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": "out"}]}


async def _post(port: int, body: dict[str, Any], path: str = "/v1/messages", **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.post(f"http://127.0.0.1:{port}{path}", json=body, headers=HEADERS | headers)


def _body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "claude-opus-5-5", "max_tokens": 99, "messages": list(messages), **more}


def _read_stream(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_a_tool_loop_with_thinking_goes_through_and_an_edit_of_old_text_is_refused() -> None:
    strict = StrictMessages([THINK, _call("a")], [THINK, _call("b")], [THINK, TEXT])
    async with run_upstream(strict) as upstream:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Do."}]
        for name in ("a", "b", ""):
            answer = (await _post(upstream.port, _body(*messages))).json()
            messages.append({"role": "assistant", "content": answer["content"]})
            messages.append(_result(name) if name else {"role": "user", "content": "Thanks."})
        assert (await _post(upstream.port, _body(*messages))).status_code == 200
        messages[2]["content"][0]["content"] = "shorter"
        refused = await _post(upstream.port, _body(*messages))
        assert refused.status_code == 400
        assert "bound to a different conversation" in refused.json()["error"]["message"]
        assert strict.dropped == []
        controlled = _body(
            *messages, thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        )
        assert "Extra inputs" in (await _post(upstream.port, controlled)).json()["error"]["message"]
        allowed = await _post(upstream.port, controlled, **{"anthropic-beta": BINDING_BETA})
        assert [one["reason"] for one in allowed.json()["input_transformations"]] == ["prefix_binding_mismatch"] * 2
        assert len(strict.dropped) == 2


async def test_thinking_that_was_tampered_with_is_refused_without_the_sentence() -> None:
    strict = StrictMessages([THINK, TEXT])
    async with run_upstream(strict) as upstream:
        first = {"role": "user", "content": "Do."}
        content = (await _post(upstream.port, _body(first))).json()["content"]
        content[0]["thinking"] = "Else."
        answer = {"role": "assistant", "content": content}
        refused = await _post(upstream.port, _body(first, answer, {"role": "user", "content": "And?"}))
        assert refused.json()["error"]["message"] == "messages.1.content.0: Invalid `signature` in `thinking` block"
        assert strict.refusals == [refused.json()["error"]["message"]]


async def test_a_stream_adds_up_to_the_body() -> None:
    strict = StrictMessages([THINK, TEXT, _call("a")])
    async with run_upstream(strict) as upstream:
        body = _body({"role": "user", "content": "Do."})
        whole = (await _post(upstream.port, body)).json()
        events = _read_stream((await _post(upstream.port, {**body, "stream": True})).text)
    assert [one["type"] for one in events[:2]] == ["message_start", "ping"]
    assert events[-1] == {"type": "message_stop"}
    deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
    text = "".join(one.get("text", "") for one in deltas)
    arguments = "".join(one.get("partial_json", "") for one in deltas)
    assert (text, json.loads(arguments)) == (TEXT["text"], {"path": "a.py"})
    signature = next(one["signature"] for one in deltas if one["type"] == "signature_delta")
    assert signature == whole["content"][0]["signature"], "the same prompt and thinking give the same token"
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"] == "tool_use"


async def test_missing_headers_and_count_requests_are_checked() -> None:
    strict = StrictMessages()
    async with run_upstream(strict) as upstream:
        body = _body({"role": "user", "content": "Do."})
        async with httpx2.AsyncClient() as client:
            url = f"http://127.0.0.1:{upstream.port}/v1/messages"
            assert (await client.post(url, json=body)).status_code == 401
            assert (await client.post(url, json=body, headers={"x-api-key": "k"})).status_code == 400
        counted = {name: value for name, value in body.items() if name != "max_tokens"}
        found = await _post(upstream.port, counted, "/v1/messages/count_tokens")
        assert found.json()["input_tokens"] > 0
        assert (await _post(upstream.port, counted)).json()["error"]["message"] == "max_tokens: Field required"


async def test_the_prefix_cache_reads_what_a_mark_has_written() -> None:
    strict = StrictMessages("Well.")
    async with run_upstream(strict) as upstream:
        marked = [{"type": "text", "text": "word " * 400, "cache_control": {"type": "ephemeral"}}]
        body = _body({"role": "user", "content": marked})
        first = (await _post(upstream.port, body)).json()["usage"]
        body["messages"] += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "More."}]
        second = (await _post(upstream.port, body)).json()["usage"]
        body["messages"][0]["content"][0]["text"] += "x"
        third = (await _post(upstream.port, body)).json()["usage"]
    assert first["cache_creation_input_tokens"] == second["cache_read_input_tokens"] > 400
    assert (second["cache_creation_input_tokens"], third["cache_read_input_tokens"]) == (0, 0)
