from __future__ import annotations

import sys
from types import ModuleType

import pytest

from proxy.cli import tables
from proxy.cli.tables import NAMES, NoSource, table
from proxy.metrics import Metrics
from proxy.settings import Settings


@pytest.mark.parametrize("name", ["settings", "stages", "metrics", "commands"])
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


def test_no_metric_is_left_out() -> None:
    text = table("metrics")
    assert all(f"`{described.name}`" in text for described in Metrics().described)


def test_no_command_is_left_out() -> None:
    text = table("commands")
    assert all(f"`context-proxy {name}`" in text for name in ("serve", "check", "docs"))
    assert "`--upstream`" in text


def test_routes_are_those_that_the_app_names(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ModuleType("proxy.web.app")
    app.ROUTES = (("GET", "/healthz", "Alive | well."),)  # type: ignore[attr-defined]  # a stand-in module
    monkeypatch.setitem(sys.modules, "proxy.web.app", app)
    assert table("routes").splitlines()[-1] == "| GET | `/healthz` | Alive \\| well. |"


def test_a_missing_source_is_told() -> None:
    with pytest.raises(NoSource, match="nonesuch"):
        tables._module("proxy.nonesuch")


def test_names_are_the_tables_that_there_are() -> None:
    assert set(NAMES) == set(tables._TABLES)
