"""The marks of messages; `test_history` has the facts that a history hands on, `test_build_view` the rest of a View."""

from __future__ import annotations

import msgspec

from proxy.context.view import compute_mark
from tests.context.test_build_view import GONE, SHORT, TALK
from tests.conversations import make_message


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
