"""Content parts before and after an edit."""

from __future__ import annotations

import json

import pytest

from proxy.dialects import spans
from proxy.dialects.part_edits import clear_text, edit_parts, make_text_part, read_parts, rewrite_parts

IMAGE = b'{"type":"image","data":"x"}'


def chat(*parts: bytes) -> bytes:
    return b'{"role":"user","content":[' + b",".join(parts) + b"]}"


def text(said: str) -> bytes:
    return make_text_part(b'"' + said.encode() + b'"')


def test_a_message_of_the_proxy_is_read_as_parts() -> None:
    assert read_parts(b'{"role":"user","content":""}') == [text("[removed]")]
    assert read_parts(b'{"role":"user","content":[{"type":"text", "text":"x"}]}') == [b'{"type":"text", "text":"x"}']
    with pytest.raises(ValueError, match="content"):
        read_parts(b'{"role":"user","content":null}')


def test_an_edit_is_divided_into_edits_of_parts() -> None:
    old = [text("a"), IMAGE, text("b")]
    assert edit_parts(old, chat(text("a"), IMAGE, text("c")), is_appended=False) == ([old[0], IMAGE, text("c")], [])
    assert edit_parts(old, chat(IMAGE, text("b")), is_appended=False) == ([None, IMAGE, old[2]], [])
    assert edit_parts(old, chat(*old, text("d")), is_appended=True) == (old, [text("d")])
    assert edit_parts([old[0]], b'{"role":"user","content":"all"}', is_appended=False) == ([text("all")], [])
    assert clear_text(text("a")) == text("[removed]")


def test_a_text_in_place_of_an_image_may_be_equal_to_a_text_after_it() -> None:
    gone = text("[gone]")
    for old in ([IMAGE, gone], [IMAGE, text("a"), gone], [gone, IMAGE, IMAGE, gone, gone]):
        new = [gone if part == IMAGE else part for part in old]
        assert edit_parts(old, chat(*new), is_appended=False) == (new, [])
        assert edit_parts(old, chat(*new, gone), is_appended=False) == (new, [gone])
        with pytest.raises(ValueError, match="never edited"):
            edit_parts(old, chat(*new), is_appended=True)


@pytest.mark.parametrize(
    ("new", "is_appended"),
    [
        (chat(text("a"), text("b")), False),  # the image has left
        (chat(text("x"), IMAGE, text("b")), True),
        (chat(text("a"), text("new"), IMAGE, text("b"), IMAGE), False),
        (b'{"role":"user","content":"all"}', True),
    ],
)
def test_edits_that_would_change_other_parts_than_text_are_refused(new: bytes, is_appended: bool) -> None:
    with pytest.raises(ValueError, match=r"part|edited"):
        edit_parts([text("a"), IMAGE, text("b")], new, is_appended=is_appended)


def test_parts_are_written_back_with_new_ones_between_them() -> None:
    raw = b'{"parts": [1, 2,  3 ]}'
    span = spans.read_members(raw)["parts"]
    elements = spans.read_elements(raw, span)
    same: list[bytes | None] = [b"1", b"2", b"3"]
    assert rewrite_parts(raw, span, elements, same, []) == b"[1, 2,  3 ]"
    inserted = [(-1, b"first"), (1, b"a"), (1, b"b"), (3, b"last")]
    assert json.loads(
        rewrite_parts(raw, span, elements, [b"1", None, b"4"], [(n, b'"%b"' % part) for n, part in inserted])
    ) == ["first", 1, "a", "b", 4, "last"]
    assert rewrite_parts(raw, span, elements, [None] * 3, []) == b""
    assert rewrite_parts(b"[]", (0, 2), [], [], [(-1, b"1"), (0, b"2")]) == b"[1,2]"


PICTURE = b'{"type":"image","source":{"type":"url","url":"u"}}'
REMARK = b'{"type":"text","text":"[gone]"}'


def test_a_text_takes_the_place_of_an_image() -> None:
    word = b'{"type":"text","text":"a"}'
    for old, new in (
        ([PICTURE], [REMARK]),
        ([word, PICTURE, PICTURE], [word, REMARK, REMARK]),
        ([PICTURE, word, PICTURE], [REMARK, word, REMARK]),
    ):
        chat = b'{"role":"tool","content":[' + b",".join(new) + b"]}"
        assert edit_parts(old, chat, is_appended=False) == (new, [])
        appended = b'{"role":"tool","content":[' + b",".join([*new, word]) + b"]}"
        assert edit_parts(old, appended, is_appended=False) == (new, [word])


def test_no_text_takes_the_place_of_a_document() -> None:
    document = b'{"type":"document","source":{"type":"url","url":"u"}}'
    with pytest.raises(ValueError, match="no text"):
        edit_parts([document], b'{"role":"tool","content":[' + REMARK + b"]}", is_appended=False)
