from __future__ import annotations

import re
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxy.cli.key import hash_password, make_password, make_web_config, render_entry
from proxy.cli.main import app
from proxy.errors import ConfigError
from proxy.settings.load import load_settings
from proxy.settings.model import ApiKeySettings


def test_the_entry_fits_the_key_that_was_shown(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["key", "--plane", "admin", "--tenant", "acme"])
    assert done.exit_code == 0
    (shown,) = [line for line in done.stderr.splitlines() if line.startswith("cp-")]
    assert shown not in done.stdout, "what is written to the config file opens nothing"
    file = tmp_path / "config.toml"
    file.write_text(done.stdout)
    (key,) = load_settings(file).keys
    assert (key.plane, key.tenant, key.sha256) == ("admin", "acme", sha256(shown.encode()).hexdigest())


def test_each_generated_key_is_long_and_different() -> None:
    made = [CliRunner().invoke(app, ["key"]).stderr.split()[-1] for _ in range(2)]
    assert made[0] != made[1]
    assert all(len(one) > 40 for one in made)


@pytest.mark.parametrize(
    ("name", "tenant", "plane", "told"),
    [
        ("a b", "t", "data", "--name"),
        ("", "", "data", "--tenant"),
        ("", "*", "data", "one tenant"),
        ("", "t", "x", "--plane"),
    ],
)
def test_what_could_not_be_used_is_refused(name: str, tenant: str, plane: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        render_entry("cp-key", name, tenant, plane)


def test_a_key_may_see_everybody() -> None:
    (made,) = tomllib.loads(render_entry("cp-key", "", "*", "read"))["keys"]
    assert ApiKeySettings.model_validate(made).tenant == "*"
    assert made["name"].startswith("everybody-read-")


def test_a_folder_gets_a_key_of_each_plane_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["key", "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    keys = {key.plane: key for key in load_settings(tmp_path / "keys.toml").keys}
    assert set(keys) == {"data", "admin", "read", "metrics"}
    for plane, key in keys.items():
        file = tmp_path / f"{plane}.key"
        assert sha256(file.read_bytes()).hexdigest() == key.sha256
        assert file.read_text() not in done.output
        assert file.stat().st_mode & 0o077 == (0o044 if plane == "metrics" else 0)
    before = (tmp_path / "keys.toml").read_bytes()
    again = CliRunner().invoke(app, ["key", "--folder", str(tmp_path)])
    assert (again.exit_code, (tmp_path / "keys.toml").read_bytes()) == (0, before)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["key", "--folder", str(tmp_path / "no" / "keys")])
    assert isinstance(done.exception, ConfigError)
    assert "folder" in str(done.exception)


def test_a_hash_is_bcrypts_and_each_has_a_salt_of_its_own() -> None:
    password = make_password()
    made = {hash_password(password) for _ in range(5)}
    assert len(made) == 5
    assert all(re.fullmatch(r"\$2b\$05\$[./A-Za-z0-9]{53}", one) for one in made)


def test_the_password_is_not_in_the_configuration() -> None:
    password = make_password()
    assert len(password) > 40
    assert password not in make_web_config(password)
    assert make_web_config(password).startswith("basic_auth_users:\n  prometheus: $2b$")


def test_a_folder_that_is_not_there_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["key", "--folder", str(tmp_path / "keys")])
    assert done.exit_code == 0
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "keys" / "keys.toml").exists()
