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

_EXACT = 1 << 53
"""Counts above this are not token counts, and would not fit a database column."""
_ERROR_MAX = 2000


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

    @property
    def has_failed(self) -> bool:
        """True if upstream reports in the stream that it has failed."""
        return (self.error is not UNSET and bool(self.error)) or self.object == "error"


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the provider reports them; None if it does not report one, which is not zero."""

    prompt: int
    completion: int
    total: int
    cached: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None


_CHUNK = msgspec.json.Decoder(Chunk)


def read_chunk(data: bytes) -> Chunk | None:
    """Return the chunk in an event's data; None if it holds none."""
    try:
        return _CHUNK.decode(data)
    except (ValueError, RecursionError):
        return _lenient(read_json(data))


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
        return json.dumps(value, separators=(",", ":")).encode()


def _lenient(value: Any) -> Chunk | None:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "error" in value[0]:
        value = value[0]  # Gemini's compatible surface wraps its errors in a list
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    return Chunk(
        _string(value.get("id")),
        _string(value.get("model")),
        [_choice(one) for one in choices if isinstance(one, dict)] if isinstance(choices, list) else None,
        value.get("usage", UNSET),
        value.get("error", UNSET),
        _string(value.get("object")),
        value.get("message"),
    )


def _choice(value: dict[str, Any]) -> Choice:
    delta = value.get("delta")
    delta = delta if isinstance(delta, dict) else None
    return Choice(read_count(value.get("index")) or 0, delta, _string(value.get("finish_reason")))


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_count(value: Any) -> int | None:
    """Return the value as a count; None if it is not a number from 0 to `_EXACT`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _EXACT:
        return None
    return int(value)


def read_usage(value: Any) -> Usage | None:
    """Return the token counts in a usage object, under the names that providers give them; None if there are none."""
    if not isinstance(value, dict):
        return None
    prompt, completion = read_count(value.get("prompt_tokens")), read_count(value.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    of_prompt, of_completion = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    of_prompt = of_prompt if isinstance(of_prompt, dict) else {}
    of_completion = of_completion if isinstance(of_completion, dict) else {}
    total = read_count(value.get("total_tokens"))
    return Usage(
        prompt or 0,
        completion or 0,
        (prompt or 0) + (completion or 0) if total is None else total,
        _first(
            of_prompt.get("cached_tokens"),
            value.get("prompt_cache_hit_tokens"),  # DeepSeek
            value.get("cache_read_input_tokens"),  # Anthropic behind LiteLLM
            value.get("cached_tokens"),  # Moonshot
        ),
        _first(of_prompt.get("cache_write_tokens"), value.get("cache_creation_input_tokens")),
        _first(of_completion.get("reasoning_tokens")),
    )


def _first(*values: Any) -> int | None:
    return next((found for found in map(read_count, values) if found is not None), None)


def read_error_text(chunk: Chunk) -> str | None:
    """Return the error that upstream reports, in words; None if the chunk is not an error."""
    if not chunk.has_failed:
        return None
    error = chunk.error if chunk.error is not UNSET and chunk.error else chunk.message
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        error = error["message"]
    return repair_surrogates(error if isinstance(error, str) else write_json(error).decode())[:_ERROR_MAX]


def repair_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined and lone ones replaced: servers cut characters in two."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def make_error_event(message: str, code: str) -> bytes:
    """An error in a stream, in the form that every client raises cleanly (WIRE.md 1.8)."""
    body = {"error": {"message": message, "type": "upstream_error", "param": None, "code": code}}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
