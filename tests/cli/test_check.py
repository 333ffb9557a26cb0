from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from proxy.cli.main import app


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
    assert f"{file}:4: state.withold = True is not usable; allowed: withhold (is that what is meant?)" in done.stderr
