from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import selection
from tests.selection import can_select, check_marks, find_marks, sort_longest_first

PLAIN = "not long and not slow and not timed and not faults"
SLOW = "slow and not long and not timed and not faults"
ALONE = "(timed or faults) and not long"


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(selection, "TESTS", tmp_path)
    monkeypatch.setattr(selection, "FAULTS", tmp_path / "faults")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "plain", "slow", "alone"),
    [
        ("def test_a(): ...", True, False, False),
        ("@pytest.mark.slow\ndef test_a(): ...", True, True, False),
        ("pytestmark = pytest.mark.slow", False, True, False),
        ("pytestmark = pytest.mark.slow\n@pytest.mark.timed\ndef test_a(): ...", False, True, True),
        ("pytestmark = [pytest.mark.clients, pytest.mark.slow]", False, True, False),
        ("pytestmark = [\n    pytest.mark.slow,\n]", True, True, False),
        ("pytestmark = pytest.mark.long", False, False, False),
    ],
)
def test_a_file_is_left_out_where_no_test_of_it_can_be_selected(
    tests: Path, text: str, plain: bool, slow: bool, alone: bool
) -> None:
    file = tests / "test_one.py"
    file.write_text(text)
    assert [can_select(expression, file) for expression in (PLAIN, SLOW, ALONE)] == [plain, slow, alone]


def test_marks_come_from_the_folder_as_well(tests: Path) -> None:
    (tests / "web" / "api").mkdir(parents=True)
    (tests / "web" / "conftest.py").write_text('pytest.param("postgres", marks=pytest.mark.slow)')
    file = tests / "web" / "api" / "test_one.py"
    file.write_text("")
    assert find_marks(file) == (frozenset(), frozenset({"slow"}))
    (tests / "faults").mkdir()
    file = tests / "faults" / "test_one.py"
    file.write_text("")
    assert not can_select(PLAIN, file)
    assert can_select(ALONE, file)


def test_an_expression_that_is_more_than_names_leaves_nothing_out(tests: Path) -> None:
    file = tests / "test_one.py"
    file.write_text("")
    assert can_select("slow(size=1)", file)


def test_a_mark_that_the_text_does_not_name_is_an_error(tests: Path) -> None:
    file = tests / "test_one.py"
    file.write_text("")
    item: Any = SimpleNamespace(path=file, nodeid="test_a", iter_markers=lambda: [pytest.mark.slow.mark])
    with pytest.raises(pytest.UsageError, match="test_a has a mark that its file does not name: slow"):
        check_marks([item])


def test_the_longest_files_come_first_then_those_with_the_most_tests(
    tests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "LONGEST", ("test_long.py", "test_longish.py"))
    names = ["one", "many", "longish", "many", "long"]
    items: list[Any] = [SimpleNamespace(path=tests / f"test_{name}.py", nodeid=n) for n, name in enumerate(names)]
    sort_longest_first(items)
    assert [item.nodeid for item in items] == [4, 2, 1, 3, 0]


def test_the_files_listed_as_longest_exist() -> None:
    assert [name for name in selection.LONGEST if not (selection.TESTS / name).is_file()] == []
