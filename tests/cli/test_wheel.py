"""The wheel as somebody has it who installs the package: its metadata, its files, and a server that answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
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


def test_the_wheel_has_its_metadata_command_and_config_files(wheel: Path) -> None:
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


HERE = ".".join(map(str, sys.version_info[:2]))


def interpreter(version: str) -> str | None:
    """The path of that Python: this one, one on the PATH, or one of pyenv's."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own: list[str] = [getattr(sys, "_base_executable", sys.executable)] if version == HERE else []
    for program in (*own, f"python{version}", *map(str, sorted(folder.glob(f"{version}.*/bin/python")))):
        told = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run([program, "-c", told], capture_output=True, text=True, timeout=30)
        except OSError:
            continue
        if done.stdout.strip() == version:
            return program
    return None


def supported() -> list[str]:
    """The versions that the package's metadata name."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [one.rpartition(" ")[2] for one in told if one.startswith("Programming Language :: Python :: 3.")]


def test_every_version_that_is_promised_is_tested_where_it_is() -> None:
    versions = "VERSIONS := " + " ".join(supported())
    assert versions in (ROOT / "Makefile").read_text().splitlines()


# With each test run on this Python; on all that are there by `make test-wheel`, since an installation takes a minute.
EACH = [pytest.param(one, marks=() if one == HERE else pytest.mark.long) for one in supported()]


@pytest.mark.parametrize("version", EACH)
def test_a_clean_environment_serves_its_first_request_from_the_wheel(version: str, wheel: Path, tmp_path: Path) -> None:
    """Beside files of the user's that have the names of modules: the command looks at none of them."""
    program = interpreter(version)
    if program is None:
        pytest.skip(f"Python {version} is not there")
    subprocess.run([program, "-m", "venv", "env"], cwd=tmp_path, check=True, timeout=120)
    pip = [str(tmp_path / "env" / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    for what in (["--require-hashes", "-r", str(ROOT / "requirements.lock")], [str(wheel)]):
        done = subprocess.run([*pip, *what], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    work = tmp_path / "work"
    (work / "proxy").mkdir(parents=True)
    for name in ("proxy/__init__.py", "tokenizers.py", "fastapi.py"):
        (work / name).write_text("raise SystemExit('the wrong module')\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CONTEXT_"))}
    command = [str(tmp_path / "env" / "bin" / "context-proxy"), "serve", "--port", "0"]
    with subprocess.Popen(command, cwd=work, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = ""
            while "/v1" not in address:
                address = process.stdout.readline()
                assert address, "it ended"
            body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}).encode()
            request = urllib.request.Request(
                f"{address.split()[-1]}/chat/completions", body, {"content-type": "application/json"}
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=30) as answer:
                assert json.loads(answer.read())["choices"][0]["message"]["content"]
        finally:
            process.terminate()
        assert process.wait(30) == 0


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
