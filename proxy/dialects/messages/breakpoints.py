"""Cache breakpoints of the proxy in a Messages body, beside those of the client.

Anthropic caches a prompt up to blocks with `cache_control`, at most four in a request. A mark is no part of the cached
prefix, so a mark may stand elsewhere in the next request. From a mark, an entry is found that ends at most 20 blocks
earlier (platform.claude.com/docs/en/build-with-claude/prompt-caching). The client's marks stay where they are. A mark
for an hour may not follow one for five minutes, so a mark of the proxy has the lifetime of the client's next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.base import NO_MARKS, Breakpoints, ClientMarks

MAX_MARKS: Final = 4
"""Marks that a request may have."""
LOOKBACK_BLOCKS: Final = 20
"""Blocks in front of a mark, its own included, among which the end of an earlier entry is looked for."""
MARK_NAME: Final = b'"cache_control"'
"""The member that is a mark, as it stands in a body."""

_KEY = "cache_control"
_AUTOMATIC: Final = 3
"""Section of the mark that Anthropic sets itself at the end of a prompt (`cache_control` beside the messages)."""
_TOOLS, _SYSTEM, _MESSAGES = 0, 1, 2
_MARKABLE = ("text", "image", "document", "tool_use", "tool_result")

Order = tuple[int, int, int]
"""Place of a mark in the order in which Anthropic reads a prompt: (section, index, index of the block)."""


class _Role(msgspec.Struct):
    role: str = ""


_ROLE = msgspec.json.Decoder(_Role)


def add_breakpoints(body: bytes, wanted: Breakpoints) -> bytes:
    """The body with as many of the wanted marks as there is room for. Raises ValueError if the body cannot be read."""
    marks = _list_marks(body) if MARK_NAME in body else []
    room = MAX_MARKS - len(marks)
    if room <= 0 or not (wanted.has_tail or wanted.answers):
        return body
    members = spans.read_members(body)
    draft = _Draft(body, members, spans.read_elements(body, members["messages"]))
    replacements: dict[Order, spans.Replacement] = {}
    for place in _list_places(draft, wanted, [order for order, _ in marks]):
        found = draft.mark(place, marks)
        if found is not None:
            replacements.setdefault(*found)
            if len(replacements) == room:
                break
    return spans.apply_replacements(body, replacements.values())


def read_client_marks(
    body: bytes, members: Mapping[str, spans.Span], places: Sequence[spans.Span], first_mark: int
) -> ClientMarks:
    """The last mark in a client's body. Only the value that holds it is decoded.

    members, places: spans of the top-level values and of the wire messages. first_mark: offset of `MARK_NAME`, -1 if it
    is not in the body.
    """
    if first_mark < 0:
        return NO_MARKS
    mark = _find_lifetime(body, members.get(_KEY))
    if mark is not None:
        return ClientMarks(mark or "5m", in_history=True)
    for place in reversed(places):
        found = _list_message_marks(0, spans.read_any(body[slice(*place)])) if has_mark(body, place) else []
        if found:
            return ClientMarks(max(found)[1] or "5m", in_history=True)
    for name in ("system", "tools"):
        place = members.get(name, (0, 0))
        marks = _list_outer_marks(0, spans.read_any(body[slice(*place)])) if has_mark(body, place) else []
        if marks:
            return ClientMarks(max(marks)[1] or "5m", in_history=False)
    return NO_MARKS


def has_mark(body: bytes, place: spans.Span) -> bool:
    """True if this part of a body may have a cache mark."""
    return body.find(MARK_NAME, *place) >= 0


def _find_lifetime(body: bytes, place: spans.Span | None) -> str | None:
    """The lifetime of the mark beside the messages, None without one."""
    return None if place is None else next(_read_ttl({_KEY: spans.read_any(body[slice(*place)])}), None)


def _list_marks(body: bytes) -> list[tuple[Order, str]]:
    """The marks in a body with their lifetimes."""
    value = spans.read_any(body)
    marks: list[tuple[Order, str]] = []
    for section, name in ((_TOOLS, "tools"), (_SYSTEM, "system")):
        marks += _list_outer_marks(section, value.get(name))
    for n, message in enumerate(_read_list(value.get("messages"))):
        marks += _list_message_marks(n, message)
    return marks + [((_AUTOMATIC, 0, 0), ttl) for ttl in _read_ttl(value)]


def _list_outer_marks(section: int, blocks: Any) -> list[tuple[Order, str]]:
    return [((section, n, 0), ttl) for n, one in enumerate(_read_list(blocks)) for ttl in _read_ttl(one)]


def _list_message_marks(n: int, message: Any) -> list[tuple[Order, str]]:
    marks: list[tuple[Order, str]] = []
    for k, block in enumerate(_read_list(message.get("content") if isinstance(message, dict) else None)):
        inside = _read_list(block.get("content")) if isinstance(block, dict) else []
        marks += [((_MESSAGES, n, k), ttl) for one in (*inside, block) for ttl in _read_ttl(one)]
    return marks


def _read_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_ttl(block: Any) -> Iterator[str]:
    mark = block.get(_KEY) if isinstance(block, dict) else None
    if mark is not None:
        ttl = mark.get("ttl") if isinstance(mark, dict) else None
        yield ttl if isinstance(ttl, str) else ""


def _list_places(draft: _Draft, wanted: Breakpoints, marked: Sequence[Order]) -> Iterator[Order]:
    """The places for marks, the most wanted one first. The block is the message's last one that can bear a mark."""
    last = draft.find_user(len(draft.places) - 1)
    has_history_mark = any(order[0] in (_MESSAGES, _AUTOMATIC) for order in marked)
    if wanted.has_tail and not has_history_mark and last is not None:
        yield _MESSAGES, last, 0
    for count in wanted.answers:
        if count < len(draft.answers) and (before := draft.find_user(draft.answers[count] - 1)) is not None:
            yield _MESSAGES, before, 0
    if not marked:
        yield _SYSTEM, 0, 0
    is_tail_marked = has_history_mark or wanted.has_tail
    if is_tail_marked and draft.answers and draft.count_blocks(draft.answers[-1]) >= LOOKBACK_BLOCKS:
        before = draft.find_user(draft.answers[-1] - 1)
        if before is not None:
            yield _MESSAGES, before, 0


class _Draft:
    """A body in which places for marks are looked for."""

    def __init__(self, body: bytes, members: dict[str, spans.Span], places: Sequence[spans.Span]) -> None:
        self.places = places
        self._body = body
        self._members = members
        self._roles = [_ROLE.decode(memoryview(body)[start:end]).role for start, end in places]
        self.answers = [n for n, role in enumerate(self._roles) if role == "assistant"]

    def find_user(self, index: int) -> int | None:
        """The last message of the user's up to this index."""
        return next((n for n in range(index, -1, -1) if self._roles[n] == "user"), None)

    def count_blocks(self, begin: int) -> int:
        """Number of blocks in the messages from an index on."""
        count = 0
        for start, end in self.places[begin:]:
            content = json_spans.read_value(self._body[start:end], "content") or b""
            count += len(spans.read_elements(content)) if content[:1] == b"[" else 1
        return count

    def mark(self, place: Order, marks: Sequence[tuple[Order, str]]) -> tuple[Order, spans.Replacement] | None:
        """The mark at a place, with its exact order; None if the place is marked, or can bear no mark."""
        section, index, _ = place
        if section == _MESSAGES:
            if any(order[:2] == place[:2] for order, _ in marks):
                return None
            start, end = self.places[index]
            at = spans.read_members(self._body, (start, end))["content"]
            return self._mark_content(at, section, index, marks)
        for section, name in ((_SYSTEM, "system"), (_TOOLS, "tools")):
            at = self._members.get(name, (0, 0))
            found = self._mark_content(at, section, None, marks)
            if found is not None:
                return found
        return None

    def _mark_content(
        self, at: spans.Span, section: int, index: int | None, marks: Sequence[tuple[Order, str]]
    ) -> tuple[Order, spans.Replacement] | None:
        """A mark on the last block of a list that can bear one, or on a text that becomes a list."""
        raw = self._body[at[0] : at[1]]
        if raw[:1] == b'"':
            if not (json_spans.decode_string(raw) or "").strip():
                return None
            order = (section, index or 0, 0)
            text = b'[{"type":"text","text":' + raw + b',"cache_control":' + _make_mark(order, marks) + b"}]"
            return order, (*at, text)
        if raw[:1] != b"[":
            return None
        for n, span in reversed(list(enumerate(spans.read_elements(self._body, at)))):
            block = spans.read_any(self._body[span[0] : span[1]])
            if section != _TOOLS and not _may_bear_mark(block):
                continue
            order = (section, n, 0) if index is None else (section, index, n)
            mark = _make_mark(order, marks)
            return order, spans.append_member(self._body, span, _KEY, mark)
        return None


def _may_bear_mark(block: Any) -> bool:
    if not isinstance(block, dict) or block.get("type") not in _MARKABLE:
        return False
    return block["type"] != "text" or bool(str(block.get("text") or "").strip())


def _make_mark(order: Order, marks: Sequence[tuple[Order, str]]) -> bytes:
    """A mark with the lifetime of the client's next mark, or of the last one before it."""
    behind = [one for one in marks if one[0] > order]
    ttl = min(behind)[1] if behind else max(marks)[1] if marks else ""
    return b'{"type":"ephemeral","ttl":' + spans.encode_text(ttl) + b"}" if ttl else b'{"type":"ephemeral"}'
