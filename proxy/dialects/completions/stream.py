"""A typed view of one chunk, which is read and never serialised again.

Providers differ and change, so the view requires little. The fast decoder refuses a lone surrogate, NaN, bytes that are
not UTF-8, and a number as id. Such data is read again by the standard library, which accepts more. Data that the
standard library also refuses is not a chunk, and its bytes go on unchanged.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET

from proxy.chat import json_spans
from proxy.dialects.usage import read_count

MAX_ERROR_CHARS = 2000


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One choice of a chunk. The delta's fields are left as they are: unknown fields belong to the message too."""

    index: int = 0
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One chat.completion.chunk, or an error in its place. `usage` and `error` distinguish null from missing."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: Any = UNSET
    error: Any = UNSET
    object: str | None = None
    message: Any = None
    service_tier: Any = None

    @property
    def has_failed(self) -> bool:
        """True if upstream reports in the stream that it has failed."""
        return (self.error is not UNSET and bool(self.error)) or self.object == "error"


_CHUNK = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk | None:
    """Return the chunk in an event's data; None if it holds none."""
    try:
        return _CHUNK.decode(data)
    except (ValueError, RecursionError):
        return _read_lenient_chunk(read_json(data))


def read_any_json(data: bytes) -> Any:
    """Return JSON that msgspec or Python's own reader accepts; None if neither accepts it."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return read_json(data)


def read_json(data: bytes) -> Any:
    """Return JSON that msgspec refuses but Python's own reader accepts; None if neither accepts it."""
    try:
        return json.loads(data.decode("utf-8", "replace").lstrip("\ufeff"))
    except (ValueError, RecursionError):
        return None


def write_json(value: Any) -> bytes:
    """Return JSON for a value read by either reader. Surrogates are written as the escapes that they came in as.

    Raises RecursionError for a value nested deeper than the interpreter allows.
    """
    try:
        return msgspec.json.encode(value)
    except (ValueError, TypeError, OverflowError):
        return json.dumps(value, separators=(",", ":"), default=_decode_raw).encode()


def set_json(data: bytes, name: str, value: Any) -> bytes:
    """Return an object with another value of one member. One that cannot be cut with certainty is written again."""
    try:
        return json_spans.set_member(data, name, write_json(value))
    except ValueError:
        return write_json({**read_json(data), name: value})


def _decode_raw(value: Any) -> Any:
    if not isinstance(value, msgspec.Raw):
        raise TypeError(f"{type(value)} has no form in JSON")
    return read_json(bytes(value))


def find_answer_object(value: Any) -> dict[str, Any] | None:
    """The object of a decoded answer or chunk; None if it is neither."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "error" in value[0]:
        value = value[0]  # Gemini's compatible surface wraps its errors in a list
    return value if isinstance(value, dict) else None


def _read_lenient_chunk(given: Any) -> Chunk | None:
    value = find_answer_object(given)
    if value is None:
        return None
    choices = value.get("choices")
    return Chunk(
        _as_string(value.get("id")),
        _as_string(value.get("model")),
        [_read_choice(one) for one in choices if isinstance(one, dict)] if isinstance(choices, list) else None,
        value.get("usage", UNSET),
        value.get("error", UNSET),
        _as_string(value.get("object")),
        value.get("message"),
        value.get("service_tier"),
    )


def _read_choice(value: dict[str, Any]) -> Choice:
    delta = value.get("delta")
    delta = delta if isinstance(delta, dict) else None
    return Choice(read_count(value.get("index")) or 0, delta, _as_string(value.get("finish_reason")))


def _as_string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_error_text(chunk: Chunk) -> str | None:
    """Return the error that upstream reports, in words; None if the chunk is not an error."""
    if not chunk.has_failed:
        return None
    return describe_error(chunk.error if chunk.error is not UNSET and chunk.error else chunk.message)


def describe_error(error: Any) -> str:
    """Return an error that upstream reports, in words: its message, or its JSON."""
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        error = error["message"]
    return repair_surrogates(error if isinstance(error, str) else write_json(error).decode())[:MAX_ERROR_CHARS]


def repair_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined and lone ones replaced: servers cut characters in two."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def make_error_event(message: str, code: str) -> bytes:
    """An error in a stream, in the form that every client raises cleanly."""
    body = {"error": {"message": message, "type": "upstream_error", "param": None, "code": code}}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
