"""The text of a message changes in the bytes of its item, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.completions.request import append_text, replace_images
from proxy.dialects.responses import items, text_changes


def chat(content: object, role: str = "user") -> bytes:
    return json.dumps({"role": role, "content": content}).encode()


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


ITEM = b'{"type":"message", "role":"user", "content":[{"type":"input_text","text":"one"} ], "id":"m_1"}'


def test_only_the_text_of_an_item_changes() -> None:
    change = text_changes.compare_messages(chat([text("one")]), chat([text("two")]))
    assert text_changes.edit_item(ITEM, change) == ITEM.replace(b'"one"', b'"two"')


def test_a_text_that_is_added_is_a_part_of_its_own() -> None:
    change = text_changes.compare_messages(chat([text("one")]), chat([text("one"), text("more")]))
    edited = text_changes.edit_item(ITEM, change)
    assert json.loads(edited)["content"] == [{"type": "input_text", "text": word} for word in ("one", "more")]
    assert edited.startswith(ITEM[:70])
    assert text_changes.append_part(ITEM, "more").replace(b" ", b"") == edited.replace(b" ", b"")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (chat("a", "assistant"), chat("b", "assistant")),
        (chat("a", "system"), chat("b", "system")),
        (chat("a"), chat("a", "tool")),
        (chat("a"), chat([text("a")])),
        (chat([text("a"), {"type": "image_url"}]), chat([text("a")])),
    ],
)
def test_a_change_that_is_not_allowed_is_refused(before: bytes, after: bytes) -> None:
    with pytest.raises(ValueError, match=r"change|cannot|content"):
        text_changes.compare_messages(before, after)


def test_a_message_of_the_proxy_needs_a_text() -> None:
    assert text_changes.read_text(chat([text("a"), text("b")])) == "ab"
    with pytest.raises(ValueError, match="without a text"):
        text_changes.read_text(chat(None))


REMARK = {"type": "input_text", "text": "[gone]"}


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_a_remark_takes_the_place_of_an_image_in_a_tools_output(kind: str) -> None:
    output = [
        {"type": "input_text", "text": "one"},
        {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "low"},
        {"type": "input_image", "image_url": "u", "prompt_cache_breakpoint": {"x": 1}},
    ]
    item = {"type": kind, "call_id": "c", "output": output, "z": 1.50}
    raw = json.dumps(item).encode()
    before = items.make_message(item)
    after = append_text(replace_images(before, "[gone]"), "more")
    edited = text_changes.edit_item(raw, text_changes.compare_messages(before, after))
    wanted = [output[0], REMARK, {**REMARK, "prompt_cache_breakpoint": {"x": 1}}, {**REMARK, "text": "more"}]
    assert json.loads(edited) == {**item, "output": wanted}
    assert b"1.5," in edited or edited.endswith(b"1.5}")


@pytest.mark.parametrize("part", [{"type": "image", "data": "QQ=="}, {"type": "image_url", "image_url": {"url": "u"}}])
def test_an_output_that_is_one_part_and_images_of_other_formats_get_their_remark(part: dict[str, Any]) -> None:
    for output, wanted in ((part, REMARK), ([part, REMARK, part], [REMARK, REMARK, REMARK])):
        item = {"type": "function_call_output", "call_id": "c", "output": output}
        before = items.make_message(item)
        change = text_changes.compare_messages(before, replace_images(before, "[gone]"))
        edited = text_changes.edit_item(json.dumps(item).encode(), change)
        assert json.loads(edited) == {**item, "output": wanted}


def test_the_output_of_openais_computer_tool_has_no_image_that_may_leave() -> None:
    output = {"type": "computer_screenshot", "image_url": "data:image/png;base64,QQ=="}
    message = items.make_message({"type": "computer_call_output", "call_id": "c", "output": output})
    with pytest.raises(ValueError, match="without an image"):
        replace_images(message, "[gone]")


def test_an_image_of_a_user_is_never_replaced() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "u"}]}
    before = items.make_message(item)
    change = text_changes.compare_messages(before, replace_images(before, "[gone]"))
    with pytest.raises(ValueError, match="outside"):
        text_changes.edit_item(json.dumps(item).encode(), change)
