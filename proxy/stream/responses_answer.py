"""An assembled answer of the Responses wire: its items, and the canonical assistant message that they are.

The message is made by the function that reads a request. So the answer is recognised when the client sends it back.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.chat.message import Call, Message
from proxy.dialects.base import read_dropped_reasoning
from proxy.dialects.completions.request import read_message
from proxy.dialects.completions.stream import write_json
from proxy.dialects.responses import items as responses_items
from proxy.dialects.responses import stream as responses_stream
from proxy.dialects.usage import read_usage
from proxy.errors import NotManaged
from proxy.stream.completions_answer import CAPTURE_LIMIT, AssembledAnswer

MAX_ITEMS = 1024
"""Items that are read in one answer. Items beyond it are passed on."""


class _GrowingItem:
    """One item while it grows. raw: the whole item, once it has ended."""

    __slots__ = ("begun", "raw", "texts", "written")

    def __init__(self, begun: dict[str, Any]) -> None:
        self.begun = begun
        self.raw: bytes | None = None
        self.texts: dict[int, list[str]] = {}  # by the position of the content part
        self.written: list[str] = []  # arguments or input of a call

    def read(self) -> tuple[dict[str, Any], bytes]:
        """The item and its bytes; of an unfinished item, as far as received."""
        if self.raw is not None:
            return responses_stream.read_object(self.raw) or {}, self.raw
        item = dict(self.begun)
        if self.texts:
            item["content"] = [
                {"type": "output_text", "text": "".join(self.texts[n]), "annotations": []} for n in sorted(self.texts)
            ]
        if self.written:
            item["input" if item.get("type") == "custom_tool_call" else "arguments"] = "".join(self.written)
        return item, write_json(item)


class ResponsesAnswer(AssembledAnswer):
    """One answer as its items.

    An item is known by its output index. `finish` records the end, which `is_done` reports.
    """

    __slots__ = ("_canonical", "_items")

    def __init__(self, limit: int = CAPTURE_LIMIT) -> None:
        super().__init__(limit)
        self._items: dict[int, _GrowingItem] = {}
        self._canonical: Message | None = None

    @classmethod
    def from_body(cls, body: bytes, limit: int = CAPTURE_LIMIT) -> ResponsesAnswer:
        answer = cls(limit)
        response = responses_stream.read_object(body)
        if response is None:
            answer.unparsed = 1
            return answer
        items = responses_stream.read_output(body)
        answer.is_capped = len(items) > MAX_ITEMS
        for index, raw in enumerate(items[:MAX_ITEMS]):
            answer.put_item(index, raw)
        answer.finish(response)
        answer.is_done = isinstance(response.get("output"), list)
        return answer

    def begin_item(self, index: int, item: dict[str, Any]) -> None:
        """Add an item that has begun."""
        if self._has_place(index) and self._reserve_chars(64):
            self._items[index] = _GrowingItem(item)
            self._canonical = None

    def _has_place(self, index: int) -> bool:
        if len(self._items) >= MAX_ITEMS and index not in self._items:
            self.is_capped = True
            return False
        return True

    def add_item_text(self, index: int, part: int, text: str) -> None:
        """Add text to a content part of an item that has begun."""
        item = self._items.get(index)
        if item is not None and self._reserve_chars(len(text)):
            item.texts.setdefault(part, []).append(text)
            self._canonical = None

    def add_arguments(self, index: int, piece: str) -> None:
        """Add a piece of the arguments of a call."""
        item = self._items.get(index)
        if item is not None and self._reserve_chars(len(piece)):
            item.written.append(piece)
            self._canonical = None

    def put_item(self, index: int, raw: bytes) -> None:
        """Set a whole item."""
        item = self._items.get(index)
        if item is None:
            if not (self._has_place(index) and self._reserve_chars(64 + len(raw))):
                return
            item = self._items[index] = _GrowingItem({})
        item.raw = raw
        self._canonical = None

    def note_response(self, response: dict[str, Any]) -> None:
        """Record the id and the model."""
        for name in ("id", "model"):
            value = response.get(name)
            if getattr(self, name) is None and isinstance(value, str):
                setattr(self, name, value)
        self.dropped_reasoning = read_dropped_reasoning(response) or self.dropped_reasoning

    def finish(self, response: dict[str, Any], usage: Any = None) -> None:
        """Record the end of the answer. usage: in place of the response's own."""
        self.note_response(response)
        self.error = responses_stream.find_error(response) or self.error
        self.usage = read_usage(usage or response.get("usage"), response.get("service_tier")) or self.usage
        reason = responses_stream.find_finish_reason(response, has_calls=bool(self.calls))
        if reason is not None:
            self.finish_reasons[0] = reason
        self.is_done = True

    @property
    def items(self) -> list[bytes]:
        """The bytes of all items, in their order."""
        return [self._items[index].read()[1] for index in sorted(self._items)]

    def build_message(self, index: int = 0) -> bytes | None:
        message = self._read_message()
        return None if message is None or index else message.raw

    def _read_message(self) -> Message | None:
        if self._canonical is None and self._items:
            try:
                found = [self._items[n].read() for n in sorted(self._items)]
                self._canonical = read_message(responses_items.make_assistant(found))
            except (NotManaged, msgspec.EncodeError, UnicodeError):
                return None
        return self._canonical

    @property
    def text(self) -> str:
        """The text of all messages in the answer."""
        message = self._read_message()
        return "" if message is None else message.text

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls that the client answers."""
        message = self._read_message()
        return () if message is None else message.calls

    @property
    def choice_count(self) -> int:
        return 1 if self._items else 0

    @property
    def is_truncated(self) -> bool:
        """True if the answer broke off: no event reported its end."""
        return not self.is_done
