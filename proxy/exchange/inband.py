"""Commands in a conversation itself: taken out of the request, and answered by the proxy in the client's format.

The client resends commands with its history, so every request is checked for them. A command and its reply are removed
before anything is identified, stored or planned. To the conversation they do not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from proxy.chat import chain, json_spans
from proxy.chat.group import follows_action
from proxy.chat.message import Message, Request
from proxy.dialects.base import WireRequest
from proxy.dialects.cloud_paths import add_path_values, find_plain_path
from proxy.dialects.completions.request import write_request
from proxy.errors import NotManaged, StoreUnavailable
from proxy.exchange.dialect import DIALECTS
from proxy.exchange.prepare_request import find_session_name, read_wire_request
from proxy.exchange.services import LARGE_BODY_BYTES, Headers, Incoming, ResponseWriter, Services
from proxy.sessions import locate
from proxy.upstream.demo_dialects import DemoAnswer, DemoDialect, DemoUsage, find_demo_dialect
from proxy.upstream.script import ScriptedTurn

COMMAND_WORDS = ("/context", "/undo", "/message", "/messages", "/session")
"""First words of the commands. proxy/operator/actions.py has the commands."""
MAX_COMMAND_CHARS = 200
"""Limit in characters on a command: a longer line is no command."""
REPLY_MARK = "[context-proxy]"
"""First characters of every reply, by which a reply is known when the client resends it."""
PIECE_CHARS = 400
"""Characters of a streamed reply in one event."""
_FIRST_WORDS = tuple([word] for word in COMMAND_WORDS)
_ENCODED_WORDS = tuple(word.encode() for word in COMMAND_WORDS)
_NO_USAGE = DemoUsage(0, 0, 0)
_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


class _Part(msgspec.Struct):
    type: str = ""


@dataclass(frozen=True, slots=True)
class ExtractedCommand:
    """A request without commands."""

    incoming: Incoming
    command_line: str | None = None
    """The command with which it ends, None where it ends with none."""
    request: Request | None = None
    """The request as read, where there is a command."""
    messages: tuple[Message, ...] = ()
    """The messages that are left."""
    wire_request: WireRequest | None = None
    """The request in its own format; None for chat completions."""


async def extract_command(services: Services, incoming: Incoming) -> ExtractedCommand:
    """Return the request without its commands and their replies; the request itself where it has none, or cannot be
    read. A client that lets the provider store its answers would name the reply later, which no provider has: its
    commands are no commands."""
    dialect = DIALECTS[incoming.dialect]
    if dialect.returns_rows or not any(word in incoming.body for word in _ENCODED_WORDS):
        return ExtractedCommand(incoming)
    try:
        wire_request = await read_wire_request(services, dialect, incoming)
        if wire_request is not None and dialect.keeps_answer(wire_request):
            return ExtractedCommand(incoming)
        body = incoming.body if wire_request is None else wire_request.chat_body
        if len(body) < LARGE_BODY_BYTES:
            request, _ = services.message_cache.get_request(body)
        else:
            request, _ = await asyncio.to_thread(services.message_cache.get_request, body)
        if not request.model:
            request = add_path_values(request, incoming.path)
        remaining = list(drop_commands(request.messages))
        line = _find_command(request.messages)
        if line is not None:
            others = tuple(m for m in remaining if m is not request.messages[-1])
            return ExtractedCommand(incoming, line, request, others, wire_request)
        if len(remaining) == len(request.messages):
            return ExtractedCommand(incoming)
        if wire_request is None:
            return ExtractedCommand(replace(incoming, body=write_request(request, [m.raw for m in remaining])))
        kept = set(map(id, remaining))
        body = wire_request.write([(n, m.raw) for n, m in enumerate(request.messages) if id(m) in kept])
        return ExtractedCommand(replace(incoming, body=body, encoded=None))
    except (NotManaged, ValueError):
        return ExtractedCommand(incoming)  # the planner meets the same error, and passes the request through


def drop_commands(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages that are neither commands nor replies to them. A line that the model answered was no command:
    the user wrote it to the model, before commands were switched on."""
    skip = False
    for n, message in enumerate(messages):
        if skip and message.role == "assistant":
            skip = False
            continue
        if _is_command(messages, n):
            after = next((messages[k] for k in range(n + 1, len(messages)) if not messages[k].is_system), None)
            if after is None or after.role == "user":
                continue
            if after.role == "assistant" and is_reply(after.text):
                skip = True
                continue
        yield message


def _is_command(messages: Sequence[Message], n: int) -> bool:
    """True if messages[n] is a command. A tool's output is none, also where it comes as a user message."""
    message = messages[n]
    if message.role != "user" or message.call_id is not None or not message.derive(_has_command_line):
        return False
    after_reply = n > 0 and is_reply(messages[n - 1].text)
    return after_reply or not follows_action(messages, n)


def _has_command_line(message: Message) -> bool:
    """True for a user's text alone: a part of another type may quote anything, whether it has a text or not."""
    if message.media_count or not is_command_line(message.text):
        return False
    content = json_spans.read_value(message.raw, "content") or b""
    parts = msgspec.json.decode(content, type=list[_Part]) if content[:1] == b"[" else []
    return all(part.type == "text" for part in parts)


def is_command_line(text: str) -> bool:
    """True if a message is nothing but a command: one line that begins with one of `COMMAND_WORDS`. An unknown command
    after such a word is answered with help, and never goes upstream, since no other party knows its meaning."""
    line = text.strip()
    return "\n" not in line and len(line) <= MAX_COMMAND_CHARS and line.split(maxsplit=1)[:1] in _FIRST_WORDS


def is_reply(text: str) -> bool:
    """True if an assistant message is a reply of the proxy."""
    return text.startswith(REPLY_MARK)


def _find_command(messages: Sequence[Message]) -> str | None:
    """Return the command with which the request ends."""
    return messages[-1].text if messages and _is_command(messages, len(messages) - 1) else None


async def answer_command(services: Services, extracted: ExtractedCommand, out: ResponseWriter) -> None:
    """Run the command, and answer the client in the form that it asked for."""
    request, incoming = extracted.request, extracted.incoming
    if request is None or extracted.command_line is None:
        return
    headers = locate.decode_headers(incoming.headers)
    tenant = locate.find_tenant(headers, incoming.tenant, services.settings.identity)
    named = find_session_name(services, incoming, headers, request, extracted.wire_request)
    keys = chain.compute_keys(tenant, extracted.messages)
    session = ""
    try:
        place = await locate.find_session_and_branch(services.live_sessions, tenant, named, extracted.messages, keys)
        if place is None:
            text = f"{REPLY_MARK} Nothing was said in this conversation yet."
        else:
            session, branch = place
            is_shared = named is None and not await _owns_session(services, tenant, session, branch)
            text = await services.run_command(
                services, tenant, session, extracted.command_line, branch=branch, is_shared=is_shared
            )
    except StoreUnavailable as problem:
        text = f"{REPLY_MARK} {problem}"
    own: Headers = [(b"x-context-session", session.encode("utf-8", "replace"))] if session else []
    writer = find_demo_dialect(find_plain_path(f"{incoming.path}?{incoming.query.decode('latin-1')}"))
    if writer is None:
        await _reply(services, request, own, text, out)
    else:
        await _reply_in_dialect(writer, request, own, text, out)


async def _owns_session(services: Services, tenant: str, session: str, branch: str | None) -> bool:
    """True if the session has no other conversation than that of this branch: the client has named none."""
    record = await services.store.read_branch(tenant, session, branch) if branch is not None else None
    return record is not None and locate.owns_session(session, record.kind)


async def _reply_in_dialect(
    demo: DemoDialect, request: Request, headers: Headers, text: str, out: ResponseWriter
) -> None:
    """Send the reply as the demo model sends its answers, in the format of the request."""
    pieces = [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]
    answer = DemoAnswer(locate.make_id(), request.model, ScriptedTurn(text), pieces, is_cut=False, usage=_NO_USAGE)
    if request.stream:
        await out.start(200, [_EVENT_STREAM, *headers])
        for event in demo.write_events(answer):
            await out.write(event)
        await out.end()
        return
    made: Any = demo.write(answer)
    body = msgspec.json.encode([made] if demo.is_list else made)
    await _respond_json(out, headers, body)


async def _respond_json(out: ResponseWriter, headers: Headers, body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await out.respond(200, [(b"content-type", b"application/json"), length, *headers], body)


async def _reply(services: Services, request: Request, headers: Headers, text: str, out: ResponseWriter) -> None:
    name, created = f"chatcmpl-{locate.make_id()}", int(services.now())
    head = {"id": name, "created": created, "model": request.model}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    if not request.stream:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        body = msgspec.json.encode({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        await _respond_json(out, headers, body)
        return
    await out.start(200, [_EVENT_STREAM, *headers])
    for event in _stream_reply(head, text, usage if request.usage_wanted else None):
        await out.write(event)
    await out.end(b"data: [DONE]\n\n")


def _stream_reply(head: dict[str, object], text: str, usage: dict[str, int] | None) -> Iterator[bytes]:
    """Yield the reply as a stream: role, text in pieces, the end, and usage where it was asked for."""

    def event(choices: list[dict[str, object]], **more: object) -> bytes:
        body = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + msgspec.json.encode(body) + b"\n\n"

    silent = {} if usage is None else {"usage": None}
    yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], **silent)
    for at in range(0, len(text), PIECE_CHARS):
        delta = {"content": text[at : at + PIECE_CHARS]}
        yield event([{"index": 0, "delta": delta, "finish_reason": None}], **silent)
    yield event([{"index": 0, "delta": {}, "finish_reason": "stop"}], **silent)
    if usage is not None:
        yield event([], usage=usage)
