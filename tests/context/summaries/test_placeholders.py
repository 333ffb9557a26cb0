"""Texts of a policy file with words in angle brackets, which stand for what is known only then."""

from __future__ import annotations

import pytest

from proxy.context.summaries import placeholders
from proxy.errors import ConfigError


def test_each_placeholder_is_filled_once_and_what_it_brings_is_not_read_again() -> None:
    assert placeholders.fill("<WHAT>: <RUN> of <RUN>, <OTHER>", RUN=3, WHAT="a <RUN>") == "a <RUN>: 3 of 3, <OTHER>"


@pytest.mark.parametrize("text", ["", " \n", "no number", "<left>", "<LEFT> and <LFET>", 7])
def test_a_text_without_what_it_needs_or_with_what_nobody_fills_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"injections\.count_down\.firm"):
        placeholders.check("injections.count_down.firm", text, ("LEFT",))


def test_a_text_may_leave_out_what_it_does_not_need_and_may_be_told_to_be_free() -> None:
    placeholders.check("k", "plain", (), ("RUN",))
    placeholders.check("k", "<RUN>", (), ("RUN",))
    placeholders.check("k", "Inside <TAGS> in <CHARACTERS>", ("CHARACTERS",), None)
    with pytest.raises(ConfigError, match="CHARACTERS"):
        placeholders.check("k", "Inside <TAGS>", ("CHARACTERS",), None)
