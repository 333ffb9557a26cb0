from __future__ import annotations

import pytest
from typer.main import get_command

from proxy.cli import docs
from proxy.cli.docs import MissingSource
from proxy.cli.main import app
from proxy.cli.settings_toml import read_fields
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.stages import BUILT_IN_STAGES
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.web import app as web


def table(name: str) -> str:
    return docs.render_table(name, get_command(app))


@pytest.mark.parametrize(
    "name", ["settings", "stages", "injections", "metrics", "commands"]
)  # routes have a test of their own below
def test_tables_are_tables(name: str) -> None:
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
def test_no_stage_voice_or_field_of_one_is_left_out(name: str, parts: dict[str, type]) -> None:
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


def test_routes_are_those_that_the_app_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "ROUTES", (("GET", "/healthz", "Alive | well."),), raising=False)
    assert "| GET | `/healthz` | Alive \\| well. |" in table("routes").splitlines()


def test_every_route_of_the_admin_api_is_told_with_its_keys() -> None:
    rows = table("routes").splitlines()
    assert any(row.startswith("| GET | `/api/sessions` |") and row.endswith("Also with a read key. |") for row in rows)
    assert any(row.startswith("| POST | `/api/import` |") and "read key" not in row for row in rows)


def test_a_missing_source_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(web, "ROUTES", raising=False)
    with pytest.raises(MissingSource, match="ROUTES"):
        table("routes")
