"""A model that says what it is told: the upstream of most tests, on a real socket (see `raw_upstream`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.raw_upstream import STREAM, Connection, RawRequest, Script

Answer = str | Mapping[str, Any] | Script
"""A text, an assistant message, or a script that speaks for itself."""


def make_calls(*named: tuple[str, str], text: str | None = None, start: int = 0, **arguments: Any) -> dict[str, Any]:
    """An assistant message that calls; `named` are (id, name)."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for call_id, name in named
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


class ScriptedModel:
    """Gives its answers one after the other, the last one for ever; streamed where that is asked for.

    received: every request. chats: the bodies of the chat requests. usage: what it reports.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or ["Well."]
        self.received: list[RawRequest] = []
        self.usage: dict[str, Any] = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}

    @property
    def chats(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self._chat_bodies]

    @property
    def last(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self._chat_bodies[-1])
        return body

    def texts(self, at: int = -1) -> list[str]:
        """The content of each message of one chat request, as it arrived."""
        return [m.get("content") for m in json.loads(self._chat_bodies[at])["messages"]]

    @property
    def _chat_bodies(self) -> list[bytes]:
        return [r.body for r in self.received if b"/chat/completions" in r.line]

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.received.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(request, connection)
            return
        message = {"role": "assistant", "content": answer} if isinstance(answer, str) else dict(answer)
        try:
            asked = json.loads(request.body)
        except (ValueError, RecursionError):
            asked = {}
        if isinstance(asked, dict) and asked.get("stream") is True:
            options = asked.get("stream_options")
            wanted = isinstance(options, dict) and options.get("include_usage")
            await send_stream(connection, message, self.usage if wanted else None)
        else:
            await send_completion(connection, message, self.usage)


async def send_reply(connection: Connection, status: bytes, body: bytes, *lines: bytes) -> None:
    """One answer with a length."""
    head = b"HTTP/1.1 %b\r\n" % status + b"".join(line + b"\r\n" for line in lines)
    await connection.send(head, b"content-length: %d\r\n\r\n" % len(body), body)


async def send_completion(connection: Connection, message: Mapping[str, Any], usage: Mapping[str, Any] | None) -> None:
    await send_reply(connection, b"200 OK", make_completion(message, usage), b"content-type: application/json")


def make_completion(message: Mapping[str, Any], usage: Mapping[str, Any] | None = None) -> bytes:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(body | ({"usage": usage} if usage else {})).encode()


def make_chunk(delta: Mapping[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    """One event of a stream; `delta` None: the one without choices."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: " + json.dumps(frame | more).encode() + b"\n\n"


def make_events(message: Mapping[str, Any], usage: Mapping[str, Any] | None = None) -> list[bytes]:
    """A whole stream."""
    silent = {} if usage is None else {"usage": None}
    out = [make_chunk({"role": "assistant", "content": ""}, **silent)]
    more = {k: v for k, v in message.items() if k not in ("role", "content", "tool_calls")}
    out += [make_chunk({name: value}, **silent) for name, value in more.items()]
    text = message.get("content") or ""
    out += [make_chunk({"content": text[at : at + 7]}, **silent) for at in range(0, len(text), 7)]
    for n, call in enumerate(message.get("tool_calls") or ()):
        begun = {"index": n, **call, "function": {**call["function"], "arguments": ""}}
        out.append(make_chunk({"tool_calls": [begun]}, **silent))
        raw = call["function"]["arguments"]
        for at in range(0, len(raw), 9):
            part = {"index": n, "function": {"arguments": raw[at : at + 9]}}
            out.append(make_chunk({"tool_calls": [part]}, **silent))
    out.append(make_chunk({}, "tool_calls" if message.get("tool_calls") else "stop", **silent))
    if usage is not None:
        out.append(make_chunk(None, usage=usage))
    return [*out, b"data: [DONE]\n\n"]


async def send_stream(connection: Connection, message: Mapping[str, Any], usage: Mapping[str, Any] | None) -> None:
    await connection.send(STREAM)
    for event in make_events(message, usage):
        await connection.chunk(event)
    await connection.chunk(b"")
