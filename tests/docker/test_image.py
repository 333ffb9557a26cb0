"""The image's steps, run for real in a Debian root where there is no Docker engine; and what can be read off."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest

from tests.docker.image import Stage, build, instructions, megabytes

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"

NEEDS = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and debootstrap (Debian's package)"
)


def test_the_image_has_two_stages_an_unprivileged_user_and_a_health_check() -> None:
    found = instructions(DOCKERFILE.read_text())
    assert [word for word, _ in found].count("FROM") == 2
    last = found[[n for n, (word, _) in enumerate(found) if word == "FROM"][-1] :]
    assert dict(last)["USER"] == "10001:10001"
    assert "pip" not in " ".join(rest for word, rest in last if word == "RUN")
    assert "HEALTHCHECK" in dict(last)


def test_the_image_uninstalls_what_only_the_build_needs() -> None:
    text = DOCKERFILE.read_text()
    build_only = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["build"]
    for requirement in build_only:
        assert requirement.split(">")[0] in text.partition("uninstall -y")[2].splitlines()[0]


def test_a_linter_of_dockerfiles_finds_nothing() -> None:
    done = subprocess.run([Path(sys.prefix, "bin", "hadolint"), DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.long
@NEEDS
def test_the_image_s_steps_make_a_small_root_in_which_the_proxy_answers(tmp_path: Path) -> None:
    context = tmp_path / "context"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(context)], check=True)
    env = {k: v for k, v in os.environ.items() if k.startswith("PIP_")} | {"PIP_CERT": "/machine-ca.crt"}
    stage = build(DOCKERFILE, context, tmp_path, env)
    size = megabytes(stage)
    print(f"the image holds {size:.0f} MB", flush=True)
    assert size < 200
    for tool in ("gcc", "cc", "pip", "pip3", "make", "git", "curl"):
        assert not list(stage.root.glob(f"**/bin/{tool}")), tool
    assert stage.run("context-proxy", "check", "--host", "127.0.0.1")
    answers(stage)


def answers(stage: Stage) -> None:
    """Serve inside as the image's user, ask, and let the health check ask."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["context-proxy", "serve", "--port", str(port)]
    process = subprocess.Popen(stage.command(*words))
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(url + "/healthz", timeout=2).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}).encode()
        key = (stage.root / "data" / "keys" / "data.key").read_text()  # made by this first start
        head = {"content-type": "application/json", "x-context-key": key}
        request = urllib.request.Request(url + "/v1/chat/completions", body, head)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.loads(answer.read())["choices"][0]["message"]["content"]
        check = ast.literal_eval(stage.settings["HEALTHCHECK"].partition("CMD ")[2])
        stage.run(*[word.replace(":8080", f":{port}") for word in check])
        assert (stage.root / "data" / "context-proxy.sqlite3").stat().st_uid == 10001
    finally:
        process.terminate()
        assert process.wait(40) == 0
