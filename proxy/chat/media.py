"""Content parts that are not text: media, and which of them are images that a text can stand in for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.chat.message import Message

_MEDIA = frozenset(
    {
        "audio",
        "computer_screenshot",
        "document",
        "file",
        "image",
        "image_url",
        "input_audio",
        "input_image",
        "input_video",
        "video",
        "video_url",
    }
)
"""Types of the content parts that are an image, a sound, a video or a file, here or behind an address."""
_IMAGES = frozenset({"image", "image_url"})
"""Those that are an image, and may be text instead. The output of OpenAI's computer tool may not."""
_GEMINI_MEDIA = ("inlineData", "inline_data", "fileData", "file_data")
_GEMINI_TYPES = ("mimeType", "mime_type")


class _ContentParts(msgspec.Struct):
    content: list[msgspec.Raw]


_CONTENT = msgspec.json.Decoder(_ContentParts)


def read_parts(message: Message) -> Sequence[bytes]:
    """The content parts of a message whose content is a list."""
    return [bytes(part) for part in _CONTENT.decode(message.raw).content]


def is_medium(part: dict[str, Any]) -> bool:
    """True for a part that is an image, a sound, a video or a file; false for a document that is given as text."""
    kind, source, inner = part.get("type"), part.get("source"), part.get("part")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        return False
    is_named = isinstance(kind, str) and kind in _MEDIA
    return is_named or (isinstance(inner, dict) and any(name in inner for name in _GEMINI_MEDIA))


def is_image(part: bytes) -> bool:
    """True for an image that a text part may stand in for, in canonical form."""
    value = msgspec.json.decode(part)
    if not isinstance(value, dict):
        return False
    inner = value.get("part")
    if value.get("type") == "gemini" and isinstance(inner, dict):
        data: dict[str, Any] = next((inner[name] for name in _GEMINI_MEDIA if isinstance(inner.get(name), dict)), {})
        return any(str(data.get(name)).startswith("image/") for name in _GEMINI_TYPES)
    kind = value.get("type")
    return isinstance(kind, str) and kind in _IMAGES and not isinstance(value.get("text"), str)


def find_images(message: Message) -> Sequence[bytes]:
    """The images of a message that a text part may stand in for."""
    return message.derive(_find_images) if message.media_count else ()


def _find_images(message: Message) -> Sequence[bytes]:
    return [part for part in read_parts(message) if is_image(part)]
