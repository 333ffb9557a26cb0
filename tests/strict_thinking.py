"""An upstream that speaks chat completions and binds its thinking, as LiteLLM does in front of a model of Anthropic.

Each request is translated into Messages, judged by the strict upstream for that format, and answered with
`thinking_blocks`. Nothing of the proxy is used here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.raw_upstream import STREAM, Connection, RawRequest
from tests.scripted_model import send_reply
from tests.strict_messages import BOUND_TEXT, Block, Refused, StrictMessages, find_mismatches, refuse

Json = dict[str, Any]
_PASSED = ("model", "thinking", "stream", "tool_choice", "temperature")


def translate(body: Mapping[str, Any]) -> Json:
    """The request as LiteLLM writes it for Anthropic: system messages at the front, runs of results in one message."""
    made: Json = {name: body[name] for name in _PASSED if name in body}
    made["max_tokens"] = body.get("max_tokens") or body.get("max_completion_tokens") or 4096
    system = [block for row in body["messages"] if row["role"] == "system" for block in _blocks(row["content"])]
    if system:
        made["system"] = system
    if body.get("tools"):
        made["tools"] = [
            {"name": one["function"]["name"], "input_schema": one["function"].get("parameters", {})}
            for one in body["tools"]
        ]
    made["messages"] = []
    for row in body["messages"]:
        if row["role"] == "system":
            continue
        role = "assistant" if row["role"] == "assistant" else "user"
        blocks = _translate_row(row)
        if made["messages"] and made["messages"][-1]["role"] == role:
            made["messages"][-1]["content"] += blocks
        else:
            made["messages"].append({"role": role, "content": blocks})
    return made


def _blocks(content: Any) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [dict(one) for one in content or ()]


def _translate_row(row: Mapping[str, Any]) -> list[Block]:
    if row["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": row["tool_call_id"], "content": row["content"]}]
    made = [dict(one) for one in row.get("thinking_blocks") or ()]
    made += _blocks(row.get("content"))
    for call in row.get("tool_calls") or ():
        inner = call["function"]
        made.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": inner["name"],
                "input": json.loads(inner["arguments"] or "{}"),
            }
        )
    return made


def make_chat_message(blocks: list[Block]) -> Json:
    """An answer of these blocks as a chat message."""
    thinking = [one for one in blocks if one["type"] in ("thinking", "redacted_thinking")]
    texts = "".join(one["text"] for one in blocks if one["type"] == "text")
    calls = [
        {
            "id": one["id"], "type": "function",
            "function": {"name": one["name"], "arguments": json.dumps(one["input"])},
        }
        for one in blocks
        if one["type"] == "tool_use"
    ]  # fmt: skip
    message: Json = {"role": "assistant", "content": texts or None}
    if thinking:
        message["reasoning_content"] = "".join(one.get("thinking", "") for one in thinking)
        message["thinking_blocks"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def make_chunks(message: Json, head: Json) -> Iterator[Json]:
    """The chunks of a stream: thinking in pieces, and its signature alone in a last one without text."""

    def chunk(delta: Json, finish: str | None = None) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for block in message.get("thinking_blocks") or ():
        text = block.get("thinking", "")
        for at in range(0, len(text), 9):
            piece = {"type": "thinking", "thinking": text[at : at + 9], "signature": None}
            yield chunk({"reasoning_content": text[at : at + 9], "thinking_blocks": [piece]})
        yield chunk({"thinking_blocks": [{**block, "thinking": ""} if text else block]})
    text = message["content"] or ""
    for at in range(0, len(text), 7):
        yield chunk({"content": text[at : at + 7]})
    for n, call in enumerate(message.get("tool_calls") or ()):
        begun = {**call, "index": n, "function": {**call["function"], "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        yield chunk({"tool_calls": [{"index": n, "function": {"arguments": call["function"]["arguments"]}}]})
    yield chunk({}, "tool_calls" if message.get("tool_calls") else "stop")


class StrictThinking(StrictMessages):
    """Gives its answers one after the other, as blocks; streamed where that is asked for. `bodies` are translated."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.received.append(request)
        asked = json.loads(request.body)
        body = translate(asked)
        try:
            for problem in refuse(body):
                raise Refused(problem)
            for path, _, kind in find_mismatches(body):
                text = "Invalid `signature` in `thinking` block" if kind == "signature" else BOUND_TEXT
                raise Refused(f"{path}: {text}")
        except Refused as refused:
            self.refusals.append(str(refused))
            text = f"litellm.BadRequestError: AnthropicException - {refused}"
            error = {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": "400"}}
            await send_reply(
                connection, b"400 Bad Request", json.dumps(error).encode(), b"content-type: application/json"
            )
            return
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        assert not callable(answer)
        made = self.make_message(body, answer)
        message, used = make_chat_message(made["content"]), made["usage"]
        prompt = used["input_tokens"] + used["cache_read_input_tokens"] + used["cache_creation_input_tokens"]
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": used["output_tokens"],
            "total_tokens": prompt + used["output_tokens"],
            "prompt_tokens_details": {"cached_tokens": used["cache_read_input_tokens"]},
        }
        head: Json = {"id": made["id"], "object": "chat.completion", "created": 1, "model": asked["model"]}
        if asked.get("stream"):
            head["object"] = "chat.completion.chunk"
            await connection.send(STREAM)
            for chunk in make_chunks(message, head):
                await connection.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            if (asked.get("stream_options") or {}).get("include_usage"):
                told = {**head, "choices": [], "usage": usage}
                await connection.chunk(b"data: " + json.dumps(told).encode() + b"\n\n")
            await connection.chunk(b"data: [DONE]\n\n")
            await connection.chunk(b"")
            return
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        whole = {**head, "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}
        await send_reply(connection, b"200 OK", json.dumps(whole).encode(), b"content-type: application/json")
