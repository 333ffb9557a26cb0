"""The marks of messages; `test_history` has the facts that a history hands on, `test_build_view` the rest of a View."""

from __future__ import annotations

import time

import msgspec

from proxy.context.view import compute_mark
from tests.context.test_build_view import GONE, SHORT, TALK
from tests.conversations import make_message, user


def test_a_mark_changes_whenever_the_bytes_that_go_out_do() -> None:
    one = make_message(TALK[3])
    marks = {
        compute_mark(one, e)
        for e in (
            None,
            GONE,
            SHORT,
            msgspec.structs.replace(SHORT, text="s"),
            msgspec.structs.replace(SHORT, action="append"),
        )
    }
    assert len(marks) == 5
    assert compute_mark(one, None) == one.form
    assert compute_mark(one, SHORT) == compute_mark(
        make_message(TALK[3]), msgspec.structs.replace(SHORT, stage="other", reason="other")
    )


def test_a_text_and_a_list_of_that_text_have_one_mark() -> None:
    for text in ("", 'a "b" \\', "\n\t}]", '"}', "\u00e9 \U0001f600"):
        one, other = user(text), user([{"type": "text", "text": text}])
        assert compute_mark(make_message(one), None) == compute_mark(make_message(other), None)
    for parts in ([{"type": "text", "text": "a", "x": "b"}], [{"type": "x", "text": "a"}]):
        assert compute_mark(make_message(user(parts)), None) != compute_mark(make_message(user("a")), None)


def test_the_mark_of_a_text_full_of_escapes_takes_little_work() -> None:
    message = make_message(user([{"type": "text", "text": "\n" * 4_000_000}]))
    began = time.thread_time()
    compute_mark(message, None)
    assert time.thread_time() - began < 0.25, "0.4 s if each escape is a step of a pattern, without a pause"
