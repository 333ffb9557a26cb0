"""The `docker run` line of the Dockerfile without an engine: the same environment, command and user, and a root that
only /data can be written to.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker.image import instructions
from tests.raw_upstream import free_port

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
USER = 10001
HARDENED = os.geteuid() == 0 and all(shutil.which(name) for name in ("unshare", "setpriv"))

pytestmark = pytest.mark.slow


def image() -> tuple[dict[str, str], list[str]]:
    """(environment, command) of a container of the image that is run without a word of its own."""
    found = instructions(DOCKERFILE.read_text())
    last = found[[n for n, (word, _) in enumerate(found) if word == "FROM"][-1] :]
    environment = dict(pair.partition("=")[::2] for word, rest in last if word == "ENV" for pair in shlex.split(rest))
    return environment, [*ast.literal_eval(dict(last)["ENTRYPOINT"]), *ast.literal_eval(dict(last)["CMD"])]


def run_line() -> list[str]:
    """The first `docker run` of the Dockerfile's head: its options, without the image's name."""
    text = DOCKERFILE.read_text().replace("\\\n#", " ")
    line = re.findall(r"^# +docker run (.*)$", text, re.MULTILINE)[0]
    words = shlex.split(line)
    assert words[-1] == "context-proxy", "the line gives no command: the image's own is run"
    return words[:-1]


@contextmanager
def container(data: Path, **more: str) -> Iterator[tuple[str, str]]:
    """(its URL, what it printed) of a running container, which has ended well at the end."""
    environment, (program, *arguments) = image()
    environment = {name: value.replace("/data", str(data)) for name, value in environment.items()} | more
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    port = free_port()
    environment["CONTEXT_PROXY_PORT"] = str(port)
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    if HARDENED:
        os.chown(data, USER, USER)
        # May read everything, since the Python under test may be in a folder of root's.
        only = "-all,+dac_read_search"
        mounts = f"mount --bind {data} {data} && mount -o remount,bind,ro / && cd {data}"
        plain = f"setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --inh-caps={only}"
        script = f"{mounts} && exec {plain} --ambient-caps={only} --bounding-set={only} {shlex.join(command)}"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
    with subprocess.Popen(
        command, cwd=data, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = ""
        try:
            while "print(" not in printed:
                line = process.stdout.readline()
                assert line, process.communicate()[1]
                printed += line
            yield f"http://127.0.0.1:{port}", printed
        finally:
            process.terminate()
            process.communicate(timeout=30)
        assert process.returncode == 0


def ask(url: str, path: str, key: str = "", body: bytes | None = None) -> int:
    request = urllib.request.Request(url + path, body, {"content-type": "application/json"})
    if key:
        request.add_header("x-context-key", key)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


CHAT = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}).encode()


def test_the_line_without_a_config_serves_and_shows_its_keys_once(tmp_path: Path) -> None:
    assert run_line() == ["--rm", "-p", "127.0.0.1:8080:8080", "-v", "context-proxy:/data"]
    assert image()[0]["CONTEXT_PROXY_HOST"] == "0.0.0.0", "a published port does not reach loopback"
    with container(tmp_path) as (url, printed):
        keys = dict(re.findall(r"^export (CONTEXT_\w*KEY)=(cp-\S+)$", printed, re.MULTILINE))
        assert list(keys) == ["CONTEXT_KEY", "CONTEXT_PROXY_KEY"]
        assert f"{url}/v1" in printed, "an address that can be copied, and not 0.0.0.0"
        assert ask(url, "/v1/chat/completions", body=CHAT) == 401
        assert ask(url, "/v1/chat/completions", keys["CONTEXT_KEY"], CHAT) == 200
        assert ask(url, "/api/sessions", keys["CONTEXT_KEY"]) == 403
        assert ask(url, "/api/sessions", keys["CONTEXT_PROXY_KEY"]) == 200
    if HARDENED:
        owners = {file.stat().st_uid for file in tmp_path.rglob("*")}
        assert owners == {USER}
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    with container(tmp_path) as (url, again):
        assert not [key for key in keys.values() if key in again]
        assert f"made in {tmp_path / 'keys'}".replace(" ", "") in "".join(again.split())
        assert ask(url, "/v1/chat/completions", keys["CONTEXT_KEY"], CHAT) == 200


def test_the_examples_that_it_prints_work_with_the_keys_that_it_prints(tmp_path: Path) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not there")
    with container(tmp_path) as (_, printed):
        lines = [line for line in printed.splitlines() if line.startswith(("export ", "curl "))]
        done = subprocess.run(["sh", "-ec", "\n".join(lines)], capture_output=True, text=True, timeout=30)
    assert '"object": "chat.completion"' in done.stdout, done.stderr


def test_keys_of_the_operator_s_own_take_the_place_of_made_ones(tmp_path: Path) -> None:
    digest = "ab" * 32
    own = json.dumps([{"name": "mine", "sha256": digest, "tenant": "t", "plane": "data"}])
    with container(tmp_path, CONTEXT_PROXY_KEYS=own) as (url, printed):
        assert "export CONTEXT_KEY" not in printed
        assert "data.key" not in printed
        assert ask(url, "/v1/chat/completions", body=CHAT) == 401
    assert not (tmp_path / "keys").exists()
