"""An assembled answer of the Messages dialect: content blocks on the wire, one chat message for the packages above.

Its message is the canonical message that `proxy.dialects.messages.blocks` also makes of the client's next request, so
the answer is recognised there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.chat import json_spans
from proxy.chat.message import Call
from proxy.dialects.base import read_dropped_reasoning
from proxy.dialects.completions.stream import describe_error, read_json, repair_surrogates, write_json
from proxy.dialects.messages.blocks import THINKING, make_assistant_message
from proxy.dialects.messages.context_management import FIELD, read_cleared
from proxy.dialects.messages.stream import (
    CUT_REASONS,
    BlockBuilder,
    MessagesEvent,
    merge_usage,
    read_event,
    read_finish_reason,
)
from proxy.dialects.usage import read_usage
from proxy.errors import NotManaged
from proxy.notes import state_block
from proxy.stream.completions_answer import CAPTURE_LIMIT, AssembledAnswer

MAX_BLOCKS = 4096
"""Blocks that are read in one answer. Blocks beyond it are passed on and not read."""


class MessagesAnswer(AssembledAnswer):
    """One answer. stop_reason: as upstream reports it. wire_usage: the usage object, added up over its reports."""

    __slots__ = ("_by_index", "_list", "stop_reason", "wire_usage")

    def __init__(self, limit: int = CAPTURE_LIMIT) -> None:
        super().__init__(limit)
        self.stop_reason = ""
        self.wire_usage: dict[str, Any] = {}
        self._list: list[BlockBuilder] = []
        self._by_index: dict[int, BlockBuilder] = {}

    @classmethod
    def from_body(cls, body: bytes, limit: int = CAPTURE_LIMIT) -> MessagesAnswer:
        answer = cls(max(limit, len(body)))
        try:
            value = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            value = read_json(body)
        if not isinstance(value, dict):
            answer.unparsed = 1
            return answer
        if value.get("type") == "error":
            answer.error = describe_error(value.get("error"))
            return answer
        content = value.get("content")
        if not isinstance(content, list):
            answer.unparsed = 1
            return answer
        answer.add_head(value)
        for n, block in enumerate(content):
            if isinstance(block, dict):
                answer.begin_block(n, block)
        answer.add_tail(value, None)  # the head had the usage already
        answer.add_cleared(value)
        answer.is_done = True
        return answer

    def add_event(self, data: bytes) -> None:
        event = read_event(data)
        if event is None:
            self.unparsed += 1
        else:
            self.add_parsed_event(event)

    def add_parsed_event(self, event: MessagesEvent) -> None:
        """Add one event as received."""
        if event.type == "content_block_delta":
            self.extend_block(event.index or 0, event.delta or {})
        elif event.type == "content_block_start":
            self.begin_block(event.index or 0, event.content_block or {})
        elif event.type == "message_start":
            self.add_head(event.message or {})
        elif event.type == "message_delta":
            self.add_tail(event.delta or {}, event.usage)
            self.add_cleared({FIELD: event.context_management})
        elif event.type == "message_stop":
            self.is_done = True
        elif event.type == "error":
            self.error = describe_error(event.error)

    def add_head(self, message: Mapping[str, Any]) -> None:
        """Add the fields of the answer's beginning. Of several rounds the first one's id and model count."""
        names = [value if isinstance(value := message.get(name), str) else None for name in ("id", "model")]
        self.id, self.model = self.id or names[0], self.model or names[1]
        self._set_usage(message.get("usage"))
        self.dropped_reasoning = read_dropped_reasoning(message) or self.dropped_reasoning

    def add_tail(self, delta: Mapping[str, Any], usage: Any) -> None:
        """Add the stop reason and the usage that the end of the answer reports."""
        reason = delta.get("stop_reason")
        if isinstance(reason, str) and reason:
            self.stop_reason = reason
            self.finish_reasons[0] = read_finish_reason(reason)
        self._set_usage(usage)

    def add_cleared(self, message: Mapping[str, Any]) -> None:
        """Add what the answer says that the provider has cleared from the prompt."""
        self.cleared_results = read_cleared(message) or self.cleared_results

    def _set_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.wire_usage = merge_usage(self.wire_usage, usage)
            self.usage = read_usage(self.wire_usage) or self.usage

    def begin_block(self, index: int, block: Mapping[str, Any]) -> None:
        """Add a block, or its beginning."""
        if len(self._list) >= MAX_BLOCKS or not self._reserve_chars(100 + sum(map(_measure, block.values()))):
            self.is_capped = True
            return
        self._list.append(BlockBuilder(block))
        self._by_index[index] = self._list[-1]

    def extend_block(self, index: int, delta: Mapping[str, Any]) -> None:
        """Add a delta to the block with that index."""
        block = self._by_index.get(index)
        if block is not None and not self.is_capped:
            self._reserve_chars(block.add(delta))

    @property
    def blocks(self) -> list[BlockBuilder]:
        """The blocks so far, in their order."""
        return self._list

    def build_message(self, index: int = 0) -> bytes | None:
        """Return the canonical message, as the client's next request gives it; None if there was none. An answer that
        has ended may be empty: all of it was withheld."""
        is_there = self._list or self.finish_reasons
        return _convert([block.build() for block in self._list]) if is_there and not index else None

    def build_round_message(self, headings: tuple[str, ...] = ()) -> bytes | None:
        """Return the canonical message without empty texts, which upstream would refuse if it got them back.

        headings: blocks under them are left out of the texts. Thinking is bound to the text before it: that text
        stays. The blocks stay also where nothing but thinking would be left.
        """
        texts = [block.text if block.kind == "text" else "" for block in self._list]
        shown = list(texts)
        for n in reversed(range(len(texts)) if headings else ()):
            if self._list[n].kind in THINKING:
                break
            is_cut = self.stop_reason in CUT_REASONS and n == len(texts) - 1
            shown[n] = state_block.split_blocks(texts[n], headings, is_cut_off=is_cut)[0]
        kinds = [block.kind for n, block in enumerate(self._list) if block.kind != "text" or shown[n].strip()]
        if all(kind in THINKING for kind in kinds):
            shown = texts
        kept = [
            block.build()
            if shown[n] == texts[n]
            else json_spans.set_member(block.build(), "text", write_json(shown[n]))
            for n, block in enumerate(self._list)
            if block.kind != "text" or shown[n].strip()
        ]
        return _convert(kept) if kept else None

    @property
    def text(self) -> str:
        return repair_surrogates("".join(block.text for block in self._list if block.kind == "text"))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(read_call(block) for block in self._list if block.kind == "tool_use")

    @property
    def choice_count(self) -> int:
        return 1 if self._list or self.finish_reasons else 0


def _measure(value: Any) -> int:
    return len(value) if isinstance(value, str | list | dict) else 8


def _convert(blocks: list[bytes]) -> bytes | None:
    try:
        return make_assistant_message(blocks).chat
    except (NotManaged, ValueError, RecursionError):
        return None  # a block of a form that no request could send back


def read_call(block: BlockBuilder) -> Call:
    """The call of a tool_use block."""
    names = [value if isinstance(value := block.block.get(name), str) else "" for name in ("id", "name")]
    return Call(names[0], names[1], repair_surrogates(block.arguments))
