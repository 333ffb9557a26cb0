from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.promises import END, PROMISES, START, Promise, Results, table, write
from tests.faults.test_rows import TESTS, defined

PAGE = TESTS.parent / "docs" / "development" / "promises.md"


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_the_tests_of_a_promise_are_there(promise: Promise) -> None:
    for test in promise.tests:
        file, _, name = test.partition("::")
        assert not name or name in defined(TESTS / file), f"{test} is gone"
        assert defined(TESTS / file)


def test_the_page_has_a_table_that_a_run_wrote_in_which_every_promise_holds() -> None:
    text = PAGE.read_text("utf-8")
    between = text[text.index(START) : text.index(END)]
    for promise in PROMISES:
        [line] = [line for line in between.splitlines() if line.startswith(f"| **{promise.name}** ")]
        assert line.startswith(f"| **{promise.name}** {promise.words} | "), "the words have changed: write it anew"
        assert all(f"`{test}`" in line for test in promise.tests)
        assert " passed" in line
        assert "**broken**" not in line


def test_failed_and_skipped_tests_are_reported_as_such(tmp_path: Path) -> None:
    results = Results()
    one, two, three = PROMISES[0], PROMISES[1], PROMISES[5]
    results.note(f"{one.tests[0]}::test_d1", "passed", ["10 kills"])
    results.note(f"{one.tests[0]}::test_d1", "skipped")
    results.note(f"{two.tests[0]}::test_d2", "failed")
    results.note(three.tests[0], "passed")
    assert results.of(one) == "1 passed, 1 skipped; 10 kills"
    assert results.of(two) == "**broken**"
    assert results.of(three).startswith("not run: `web/test_chat.py::")
    file = tmp_path / "promises.md"
    file.write_text(f"before\n{START}old{END}\nafter\n")
    write(file, results)
    assert file.read_text() == f"before\n{START}\n\n{table(results)}\n\n{END}\nafter\n"
    write(tmp_path / "new.md", results)
    assert (tmp_path / "new.md").read_text().startswith(START)
