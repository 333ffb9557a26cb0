"""An assembled answer of the Gemini dialect: parts on the wire, one chat message for the packages above.

Its message is the canonical one that `proxy.dialects.gemini.contents` also makes of the client's next request, so the
answer is recognised there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.chat.message import Call
from proxy.dialects import spans
from proxy.dialects.completions.request import read_message
from proxy.dialects.completions.stream import describe_error, read_json, repair_surrogates, write_json
from proxy.dialects.gemini.contents import make_assistant_message
from proxy.dialects.gemini.stream import (
    RUNNABLE_REASONS,
    list_parts,
    read_finish_reason,
    read_reason,
    read_response,
)
from proxy.dialects.usage import read_usage
from proxy.errors import NotManaged
from proxy.stream.block_filter import BlockFilter
from proxy.stream.completions_answer import CAPTURE_LIMIT, AssembledAnswer

MAX_PARTS = 4096
"""Parts that are read in one answer, texts that follow each other counting once."""
_TEXT = ({"text"}, {"text", "thought"})


def split_body(body: bytes) -> list[bytes]:
    """The responses in a body: one object, or the list of chunks that a stream without events is."""
    if body.lstrip()[:1] != b"[":
        return [body]
    try:
        return [body[start:end] for start, end in spans.read_elements(body)]
    except ValueError:
        value = read_json(body)
        return [write_json(one) for one in value] if isinstance(value, list) else [body]


class GeminiAnswer(AssembledAnswer):
    """One answer. reason: the finish reason as upstream reports it. wire_usage: the newest usage object."""

    __slots__ = ("_joined", "_pieces", "reason", "wire_usage")

    def __init__(self, limit: int = CAPTURE_LIMIT) -> None:
        super().__init__(limit)
        self.reason = ""
        self.wire_usage: dict[str, Any] = {}
        self._joined: list[dict[str, Any]] = []
        self._pieces: list[str] = []
        """Texts of the last part that are not joined to it yet: to join each at once would copy all before it."""

    @classmethod
    def from_body(cls, body: bytes, limit: int = CAPTURE_LIMIT) -> GeminiAnswer:
        answer = cls(max(limit, len(body)))
        for one in split_body(body):
            answer.add_event(one)
        answer.is_done = bool(answer.finish_reasons)
        return answer

    def add_event(self, data: bytes) -> None:
        response = read_response(data)
        if response is None:
            self.unparsed += 1
        else:
            self.add_response(response)

    def add_response(self, response: Mapping[str, Any]) -> None:
        """Add one response as received."""
        self.add_facts(response)
        for part in list_parts(response):
            if isinstance(part, dict):
                self.add_part(part)
        self.set_reason(read_reason(response))

    def add_facts(self, response: Mapping[str, Any]) -> None:
        """Add all that a response reports beside its parts and its end. Of several rounds the first one's id counts."""
        names = [
            value if isinstance(value := response.get(name), str) else None for name in ("responseId", "modelVersion")
        ]
        self.id, self.model = self.id or names[0], self.model or names[1]
        if "error" in response:
            self.error = describe_error(response["error"])
        self.set_usage(response.get("usageMetadata"))

    def set_usage(self, usage: Any) -> None:
        """Put the newest usage in place of any before."""
        if isinstance(usage, dict):
            self.wire_usage = usage
            self.usage = read_usage(usage) or self.usage

    def set_reason(self, reason: str) -> None:
        """Note a finish reason; "" for none."""
        if reason:
            self.reason = reason
            has_calls = any("functionCall" in part for part in self.parts)
            self.finish_reasons[0] = read_finish_reason(reason, has_calls=has_calls)

    def add_part(self, part: dict[str, Any]) -> None:
        """Add a part, or join a text to the text before it."""
        size = sum(len(one) if isinstance(one, str) else len(write_json(one)) for one in part.values())
        last = self._joined[-1] if self._joined else {}
        text = part.get("text")
        if set(part) in _TEXT and set(last) == set(part) and last.get("thought") == part.get("thought"):
            if isinstance(text, str) and isinstance(last["text"], str) and self._reserve_chars(size):
                self._pieces.append(text)
            return
        if len(self._joined) >= MAX_PARTS or not self._reserve_chars(size + 100):
            self.is_capped = True
            return
        self.parts.append(dict(part))

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts so far, in their order."""
        if self._pieces:
            last = self._joined[-1]
            last["text"] = "".join((last["text"], *self._pieces))
            self._pieces = []
        return self._joined

    def build_message(self, index: int = 0) -> bytes | None:
        """Return the canonical message, as the client's next request gives it; None if there was none. An answer that
        has ended may be empty: all of it was withheld."""
        is_there = self.parts or self.finish_reasons
        return _convert(self.parts) if is_there and not index else None

    def build_round_message(self, headings: tuple[str, ...] = ()) -> bytes | None:
        """Return the canonical message without empty texts, which upstream would refuse if it got them back.

        headings: blocks under them are left out of the texts, unless nothing but thoughts would be left.
        """
        kept = [part for part in self._cut_parts(headings) if part != {"text": ""}] if headings else []
        if all(part.get("thought") is True for part in kept):
            kept = [part for part in self.parts if part != {"text": ""}]
        return _convert(kept) if kept else None

    def _cut_parts(self, headings: tuple[str, ...]) -> list[dict[str, Any]]:
        """The parts without these blocks. Texts are one up to a part that is neither text nor thought."""
        cut_parts: list[dict[str, Any]] = []
        block_filter, last = BlockFilter(headings), -1
        for part in [*self.parts, {}]:
            if isinstance(part.get("text"), str) and part.get("thought") is not True:
                cut_parts.append({**part, "text": block_filter.feed(part["text"])})
                last = len(cut_parts) - 1
                continue
            if last >= 0 and part.get("thought") is not True:
                rest = block_filter.end(cut=not part and self.reason not in RUNNABLE_REASONS)
                cut_parts[last]["text"] += rest
                block_filter, last = BlockFilter(headings), -1
            cut_parts.append(part)
        return cut_parts[:-1]

    @property
    def text(self) -> str:
        said = [part["text"] for part in self.parts if isinstance(part.get("text"), str) and not part.get("thought")]
        return repair_surrogates("".join(said))

    @property
    def calls(self) -> tuple[Call, ...]:
        message = _convert([part for part in self.parts if "functionCall" in part])
        return () if message is None else read_message(message).calls

    @property
    def choice_count(self) -> int:
        return 1 if self._joined or self.finish_reasons else 0


def _convert(parts: list[dict[str, Any]]) -> bytes | None:
    try:
        return make_assistant_message([write_json(part) for part in parts]).chat
    except (NotManaged, ValueError, RecursionError):
        return None  # a part of a form that no request could send back
