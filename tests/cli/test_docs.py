from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from proxy.cli import docs
from proxy.cli import docs as command
from proxy.cli.docs import MissingSource
from proxy.cli.main import app
from proxy.cli.settings_toml import read_fields
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.stages import BUILT_IN_STAGES
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.web import app as web

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


def test_outside_of_a_checkout_nothing_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["docs", "--folder", str(tmp_path)])
    assert "a checkout of context-proxy" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


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


def test_a_checkout_without_pages_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "docs").mkdir()
    assert "no page has markers for the table metrics" in invoke(tmp_path)[1]


def test_the_pages_of_this_checkout_say_what_the_code_says_and_leave_out_no_table() -> None:
    code, output = invoke(ROOT, "--check")
    assert code == 0, output
    assert "no page has markers" not in output


def table(name: str) -> str:
    return docs.render_table(name, get_command(app))


@pytest.mark.parametrize(
    "name", ["settings", "stages", "injections", "metrics", "commands"]
)  # routes have a test of their own below
def test_each_generated_table_is_well_formed_markdown(name: str) -> None:
    head, rule, *rows = table(name).splitlines()
    columns = head.count("|")
    assert set(rule) == {"|", "-"}
    assert rows
    assert all(row.replace("\\|", "").count("|") == columns for row in rows)


def test_no_setting_is_left_out() -> None:
    text = table("settings")
    for name, value in Settings():
        for key in type(value).model_fields if hasattr(type(value), "model_fields") else ():
            assert f"`{name}.{key}`" in text
    assert "`upstreams.NAME.base_url`" in text
    assert "`port`" in text


@pytest.mark.parametrize(("name", "parts"), [("stages", BUILT_IN_STAGES), ("injections", BUILT_IN_INJECTIONS)])
def test_no_stage_injection_or_field_of_one_is_left_out(name: str, parts: dict[str, type]) -> None:
    rows = {row.split("`")[1]: row for row in table(name).splitlines()[2:]}
    assert rows.keys() == parts.keys()
    for part, kind in parts.items():
        for told in read_fields(kind):
            assert f"`{told.name} = " in rows[part]
            assert told.text, f"{part}.{told.name} says nothing"


def test_no_metric_is_left_out() -> None:
    text = table("metrics")
    assert all(f"`{described.name}`" in text for described in Metrics().descriptions)


def test_no_command_is_left_out() -> None:
    text = table("commands")
    assert all(f"`context-proxy {name}`" in text for name in ("serve", "check", "docs"))
    assert "`--upstream`" in text
    for words in ("context drop SESSION", "stats [SESSION]", "memos export", "import"):
        assert f"| `context-proxy {words}` |" in text
    assert text.count("`--url`") == 1, "what many commands share is told once"


def test_the_table_of_routes_lists_those_of_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ROUTES", (("GET", "/healthz", "Alive | well."),), raising=False)
    assert "| GET | `/healthz` | Alive \\| well. |" in table("routes").splitlines()


def test_every_route_of_the_admin_api_is_listed_with_its_keys() -> None:
    rows = table("routes").splitlines()
    assert any(row.startswith("| GET | `/api/sessions` |") and row.endswith("Also with a read key. |") for row in rows)
    assert any(row.startswith("| POST | `/api/import` |") and "read key" not in row for row in rows)


def test_a_missing_source_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(web, "ROUTES", raising=False)
    with pytest.raises(MissingSource, match="ROUTES"):
        table("routes")
