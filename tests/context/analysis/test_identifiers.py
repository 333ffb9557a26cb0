"""Names and lines of a text, and the other messages that have them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.analysis import identifiers
from proxy.context.analysis.identifiers import PromptIndex
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit
from tests.conversations import Json, assistant, build_view, call, result, user


def test_names_are_words_with_a_digit_or_a_mark_of_paths_and_ids() -> None:
    text = "see src/app.py:12, id 4f3a-99 and user_name; not plain words, nor a_1"
    assert identifiers.remove_duplicates(identifiers.find_names(text)) == ["src/app.py:12", "4f3a-99", "user_name"]


def test_colours_of_a_terminal_are_not_part_of_a_name() -> None:
    text = "\x1b[0;32m/opt/dates.py:1063\x1b[0m, in \x1b[38;5;124mto_date\x1b[39m(\x1b[1morder\x1b[0m_date)"
    assert identifiers.find_distinct_names(text) == ["/opt/dates.py:1063", "to_date", "order_date"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see https://a.example/watch?v=dQw4w9&t=7, or", ["https://a.example/watch?v=dQw4w9&t=7"]),
        ('<a href="http://a.example/?id=12">id 4711</a>', ["http://a.example/?id=12", "4711"]),
        ("(https://a.example/b?c=1). 4711", ["https://a.example/b?c=1", "4711"]),
        ("is https://a.example/b right? 4711", ["https://a.example/b", "4711"]),
        ("https://a.example/b?c=" + "1" * 200, ["https://a.example/b", "1" * 200]),
    ],
)
def test_an_url_is_a_name_with_its_query(text: str, names: list[str]) -> None:
    assert identifiers.find_distinct_names(text) == names


def test_urls_are_found_in_linear_time() -> None:
    text = "https://a.example/" + "b?" * 300_000 + " http://" * 100_000
    assert identifiers.find_distinct_names(text)


NAME = re.compile(r"[\w/.#~][\w./#@:+~-]{2,}\w")
"""A name: at least four characters long, no punctuation of sentences at its ends."""


@given(st.text(st.sampled_from("aB1_./#@:+~- \n\té→—²ſ中\u2028\x1cx")))
def test_find_names_equals_a_search_with_the_regular_expression(text: str) -> None:
    found = [name for name in NAME.findall(text) if any(c in "/_@.0123456789" for c in name)]
    assert list(identifiers.find_names(text)) == found
    assert identifiers.find_distinct_names(text) == identifiers.remove_duplicates(found)


@pytest.mark.parametrize("row", [".", "/", "#", "~"])
def test_a_long_run_of_punctuation_after_a_character_that_is_not_ascii_takes_linear_time(row: str) -> None:
    # A search for names went back over the row once for each of its characters: minutes, with the interpreter locked.
    assert identifiers.find_distinct_names(f"é{row * 1_000_000} src/app.py")[-1] == "src/app.py"


def test_a_line_is_compared_without_its_indentation_and_line_number() -> None:
    assert (
        identifiers.strip_line_number("    12\tdef run():")
        == identifiers.strip_line_number("def run():  ")
        == "def run():"
    )
    assert identifiers.strip_line_number("7| x = 1") == "x = 1"
    assert identifiers.strip_line_number("12 apples and pears") == "12 apples and pears", (
        "a number is no line number by itself"
    )


def test_the_arguments_of_calls_are_read_as_the_texts_in_them() -> None:
    assert (
        identifiers.read_argument_texts('{"path": "a.py", "new": "one line\\nanother", "n": 3, "flag": true}')
        == "a.py\none line\nanother\n3"
    )
    assert identifiers.read_argument_texts("not JSON") == "not JSON"


def conversation() -> list[Json]:
    calling = {**assistant("I look at notes_1.txt"), "tool_calls": [call("1", "read", '{"path": "/a/b.py"}')]}
    return [
        user("Mend /a/b.py please"),
        calling,
        result("1", "only_here.py and /a/b.py\na line that stands twice"),
        user("a line that stands twice"),
    ]


def test_names_and_lines_that_occur_elsewhere_are_distinguished_from_those_that_do_not() -> None:
    view = build_view(conversation())
    standing = PromptIndex(view)
    assert standing.has_line("only_here.py and /a/b.py")
    standing.remove(identifiers.find_facts(view.messages[2], None))
    # The path stands in the prompt and in the call's arguments too.
    assert standing.select_missing_names(["/a/b.py", "only_here.py", "nowhere.py"]) == ["only_here.py", "nowhere.py"]
    assert standing.has_line("a line that stands twice")
    assert not standing.has_line("only_here.py and /a/b.py")


def test_a_line_in_the_arguments_of_a_call_is_in_the_prompt() -> None:
    written = {**assistant("Done."), "tool_calls": [call("1", "write", '{"text": "a line that was written\\nshort"}')]}
    standing = PromptIndex(build_view([user("Write it"), written, result("1", "ok")]))
    assert standing.has_line("a line that was written")
    assert not standing.has_line("short")


def test_an_edited_message_holds_what_it_says_now() -> None:
    view = build_view(conversation())
    edit = Edit(view.keys[2], "text", "only other_name.py", "shorten_results", "", 9, 5)
    edited = build_view(conversation(), state=BranchState(edits={edit.key: edit}))
    standing = PromptIndex(edited)
    assert standing.select_missing_names(["other_name.py", "only_here.py"]) == ["only_here.py"]
    gone = Edit(view.keys[2], "gone", None, "close_window", "", 9, 0)
    nothing = identifiers.find_facts(view.messages[2], gone)
    assert (nothing.names, nothing.line_set) == ([], frozenset())


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    facts = identifiers.find_text_facts(text)
    assert len(facts.line_set) <= len(text.splitlines())
    assert len(facts.names) <= len(text)
