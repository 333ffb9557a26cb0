"""S12, U18: sixty credentials in every place where clients put them, while upstreams and clients break: none of them
rests in a file, a log or a metric."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from tests.proxy_server import CHAT, run_proxy
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, connect, make_post, run_upstream, send_raw

FORMS = (
    "authorization: Bearer %s", "authorization: Basic %s", "authorization: %s", "Authorization: bearer %s",
    "x-api-key: %s", "api-key: %s", "cookie: session=%s; a=b", "proxy-authorization: Basic %s", "x-goog-api-key: %s",
    "x-context-key: %s", "x-auth-token: %s", "ocp-apim-subscription-key: %s",
)  # fmt: skip
KINDS = ("sk-proj-canary%d", "sk-ant-canary%d", "ghp_canary%d", "eyJhbGci.canary%d.sig", "canary%d/+=")
CANARIES = [form % (KINDS[k] % (10 * n + k)) for n, form in enumerate(FORMS) for k in range(len(KINDS))]


async def broken(request: RawRequest, connection: Connection) -> None:
    """Repeats the credentials that it got, in a header and in its body, and breaks in one of four ways."""
    got = b", ".join(value for name, value in request.headers if b"canary" in value)
    body = json.dumps({"error": {"message": "no such key: " + got.decode()}}).encode()
    kind = len(request.body) % 4
    if kind == 0:
        head = b"HTTP/1.1 401 No\r\nx-was: %b\r\ncontent-length: %d\r\n\r\n" % (got, len(body))
        await connection.send(head + body)
    elif kind == 1:
        await connection.send(STREAM)
        await connection.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\ndata: ' + body + b"\n\n")
        await connection.reset()
    elif kind == 2:
        await connection.reset()
    else:
        await connection.send(HEAD + b"content-length: 99999\r\n\r\n{")
        await connection.reset()


async def test_s12_u18_no_credential_rests_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert len(set(CANARIES)) == 60
    async with run_upstream(broken) as upstream, run_proxy(upstream.port, db=f"{tmp_path}/a.sqlite3") as proxy:
        for number, line in enumerate(CANARIES):
            secret = line.rpartition(" ")[2].encode()
            for fault in range(4):
                content = "x" * (number % 7) + "y" * fault
                body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
                path = (CHAT, "/v1/files", f"{CHAT}?api_key={secret.decode()}")[(number + fault) % 3]
                asked = make_post(path, body, line.encode(), b"content-type: application/json")
                if fault == 3:  # and one that leaves
                    client = await connect(proxy.port)
                    await client.send(asked)
                    await asyncio.sleep(0.002)
                    client.writer.transport.abort()
                else:
                    await send_raw(proxy.port, asked)
        metrics = await send_raw(proxy.port, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert len(upstream.requests) > 60, "they were asked, and told the credentials"
        assert any(b"canary" in request.raw for request in upstream.requests)
        await proxy.outcomes()
        written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        assert len(written["a.sqlite3"]) + len(written["a.sqlite3-wal"]) > 10_000
    written |= {f"closed {file.name}": file.read_bytes() for file in tmp_path.iterdir()}
    assert [name for name, data in written.items() if b"canary" in data] == []
    assert b"canary" not in metrics
    assert "canary" not in caplog.text
