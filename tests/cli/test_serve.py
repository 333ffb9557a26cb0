from __future__ import annotations

import http.client
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from proxy.cli.serve import make_base_url, make_examples, open_listener, print_address, read_with_keys
from proxy.errors import ConfigError
from proxy.settings.load import Settings
from proxy.version import VERSION


@contextmanager
def served(
    folder: Path, *flags: str, python: tuple[str, ...] = (), log: IO[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real `context-proxy serve` on a free port, and what it printed until it was ready. python: its options; log:
    where its stderr goes, for one that writes more than a pipe holds."""
    command = [
        sys.executable,
        *python,
        "-m",
        "proxy.cli.main",
        "serve",
        "--port",
        "0",
        "--db",
        str(folder / "a.sqlite3"),
        *flags,
    ]
    errors = subprocess.PIPE if log is None else log
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        printed = ""
        while "print(" not in printed:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            printed += line
        yield process, printed
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=20)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("served")
    with served(folder) as (_, printed):
        yield folder, printed


def test_what_is_printed_says_where_and_what(running: tuple[Path, str]) -> None:
    printed = running[1]
    assert re.search(r"listening +http://127\.0\.0\.1:\d+/v1", printed)
    assert re.search(r"dashboard +http://127\.0\.0\.1:\d+/dashboard/", printed)
    assert re.search(r"policy +thrifty", printed)
    assert "a.sqlite3" in printed
    assert "scripted model" in printed


UNUSED = {
    *("aiohttp", "asyncpg", "fastapi", "hypothesis", "mcp", "opentelemetry", "proxy.operator", "proxy.replay"),
    *("proxy.cli.remote", "proxy.cli.settings_toml", "proxy.web.api.admin_app", "pydantic.v1", "rich", "starlette"),
    *("websockets", "zensical"),
}
"""Modules that a start and a plain request do without: each would cost every start its time and its memory."""


@contextmanager
def importing(folder: Path, imported: set[str]) -> Iterator[str]:
    """A server, and what it printed; once it has ended, `imported` has the modules that it imported."""
    with (folder / "imports").open("w+") as log:
        with served(folder, python=("-X", "importtime"), log=log) as (_, printed):
            yield printed
        log.seek(0)
        imported |= {line.rpartition("|")[2].strip() for line in log if line.startswith("import time:")}


def ask(printed: str, method: str, path: str, body: bytes | None = None) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", printed)
    assert found is not None
    connection = http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=20)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_a_start_and_a_plain_request_import_only_what_they_need(tmp_path: Path) -> None:
    chat = b'{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}'
    imported: set[str] = set()
    with importing(tmp_path, imported) as printed:
        assert ask(printed, "POST", "/v1/chat/completions", chat) == 200
        for path in ("/healthz", "/readyz", "/metrics", "/dashboard/"):
            assert ask(printed, "GET", path) == 200
    assert "proxy.web.app" in imported, "the log is read"
    assert imported & UNUSED == set()


def test_the_admin_api_is_imported_by_its_first_request(tmp_path: Path) -> None:
    imported: set[str] = set()
    with importing(tmp_path, imported) as printed:
        assert ask(printed, "GET", "/api/sessions") == 200
    assert {"fastapi", "proxy.web.api.admin_app"} <= imported


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_curl_line_works_as_it_is(running: tuple[Path, str]) -> None:
    (line,) = [line for line in running[1].splitlines() if line.startswith("curl ")]
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert '"object": "chat.completion"' in done.stdout
    assert "Hello" in done.stdout


def test_the_three_lines_of_python_work_as_they_are(running: tuple[Path, str]) -> None:
    lines = running[1].splitlines()
    start = lines.index("from openai import OpenAI")
    snippet = "\n".join(lines[start : start + 3])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Hello" in done.stdout


def test_a_second_process_on_one_database_is_refused_with_code_2(running: tuple[Path, str]) -> None:
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--port", "0", "--db", str(running[0] / "a.sqlite3")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "another process" in done.stderr


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_serve_with_code_0_and_no_traceback(tmp_path: Path, by: signal.Signals) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and a process keeps what it inherits
    try:
        with served(tmp_path) as (process, _):
            process.send_signal(by)
            _, logged = process.communicate(timeout=20)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.returncode == 0
    assert "Traceback" not in logged


@pytest.mark.timed
def test_streams_of_events_do_not_hold_the_end_of_the_process(tmp_path: Path) -> None:
    with served(tmp_path) as (process, printed):
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", printed)
        assert found is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=20)
        connection.request("GET", "/api/events")
        answer = connection.getresponse()
        assert answer.readline().startswith(b"retry:")
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        answer.read()  # to its end, which is one as it should be: an IncompleteRead is an error
        assert time.monotonic() - began < 2.0, "promised: 0.5 s; timeouts.drain_s would be 30"
        _, logged = process.communicate(timeout=20)
        connection.close()
    assert process.returncode == 0
    assert "Traceback" not in logged


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_loopback_addresses_may_be_listened_on(host: str) -> None:
    with open_listener(host, 0) as listener:
        assert listener.getsockname()[1] > 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_can_reach_is_refused_without_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="no keys are configured"):
        open_listener(host, 0)


def test_with_keys_any_address_may_be_listened_on() -> None:
    with open_listener("0.0.0.0", 0, has_keys=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_start_that_others_could_reach_without_keys_ends_with_2_and_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--host", "0.0.0.0", "--db", str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "context-proxy key" in done.stderr
    assert not (tmp_path / "a").exists()


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="address or name"):
        open_listener("not a name", 0)


def test_a_port_that_is_taken_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError) as refused:
        open_listener("127.0.0.1", taken.getsockname()[1])
    assert "free on 127.0.0.1 (Address already in use; stop the program that serves there, or" in str(refused.value)


def test_s1_the_first_start_makes_keys_in_their_folder_and_later_ones_keep_them(tmp_path: Path) -> None:
    file, folder = tmp_path / "config.toml", tmp_path / "keys"
    file.write_text(f'keys_dir = "{folder}"\n')
    settings, made = read_with_keys(file)
    assert {key.plane for key in settings.keys} == set(made) == {"data", "admin", "read", "metrics"}
    assert (folder / "data.key").read_text() == made["data"]
    assert {one.stat().st_mode & 0o077 for one in (folder, folder / "admin.key", folder / "keys.toml")} == {0}
    assert read_with_keys(file) == (settings, {})
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("no folder")
    with pytest.raises(ConfigError, match=r"keys_dir = .* a folder to write in"):
        read_with_keys(file)


def test_a_key_that_cannot_be_written_is_reported_once_and_by_its_setting(tmp_path: Path) -> None:
    (tmp_path / "data.key").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'keys_dir = "{tmp_path}"\n')
    with pytest.raises(ConfigError) as refused:
        read_with_keys(config)
    assert refused.value.message.startswith("keys_dir = ")
    assert refused.value.message.count("is not usable") == 1


def test_base_urls_can_be_given_to_an_sdk() -> None:
    assert make_base_url("0.0.0.0", 80) == "http://127.0.0.1:80/v1", "which can be copied into a browser"
    assert make_base_url("::", 80) == "http://[::1]:80/v1"
    assert make_base_url("127.0.0.1", 8080) == "http://127.0.0.1:8080/v1"
    assert make_base_url("::1", 80) == "http://[::1]:80/v1"


def test_examples_ask_for_a_model_that_the_upstream_has_and_send_a_key_where_one_is_needed() -> None:
    settings = Settings.model_validate(
        {"upstreams": {"main": {"base_url": "https://a.example", "models": ["gpt-*", "o3"]}}}
    )
    curl, python = (lines for _, lines in make_examples(settings, "http://h/v1"))
    assert '"model": "o3"' in curl
    assert "Bearer $OPENAI_API_KEY" in curl
    assert "api_key" not in python


def test_with_keys_the_examples_send_one_and_it_is_said_how_many_there_are() -> None:
    key = {"name": "a", "sha256": "ab" * 32, "tenant": "t", "plane": "data"}
    settings = Settings.model_validate({"keys": [key]})
    curl, python = (lines for _, lines in make_examples(settings, "http://h/v1"))
    assert '-H "x-context-key: $CONTEXT_KEY"' in curl
    assert python.startswith("from os import environ\n")
    assert 'default_headers={"x-context-key": environ["CONTEXT_KEY"]}' in python
    written = io.StringIO()
    print_address(settings, "http://h/v1", written)
    assert written.getvalue().startswith(f"\ncontext-proxy {VERSION}\n")
    assert re.search(r"keys +1\b", written.getvalue())
    assert "abab" not in written.getvalue()


def test_passwords_are_not_announced() -> None:
    settings = Settings.model_validate({"db": "postgresql://me:canary@h/x"})
    written = io.StringIO()
    print_address(settings, "http://h/v1", written)
    assert "canary" not in written.getvalue()
    assert "postgresql://me:***@h/x" in written.getvalue()
    assert all(len(line) < 81 or "curl" in line or "print(" in line for line in written.getvalue().splitlines())


def test_colours_are_for_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for environment, out, coloured in (
        ({}, Terminal(), True),
        ({}, io.StringIO(), False),
        ({"NO_COLOR": "1"}, Terminal(), False),
        ({"TERM": "dumb"}, Terminal(), False),
    ):
        with monkeypatch.context() as surroundings:
            for name, value in environment.items():
                surroundings.setenv(name, value)
            print_address(Settings(), "http://h/v1", out)
        assert ("\x1b[" in out.getvalue()) == coloured
        assert "curl -s http://h/v1/chat/completions" in out.getvalue(), "what is copied has no colours in it"


def test_as_many_files_may_be_open_as_the_limits_need() -> None:
    code = (
        "import resource as r; from proxy.cli.serve import raise_file_limit; r.setrlimit(r.RLIMIT_NOFILE, (64, 512));"
        "raise_file_limit(300); print(r.getrlimit(r.RLIMIT_NOFILE));"
        "raise_file_limit(100); print(r.getrlimit(r.RLIMIT_NOFILE));"
        "raise_file_limit(9000); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:3] == ["(300, 512)", "(300, 512)", "(512, 512)"], done.stderr
    assert "ulimit -n" in done.stderr


def test_the_garbage_collector_leaves_alone_what_was_there_at_the_start() -> None:
    told = "import gc\ntune_collector()\nprint(gc.get_freeze_count() > 10_000, gc.get_threshold() == GC_THRESHOLDS)"
    code = f"from proxy.cli.serve import GC_THRESHOLDS, tune_collector\n{told}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True"]
