"""Responses over WebSocket: a `response.create` frame as the body of a request, and the events that answer it.

A connection sends each item once. A frame names the response before it and has only the items since. What went over the
connection is put in front of them here, so that a request over HTTP has the whole history. A frame with a `stream_id`
belongs to a lane: responses of several lanes are made at the same time, and each event names its lane.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans

_OWN_MEMBERS: Final = ("type", "generate", "previous_response_id", "input", "stream", "stream_id")
"""Members of a frame that a request over HTTP has not, or not in this form."""
_ENDS: Final = ("response.completed", "response.incomplete")
"""Types of the events that end a response whose items a later frame may build on."""
_KEPT: Final = (b"response.output_item.done", *(kind.encode() for kind in _ENDS))
MAX_ITEM_BYTES: Final = 16 << 20
"""Memory of the items of one answer that are kept for a later frame."""
ITEM_BYTES: Final = 100
"""Memory of an item in addition to its bytes, which may be two."""
MAX_OUTPUT_VALUES: Final = 100_000
"""JSON values of a response whose output is read."""


_HEADER_PREFIX: Final = "ws_request_header_"
_HEADER: Final = re.compile(r"x-(?:openai|codex)-[a-z0-9-]+|traceparent|tracestate")
"""Names of headers that a frame may set: those of Codex, and of tracing. None of them lets a client in."""


class UnknownResponse(Exception):
    """A frame names a response that did not go over its connection and is stored nowhere."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The items that went over a connection up to a response."""

    response_id: str = ""
    items: bytes = b""
    """The items of the input and of the response, with commas between."""


@dataclass(frozen=True, slots=True)
class CreateFrame:
    """A `response.create` frame."""

    body: bytes
    """The body of the request over HTTP."""
    items: bytes
    """The items of its input, with commas between."""
    headers: list[tuple[bytes, bytes]]
    """Headers that the client would send with this request over HTTP."""
    generates: bool
    """False for a warm-up, which asks for no answer."""
    model: str
    completed: bytes = b""
    """The name of the response whose items were put in front, as JSON; b"" if none were."""
    is_whole: bool = True
    """False if the provider holds items in front of these: a later frame cannot be completed with them."""


def read_lane(frame: bytes, max_values: int) -> bytes:
    """The `stream_id` of a frame as JSON, or b"". max_values: limit on the JSON values in it."""
    if b'"stream_id"' not in frame or json_spans.has_more_values(frame, max_values):
        return b""  # nearly all: they are read once, when it is their turn
    span = _find_path(frame, "stream_id")
    raw = b"" if span is None else frame[slice(*span)]
    return raw if raw.startswith(b'"') else b""


def name_lane(event: bytes, lane: bytes) -> bytes:
    if not lane or event[:1] != b"{":
        return event
    return b'{"stream_id":%b%b%b' % (lane, b"" if event[1:].lstrip().startswith(b"}") else b",", event[1:])


def read_create(frame: bytes, carried: Iterable[Carried], max_values: int) -> CreateFrame:
    """The request in a frame. carried: what went over its connection. max_values: limit on the JSON values in it.

    Raises UnknownResponse, and ValueError or RecursionError if the frame is not understood.
    """
    # A frame has to be decoded, so that there is no other way for one with too many values.
    if json_spans.has_more_values(frame, max_values):
        raise ValueError(f"the frame has more than {max_values} JSON values")
    frame_members = json_spans.find_members(frame)
    if frame_members is None:
        raise ValueError("the frame is no JSON object")
    view = memoryview(frame)
    raw = {one.key: view[one.start : one.end] for one in frame_members}
    values = {name: spans.read_any(raw[name]) for name in ("type", "generate", "previous_response_id", "model", "store")
              if name in raw}  # fmt: skip
    if values.get("type") != "response.create":
        raise ValueError(f"the frame's type is {str(values.get('type'))[:40]!r}, not 'response.create'")
    items = _read_items(bytes(raw["input"])) if "input" in raw else b""
    before = values.get("previous_response_id")
    completed, is_whole = b"", raw.get("conversation", b"null") == b"null"
    members = [(name, value) for name, value in raw.items() if name not in _OWN_MEMBERS]
    known = next((one for one in carried if one.response_id == before), None)
    if known is not None:
        items = b",".join(one for one in (known.items, items) if one)
        completed = bytes(raw["previous_response_id"])
    elif before is not None:
        if values.get("store") is False:
            raise UnknownResponse(str(before))
        members.append(("previous_response_id", raw["previous_response_id"]))  # stored at the provider
        is_whole = False
    named = [piece for name, value in members for piece in (spans.encode_text(name), b":", value, b",")]
    body = b"".join((b"{", *named, b'"input":[', items, b'],"stream":true}'))
    headers = _read_headers(raw.get("client_metadata"))
    generates, model = values.get("generate") is not False, str(values.get("model") or "")
    return CreateFrame(body, items, headers, generates, model, completed, is_whole)


def _read_headers(raw: memoryview | None) -> list[tuple[bytes, bytes]]:
    """The headers in `client_metadata`. Codex names them there, since a connection has headers only once."""
    metadata = None if raw is None else spans.read_any(raw)
    headers = []
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        header = name.removeprefix(_HEADER_PREFIX).replace("_", "-").lower()
        if name.startswith(_HEADER_PREFIX) and isinstance(value, str) and _HEADER.fullmatch(header):
            headers.append((header.encode(), "".join(one for one in value if " " <= one <= "~").encode()))
    return headers


def _read_items(raw: bytes) -> bytes:
    if raw == b"null":
        return b""
    if raw[:1] == b'"':
        return b'{"type":"message","role":"user","content":' + raw + b"}"
    if raw[:1] != b"[":
        raise ValueError("a value that should be a list is none")
    return raw[1:-1].strip()


@dataclass(slots=True)
class AnswerItems:
    """Collects the items of a response from its events. Of too many, none are kept: a later frame that builds on them
    is refused, and the client sends its history again."""

    response_id: str = ""
    items: list[bytes] = field(default_factory=list)
    is_complete: bool = False
    size: int = 0
    """Memory of all items that came."""

    def add(self, event: bytes) -> None:
        """Take in one event. An event that cannot be read is left to the client."""
        if not any(kind in event for kind in _KEPT):
            return  # nearly all are deltas
        kind = _read_path(event, "type")
        if kind == "response.output_item.done":
            span = _find_path(event, "item")
            self._keep_items([event[slice(*span)]] if span is not None else [])
        elif kind in _ENDS:
            self.response_id, self.is_complete = str(_read_path(event, "response", "id") or ""), True
            span = _find_path(event, "response", "output")
            if self.size or span is None:
                return
            if json_spans.has_more_values(event, MAX_OUTPUT_VALUES):
                self.size = MAX_ITEM_BYTES + 1
            else:
                self._keep_items([event[start:end] for start, end in spans.read_elements(event, span)])

    def _keep_items(self, items: list[bytes]) -> None:
        self.size += sum(len(item) + ITEM_BYTES for item in items)
        if self.size <= MAX_ITEM_BYTES:
            self.items += items
        else:
            self.items.clear()

    def carry(self, frame: CreateFrame) -> Carried | None:
        """The items of the connection with this response, none if the provider holds some of them or there are too
        many; None if it did not end as it should."""
        if not self.is_complete:
            return None
        if not frame.is_whole or self.size > MAX_ITEM_BYTES:
            return Carried()
        return Carried(self.response_id, b",".join(one for one in (frame.items, *self.items) if one))


def _find_path(raw: bytes, *path: str) -> spans.Span | None:
    """The span of a member, by the keys on the way to it."""
    span: spans.Span | None = None
    try:
        for key in path:
            span = spans.read_members(raw, span).get(key)
            if span is None:
                return None
    except (ValueError, RecursionError):
        return None
    return span


def _read_path(raw: bytes, *path: str) -> Any:
    span = _find_path(raw, *path)
    return None if span is None else spans.read_any(raw[slice(*span)])


def make_warm_up(response_id: str, model: str, created_at: int) -> list[bytes]:
    """The events that answer a warm-up: a response without output, which no model has made."""
    none = {"cached_tokens": 0}, {"reasoning_tokens": 0}
    usage = {"input_tokens": 0, "input_tokens_details": none[0], "output_tokens": 0, "output_tokens_details": none[1],
             "total_tokens": 0}  # fmt: skip
    response: dict[str, Any] = {
        "id": response_id, "object": "response", "created_at": created_at, "status": "in_progress",
        "model": model, "output": [], "usage": None, "error": None, "incomplete_details": None,
    }  # fmt: skip
    done = {**response, "status": "completed", "usage": usage}
    return [
        msgspec.json.encode({"type": kind, "sequence_number": n, "response": value})
        for n, (kind, value) in enumerate((("response.created", response), ("response.completed", done)))
    ]


def make_error_frame(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """The frame of an error that came as an answer over HTTP. headers: those that the client may obey. A gateway's code
    may be a number: Codex does not read such a frame, and waits for the next one."""
    error = _read_object(body).get("error")
    if not isinstance(error, dict):
        text = error if isinstance(error, str) else body[:1000].decode("utf-8", "replace")
        error = {"type": "server_error" if status >= 500 else "invalid_request_error", "message": text}
    error = {"param": None, "code": None, **error}
    for name in ("type", "code", "message"):
        if not isinstance(error.get(name, ""), str | None):
            error[name] = msgspec.json.encode(error[name]).decode()
    frame: dict[str, Any] = {"type": "error", "status": status, "error": error}
    if headers:
        frame["headers"] = dict(headers)
    return msgspec.json.encode(frame)


def convert_event(event: bytes) -> bytes:
    """The frame for an event of a stream: the event itself, except for an error. In a stream an error has no status,
    and the end of the stream ends the response. A client of a connection goes by the status, and would wait."""
    if b'"error"' not in event or _read_path(event, "type") not in ("error", None):
        return event
    value = _read_object(event)
    error = value.get("error", value and {**value, "type": "server_error"})
    if not error:
        return event
    numbers = (value.get("status"), value.get("code"), error.get("code") if isinstance(error, dict) else None)
    status = next((one for one in numbers if isinstance(one, int) and 400 <= one < 600), 500)
    return make_error_frame(status, msgspec.json.encode({"error": error}))


def _read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in these bytes; an empty one if there is none."""
    try:
        value = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def refuse_steering(frame: bytes, max_values: int) -> bytes | None:
    """The event that gives a client back what a `response.steer` frame brings for a response that is being made; None
    for every other frame. The request over HTTP that makes the response takes nothing more. max_values: as above."""
    if b'"response.steer"' not in frame or json_spans.has_more_values(frame, max_values):
        return None
    if _read_path(frame, "type") != "response.steer":
        return None
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "A response over this connection cannot be steered. Send the input with the next response.create.",
    }
    steer = {
        name: msgspec.Raw(frame[slice(*span)])
        for name in ("previous_response_id", "input")
        if (span := _find_path(frame, name)) is not None
    }
    return msgspec.json.encode({"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer})


def is_interruption(frame: bytes, max_values: int) -> bool:
    """True for a `response.interrupt` frame, by which a client wants to be heard before a response has ended.

    max_values: as above.
    """
    if b'"response.interrupt"' not in frame or json_spans.has_more_values(frame, max_values):
        return False
    return bool(_read_path(frame, "type") == "response.interrupt")


def make_unknown_response_frame(response_id: str) -> bytes:
    """The frame at which a client sends its whole history again."""
    error = {
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "message": f"Previous response with id '{response_id}' not found.",
        "param": "previous_response_id",
    }
    return msgspec.json.encode({"type": "error", "status": 400, "error": error})


def make_events(body: bytes) -> list[bytes]:
    """The events of a response that came in one body."""
    return [
        b'{"type":"%b","sequence_number":%d,"response":%b}' % (kind, n, body)
        for n, kind in enumerate((b"response.created", b"response.completed"))
    ]
