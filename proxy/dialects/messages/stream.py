"""A typed view of the events of a Messages stream, and of what an answer reports about itself.

The view requires little and is never serialised again: bytes that go on keep what it does not know. Events that the
fast decoder refuses are read again by the standard library, as chunks of chat completions are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.dialects.completions.stream import read_json, repair_surrogates, write_json
from proxy.dialects.usage import read_count

RUNNABLE_REASONS = frozenset({"tool_use", "end_turn"})
"""Stop reasons of an answer whose calls are complete. With any other, hidden calls are not run."""
CUT_REASONS = frozenset({"max_tokens", "model_context_window_exceeded", "refusal"})
"""Stop reasons of an answer that was cut off."""
INVALID_JSON = "INVALID_JSON"
"""Member that carries the text of an input that is no JSON object, as Anthropic documents it for returned calls."""

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_ERROR_TYPES = {"upstream_timeout": "timeout_error", "unavailable": "overloaded_error"}
_LAST_ROUND = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")


class MessagesEvent(msgspec.Struct, frozen=True):
    """One event. Members that its kind does not have are None."""

    type: str = ""
    index: int | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    context_management: Any = None
    error: Any = None


_EVENT = msgspec.json.Decoder(MessagesEvent)


def read_event(data: bytes) -> MessagesEvent | None:
    """Return the event in these data; None if they hold none."""
    try:
        return _EVENT.decode(data)
    except (ValueError, RecursionError):
        value = read_json(data)
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return None
    objects = {
        name: one for name in ("content_block", "delta", "message", "usage") if isinstance(one := value.get(name), dict)
    }
    others = {name: value.get(name) for name in ("context_management", "error")}
    return MessagesEvent(type=value["type"], index=read_count(value.get("index")), **others, **objects)


class BlockBuilder:
    """One content block while its deltas come. block: its members so far, without what `build` adds."""

    __slots__ = ("_citations", "_input", "_texts", "block")

    def __init__(self, block: Mapping[str, Any]) -> None:
        self.block = dict(block)
        self._texts: dict[str, list[str]] = {}
        self._input: list[str] = []
        self._citations: list[Any] = []

    def add(self, delta: Mapping[str, Any]) -> int:
        """Add a delta. Return the number of characters that it adds.

        Texts grow, lists are extended, a signature is replaced. Deltas of unknown kinds follow the same rules.
        """
        size = 0
        for name, value in delta.items():
            if name == "type" or value is None:
                continue
            if name == "partial_json" and isinstance(value, str):
                self._input.append(value)
            elif name == "citation":
                known = self.block.get("citations")
                if known is not self._citations:  # a list of an event, which stays as it is
                    self._citations = self.block["citations"] = [*(known or ())]
                self._citations.append(value)
            elif name != "signature" and isinstance(value, str) and isinstance(self.block.get(name), str | None):
                self._texts.setdefault(name, []).append(value)
            else:
                self.block[name] = value
            size += len(value) if isinstance(value, str) else len(write_json(value))
        return size

    @property
    def kind(self) -> str:
        """The block's type."""
        kind = self.block.get("type")
        return kind if isinstance(kind, str) else ""

    @property
    def text(self) -> str:
        """The text so far."""
        text = self.block.get("text")
        return (text if isinstance(text, str) else "") + "".join(self._texts.get("text", ()))

    @property
    def arguments(self) -> str:
        """The input of a call as the model wrote it."""
        written = "".join(self._input)
        return written if written.strip() else write_json(self.block.get("input") or {}).decode()

    def build(self) -> bytes:
        """Return the block as JSON, as a client would send it back."""
        block = dict(self.block)
        for name, pieces in self._texts.items():
            first = block.get(name)
            block[name] = repair_surrogates((first if isinstance(first, str) else "") + "".join(pieces))
        if self._input and "".join(self._input).strip():
            block["input"] = _read_input("".join(self._input))
        return write_json(block)


def _read_input(written: str) -> Any:
    """The input of a call; its text in its own member if it is no object."""
    try:
        value = msgspec.json.decode(written)
    except (ValueError, RecursionError):
        value = read_json(written.encode("utf-8", "replace"))
    return msgspec.Raw(written.encode()) if isinstance(value, dict) and _is_plain(written) else {INVALID_JSON: written}


def _is_plain(written: str) -> bool:
    try:
        msgspec.json.decode(written)
    except (ValueError, RecursionError):
        return False
    return True


def merge_usage(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return usage as a client adds it up: a later report overwrites what it names."""
    later = {name: value for name, value in (after or {}).items() if value is not None}
    return {**(before or {}), **later}


def add_spent_usage(usage: Mapping[str, Any], spent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of an answer of several rounds: output adds up, input is that of the last round.

    usage: of the last round. spent: the usage of the rounds before, added up.
    """
    if not spent:
        return dict(usage)
    made = {name: value for name, value in usage.items() if name != "output_tokens"}
    output = (read_count(spent.get("output_tokens")) or 0) + (read_count(usage.get("output_tokens")) or 0)
    return {**{name: spent[name] for name in spent if name not in (*_LAST_ROUND, "output_tokens")}, **made,
            "output_tokens": output}  # fmt: skip


def read_finish_reason(stop_reason: str) -> str:
    """Return a stop reason under the name of chat completions; unknown ones stay as they are."""
    return _FINISH.get(stop_reason, stop_reason)


def choose_stop_reason(stop_reason: str, shown_calls: int) -> str:
    """Return the stop reason for the client: `end_turn` where all calls that it asks for are hidden."""
    return "end_turn" if stop_reason == "tool_use" and not shown_calls else stop_reason


def make_event(name: str, members: Mapping[str, Any]) -> bytes:
    """Return one event of the proxy."""
    return b"event: " + name.encode() + b"\ndata: " + write_json({"type": name, **members}) + b"\n\n"


def make_error_body(message: str, code: str) -> bytes:
    """Return an error of the proxy as a body. code: the proxy's own code, which the message begins with."""
    return write_json({"type": "error", "error": _make_error(message, code)})


def make_error_event(message: str, code: str) -> bytes:
    """Return an error of the proxy as an event within a stream."""
    return make_event("error", {"error": _make_error(message, code)})


def _make_error(message: str, code: str) -> dict[str, str]:
    return {"type": _ERROR_TYPES.get(code, "api_error"), "message": f"{code}: {message}"}
