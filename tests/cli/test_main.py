from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.cli import entry
from proxy.cli.main import app, run
from proxy.errors import ConfigError
from proxy.version import VERSION


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["context-proxy"].partition(":")
    assert getattr(import_module(module), name) is entry.run


def test_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, VERSION)


def test_help_names_every_command() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    assert all(name in output for name in ("serve", "check", "docs"))


def test_a_config_error_ends_with_code_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["context-proxy", "check", "--policy", "nonesuch"])
    with pytest.raises(SystemExit) as ended:
        run()
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("context-proxy: --policy: policy = 'nonesuch' is not usable; allowed: one of ")
    assert captured.err.count("\n") == 1


def test_an_unknown_option_ends_with_code_2() -> None:
    done = subprocess.run([sys.executable, "-m", "proxy.cli.main", "check", "--prot", "1"], capture_output=True)
    assert done.returncode == 2


def test_config_error_reaches_callers_that_are_no_shell() -> None:
    result = CliRunner().invoke(app, ["check", "--port", "-1"])
    assert isinstance(result.exception, ConfigError)
