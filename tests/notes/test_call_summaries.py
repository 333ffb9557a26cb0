"""A tool call in a few words: verbs, subjects, outcomes and findings read off calls and results."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.notes import call_summaries
from proxy.notes.call_summaries import Outcome, QuotedOutcome, shorten_at_word
from tests.conversations import make_message, result


def describe_named_call(name: str, **arguments: object) -> str:
    return call_summaries.describe_call(Call("c", name, json.dumps(arguments)))


def test_c3_an_action_is_the_tool_in_a_verb_and_what_it_was_about() -> None:
    assert describe_named_call("web_search", query="python tutorial") == "searched 'python tutorial'"
    assert describe_named_call("read_file", path="logs/error.log", limit=3) == "read logs/error.log"
    assert describe_named_call("bash", command="pytest -q") == "ran pytest -q"
    assert describe_named_call("getPage", url="http://x.org") == "read http://x.org"
    assert describe_named_call("frobnicate", what="it") == "called frobnicate 'it'"
    assert describe_named_call("frobnicate") == "called frobnicate"
    assert describe_named_call("run") == "ran with run"
    assert call_summaries.describe_call(Call("c", "bash", "ls -l\n/tmp")) == "ran ls -l /tmp"
    assert call_summaries.describe_call(Call("c", "bash", '"ls"')) == "ran ls"
    assert call_summaries.describe_call(Call("c", "bash", "[1]")) == "ran with bash"
    assert len(describe_named_call("search", query="x" * 500)) < 100


def test_c3_a_finding_says_how_much_came_or_what_went_wrong() -> None:
    def finding(text: str, how: Outcome = "success", said: str = "") -> str:
        return call_summaries.describe_result(make_message(result("c", text)), QuotedOutcome(how, said))

    assert finding('[{"a": 1}, {"a": 2}, {"a": 3}]') == "found 3 results"
    assert finding("[1]") == "found 1 result"
    assert finding("[broken") == "[broken"
    assert finding("first\nsecond") == "first (2 lines)"
    assert finding("first\nsecond", "unknown") == "first (2 lines)"
    assert finding("first\n3 passed", "success", "3 passed") == "3 passed (2 lines)"
    assert finding("") == "empty"
    assert finding("Traceback (most recent call last):\n  File x\nKeyError: 'a'", "error") == "error: KeyError: 'a'"
    assert finding("x\n2 failed\ny", "failure", "2 failed") == "failure: 2 failed"
    assert len(finding("x" * 5000)) <= call_summaries.MAX_LINE_CHARS


def test_a_result_that_is_an_image_is_not_a_failure() -> None:
    found = make_message(result("c", [{"type": "image_url", "image_url": {"url": "data:"}}]))
    assert call_summaries.describe_result(found, QuotedOutcome("success")) == "an image or file"


def test_an_image_beside_a_text_is_named() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    found = make_message(result("c", [{"type": "text", "text": "Page: a\nTitle: b"}, image]))
    assert call_summaries.describe_result(found, QuotedOutcome("success")) == "Page: a (2 lines), with an image or file"
    found = make_message(result("c", [{"type": "text", "text": "Error: no page"}, image, image]))
    assert (
        call_summaries.describe_result(found, QuotedOutcome("error")) == "error: Error: no page, with 2 images or files"
    )


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("the total is 1,204,331.50 EUR", 24, "the total is..."),
        ("the total is 1,204,331.50 EUR", 28, "the total is 1,204,331.50..."),
        ("at 14:20 in room 4711b", 22, "at 14:20 in room 4711b"),
        ("at 14:20 in room 4711b", 21, "at 14:20 in room..."),
        ("read src/shop/checkout/total.py", 28, "read src/shop/checkout/..."),
        ("id " + "f3" * 40, 20, "id f3f3f3f3f3f3f3..."),
        ("价格是一千二百欧元,已付八百元", 10, "价格是一千二百..."),
    ],
)
def test_a_short_text_shows_no_half_of_a_number_or_a_name(text: str, limit: int, shown: str) -> None:
    assert shorten_at_word(text, limit) == shown


@given(st.text(st.sampled_from("a1 ./,:-é中")), st.integers(4, 30))
def test_a_short_text_is_the_beginning_of_the_text(text: str, limit: int) -> None:
    shown = shorten_at_word(text, limit)
    assert len(shown) <= limit
    assert text == shown or text.startswith(shown.removesuffix("..."))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/dev/work/" + "deep/" * 20 + "shop/total.py", "..." + "/deep" * 12 + "/shop/total.py"),
        ("C:\\work\\" + "deep\\" * 20 + "total.py", "..." + "\\deep" * 13 + "\\total.py"),
        ("/work/" + "x" * 90 + ".py", "..." + "x" * 74 + ".py"),
        ("https://example.com/" + "deep/" * 20, "https://example.com/" + "deep/" * 11 + "..."),
    ],
)
def test_the_end_of_a_long_path_stays(path: str, shown: str) -> None:
    assert describe_named_call("read_file", path=path) == f"read {shown}"
