from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.cli import docs as command
from proxy.cli.docs import MissingSource
from proxy.cli.main import app

PAGE = "# Title\n\n<!-- docs:metrics -->\nold\n<!-- /docs:metrics -->\n\nend \\1\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "metrics.md").write_text(PAGE)
    return tmp_path


def invoke(folder: Path, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["docs", "--folder", str(folder), *more])
    return result.exit_code, result.output


def test_tables_are_written_between_their_markers_and_nothing_else_changes(checkout: Path) -> None:
    code, output = invoke(checkout)
    text = (checkout / "docs" / "metrics.md").read_text()
    assert code == 0
    assert text.startswith("# Title\n\n<!-- docs:metrics -->\n\n| Metric |")
    assert text.endswith("|\n\n<!-- /docs:metrics -->\n\nend \\1\n")
    assert "no page has markers for the table settings" in output
    assert (checkout / "config" / "default.toml").read_text().startswith("# Every setting")


def test_writing_twice_changes_nothing(checkout: Path) -> None:
    invoke(checkout)
    before = (checkout / "docs" / "metrics.md").read_text()
    assert "written\n" not in invoke(checkout)[1].replace("not written\n", "")
    assert (checkout / "docs" / "metrics.md").read_text() == before


def test_check_writes_nothing_and_ends_with_1_where_something_drifts(checkout: Path) -> None:
    code, output = invoke(checkout, "--check")
    assert code == 1
    assert "metrics.md does not say" in output
    assert "default.toml does not say" in output
    assert (checkout / "docs" / "metrics.md").read_text() == PAGE
    invoke(checkout)
    assert invoke(checkout, "--check")[0] == 0


def test_a_table_without_its_source_is_left_as_it_is(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, commands: object) -> str:
        raise MissingSource("not there yet")

    monkeypatch.setattr(command, "render_table", missing)
    code, output = invoke(checkout)
    assert code == 0
    assert "the table metrics is left as it is: not there yet" in output
    assert (checkout / "docs" / "metrics.md").read_text() == PAGE


def test_the_readme_may_have_tables_too(checkout: Path) -> None:
    (checkout / "README.md").write_text(PAGE)
    assert invoke(checkout)[0] == 0
    assert "| Metric |" in (checkout / "README.md").read_text()


def test_a_checkout_without_pages_is_told(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    assert "no page has markers for the table metrics" in invoke(tmp_path)[1]


def test_the_pages_of_this_checkout_say_what_the_code_says_and_leave_out_no_table() -> None:
    code, output = invoke(ROOT, "--check")
    assert code == 0, output
    assert "no page has markers" not in output
