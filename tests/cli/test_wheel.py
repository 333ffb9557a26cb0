"""The wheel as somebody has it who installs the package: its metadata, its files, and a server that answers."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from proxy.version import VERSION

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [found] = folder.glob("*.whl")
    return found


def test_its_metadata_say_what_it_is(wheel: Path) -> None:
    assert wheel.name == f"agent_context_proxy-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as there:
        names = there.namelist()
        told = Parser().parsestr(there.read(f"agent_context_proxy-{VERSION}.dist-info/METADATA").decode())
        commands = there.read(f"agent_context_proxy-{VERSION}.dist-info/entry_points.txt").decode()
    assert (told["Name"], told["Version"]) == ("agent-context-proxy", VERSION)
    assert told["Description-Content-Type"] == "text/markdown"
    assert "context-proxy = proxy.cli.entry:run" in commands
    for name in ("proxy/config/default.toml", "proxy/config/sample.jsonl.gz", "proxy/config/policies/thrifty.toml"):
        assert name in names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


def test_it_serves_beside_a_folder_of_the_user_s_that_is_called_proxy_too(wheel: Path, tmp_path: Path) -> None:
    installed, work = tmp_path / "installed", tmp_path / "work"
    with zipfile.ZipFile(wheel) as there:
        there.extractall(installed)
    (work / "proxy").mkdir(parents=True)
    (work / "proxy" / "__init__.py").write_text("raise SystemExit('the wrong proxy')\n")
    # As the installed command does: the working directory is not where modules are looked for.
    code = f"import proxy; assert proxy.__file__.startswith({str(installed)!r}); from proxy.cli.entry import run; run()"
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0", "--db", str(work / "a.sqlite3"), "--sample"],
        cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = ""
        while "dashboard" not in address:
            address = process.stdout.readline()
            assert address, process.communicate()[1]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(address.split()[-1], timeout=10) as answer:
            assert answer.status == 200
            assert b"<html" in answer.read()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
