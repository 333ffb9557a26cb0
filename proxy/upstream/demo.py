"""The `demo` upstream: a scripted model behind all wire formats of the proxy, with no key and no network.

Everything in it follows from the request (ids and times as well), so that a run can be repeated byte for byte. It
remembers one thing: the prefixes of recent prompts. It reports them as cached tokens, as providers do. The effect of a
moved prefix can therefore be seen without a cost.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import unquote

import httpx2

from proxy.dialects.cloud_paths import find_plain_path, read_cloud_path
from proxy.errors import NotManaged
from proxy.stream.aws_event_stream import MEDIA_TYPE, EventFrames, FrameEncoder
from proxy.upstream.demo_dialects import DemoAnswer, DemoDialect, DemoUsage, find_demo_dialect
from proxy.upstream.headers import Headers
from proxy.upstream.script import Json, ScriptedCall, ScriptedTurn, take_turn

DEMO_MODEL: Final = "demo"
CREATED_AT: Final = 1_767_225_600
"""The creation time in every answer: 2026-01-01, because an answer must not depend on the clock."""

CACHE_BLOCK_BYTES: Final = 256
"""Bytes of prompt (64 tokens) in one step of the prefix cache."""
MAX_CACHE_BLOCKS: Final = 65_536
"""Steps remembered: prompts of 16 MiB in about 6 MiB."""
MAX_CHOICES: Final = 8
"""Largest `n` that is accepted; larger ones are reduced to it."""


@dataclass(frozen=True, slots=True)
class DemoResponse:
    """The status, headers and body of an upstream's answer."""

    status: int
    headers: Headers
    body: DemoBody


@dataclass(frozen=True, slots=True)
class DemoBody(httpx2.AsyncByteStream):
    """Parts given out one by one."""

    parts: Sequence[bytes]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


NO_HISTORY: Final = "The demo model keeps no history: send the whole conversation, or set responses.takeover"
DEMO_PATHS: Final = "/v1/chat/completions, /v1/responses, /v1/messages, Gemini's :generateContent, and /v1/models"


class DemoTransport(httpx2.AsyncBaseTransport):
    """Scripted model as a transport. `take`: takes the model's turn for a request."""

    def __init__(self, take: Callable[[Json], ScriptedTurn] = take_turn) -> None:
        self._take = take
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target: bytes = request.extensions["target"]
        answer = self.answer_request(request.method, target.decode(), await request.aread())
        return httpx2.Response(answer.status, headers=answer.headers, stream=answer.body)

    def answer_request(self, method: str, path: str, body: bytes) -> DemoResponse:
        """Answer a request. path: with or without /v1, and its query. Others get OpenAI's errors."""
        cloud_path = read_cloud_path(unquote(path.partition("?")[0]))
        is_framed = cloud_path is not None and cloud_path.is_stream
        path = find_plain_path(path)
        dialect = find_demo_dialect(path)
        if dialect is not None and method == "POST":
            return self._answer_in(dialect, body, is_framed=is_framed)
        path = path.partition("?")[0].removeprefix("/v1").rstrip("/")
        if path == "/models":
            return _answer_json(200, {"object": "list", "data": [_MODEL]})
        if path.startswith("/models/"):
            if path == f"/models/{DEMO_MODEL}":
                return _answer_json(200, _MODEL)
            return _answer_error(
                404, f"The model {path[8:]!r} does not exist; this upstream has {DEMO_MODEL!r}.", "model_not_found"
            )
        if path != "/chat/completions":
            return _answer_error(404, f"Unknown path {path!r}: the demo model has {DEMO_PATHS}.", "unknown_url")
        if method != "POST":
            return _answer_error(405, f"{method} is not allowed here; use POST.", "method_not_allowed")
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            return _answer_error(400, f"The body is not JSON: {error}", "invalid_json")
        wrong = _find_problem(request)
        if wrong:
            return _answer_error(400, wrong, "invalid_value", "messages")
        return self._answer_chat(request, body)

    def _answer_in(self, dialect: DemoDialect, body: bytes, *, is_framed: bool) -> DemoResponse:
        """Answer a request in another wire format than chat completions. is_framed: by an AWS event stream."""
        try:
            request = json.loads(dialect.read(body))
        except NotManaged as problem:
            reason = NO_HISTORY if problem.reason == "chain" else "The demo model does not answer such a request"
            return _answer_json(400, dialect.make_error(400, f"{reason} ({problem})."))
        except (ValueError, RecursionError) as problem:
            return _answer_json(400, dialect.make_error(400, str(problem)))
        turn, finish = _cut_turn(self._take(request), request)
        prompt, cached = self._count_prompt(request)
        if dialect.count_name:
            return _answer_json(200, {dialect.count_name: prompt})
        answer = DemoAnswer(
            name=blake2b(body, digest_size=12).hexdigest(),
            model=request.get("model") or DEMO_MODEL,
            turn=turn,
            words=_split_words(turn.text),
            is_cut=finish == "length",
            usage=DemoUsage(prompt, cached, _count_completion(turn)),
        )
        if dialect.is_list:
            chunks = [json.loads(event.strip().removeprefix(b"data: ")) for event in dialect.write_events(answer)]
            return _answer_json(200, chunks)
        if is_framed:
            encoder = FrameEncoder(EventFrames())
            frames = [encoder.feed(event) for event in dialect.write_events(answer)]
            return DemoResponse(200, [(b"content-type", MEDIA_TYPE.encode())], DemoBody(frames))
        if request.get("stream") is True:
            return self._send_events(dialect.write_events(answer), answer.name)
        return _answer_json(200, dialect.write(answer))

    def _send_events(self, parts: Sequence[bytes], name: str) -> DemoResponse:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        return DemoResponse(200, [*headers, (b"x-request-id", f"req_{name}".encode())], DemoBody(parts))

    def _answer_chat(self, request: Json, body: bytes) -> DemoResponse:
        turn, finish = _cut_turn(self._take(request), request)
        count = request.get("n")
        copies = min(max(count, 1), MAX_CHOICES) if isinstance(count, int) else 1
        prompt, cached = self._count_prompt(request)
        completion = copies * _count_completion(turn)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        }
        name = blake2b(body, digest_size=12).hexdigest()
        model = request.get("model") if isinstance(request.get("model"), str) else DEMO_MODEL
        frame: Json = {"id": f"chatcmpl-{name}", "created": CREATED_AT, "model": model, "system_fingerprint": "fp_demo"}
        if request.get("stream") is True:
            return self._answer_stream(frame, turn, finish, copies, usage if _wants_usage(request) else None)
        message: Json = {"role": "assistant", "content": turn.text or None, "refusal": None}
        if turn.calls:
            message["tool_calls"] = _render_calls(turn, name)
        choices = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": finish} for index in range(copies)
        ]
        return _answer_json(200, {**frame, "object": "chat.completion", "choices": choices, "usage": usage})

    def _answer_stream(
        self, frame: Json, turn: ScriptedTurn, finish: str, copies: int, usage: Json | None
    ) -> DemoResponse:
        name = frame["id"].removeprefix("chatcmpl-")
        frame = {**frame, "object": "chat.completion.chunk"}
        silent = {} if usage is None else {"usage": None}
        parts: list[bytes] = []
        for index in range(copies):
            deltas: list[Json] = [{"role": "assistant", "content": None if turn.calls else "", "refusal": None}]
            deltas += [{"content": word} for word in _split_words(turn.text)]
            deltas += _render_call_deltas(_render_calls(turn, name))
            for delta in deltas:
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                parts.append(_encode_event({**frame, "choices": [choice], **silent}))
            choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": finish}
            parts.append(_encode_event({**frame, "choices": [choice], **silent}))
        if usage is not None:
            parts.append(_encode_event({**frame, "choices": [], "usage": usage}))
        parts.append(b"data: [DONE]\n\n")
        return self._send_events(parts, name)

    def _count_prompt(self, request: Json) -> tuple[int, int]:
        """Return the prompt's tokens, and the number of them that also began a recent prompt."""
        prompt = json.dumps([request.get("tools"), *request["messages"]], ensure_ascii=True).encode()
        known = 0
        chain = b""
        missed = False
        for start in range(0, len(prompt) - CACHE_BLOCK_BYTES + 1, CACHE_BLOCK_BYTES):
            chain = blake2b(chain + prompt[start : start + CACHE_BLOCK_BYTES], digest_size=16).digest()
            missed = missed or chain not in self._seen
            known += not missed
            self._seen[chain] = None
            self._seen.move_to_end(chain)
        while len(self._seen) > MAX_CACHE_BLOCKS:
            self._seen.popitem(last=False)
        return count_tokens(prompt), known * count_tokens(b" " * CACHE_BLOCK_BYTES)


_MODEL: Final[Json] = {"id": DEMO_MODEL, "object": "model", "created": CREATED_AT, "owned_by": "context-proxy"}


def count_tokens(text: bytes) -> int:
    """Count four bytes as a token, rounded up: near enough to be plausible, simple enough to be checked by hand."""
    return -(-len(text) // 4)


def _count_completion(turn: ScriptedTurn) -> int:
    """Count the tokens of a turn."""
    return count_tokens(_encode_utf8(turn.text)) + sum(
        8 + count_tokens(_encode_utf8(call.arguments)) for call in turn.calls
    )


def _find_problem(request: Any) -> str:
    """Return the reason why it is not a chat request; "" for none."""
    if not isinstance(request, dict):
        return "The body must be a JSON object."
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        return "'messages' must be a list of at least one message."
    return ""


def _cut_turn(turn: ScriptedTurn, request: Json) -> tuple[ScriptedTurn, str]:
    """Return the turn cut by `stop` and by the token limit, and the finish reason."""
    if turn.calls:
        return turn, "tool_calls"
    text = turn.text
    stop = request.get("stop")
    for mark in [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []:
        if isinstance(mark, str) and mark and mark in text:
            text = text[: text.index(mark)]
    limit = request.get("max_completion_tokens", request.get("max_tokens"))
    if isinstance(limit, int) and limit >= 1 and count_tokens(_encode_utf8(text)) > limit:
        return ScriptedTurn(_encode_utf8(text)[: limit * 4].decode(errors="ignore")), "length"
    return ScriptedTurn(text), "stop"


def _wants_usage(request: Json) -> bool:
    options = request.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _render_calls(turn: ScriptedTurn, name: str) -> list[Json]:
    return [
        _render_call(call, blake2b(f"{name}{index}".encode(), digest_size=12).hexdigest())
        for index, call in enumerate(turn.calls)
    ]


def _render_call(call: ScriptedCall, name: str) -> Json:
    if call.custom:
        return {"id": f"call_{name}", "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": f"call_{name}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _render_call_deltas(calls: list[Json]) -> list[Json]:
    """Return each call as providers stream it: id, type and name first, then its arguments piece by piece."""
    deltas: list[Json] = []
    for index, call in enumerate(calls):
        kind = call["type"]
        field = "arguments" if kind == "function" else "input"
        text = call[kind][field]
        begun = {**call, "index": index, kind: {**call[kind], field: ""}}
        deltas.append({"tool_calls": [begun]})
        deltas += [
            {"tool_calls": [{"index": index, kind: {field: text[at : at + 12]}}]} for at in range(0, len(text), 12)
        ]
    return deltas


def _split_words(text: str) -> list[str]:
    """Return the words with the space before them; joined they are the text."""
    out: list[str] = []
    for piece in text.split(" "):
        out.append(piece if not out else " " + piece)
    return [word for word in out if word]


def _encode_utf8(text: str) -> bytes:
    """Return the text as UTF-8. JSON may hold lone surrogates, UTF-8 may not: they become question marks."""
    return text.encode("utf-8", "replace")


def _encode_event(chunk: Json) -> bytes:
    return b"data: " + _encode_utf8(json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))) + b"\n\n"


def _answer_json(status: int, value: Json | list[Json]) -> DemoResponse:
    body = _encode_utf8(json.dumps(value, ensure_ascii=False))
    name = blake2b(body, digest_size=12).hexdigest().encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return DemoResponse(status, [*headers, (b"x-request-id", b"req_" + name)], DemoBody([body]))


def _answer_error(status: int, message: str, code: str, param: str | None = None) -> DemoResponse:
    return _answer_json(
        status, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}
    )
