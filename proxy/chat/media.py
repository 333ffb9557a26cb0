"""Content parts that are not text: their tokens, and which of them are images that a text can stand in for."""

from __future__ import annotations

import binascii
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from proxy.chat.message import Message

PER_MEDIUM = 1100
"""Tokens of a medium of unknown size: about those of a screenshot of 1280 x 720 pixels."""
LOW_DETAIL = 85
"""Tokens of an image that is sent with `detail: low` (OpenAI)."""
PIXELS_PER_TOKEN = 750
MOST_PER_IMAGE = 3000
"""Tokens of an image that a provider scales down."""

_IMAGE_DATA = re.compile(rb'[",](iVBORw0KGgo|\\?/9j\\?/|R0lGOD|UklGR)')
"""The beginning of a PNG, a JPEG, a GIF or a WebP in Base64, in a JSON string."""
_LOW = re.compile(rb'"detail"\s*:\s*"low"')
_SEARCHED_BYTES = 4096
"""Bytes of a part in which the data of an image begins. A whole video would take a tenth of a second."""
_HEAD_CHARS = 64
"""Characters of Base64 in which the size of an image stands."""
_JPEG_HEAD_CHARS = 96_000
"""The same of a JPEG: 72 KB, as it may have a preview of 64 KB first."""
_DETAIL_BYTES = 200
"""Bytes at each end of a part in which `detail` is looked for."""

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
IMAGES = frozenset({"image", "image_url"})
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
    return isinstance(kind, str) and kind in IMAGES and not isinstance(value.get("text"), str)


def find_images(message: Message) -> Sequence[bytes]:
    """The images of a message that a text part may stand in for."""
    return message.derive(_find_images) if message.media_count else ()


def _find_images(message: Message) -> Sequence[bytes]:
    return [part for part in read_parts(message) if is_image(part)]


def estimate_tokens(part: bytes) -> int:
    """Tokens of a medium. part: the JSON of a content part.

    An image has one token for each `PIXELS_PER_TOKEN` pixels (Anthropic's page on vision). Measured in 2026, Claude 5.5
    takes 1,273 for 1280 x 720, GPT-6 1,104, Gemini 3 1,101. For 1920 x 1080 these are 2,768, 2,448 and 1,101. A medium
    whose size cannot be read has `PER_MEDIUM`.
    """
    if _LOW.search(part[:_DETAIL_BYTES]) or _LOW.search(part[-_DETAIL_BYTES:]):
        return LOW_DETAIL
    width, height = _read_image_size(part)
    if width <= 0 or height <= 0:
        return PER_MEDIUM
    return min(MOST_PER_IMAGE, math.ceil(width * height / PIXELS_PER_TOKEN))


def _read_image_size(part: bytes) -> tuple[int, int]:
    """(width, height) in pixels of an image that a part has in Base64; (0, 0) if there is none that can be read."""
    begin = _IMAGE_DATA.search(part, 0, _SEARCHED_BYTES)
    if begin is None:
        return 0, 0
    chars = _JPEG_HEAD_CHARS if begin[1].endswith(b"/") else _HEAD_CHARS
    encoded = part[begin.start(1) : begin.start(1) + chars].replace(b"\\/", b"/").partition(b'"')[0]
    try:
        head = binascii.a2b_base64(encoded[: len(encoded) // 4 * 4])
        read_size = next(read for magic, read in _SIZE_READERS.items() if head.startswith(magic))
        return read_size(head)
    except (ValueError, StopIteration, struct.error):
        return 0, 0


# The sizes stand where the formats' specifications have them. Each function takes the head of a file, and raises
# struct.error if it ends too early.


def _read_png_size(head: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", head, 16)
    return width, height


def _read_gif_size(head: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", head, 6)
    return width, height


def _read_jpeg_size(head: bytes) -> tuple[int, int]:
    """Walk the segments up to the frame header: markers C0 to CF without C4, C8 and CC."""
    at = 2
    while True:
        mark, kind, length = struct.unpack_from(">BBH", head, at)
        if mark != 0xFF or length < 2:
            return 0, 0
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        at += 2 + length


def _read_webp_size(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8X":
        sizes = int.from_bytes(head[24:30], "little") if len(head) >= 30 else 0
        return (sizes & 0xFFFFFF) + 1, (sizes >> 24) + 1
    if kind == b"VP8L":
        (sizes,) = struct.unpack_from("<I", head, 21)
        return (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", head, 26)
    return width & 0x3FFF, height & 0x3FFF


_SIZE_READERS: Mapping[bytes, Callable[[bytes], tuple[int, int]]] = {
    b"\x89PNG\r\n\x1a\n": _read_png_size,
    b"\xff\xd8": _read_jpeg_size,
    b"GIF8": _read_gif_size,
    b"RIFF": _read_webp_size,
}
"""By the first bytes of a file."""
