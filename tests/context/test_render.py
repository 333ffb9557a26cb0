from __future__ import annotations

import json

import pytest

from proxy.chat import chain
from proxy.context.plan import Edit, Insert
from proxy.context.render import Rendering, add_inserts, read_visible_text, render_message, render_plain
from tests.conversations import COUNTER, assistant, make_message, make_messages, result, system, user

TALK = make_messages(system("Be."), user("go"), assistant("so", "1"), result("1", "long text"), assistant("done"))
KEYS = chain.compute_keys("", TALK)


def edit(n: int, action: str, text: str | None = None, after: int = 7) -> Edit:
    return Edit(KEYS[n], action, text, "s", "r", 50, after)  # type: ignore[arg-type]


def render_talk(
    *edits: Edit, inserts: dict[int, list[Insert]] | None = None, after: tuple[Insert, ...] = ()
) -> Rendering:
    plain = render_plain(TALK, KEYS, {e.key: e for e in edits}, [COUNTER(m) for m in TALK])
    return add_inserts(plain, len(TALK), inserts or {}, after)


PICTURE = {"type": "image_url", "image_url": {"url": "u"}}


def test_untouched_messages_are_the_very_slices() -> None:
    found = render_talk()
    assert all(raw is m.raw for raw, m in zip(found.raws, TALK, strict=True))
    assert found.marks == [m.form for m in TALK]
    assert found.sizes == [COUNTER(m) for m in TALK]


def test_each_action_makes_the_bytes_it_says() -> None:
    one = TALK[2]
    assert render_message(one, None) is one.raw
    assert render_message(one, edit(2, "gone")) is None
    assert render_message(one, edit(2, "text", "x")) == one.raw.replace(b'"so"', b'"x"')
    assert render_message(one, edit(2, "append", "!")) == one.raw.replace(b'"so"', b'"so!"')
    assert json.loads(render_message(one, edit(2, "text_only")) or b"") == {"role": "assistant", "content": "so"}
    (shown,) = make_messages(result("c", [{"type": "text", "text": "so"}, PICTURE]))
    parts = json.loads(render_message(shown, edit(2, "images", "[gone]")) or b"")["content"]
    assert parts == [{"type": "text", "text": "so"}, {"type": "text", "text": "[gone]"}]


def test_text_appended_to_a_string_equals_text_appended_to_a_list_of_one_marked_text() -> None:
    marked = {"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}
    both = [marked, {"type": "text", "text": "on"}]
    note = Edit(b"", "append", " [note]", "s", "r", 50, 60)

    def render_content(content: object) -> object:
        (one,) = make_messages({"role": "user", "content": content})
        return json.loads(render_message(one, note) or b"")["content"]

    assert render_content("go") == "go [note]"
    assert render_content([marked]) == [{**marked, "text": "go [note]"}]
    assert render_content(both) == [*both, {"type": "text", "text": " [note]"}]


def test_the_bytes_of_an_edited_message_are_rendered_once() -> None:
    one = edit(3, "text", "x")
    assert render_message(TALK[3], one) is render_message(TALK[3], edit(3, "text", "x"))
    assert render_message(TALK[3], edit(3, "text", "y")) != render_message(TALK[3], one)


def test_the_visible_text_is_that_which_goes_out() -> None:
    one = TALK[3]
    assert read_visible_text(one, None) == "long text"
    assert read_visible_text(one, edit(3, "text", "x")) == "x"
    assert read_visible_text(one, edit(3, "append", "!")) == "long text!"
    assert read_visible_text(TALK[2], edit(2, "text_only")) == "so"
    assert read_visible_text(one, edit(3, "images", "[gone]")) == "long text[gone]"


def test_edited_messages_weigh_what_their_edits_say_and_those_gone_are_not_there() -> None:
    found = render_talk(edit(3, "text", "x", after=5), edit(4, "gone"))
    assert found.sizes == [COUNTER(m) for m in TALK[:3]] + [5]
    assert [out.text for out in found.outs] == ["Be.", "go", "so", "x"]


def test_a_system_message_is_not_touched_by_its_neighbours_edit() -> None:
    talk = make_messages(user("a"), system("b"))
    keys = chain.compute_keys("", talk)
    found = render_plain(talk, keys, {keys[0]: Edit(keys[0], "gone", None, "s", "", 5, 0)}, [5, 5])
    assert found.raws == [talk[1].raw]


def test_the_rules_see_whether_a_message_still_makes_calls() -> None:
    assert [out.has_calls for out in render_talk().outs] == [False, False, True, False, False]
    assert not any(out.has_calls for out in render_talk(edit(2, "text_only")).outs)


def test_an_insert_at_the_tail_is_not_in_the_mark_and_one_in_the_system_message_is() -> None:
    plain = render_talk()
    tail = render_talk(inserts={1: [Insert("tail", "ask", "\n\nask")]})
    assert json.loads(tail.raws[1])["content"] == "go\n\nask"
    assert tail.marks == plain.marks
    one = render_talk(inserts={0: [Insert("system", "state", "\n\none")]})
    other = render_talk(inserts={0: [Insert("system", "state", "\n\nother")]})
    assert json.loads(one.raws[0])["content"] == "Be.\n\none"
    assert len({plain.marks[0], one.marks[0], other.marks[0]}) == 3
    assert one.marks[1:] == plain.marks[1:]


def test_an_insert_is_placed_after_an_edit_of_the_same_message() -> None:
    found = render_talk(edit(1, "append", "!"), inserts={1: [Insert("tail", "a", " A"), Insert("tail", "b", " B")]})
    assert json.loads(found.raws[1])["content"] == "go! A B"
    assert found.outs[1].text == "go! A B"


def test_texts_after_the_end_are_one_user_message_of_the_proxy() -> None:
    found = render_talk(after=(Insert("tail", "a", "\n\nA"), Insert("tail", "b", "\n\nB")))
    assert json.loads(found.raws[-1]) == {"role": "user", "content": "A\n\nB"}
    assert found.outs[-1].message is None
    assert found.marks[-1] == b""
    assert render_talk().raws == found.raws[:-1]


def test_a_message_without_text_cannot_be_given_another() -> None:
    bare = make_message(assistant(None, "1"))
    with pytest.raises(ValueError, match="no text"):
        render_message(bare, edit(2, "text", "x"))
