"""Changes of the text of a message, written into the bytes of its item.

A plan changes a canonical message. The change is found by comparison with the message as it was read, and only texts
may change, or take the place of an image. Every other byte of the item stays the client's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proxy.chat import json_spans
from proxy.chat.media import IMAGES
from proxy.dialects import spans
from proxy.dialects.responses import items as responses_items
from proxy.dialects.spans import Replacement, Span

_OBJECT = msgspec.json.Decoder(dict[str, Any])


def read_text(message: bytes) -> str:
    """The text of a message of the proxy. Raises ValueError if its content is no text."""
    content = msgspec.json.decode(message).get("content")
    if isinstance(content, list) and all(isinstance(part.get("text"), str) for part in content):
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError("a message of ours without a text")
    return content


@dataclass(frozen=True, slots=True)
class TextChange:
    """The change of a message's text."""

    text: str | None
    kept: int
    """The index of the text that is replaced by `text`; the other texts stand aside."""
    added: tuple[str, ...]
    """Texts that are appended. With `text` None, texts are only appended."""
    in_place_of_images: Mapping[int, str] = field(default_factory=dict)
    """Texts that take the place of an image, by the index of the part."""

    def apply(self, raw: bytes, texts: Sequence[Span], list_end: int | None) -> list[Replacement]:
        """The replacements in an item whose texts stand at these spans. list_end: the end of its list of parts; None if
        it has none. Raises ValueError if the item has no place for a text."""
        replacements: list[Replacement] = []
        if self.text is not None:
            if self.kept >= len(texts):
                raise ValueError("a message without this text")
            for n, (start, end) in enumerate(texts):
                if n == self.kept:
                    replacements.append((start, end, spans.encode_visible(self.text)))
                elif raw[start + 1 : end - 1].strip():
                    replacements.append((start, end, spans.encode_text(spans.EMPTY_STAND_IN)))
        if not self.added:
            return replacements
        if list_end is not None:
            parts = b",".join([_make_input_part(text) for text in self.added])
            is_empty = raw[:list_end].endswith(b"[")
            return [*replacements, (list_end, list_end, parts if is_empty else b"," + parts)]
        if not texts:
            raise ValueError("a message that takes no text")
        start, end = texts[-1]
        ending = spans.encode_text("".join(self.added))[1:]  # the end of one string and the start of the other meet
        if replacements and replacements[-1][:2] == (start, end):
            return [*replacements[:-1], (start, end, replacements[-1][2][:-1] + ending)]
        return [*replacements, (end - 1, end, ending)]


def _make_input_part(text: str) -> bytes:
    return b'{"type":"input_text","text":' + spans.encode_visible(text) + b"}"


def append_part(item: bytes, text: str) -> bytes:
    """The user's message item with one more text part at its end. A content that is one text becomes a list."""
    start, end = spans.read_members(item)["content"]
    part = _make_input_part(text)
    if item[start : start + 1] == b'"':
        first = b'{"type":"input_text","text":' + item[start:end] + b"}"
        return item[:start] + b"[" + first + b"," + part + b"]" + item[end:]
    return spans.apply_replacements(item, [spans.append_element(item, (start, end), part)])


def compare_messages(original: bytes, changed: bytes) -> TextChange:
    """The change of a canonical message. Raises ValueError if anything but its text changes, or if its text may not."""
    before, after = msgspec.json.decode(original), msgspec.json.decode(changed)
    role, old, new = before.get("role"), before.pop("content", None), after.pop("content", None)
    if before != after:
        raise ValueError("a change of more than the text")
    if role == "assistant":
        raise ValueError("an assistant message cannot be changed")
    change = _compare_contents(old, new)
    if role in ("system", "developer") and change.text is not None:
        raise ValueError("the text of a system message cannot be replaced")
    return change


def _compare_contents(old: Any, new: Any) -> TextChange:
    if isinstance(old, str) and isinstance(new, str):
        is_longer = bool(old) and new.startswith(old)
        return TextChange(None, 0, (new[len(old) :],)) if is_longer else TextChange(new, 0, ())
    if not isinstance(old, list) or not isinstance(new, list):
        raise ValueError("content of another shape")
    images = _find_replaced_images(old, new)
    if images:
        return TextChange(None, 0, tuple(str(part["text"]) for part in new[len(old) :]), images)
    if [part for part in old if part["type"] != "text"] != [part for part in new if part.get("type") != "text"]:
        raise ValueError("a change of a part that is no text")
    holders = [part for part in old if part["type"] == "text"]
    texts = [str(part["text"]) for part in new if part.get("type") == "text"]
    if texts[: len(holders)] == [part["text"] for part in holders]:
        return TextChange(None, 0, tuple(texts[len(holders) :]))
    if not holders or not texts:
        raise ValueError("content that holds no text")
    # The part that stays is the one that `completions.replace_text` keeps: the last with a mark, or else the first.
    marked = [n for n, part in enumerate(holders) if responses_items.CACHE_MARK in part]
    return TextChange(texts[0], marked[-1] if marked else 0, tuple(texts[1:]))


def _find_replaced_images(old: Sequence[Any], new: Sequence[Any]) -> dict[int, str]:
    """The texts that take the place of an image, by the index of the part; none if another part changed as well."""
    changed = [n for n, (was, now) in enumerate(zip(old, new, strict=False)) if was != now]
    images = {n: str(new[n].get("text")) for n in changed if old[n]["type"] in IMAGES}
    is_text = all(part.get("type") == "text" for part in (*map(new.__getitem__, images), *new[len(old) :]))
    return images if is_text and len(images) == len(changed) and len(new) >= len(old) else {}


def edit_item(raw: bytes, change: TextChange) -> bytes:
    """The item with the change of its message's text. Raises ValueError if the item has no place for it."""
    item = _OBJECT.decode(raw)
    texts, list_end = responses_items.find_texts(raw, item)
    replacements = change.apply(raw, texts, list_end)
    if change.in_place_of_images:
        replacements += _replace_images(raw, item, change.in_place_of_images)
    return spans.apply_replacements(raw, replacements)


def _replace_images(raw: bytes, item: Mapping[str, Any], texts: Mapping[int, str]) -> list[Replacement]:
    """Replacements of images in a tool's output; cache marks stay. Raises ValueError for another item."""
    if responses_items.find_type(item) not in ("function_call_output", "custom_tool_call_output"):
        raise ValueError("an image outside of a tool's output has changed")
    output = spans.read_members(raw)["output"]
    parts = spans.read_elements(raw, output) if raw[output[0] : output[0] + 1] == b"[" else [output]
    replacements: list[Replacement] = []
    for n, text in texts.items():
        part = _make_input_part(text)
        mark = json_spans.read_value(raw[slice(*parts[n])], responses_items.CACHE_MARK)
        if mark is not None:
            part = json_spans.set_member(part, responses_items.CACHE_MARK, mark)
        replacements.append((*parts[n], part))
    return replacements
