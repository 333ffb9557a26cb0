from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proxy.cli.remote import AdminClient, RemoteRefused, RemoteUnreachable, quote_id
from proxy.errors import ConfigError
from tests.cli.conftest import Shop


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
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        AdminClient(url).request("GET", "/api/me")


def test_the_address_that_clients_have_is_one_too(shop: Shop) -> None:
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
def test_whoever_is_no_proxy_of_ours_is_unreached(raw: bytes) -> None:
    with answering(raw) as url, pytest.raises(RemoteUnreachable):
        AdminClient(url, "cp-secret").request("GET", "/api/me")


def test_a_stream_that_is_cut_off_is_not_taken_for_whole() -> None:
    raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{}\n{\r\n9\r\n}"
    with answering(raw) as url, pytest.raises(RemoteUnreachable):
        list(AdminClient(url).read_lines("/api/export", {}, {}))


def test_pages_are_followed_to_their_end(shop: Shop) -> None:
    remote = AdminClient(shop.url, "cp-acme-admin")
    path = remote.find_session_path("talk") + "/messages"
    whole = remote.request("GET", path, limit=200)["items"]
    assert list(remote.list_items(path)) == whole
    assert list(remote.list_items(path, 3)) == whole[:3]


def test_a_name_is_a_name_whatever_is_in_it(shop: Shop) -> None:
    remote = AdminClient(shop.url, "cp-acme-admin")
    for name in ("a b/c", "~YQ", "..", "ü", "a?b#c%41"):
        shop.world.chat(name.encode().decode("latin-1"), [{"role": "user", "content": "Hello"}])
        stored = remote.request("GET", "/api/sessions", limit=1)["items"][0]["session"]
        assert remote.request("GET", remote.find_session_path(stored))["session"] == stored


def test_the_newest_session_is_a_dash(shop: Shop) -> None:
    name = shop.fresh()
    remote = AdminClient(shop.url, "cp-acme-admin")
    assert remote.request("GET", remote.find_session_path("-"))["session"] == name
    with pytest.raises(RemoteRefused, match="no session yet"):
        AdminClient(shop.url, "cp-all-admin", "nobody").find_session_path("-")


def test_an_id_cannot_leave_its_part_of_the_path(shop: Shop) -> None:
    assert quote_id("../x?y") == "..%2Fx%3Fy"
    assert shop.run("memos", "show", "../sessions").code == 1
