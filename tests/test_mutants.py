"""Planting faults, seen on a small tree: what is red, what lives, and what tells nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, attempt, misfits, survey

TEST = """import proxy.sums

def test_two_and_two():
    assert proxy.sums.add(2, 2) == 4
"""
PLANTED = Mutant("sums are right", "proxy/sums.py", "one + other", "one - other", ("tests/test_sums.py",))
SAME = Mutant("sums are sums", "proxy/sums.py", "one + other", "other + one", ("tests/test_sums.py::test_two_and_two",))
BROKEN = Mutant("it is Python", "proxy/sums.py", "one + other", "one +", ("tests/test_sums.py",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    texts = {
        "proxy/__init__.py": "",
        "proxy/sums.py": "def add(one, other):\n    return one + other\n",
        "tests/test_sums.py": TEST,
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_fault_that_tests_see_is_red_one_that_they_do_not_see_lives(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tree / "proxy/sums.py").read_text()
    found = survey(tree, [PLANTED, SAME, BROKEN], 2)
    assert [one.as_wanted for one in found] == [True, True, False, False]
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["green", "red", "LIVES", "NO"], (
        "a tree that does not run is no verdict"
    )
    assert (tree / "proxy/sums.py").read_text() == before, "the tree itself is never touched"


@pytest.mark.slow
def test_tests_that_are_red_without_a_fault_show_nothing(tree: Path) -> None:
    (tree / "tests/test_sums.py").write_text("def test_it():\n    assert 0\n")
    found = attempt(tree, PLANTED.tests)
    assert not found.as_wanted
    assert found.told.startswith("NOT GREEN")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"text": "one * other"}, "0 times"),
        ({"text": "o"}, "times, not once"),
        ({"file": "proxy/gone.py"}, "0 times"),
        ({"tests": ("tests/test_gone.py",)}, "no test tests/test_gone.py"),
        ({"tests": ("tests/test_sums.py::test_gone",)}, "no test tests/test_sums.py::test_gone"),
        ({"tests": ()}, "no test is named"),
    ],
)
def test_a_fault_that_can_no_longer_be_planted_is_reported(tree: Path, changed: dict[str, object], told: str) -> None:
    assert misfits(tree, [PLANTED, SAME]) == []
    fields = {name: getattr(PLANTED, name) for name in ("broken", "file", "text", "instead", "tests")}
    (line,) = misfits(tree, [Mutant(**(fields | changed))])
    assert told in line
