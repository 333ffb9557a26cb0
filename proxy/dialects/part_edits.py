"""Content parts before and after an edit: which of them changed, which left and which were appended.

Parts are the content of a canonical message, so every dialect that writes parts back asks here. Only texts may change,
and a text may take the place of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.chat import json_spans
from proxy.chat.media import is_image
from proxy.dialects import spans

_RESULT_HEAD = b'{"role":"tool","tool_call_id":'
_CONTENT = b',"content":'


def check_same_place(old: bytes, new: bytes) -> None:
    """Raise ValueError if a canonical message has another role after an edit, or answers another call."""
    head = old[: old.find(_CONTENT) + 1] if old.startswith(_RESULT_HEAD) else b""
    if head and new.startswith(head):
        return  # as an edit of a result's content leaves it
    for name in ("role", "tool_call_id"):
        if json_spans.read_value(old, name) != json_spans.read_value(new, name):
            raise ValueError("a message has another role or answers another call")


def make_text_part(literal: bytes) -> bytes:
    """A text part. literal: the JSON string of its text."""
    return b'{"type":"text","text":' + literal + b"}"


def read_parts(chat: bytes) -> list[bytes]:
    """The parts of a canonical message's content; a string is one text part. Raises ValueError if it has no content."""
    content = json_spans.read_value(chat, "content")
    if content is None or content[:1] not in (b'"', b"["):
        raise ValueError("a message without content")
    if content[:1] == b"[":
        return [content[start:end] for start, end in spans.read_elements(content)]
    return [make_text_part(spans.encode_visible(spans.read_any(content)))]


def clear_text(part: bytes) -> bytes:
    """The part with the text that stands in for an empty one."""
    return json_spans.set_member(part, "text", spans.encode_visible(""))


def edit_parts(old: Sequence[bytes], chat: bytes, *, is_appended: bool) -> tuple[list[bytes | None], list[bytes]]:
    """(for each old part its new bytes, None if the part was removed; the parts that were appended).

    Only texts change or leave; a text may take the place of an image. is_appended: nothing may change, parts may only
    be appended. Raises ValueError for any other change.
    """
    content = json_spans.read_value(chat, "content") or b""
    if content[:1] == b'"':  # all parts became one text
        if is_appended:
            raise ValueError("a system message is never edited")
        block = make_text_part(spans.encode_visible(spans.read_any(content)))
        return [block if not n else None for n in range(len(old))], [] if old else [block]
    new = read_parts(chat)
    taken = _match_places(old, new) or _match_equal(old, new)
    found: list[bytes | None] = [None] * len(old)
    appended: list[bytes] = []
    low = 0
    for j, part in enumerate(new):
        i = taken.get(j)
        if i is None:
            high = next((taken[k] for k in range(j + 1, len(new)) if k in taken), len(old))
            i = _find_changed(old, part, low, high)
            if i is None and high < len(old):
                raise ValueError("a part was inserted between two others")
        if i is None:
            appended.append(_fill_empty_text(part))
        else:
            found[i] = old[i] if j in taken else _fill_empty_text(part)
            low = i + 1
    if is_appended and (None in found or found != list(old)):
        raise ValueError("a system message is never edited")
    if any(one is None and read_part_text(part) is None for one, part in zip(found, old, strict=True)):
        raise ValueError("a part that is no text was removed")
    return found, appended


def rewrite_parts(
    raw: bytes,
    span: spans.Span,
    elements: Sequence[spans.Span],
    parts: Sequence[bytes | None],
    inserted: Sequence[tuple[int, bytes]],
) -> bytes:
    """The bytes of one array with these parts; b"" if no part is left.

    span, elements: of the array and of its parts in `raw`. parts: the new bytes of each part, None if it was removed.

    inserted: new parts in order, each with the index of the part that it stands behind. -1 is in front of all. The
    number of the parts is the end.
    """
    items: list[tuple[int | None, bytes]] = []
    for n in range(-1, len(parts) + 1):
        part = parts[n] if 0 <= n < len(parts) else None
        if part is not None:
            items.append((n, part))
        items += [(None, more) for after, more in inserted if after == n]
    return spans.rewrite_array(raw, span, elements, items) if items else b""


def _match_places(old: Sequence[bytes], new: Sequence[bytes]) -> dict[int, int]:
    """As `_match_equal` where texts have taken the place of images and no other old part has changed; empty elsewhere.
    Such a text may be equal to a part behind it."""
    same = {n: n for n, (was, now) in enumerate(zip(old, new, strict=False)) if was == now}
    others = (n for n in range(len(old)) if n not in same)
    return same if len(new) >= len(old) > len(same) and all(is_image(old[n]) for n in others) else {}


def _match_equal(old: Sequence[bytes], new: Sequence[bytes]) -> dict[int, int]:
    """For the new parts that are an old one unchanged: the index of that one."""
    taken: dict[int, int] = {}
    low = 0
    for j, part in enumerate(new):
        i = next((i for i in range(low, len(old)) if old[i] == part), None)
        if i is not None:
            taken[j] = i
            low = i + 1
    return taken


def _find_changed(old: Sequence[bytes], part: bytes, low: int, high: int) -> int | None:
    """The old part that a new text has replaced: the first text with the same other members, text or image."""
    if read_part_text(part) is None:
        raise ValueError("a part that is no text has changed")
    open_ = [i for i in range(low, high) if read_part_text(old[i]) is not None]
    same = [i for i in open_ if _read_other_members(old[i]) == _read_other_members(part)]
    images = (i for i in range(low, high) if is_image(old[i]))
    return next(iter(same or open_ or images), None)


def read_part_text(part: bytes) -> str | None:
    """The text of a part; None if it has none."""
    value = json_spans.read_value(part, "text")
    return None if value is None else json_spans.decode_string(value)


def _read_other_members(part: bytes) -> dict[str, Any]:
    return {name: value for name, value in spans.read_any(part).items() if name != "text"}


def _fill_empty_text(part: bytes) -> bytes:
    """The part, with a stand-in for a text that has no visible character."""
    return part if (read_part_text(part) or "").strip() else clear_text(part)
