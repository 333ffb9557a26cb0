"""An upstream that speaks Anthropic's Messages and refuses what Anthropic refuses, rule by rule (see `refuse`).

Thinking is bound for real: a signature covers the model, the text, the system prompt, the tools and all that was sent
before it, and is computed again when it comes back. Nothing of the proxy is used here, so a mistake of the proxy's own
rules does not hide itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.raw_upstream import STREAM, Connection, RawRequest, Script
from tests.scripted_model import send_reply

Block = dict[str, Any]
Answer = str | Sequence[Block] | Script
"""A text, blocks (thinking gets its signature here), or a script that speaks for itself."""

BINDING_BETA = "thinking-binding-controls-2026-08-01"
BOUND_TEXT = (
    "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set "
    '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
_FIELDS = {
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "metadata",
    "stop_sequences", "stream", "cache_control", "service_tier", "temperature", "top_k", "top_p", "container",
    "inference_geo",
}  # fmt: skip
_BETA_FIELDS = {
    "context_management": "context-management-2025-06-27",
    "mcp_servers": "mcp-client",
    "thread": "message-threads-2026-08-12",
}
LOOKBACK = 20
LIFETIMES = {"5m": 300.0, "1h": 3600.0}
_KEY = b"a key that no client knows"


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: str, kind: str = "invalid_request_error", status: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


def _mac(*values: Any) -> bytes:
    return hmac.new(_KEY, json.dumps(values, sort_keys=True).encode(), hashlib.sha256).digest()[:15]


def _list_blocks(content: Any) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _plain(block: Block) -> Block:
    made = {name: value for name, value in block.items() if name != "cache_control"}
    if made.get("type") == "tool_result":
        made["content"] = [_plain(one) for one in _list_blocks(made.get("content"))]
    return made


def _is_thinking(block: Block) -> bool:
    return block.get("type") in ("thinking", "redacted_thinking")


class _Prefix:
    """All that stands before a block, as it was sent."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        tools = [_plain(one) for one in body.get("tools") or () if not one.get("defer_loading")]
        self.seen: list[Any] = [[_plain(one) for one in _list_blocks(body.get("system"))], tools]
        self.mac = _mac(self.seen)
        self.after = ""

    def add(self, value: Any) -> None:
        self.mac = _mac(base64.b64encode(self.mac).decode(), value)

    def sign(self, model: str, text: str) -> str:
        """A token for thinking of this text here. Its own hash, its prompt's and its predecessor's are told apart."""
        parts = (_mac(model, text), self.mac, _mac(self.after), model.encode())
        self.after = base64.b64encode(b"".join(parts)).decode()
        return self.after

    def check(self, token: str, text: str) -> str:
        """ "" if the thinking belongs here, else the kind of the mismatch."""
        try:
            raw = base64.b64decode(token, validate=True)
        except ValueError:
            return "signature"
        after, self.after = self.after, token
        if raw[:15] != _mac(raw[45:].decode("utf-8", "replace"), text):
            return "signature"
        if raw[15:30] != self.mac or (after and raw[30:45] != _mac(after)):
            return "prefix"
        return ""


def read_step(n: int, path: str, *, thinks: bool = True) -> list[Block]:
    """An answer that reads a file, behind a thought."""
    call = {"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": path}}
    return [{"type": "thinking", "thinking": f"I look at file {n}."}, call] if thinks else [call]


class StrictMessages:
    """Gives its answers one after the other, the last one for ever; streamed where that is asked for.

    received: every request. bodies: the bodies that were answered. counted: those that were counted. pings: those
    that were read without an answer. refusals: the texts of the errors. dropped: the thinking blocks that were left
    out because the client allowed it.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or ["Well."]
        self.received: list[RawRequest] = []
        self.bodies: list[dict[str, Any]] = []
        self.counted: list[dict[str, Any]] = []
        self.pings: list[dict[str, Any]] = []
        self.refusals: list[str] = []
        self.dropped: list[str] = []
        self.now: Callable[[], float] = lambda: 0.0
        """The time in seconds, by which entries of the prompt cache expire."""
        self.least_cached = 0
        """Tokens of the shortest prefix that is cached."""
        self._cached: dict[bytes, tuple[str, float]] = {}
        """By the hash of a prefix: the lifetime of its entry, and when it expires."""
        self._threads: dict[str, Block] = {}
        """The prompts that are held here for a client (`thread`), by the id of the last answer."""
        self._count = 0

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.received.append(request)
        try:
            body, transformations = self._judge(request)
        except Refused as refused:
            self.refusals.append(str(refused))
            error = {"type": "error", "error": {"type": refused.kind, "message": str(refused)}, "request_id": "req_1"}
            await send_reply(
                connection,
                b"%d Refused" % refused.status,
                json.dumps(error).encode(),
                b"content-type: application/json",
            )
            return
        if b"count_tokens" in request.line:
            self.counted.append(body)
            tokens = json.dumps({"input_tokens": len(request.body) // 4}).encode()
            await send_reply(connection, b"200 OK", tokens, b"content-type: application/json")
            return
        if body["max_tokens"] == 0:
            self.pings.append(body)
            read = json.dumps(self.make_ping_answer(body)).encode()
            await send_reply(connection, b"200 OK", read, b"content-type: application/json")
            return
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(request, connection)
            return
        message = self.make_message(body, answer)
        if body.get("thread"):
            answered = {"role": "assistant", "content": message["content"]}
            held: Block = {name: body[name] for name in ("system", "tools") if name in body}
            self._threads[message["id"]] = {**held, "messages": [*body["messages"], answered]}
        if transformations:
            message["input_transformations"] = transformations
        if body.get("stream"):
            await connection.send(STREAM)
            for event in events(message):
                await connection.chunk(event)
            await connection.chunk(b"")
        else:
            await send_reply(connection, b"200 OK", json.dumps(message).encode(), b"content-type: application/json")

    def make_message(self, body: Mapping[str, Any], answer: str | Sequence[Block]) -> dict[str, Any]:
        """The message that answers this body, signed for it."""
        self._count += 1
        prefix = _read_prefix(body)
        prefix.add("assistant")
        blocks = []
        for block in _list_blocks(answer):
            made = dict(block)
            if made["type"] == "thinking":
                made["signature"] = prefix.sign(str(body["model"]), made["thinking"])
            elif made["type"] == "redacted_thinking":
                made["data"] = prefix.sign(str(body["model"]), "")
            else:
                prefix.add(_plain(made))
            blocks.append(made)
        reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
        seen, applied = clear_tool_uses(body)
        more = {"context_management": {"applied_edits": applied}} if "context_management" in body else {}
        return {
            **more,
            "id": f"msg_{self._count}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {**self._read_cache(seen), "output_tokens": len(json.dumps(blocks)) // 4},
        }

    def make_ping_answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to `max_tokens` 0: the prompt is read into the cache, and nothing is written."""
        self._count += 1
        usage = {**self._read_cache(clear_tool_uses(body)[0]), "output_tokens": 0}
        return {
            "id": f"msg_{self._count}", "type": "message", "role": "assistant", "model": body["model"], "content": [],
            "stop_reason": "max_tokens", "stop_sequence": None, "usage": usage,
        }  # fmt: skip

    def _read_cache(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Usage with a prefix cache: an entry ends at each mark, and is found from a mark at most 20 blocks behind it.

        An entry lives five minutes or an hour after its last use. One that ends within what is read costs nothing.
        """
        seen, size, now = hashlib.sha256(), 0, self.now()
        ends: list[tuple[bytes, int]] = []
        marks: list[tuple[int, str]] = []
        for block in _list_prompt(body):
            piece = json.dumps(_plain(block), sort_keys=True).encode()
            seen.update(piece)
            size += len(piece) // 4
            if set(block) == {"role"}:
                continue
            ends.append((seen.digest(), size))
            inner = block["content"] if isinstance(block.get("content"), list) else ()
            found = [one["cache_control"] for one in (*inner, block) if one.get("cache_control")]
            marks += [(len(ends) - 1, mark.get("ttl", "5m")) for mark in found]
        if body.get("cache_control"):
            marks.append((len(ends) - 1, body["cache_control"].get("ttl", "5m")))
        read = 0
        for at, _ in marks:
            for digest, length in reversed(ends[max(at - LOOKBACK + 1, 0) : at + 1]):
                ttl, until = self._cached.get(digest, ("", 0.0))
                if until > now:
                    self._cached[digest] = ttl, now + LIFETIMES[ttl]
                    read = max(read, length)
                    break
        written = dict.fromkeys(LIFETIMES, 0)
        begin = read
        for at, ttl in marks:
            digest, length = ends[at]
            if length < self.least_cached:
                continue
            if self._cached.get(digest, ("", 0.0))[1] <= now:
                self._cached[digest] = ttl, now + LIFETIMES[ttl]
            written[ttl] += max(length - begin, 0)
            begin = max(begin, length)
        return {
            "input_tokens": size - begin,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": sum(written.values()),
            "cache_creation": {f"ephemeral_{ttl}_input_tokens": count for ttl, count in written.items()},
        }

    def _judge(self, request: RawRequest) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(the body, what was left out of it). Raises Refused."""
        if not request.all(b"x-api-key") and not request.all(b"authorization"):
            raise Refused("x-api-key header is required", "authentication_error", 401)
        if not request.all(b"anthropic-version"):
            raise Refused("anthropic-version: header is required")
        betas = b",".join(request.all(b"anthropic-beta")).decode()
        body = json.loads(request.body)
        previous = (body.get("thread") or {}).get("previous_message_id")
        if previous is not None:
            if previous not in self._threads:
                raise Refused(f"thread.previous_message_id: {previous} not found", "not_found_error", 404)
            held = self._threads[previous]
            body = {**held, **body, "messages": [*held["messages"], *body["messages"]]}
        for problem in refuse(body, betas, is_count=b"count_tokens" in request.line):
            raise Refused(problem)
        behaviour = ((body.get("thinking") or {}).get("block_binding") or {}).get("prefix_mismatch_behavior", "error")
        found = list(find_mismatches(body))
        for path, token, kind in found:
            if kind == "signature":
                raise Refused(f"{path}: Invalid `signature` in `thinking` block")
            if behaviour != "drop_block":
                raise Refused(f"{path}: {BOUND_TEXT}")
            self.dropped.append(token)
        return body, [{"type": "thinking", "action": "removed", "reason": "prefix_binding_mismatch"} for _ in found]


class WithoutMember(StrictMessages):
    """A gateway that refuses every request with a member."""

    member = b""
    words = ""
    """The error."""
    refused = 0
    """Number of refused requests."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        if self.member in request.body:
            self.refused += 1
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": self.words}}
            await send_reply(connection, b"400 Bad", json.dumps(error).encode(), b"content-type: application/json")
            return
        await super().__call__(request, connection)


def clear_tool_uses(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Block]]:
    """(the body as the model sees it, the edits that were applied): the oldest results are cleared, as asked."""
    edits = (body.get("context_management") or {}).get("edits") or []
    asked = [one for one in edits if one["type"] == "clear_tool_uses_20250919"]
    applied = []
    for edit in asked:
        every = [block for one in body["messages"] for block in _list_blocks(one["content"])]
        uses = [block["id"] for block in every if block["type"] == "tool_use"]
        trigger = edit.get("trigger", {"type": "input_tokens", "value": 100_000})
        if trigger["type"] == "tool_uses" and len(uses) <= trigger["value"]:
            continue
        cleared = uses[: max(len(uses) - edit.get("keep", {"value": 3})["value"], 0)]
        tokens = 0
        messages = []
        for message in body["messages"]:
            blocks = [dict(block) for block in _list_blocks(message["content"])]
            for block in blocks:
                if block["type"] == "tool_result" and block["tool_use_id"] in cleared:
                    tokens += len(json.dumps(block["content"])) // 4
                    block["content"] = "[cleared to save context]"
            messages.append({**message, "content": blocks})
        body = {**body, "messages": messages}
        applied.append({"type": edit["type"], "cleared_tool_uses": len(cleared), "cleared_input_tokens": tokens})
    return body, applied


def _list_prompt(body: Mapping[str, Any]) -> Iterator[Block]:
    yield from body.get("tools") or ()
    yield from _list_blocks(body.get("system"))
    for message in body["messages"]:
        yield {"role": message["role"]}
        yield from _list_blocks(message["content"])


def _read_prefix(body: Mapping[str, Any]) -> _Prefix:
    """The prompt of a whole body, for the answer to it."""
    prefix = _Prefix(body)
    for _ in _follow(body, prefix):
        pass
    return prefix


def _follow(body: Mapping[str, Any], prefix: _Prefix) -> Iterator[tuple[str, Block, str]]:
    """Each thinking block with its path and what does not fit, while the prefix grows over the body."""
    for n, message in enumerate(body["messages"]):
        prefix.add(message["role"])
        for k, block in enumerate(_list_blocks(message["content"])):
            if _is_thinking(block):
                token = block.get("signature") or block.get("data") or ""
                yield f"messages.{n}.content.{k}", block, prefix.check(token, block.get("thinking", ""))
            else:
                prefix.add(_plain(block))


def find_mismatches(body: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(path, token, "signature" or "prefix") of each thinking block that does not belong where it stands."""
    for path, block, kind in _follow(body, _Prefix(body)):
        if kind:
            yield path, block.get("signature") or block.get("data") or "", kind


def refuse(body: Any, betas: str = "", *, is_count: bool = False) -> Iterator[str]:
    """The texts of the errors for this body, M2 to M15 of the rules, in the order in which they are judged."""
    if not is_count and not isinstance(body.get("max_tokens"), int):
        yield "max_tokens: Field required"
    for name in body:
        if name not in _FIELDS and _BETA_FIELDS.get(name, "\n") not in betas:
            yield f"{name}: Extra inputs are not permitted"
    if "block_binding" in (body.get("thinking") or {}) and BINDING_BETA not in betas:
        yield "thinking.block_binding: Extra inputs are not permitted"
    if not is_count and body.get("max_tokens") == 0:
        yield from _refuse_ping(body)
    messages = body.get("messages") or []
    if not messages:
        yield "messages: at least one message is required"
        return
    contents = [_list_blocks(message["content"]) for message in messages]
    yield from _refuse_roles([message["role"] for message in messages], contents)
    yield from _refuse_empty(messages, contents)
    yield from _refuse_pairs(messages, contents)
    yield from _refuse_thinking(body, messages, contents)
    yield from _refuse_marks(body)
    names = [tool.get("name") for tool in body.get("tools") or ()]
    if len(set(names)) < len(names):
        yield "tools: Tool names must be unique."
    forced = body.get("tool_choice") or {}
    if forced.get("type") == "tool" and forced.get("name") not in names:
        yield f"tool_choice: tool {forced.get('name')} not found in tools"


def _refuse_ping(body: Any) -> Iterator[str]:
    """The errors of a request with `max_tokens` 0."""
    if body.get("stream"):
        yield "max_tokens: 0 is not supported with stream"
    if (body.get("thinking") or {}).get("type") == "enabled":
        yield "max_tokens: 0 is not supported with thinking.type enabled"
    if (body.get("output_config") or {}).get("format"):
        yield "max_tokens: 0 is not supported with output_config.format"
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        yield "max_tokens: 0 is not supported with a forced tool"


def _refuse_roles(roles: Sequence[str], contents: Sequence[list[Block]]) -> Iterator[str]:
    if roles[0] == "assistant":
        yield 'messages: first message must use the "user" role'
    if roles[-1] == "assistant":
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    for n, role in enumerate(roles):
        if role == "system":
            served = n > 0 and roles[n - 1] == "assistant" and contents[n - 1][-1]["type"].endswith("_tool_result")
            if n == 0 or not (roles[n - 1] == "user" or served):
                yield f"messages.{n}: a system message must follow a user message"
            elif n + 1 < len(roles) and roles[n + 1] != "assistant":
                yield f"messages.{n}: a system message must be last or be followed by an assistant message"
        elif role not in ("user", "assistant"):
            yield f"messages.{n}.role: Input should be 'user', 'assistant' or 'system'"


def _refuse_empty(messages: Sequence[Any], contents: Sequence[list[Block]]) -> Iterator[str]:
    for n, blocks in enumerate(contents):
        sets_effort = messages[n]["role"] == "system" and any((messages[n].get("output_config") or {}).values())
        if not blocks and not sets_effort and (n < len(contents) - 1 or messages[n]["role"] == "user"):
            yield (
                f"messages.{n}: all messages must have non-empty content except for the optional final assistant "
                "message"
            )
        inner = [one for block in blocks if isinstance(block.get("content"), list) for one in block["content"]]
        for block in (*blocks, *inner):
            if block["type"] == "text" and not block["text"]:
                yield "messages: text content blocks must be non-empty"
            elif block["type"] == "text" and not block["text"].strip():
                yield "messages: text content blocks must contain non-whitespace text"


def _refuse_pairs(messages: Sequence[Any], contents: Sequence[list[Block]]) -> Iterator[str]:
    used: set[str] = set()
    codes: set[str] = set()
    for n, blocks in enumerate(contents):
        codes |= {block["id"] for block in blocks if block["type"] in ("server_tool_use", "mcp_tool_use")}
        if gone := {named for block in blocks if (named := (block.get("caller") or {}).get("tool_id"))} - codes:
            yield f"messages.{n}: tool_use.caller.tool_id: {', '.join(sorted(gone))} was not found"
        calls = [block for block in blocks if block["type"] == "tool_use"]
        for call in calls:
            if call["id"] in used or not re.fullmatch(r"[a-zA-Z0-9_-]+", call["id"]):
                yield f"messages.{n}: `tool_use` ids must be unique and match ^[a-zA-Z0-9_-]+$: {call['id']}"
            if not isinstance(call.get("input"), dict):
                yield f"messages.{n}: tool_use.input: Input should be a valid dictionary"
            used.add(call["id"])
        follows = contents[n + 1] if n + 1 < len(contents) and messages[n + 1]["role"] == "user" else []
        leading = []
        for block in follows:
            if block["type"] != "tool_result":
                break
            leading.append(block["tool_use_id"])
        missing = [call["id"] for call in calls if call["id"] not in leading]
        if missing:
            yield (
                f"messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        before = {block.get("id") for block in contents[n - 1]} if n else set()
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        for k, found in enumerate(results):
            if found not in before:
                yield (
                    f"messages.{n}.content.{k}: unexpected `tool_use_id` found in `tool_result` blocks: {found}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
        if len(set(results)) < len(results):
            yield f"messages.{n}: each tool_use must have a single result"
        for block in blocks:
            if block["type"].endswith("_tool_result") and block["tool_use_id"] not in codes:
                yield f"messages.{n}: unexpected `tool_use_id` found in `{block['type']}`: {block['tool_use_id']}"


def _refuse_thinking(body: Any, messages: Sequence[Any], contents: Sequence[list[Block]]) -> Iterator[str]:
    for n, blocks in enumerate(contents):
        for k, block in enumerate(blocks):
            if block["type"] == "thinking" and "signature" not in block:
                yield f"messages.{n}.content.{k}.thinking.signature: Field required"
            if _is_thinking(block) and not (block.get("signature") or block.get("data")):
                yield f"messages.{n}.content.{k}: Invalid `signature` in `thinking` block"
        if messages[n]["role"] == "assistant" and blocks and _is_thinking(blocks[-1]):
            yield "The final block in an assistant message cannot be `thinking`."
    open_ = len(contents) > 1 and any(block["type"] == "tool_result" for block in contents[-1])
    if (body.get("thinking") or {}).get("type") == "enabled" and open_ and not _is_thinking(contents[-2][0]):
        yield f"messages.{len(contents) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`"


def _refuse_marks(body: Any) -> Iterator[str]:
    marks = []
    for block in _list_prompt(body):
        inner = block["content"] if isinstance(block.get("content"), list) else ()
        marks += [one for one in (*inner, block) if one.get("cache_control")]
    if len(marks) > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
    if any(_is_thinking(one) or not one.get("text", "x") for one in marks):
        yield "cache_control cannot be set for thinking or empty text blocks"
    lives = [one["cache_control"].get("ttl", "5m") for one in marks]
    if "5m" in lives and "1h" in lives[lives.index("5m") :]:
        yield "cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block."


def event(name: str, **members: Any) -> bytes:
    """One event of a stream."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **members})}\n\n".encode()


def _deltas(block: Block) -> Iterator[Block]:
    """The deltas that add up to a block."""
    if block["type"] == "text":
        for at in range(0, len(block["text"]), 7):
            yield {"type": "text_delta", "text": block["text"][at : at + 7]}
    elif block["type"] == "thinking":
        for at in range(0, len(block["thinking"]), 9):
            yield {"type": "thinking_delta", "thinking": block["thinking"][at : at + 9]}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif "input" in block:
        raw = json.dumps(block["input"])
        yield {"type": "input_json_delta", "partial_json": ""}
        for at in range(0, len(raw) if block["input"] else 0, 5):
            yield {"type": "input_json_delta", "partial_json": raw[at : at + 5]}


_EMPTY: dict[str, Block] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}


def events(message: Mapping[str, Any]) -> list[bytes]:
    """A whole stream of this message."""
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    begun.pop("context_management", None)
    out = [event("message_start", message=begun), event("ping")]
    for n, block in enumerate(message["content"]):
        empty = _EMPTY.get(block["type"], {"input": {}} if "input" in block else {})
        out.append(event("content_block_start", index=n, content_block={**block, **empty}))
        out += [event("content_block_delta", index=n, delta=delta) for delta in _deltas(block)]
        out.append(event("content_block_stop", index=n))
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    more = {"context_management": message["context_management"]} if "context_management" in message else {}
    out.append(event("message_delta", delta=ended, usage={"output_tokens": usage["output_tokens"]}, **more))
    return [*out, event("message_stop")]
