"""Media among the content parts, and the images that a text may stand in for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chat.media import find_images, is_image, is_medium, read_parts
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
def test_an_image_of_each_wire_format_is_one(part: dict[str, Any]) -> None:
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
def test_no_text_stands_in_for_any_other_part(part: Any) -> None:
    assert not is_image(json.dumps(part).encode())


def test_the_screenshot_of_openais_computer_tool_is_a_medium_and_a_document_of_text_is_none() -> None:
    assert is_medium({"type": "computer_screenshot", "computer_screenshot": {"image_url": "u"}})
    assert not is_medium({"type": "document", "source": {"type": "text", "data": "words"}})


def test_the_images_of_a_message_are_found_in_order() -> None:
    message = make_message(result("c", [{"type": "text", "text": "two"}, PICTURE, SHOT]))
    assert [json.loads(part) for part in find_images(message)] == [PICTURE, SHOT]
    assert len(read_parts(message)) == 3
    assert not find_images(make_message(user("none")))
