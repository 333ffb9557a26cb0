from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.cli.check import read_settings
from proxy.cli.main import app
from proxy.errors import ConfigError
from proxy.settings.load import Settings
from proxy.store import wal_reset


def test_what_is_in_force_is_said_as_toml(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('port = 1\n[upstreams.mine]\nbase_url = "https://x.example/v1"\n')
    result = CliRunner().invoke(app, ["check", "--config", str(file), "--port", "77"])
    assert result.exit_code == 0
    tree = tomllib.loads(result.output)
    assert tree["port"] == 77
    assert tree["upstreams"]["mine"]["base_url"] == "https://x.example/v1"
    assert "thrifty" in result.output.splitlines()[-2]


def test_what_is_wrong_is_said_with_file_line_and_key_and_code_2(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("port = 1\n\n[state]\nwithold = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli.main", "check", "--config", str(file)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"{file}:4: there is no setting state.withold; allowed: withhold (is that what is meant?)" in done.stderr


def test_s7_a_version_of_sqlite_with_the_wal_reset_bug_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, said in (((3, 40, 1), True), ((3, 51, 3), False)):
        monkeypatch.setattr(wal_reset.describe_bug, "__defaults__", (version,))
        assert ("WAL-reset" in CliRunner().invoke(app, ["check"]).output) == said
    monkeypatch.setattr(wal_reset.describe_bug, "__defaults__", ((3, 40, 1),))
    assert "SQLite" not in CliRunner().invoke(app, ["check", "--db", "postgresql://h/d"]).output


def test_an_address_that_a_start_would_refuse_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('host = "0.0.0.0"\n')
    refused = CliRunner().invoke(app, ["check", "--config", str(file)])
    assert isinstance(refused.exception, ConfigError)
    assert "no keys are configured" in str(refused.exception)
    with file.open("a") as more:
        more.write(f'keys_dir = "{tmp_path / "keys"}"\n')
    assert CliRunner().invoke(app, ["check", "--config", str(file)]).exit_code == 0, "the start makes keys"
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("line", "key"), [('ca_bundle = "no.pem"', "ca_bundle"), ('proxy = "socks5://127.0.0.1:1"', "proxy")]
)
def test_an_upstream_that_a_start_would_refuse_is_refused(
    line: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.pem").write_text("no certificate")
    (tmp_path / "c.toml").write_text(f'[upstreams.main]\nbase_url = "https://example.com/v1"\n{line}\n')
    refused = CliRunner().invoke(app, ["check", "--config", "c.toml"]).exception
    assert isinstance(refused, ConfigError)
    assert refused.key == f"upstreams.main.{key}"


def test_a_file_that_is_not_there_is_told_without_a_number(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["check", "--config", str(tmp_path / "none.toml")]).exception
    assert "(No such file or directory)" in str(refused)
    assert "Errno" not in str(refused)


def test_flags_that_are_not_given_change_nothing() -> None:
    assert read_settings(None, host=None, port=None) == Settings()
    assert read_settings(None, port=1234).port == 1234


def test_a_policy_that_cannot_be_read_is_refused_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nschedule = "someday"\n')
    with pytest.raises(ConfigError, match="someday") as caught:
        read_settings(None, policies_dir=str(tmp_path))
    assert caught.value.source == str(file)


def test_a_policy_that_a_shipped_one_hides_is_named(tmp_path: Path) -> None:
    for name in ("mine", "thrifty"):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n')
    out = CliRunner().invoke(app, ["check"], env={"CONTEXT_PROXY_POLICIES_DIR": str(tmp_path)}).output
    assert f"# Not used: {tmp_path}/thrifty.toml: the package has a policy of this name." in out
    assert "mine.toml" not in out


def test_a_model_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("[models.mine]\nwindows = 5\n")
    with pytest.raises(ConfigError, match="windows"):
        read_settings(None, models_file=str(file))
