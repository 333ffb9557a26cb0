from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.main import get_command

from proxy.cli.main import app
from proxy.cli.remote import SHARED_OPTIONS, AdminClient, RemoteRefused, RemoteUnreachable, quote_id
from proxy.errors import ConfigError
from tests.cli.conftest import CommandRunner


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """A server that gives these bytes to the first who asks, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as there:

        def serve() -> None:
            peer, _ = there.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(raw)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{there.getsockname()[1]}"
        thread.join(5)


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:b", "http://127.0.0.1/other", ""])
def test_an_invalid_address_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        AdminClient(url).request("GET", "/api/me")


def test_addresses_with_v1_or_without_a_scheme_work(shop: CommandRunner) -> None:
    key = "cp-acme-admin"
    assert AdminClient(shop.url + "/v1", key).request("GET", "/api/sessions")["items"]
    assert AdminClient(shop.url.removeprefix("http://"), key).request("GET", "/api/sessions")["items"]


def test_a_key_that_no_header_can_carry_is_told_without_it() -> None:
    with pytest.raises(ConfigError) as told:
        AdminClient("http://127.0.0.1:9", "schlüssel-☃").request("GET", "/api/me")
    assert "schl" not in str(told.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
)
def test_a_server_that_is_not_the_proxy_is_reported_as_unreached(raw: bytes) -> None:
    with answering(raw) as url, pytest.raises(RemoteUnreachable):
        AdminClient(url, "cp-secret").request("GET", "/api/me")


def test_a_stream_that_is_cut_off_is_not_taken_for_whole() -> None:
    raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{}\n{\r\n9\r\n}"
    with answering(raw) as url, pytest.raises(RemoteUnreachable):
        list(AdminClient(url).read_lines("/api/export", {}, {}))


def test_pages_are_followed_to_their_end(shop: CommandRunner) -> None:
    remote = AdminClient(shop.url, "cp-acme-admin")
    path = remote.find_session_path("talk") + "/messages"
    whole = remote.request("GET", path, limit=200)["items"]
    assert list(remote.list_items(path)) == whole
    assert list(remote.list_items(path, 3)) == whole[:3]


def test_a_name_is_a_name_whatever_is_in_it(shop: CommandRunner) -> None:
    remote = AdminClient(shop.url, "cp-acme-admin")
    for name in ("a b/c", "~YQ", "..", "ü", "a?b#c%41"):
        shop.world.chat(name.encode().decode("latin-1"), [{"role": "user", "content": "Hello"}])
        stored = remote.request("GET", "/api/sessions", limit=1)["items"][0]["session"]
        assert remote.request("GET", remote.find_session_path(stored))["session"] == stored


@pytest.mark.parametrize("wrong", [("--url", "http://a b"), ("--url", "http://a\x01b"), ("--key", "cp-a\n")])
def test_an_address_or_a_key_that_no_request_can_carry_is_an_error(shop: CommandRunner, wrong: tuple[str, str]) -> None:
    ran = shop.run("stats", *wrong)
    assert (ran.code, ran.out, wrong[0] in ran.err) == (2, "", True)


def test_the_newest_session_is_a_dash(shop: CommandRunner) -> None:
    name = shop.fresh()
    remote = AdminClient(shop.url, "cp-acme-admin")
    assert remote.request("GET", remote.find_session_path("-"))["session"] == name
    with pytest.raises(RemoteRefused, match="no session yet"):
        AdminClient(shop.url, "cp-all-admin", "nobody").find_session_path("-")


def test_an_id_cannot_leave_its_part_of_the_path(shop: CommandRunner) -> None:
    assert quote_id("../x?y") == "..%2Fx%3Fy"
    assert shop.run("memos", "show", "../sessions").code == 1


VALUES = {
    "session": "nonesuch", "ids": "nonesuch", "text": "words", "words": "words", "groups": "1", "message": "nonesuch",
    "group": "nonesuch", "memo": "nonesuch", "note": "nonesuch", "files": "-", "last": "3",
}  # fmt: skip


def commands(at: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words."""
    for name, below in getattr(at, "commands", {}).items():
        if hasattr(below, "commands"):
            yield from commands(below, (*words, name))
        else:
            yield (*words, name), below


def asking() -> list[tuple[str, ...]]:
    """A command line for each command that speaks to a proxy, every argument given.

    `mcp` is not among them: it serves until its client leaves, and a refusal is the result of a tool.
    """
    found = []
    for words, command in commands(get_command(app)):
        if words != ("mcp",) and {p.name for p in command.params} >= set(SHARED_OPTIONS):
            given = [VALUES[str(p.name)] for p in command.params if p.param_type_name == "argument"]
            yes = ["--yes"] if any(p.name == "yes" for p in command.params) else []
            found.append((*words, *given, *yes))
    return found


ALL = asking()
LINE = '{"messages": [{"role": "user", "content": "Hello"}]}\n'


def named(words: tuple[str, ...]) -> str:
    return " ".join(words)


def test_there_are_commands_for_all_that_an_operator_does() -> None:
    first = {words[0] for words in ALL}
    assert first >= {
        "sessions", "context", "messages", "groups", "undo", "state", "scratchpad", "memos", "stats", "add", "build",
        "compress", "notes", "feedback", "export", "import", "tail", "shell",
    }  # fmt: skip
    decided = {words[1] for words in ALL if words[0] == "context"}
    assert decided >= {"show", "window", "drop", "restore", "rebuild", "pin", "unpin", "prune", "compress"}


@pytest.mark.parametrize("words", ALL, ids=named)
def test_a_wrong_key_ends_with_code_2_and_says_what_to_give(shop: CommandRunner, words: tuple[str, ...]) -> None:
    ran = shop.run(*words, key="cp-wrong", given=LINE)
    assert (ran.code, ran.out) == (2, "")
    assert "--key" in ran.err
    assert "cp-wrong" not in ran.err


@pytest.mark.parametrize("words", ALL, ids=named)
def test_no_proxy_ends_with_code_3_and_says_how_to_start_it(shop: CommandRunner, words: tuple[str, ...]) -> None:
    ran = shop.run(*words, url="http://127.0.0.1:9", given=LINE)
    assert (ran.code, ran.out) == (3, "")
    assert "127.0.0.1:9 cannot be reached" in ran.err
    assert "context-proxy serve" in ran.err


ABSENT = [words for words in ALL if "nonesuch" in words]


@pytest.mark.parametrize("words", ABSENT, ids=named)
def test_what_is_not_there_ends_with_code_1(shop: CommandRunner, words: tuple[str, ...]) -> None:
    ran = shop.run(*words, given="")
    assert (ran.code, ran.out) == (1, ""), ran
    assert "there is no such session" in ran.err or "there is no memo" in ran.err
    assert "context-proxy sessions list" in ran.err or "context-proxy memos list" in ran.err


@pytest.mark.parametrize("words", ABSENT, ids=named)
def test_a_session_of_another_tenant_is_not_there_either(shop: CommandRunner, words: tuple[str, ...]) -> None:
    there = tuple("theirs" if word == "nonesuch" and n < 3 else word for n, word in enumerate(words))
    assert shop.run(*there, given="").code == 1


CHANGING = ["context window - 1", "undo -", "add - words", "state set - words", "sessions delete - --yes"]


@pytest.mark.parametrize("line", CHANGING)
def test_a_read_key_changes_nothing(shop: CommandRunner, line: str) -> None:
    ran = shop.run(*line.split(), key="cp-acme-read")
    assert ran.code == 1, ran
    assert "key" in ran.err


def test_the_tenant_is_said_where_the_key_sees_all(shop: CommandRunner) -> None:
    assert shop.run("sessions", "show", "theirs", "--tenant", "acme", key="cp-all-admin").code == 1
    found = shop.json("sessions", "show", "theirs", "--tenant", "other", key="cp-all-admin")
    assert found["tenant"] == "other"
    ran = shop.run("memos", "list", key="cp-all-admin")
    assert ran.code == 1
    assert "--tenant" in ran.err


@pytest.mark.parametrize("line", ["context window -", "context window - -1", "context drop -", "sessions list -n 0"])
def test_wrong_use_ends_with_code_2(shop: CommandRunner, line: str) -> None:
    ran = shop.run(*line.split())
    assert (ran.code, ran.out) == (2, "")


def test_every_command_has_the_shared_options_and_a_help_of_its_own() -> None:
    for words, command in commands(get_command(app)):
        assert command.help, words
    assert len(ALL) > 40
