"""`POST /v1/compress`: reading the rows of a gateway into a chat request, and writing the rows back.

A gateway sends the messages that it wants shortened, and puts the answer's rows in their places. So an answer has the
same number of rows in the same order. Some gateways withhold rows: every message of the assistant, the system prompt
and the newest user message. Such rows are completed for the pipeline:

- Each tool result gets its own call in front of it. A result without its call would be no step.
- User rows are read as context, which is never edited and is no part of the identity. The newest user message is
  withheld at first and stands between older rows one request later. The chain of the results must not move with it.

Rows with a message of the assistant among them are a whole conversation, and are read as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import MAX_TOP_LEVEL_KEYS, SizeLimits
from proxy.dialects import spans
from proxy.dialects.completions.request import read_message, replace_text
from proxy.dialects.written_history import OutgoingMessage
from proxy.errors import NotManaged

UNKNOWN_TOOL = "unknown_tool"
"""Name of the tool in a call that stands in for a withheld one, if the result does not name its tool."""


@dataclass(frozen=True, slots=True)
class CompressRequest:
    """The rows of a gateway. See `proxy.dialects.base.WireRequest`."""

    body: bytes
    chat_body: bytes
    bound: tuple[str | None, ...]
    messages_span: spans.Span
    """Span of the array of rows."""
    rows: tuple[spans.Span, ...]
    places: tuple[int, ...]
    """For each row the index of its canonical message."""
    is_context: tuple[bool, ...]
    """For each row True if it is read as context, and stays as received."""
    is_cut: bool = False
    """False: nothing is withheld from a gateway."""
    memo: None = None
    canonical: tuple[bytes, ...] = ()
    """None and (): nothing is kept from one request to the next."""

    def read_rows(self) -> list[bytes]:
        """The rows as received."""
        return [self.body[start:end] for start, end in self.rows]

    def write(self, messages: Sequence[OutgoingMessage], *, tools: bytes = b"") -> bytes:  # noqa: ARG002  the protocol's
        """The body with these messages in place of its rows, and no row less or more.

        A row that leaves the prompt keeps its place with a stand-in for its text. An assistant's message keeps its
        calls, since the results behind it stay. Messages of the proxy's own have no place here and are left out.
        """
        written = {index: raw for index, raw in messages if index is not None}
        items: list[tuple[int | None, bytes]] = []
        for row, original in enumerate(self.read_rows()):
            raw = written.get(self.places[row])
            if self.is_context[row]:
                raw = original
            elif raw is None:
                raw = _write_stand_in(original)
            elif json_spans.find_member(original, "tool_calls") and not json_spans.find_member(raw, "tool_calls"):
                raw = original
            items.append((row, raw))
        start, end = self.messages_span
        return self.body[:start] + spans.rewrite_array(self.body, (start, end), self.rows, items) + self.body[end:]


def read_compress_request(body: bytes, limits: SizeLimits | None = None) -> CompressRequest:
    """The request in this body. Raises NotManaged: `unreadable` or `shape` for a body that is not understood, `size`
    over the limits, `rows` if no row can be shortened."""
    if limits is not None:
        limits.check_body(body)
    found = json_spans.find_members(body, None if limits is None else MAX_TOP_LEVEL_KEYS)
    members = {one.key: (one.start, one.end) for one in found or ()}
    span = members.get("messages")
    if span is None:
        raise NotManaged("shape", "no messages")
    rows = spans.find_history(body, span, limits, "messages is no list, or an empty one")
    messages = [read_message(body[start:end]) for start, end in rows]
    roles = {message.role for message in messages}
    if roles.isdisjoint(("assistant", "tool")):
        raise NotManaged("rows", "neither answers nor results are among the rows")
    is_partial = "assistant" not in roles
    chat: list[bytes] = []
    places: list[int] = []
    is_context = tuple(is_partial and message.role != "tool" for message in messages)
    for message, stays in zip(messages, is_context, strict=True):
        raw = json_spans.set_member(message.raw, "role", b'"system"') if stays else message.raw
        if is_partial and not stays:
            chat.append(_make_call(message.call_id or "", raw))
        places.append(len(chat))
        chat.append(raw)
    start, end = members.get("model", (0, 0))
    model = json_spans.decode_string(body[start:end]) if end else None
    chat_body = b'{"model":' + spans.encode_text(model or "") + b',"messages":[' + b",".join(chat) + b"]}"
    return CompressRequest(body, chat_body, (None,) * len(chat), span, rows, tuple(places), is_context)


def _make_call(call_id: str, result: bytes) -> bytes:
    """The call that stands in for the withheld one of a result: the same bytes with every request.

    The id is its argument: two calls with the same arguments would look like a result that was fetched again.
    """
    name = json_spans.decode_string(json_spans.read_value(result, "name") or b"") or UNKNOWN_TOOL
    arguments = msgspec.json.encode({"call": call_id}).decode()
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return msgspec.json.encode({"role": "assistant", "content": None, "tool_calls": [call]})


def _write_stand_in(original: bytes) -> bytes:
    """The row with a stand-in for its text. A row without text, or with calls, stays as received."""
    if json_spans.find_member(original, "tool_calls"):
        return original
    try:
        return replace_text(original, spans.EMPTY_STAND_IN)
    except ValueError:
        return original
