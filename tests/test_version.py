from __future__ import annotations

import tomllib
from pathlib import Path

import proxy
from proxy.version import VERSION


def test_the_package_the_command_and_the_distribution_have_one_version() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "proxy/version.py"
    assert proxy.__version__ == VERSION
