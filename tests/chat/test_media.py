"""Media among the content parts, and the images that a text may stand in for."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from proxy.chat.media import PER_MEDIUM, estimate_tokens, find_images, is_image, is_medium, read_parts
from tests.conversations import make_message, result, user

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}
SHOT = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}}


@pytest.mark.parametrize(
    "part",
    [
        PICTURE,
        SHOT,
        {"type": "gemini", "part": {"inlineData": {"mimeType": "image/png", "data": "QQ=="}}},
        {"type": "gemini", "part": {"file_data": {"mime_type": "image/jpeg", "file_uri": "u"}}},
    ],
)
def test_images_of_each_wire_format_are_recognised(part: dict[str, Any]) -> None:
    assert is_image(json.dumps(part).encode())
    assert is_medium(part)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "an image"},
        {"type": "file", "file": {"file_data": "QQ=="}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="}},
        {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
        {"type": "computer_screenshot", "computer_screenshot": {"image_url": "data:image/png;base64,QQ=="}},
        {"type": "gemini", "part": {"inlineData": {"mimeType": "audio/wav", "data": "QQ=="}}},
        {"type": "gemini", "part": {"executableCode": {"code": "1"}}},
        {"type": "gemini_referred", "part": {"inlineData": {"mimeType": "image/png", "data": "QQ=="}}},
        {"type": ["image"]},
        "image",
        None,
    ],
)
def test_parts_that_are_no_image_are_not_taken_for_one(part: Any) -> None:
    assert not is_image(json.dumps(part).encode())


def test_the_screenshot_of_openais_computer_tool_is_a_medium_and_a_document_of_text_is_none() -> None:
    assert is_medium({"type": "computer_screenshot", "computer_screenshot": {"image_url": "u"}})
    assert not is_medium({"type": "document", "source": {"type": "text", "data": "words"}})


def test_the_images_of_a_message_are_found_in_order() -> None:
    message = make_message(result("c", [{"type": "text", "text": "two"}, PICTURE, SHOT]))
    assert [json.loads(part) for part in find_images(message)] == [PICTURE, SHOT]
    assert len(read_parts(message)) == 3
    assert not find_images(make_message(user("none")))


def png(width: int, height: int) -> bytes:
    head = struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + head + bytes(2000)


def jpeg(width: int, height: int) -> bytes:
    preview = b"\xff\xe1" + struct.pack(">H", 60_000) + bytes(59_998)
    frame = b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + b"\3\1\x22\0"
    return b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + preview + frame + bytes(2000)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(2000)


def webp(width: int, height: int) -> bytes:
    sizes = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return b"RIFF\0\1\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + sizes + bytes(2000)


def webp_lossless(width: int, height: int) -> bytes:
    return b"RIFF\0\1\0\0WEBPVP8L\0\1\0\0\x2f" + struct.pack("<I", width - 1 | height - 1 << 14) + bytes(2000)


def webp_lossy(width: int, height: int) -> bytes:
    frame = b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF\0\1\0\0WEBPVP8 \0\1\0\0" + frame + bytes(2000)


@pytest.mark.parametrize("make", [png, jpeg, gif, webp, webp_lossless, webp_lossy])
@pytest.mark.parametrize("escape", [False, True])
def test_an_image_has_tokens_by_its_pixels(make: Any, escape: bool) -> None:
    data = base64.b64encode(make(1280, 720)).decode()
    for part in (
        {"type": "image_url", "image_url": {"url": f"data:image/x;base64,{data}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/x", "data": data}},
        {"type": "gemini", "part": {"inlineData": {"mimeType": "image/x", "data": data}}},
        {"type": "computer_screenshot", "computer_screenshot": {"image_url": f"data:image/x;base64,{data}"}},
    ):
        raw = json.dumps(part).encode()
        assert estimate_tokens(raw.replace(b"/", b"\\/") if escape else raw) == 1229


def test_a_small_image_has_few_tokens_and_a_large_one_is_scaled_down() -> None:
    def count(width: int, height: int, **more: str) -> int:
        url = "data:image/png;base64," + base64.b64encode(png(width, height)).decode()
        return estimate_tokens(json.dumps({"type": "image_url", "image_url": {"url": url, **more}}).encode())

    assert count(20, 20) == 1
    assert count(1920, 1080) == 2765
    assert count(8000, 8000) == 3000
    assert count(1920, 1080, detail="low") == 85
    assert count(0, 10) == PER_MEDIUM
    assert count(1920, 1080, a="b" * 5000) == 2765  # behind the data
    data = base64.b64encode(png(1920, 1080)).decode()
    assert estimate_tokens(json.dumps({"type": "image", "a": "b" * 5000, "data": data}).encode()) == PER_MEDIUM


@pytest.mark.parametrize(
    "data", ["", "iVBORw0KGgo", "iVBORw0KGgoAAAA=", "/9j/", "/9j/4AAQ!!!!", "R0lGODlh", "UklGRgAB", "JVBERi0x"]
)
def test_a_medium_whose_size_cannot_be_read_has_a_fixed_number(data: str) -> None:
    for raw in (f'{{"data":"{data}"}}', f'{{"data":"{data}', f'{{"url":"https://x/{data}.png"}}'):
        assert estimate_tokens(raw.encode()) == PER_MEDIUM
