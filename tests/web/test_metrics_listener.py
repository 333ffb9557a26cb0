"""The second listener: probes and metrics alone, on an address of its own, until the proxy has stopped."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from pathlib import Path

import pytest

from proxy.cli.serve import open_metrics_listener
from proxy.errors import ConfigError
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.store.in_memory import InMemoryStore
from proxy.web.metrics_listener import create_metrics_app
from proxy.web.probes import create_probes
from tests.cli.test_serve import served
from tests.proxy_server import make_key
from tests.raw_upstream import (
    STREAM,
    Connection,
    RawRequest,
    free_port,
    make_post,
    run_upstream,
    send_raw,
    serve_app,
    wait_until,
)
from tests.scripted_model import ScriptedModel, make_chunk

POD = "127.0.0.2"
"""Stands for the pod's own address: a listener on 127.0.0.1 is not reached there."""


def config(folder: Path, upstream: str = "demo") -> tuple[Path, int]:
    port = free_port()
    file = folder / "sidecar.toml"
    file.write_text(f'upstream = "{upstream}"\nmetrics_port = {port}\nmetrics_host = "0.0.0.0"\n')
    return file, port


def fetch(address: str, port: int, path: str, *lines: bytes) -> tuple[int, bytes]:
    """(status, body); 0 where nobody listens."""
    head = b"".join(line + b"\r\n" for line in lines)
    try:
        with socket.create_connection((address, port), timeout=10) as connection:
            connection.sendall(b"GET %b HTTP/1.1\r\nhost: pod:1\r\nconnection: close\r\n%b\r\n" % (path.encode(), head))
            raw = b""
            while part := connection.recv(65536):
                raw += part
    except (ConnectionRefusedError, ConnectionResetError):  # reset: the listener was closed before it accepted
        return 0, b""
    return int(raw.split()[1]), raw.partition(b"\r\n\r\n")[2]


@pytest.mark.slow
def test_a_sidecar_can_be_probed_and_scraped_from_outside_its_pod_and_opens_nothing_else(tmp_path: Path) -> None:
    file, port = config(tmp_path)
    with served(tmp_path, "--config", str(file)) as (_, printed):
        main = int(re.findall(r"http://127\.0\.0\.1:(\d+)/v1", printed)[0])
        assert f"http://127.0.0.1:{port}/metrics" in printed
        assert fetch(POD, main, "/healthz")[0] == 0, "the main listener stands on loopback alone"
        assert fetch(POD, port, "/healthz") == (200, b'{"status":"ok"}')
        assert fetch(POD, port, "/readyz")[0] == 200
        assert b"context_proxy_requests_total" in fetch(POD, port, "/metrics")[1]
        for path in ("/", "/dashboard/", "/api/sessions", "/v1/models", "/s/a/v1/models", "/metrics/", "/x/metrics"):
            assert fetch(POD, port, path)[0] == 404, path
        assert fetch("127.0.0.1", main, "/readyz")[0] == 200, "there too, as before"


@pytest.mark.slow
async def test_readiness_fails_until_the_last_answer_has_ended(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slow(_: RawRequest, connection: Connection) -> None:
        data = b"data: %b\n\n" % make_chunk({"role": "assistant", "content": "one"})
        await connection.send(STREAM, b"%x\r\n%b\r\n" % (len(data), data))
        await go.wait()
        done = b"data: [DONE]\n\n"
        await connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))

    async with run_upstream(ScriptedModel(slow)) as upstream:
        file, port = config(tmp_path, f"http://127.0.0.1:{upstream.port}/v1")
        with served(tmp_path, "--config", str(file)) as (process, printed):
            main = int(re.findall(r"http://127\.0\.0\.1:(\d+)/v1", printed)[0])
            body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
            answer = asyncio.create_task(send_raw(main, make_post("/v1/chat/completions", body), 30))
            await wait_until(lambda: bool(upstream.connections))
            process.send_signal(signal.SIGTERM)
            while (await asyncio.to_thread(fetch, "127.0.0.1", main, "/healthz"))[0]:
                await asyncio.sleep(0.02)
            status, told = await asyncio.to_thread(fetch, POD, port, "/readyz")
            assert (status, json.loads(told)["status"]) == (503, "draining")
            assert (await asyncio.to_thread(fetch, POD, port, "/healthz"))[0] == 200, "no reason to kill it"
            assert (await asyncio.to_thread(fetch, POD, port, "/metrics"))[0] == 200
            go.set()
            assert b"[DONE]" in await answer
            assert await asyncio.to_thread(process.wait, 20) == 0
        assert fetch(POD, port, "/healthz")[0] == 0


async def test_s1_with_keys_the_metrics_need_one_here_too() -> None:
    made = {plane: f"cp-{plane}" for plane in ("metrics", "data")}
    keys = [make_key(key, plane=plane) for plane, key in made.items()]
    settings, metrics = Settings.model_validate({"keys": keys}), Metrics()
    app = create_metrics_app(create_probes(InMemoryStore(), metrics), settings, metrics)
    async with serve_app(app) as port:

        async def status(path: str, *lines: bytes) -> int:
            head = b"".join(line + b"\r\n" for line in lines)
            raw = await send_raw(
                port, b"GET %b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n%b\r\n" % (path.encode(), head)
            )
            return int(raw.split()[1])

        assert await status("/healthz") == 200
        assert await status("/metrics") == 401
        assert await status("/metrics", b"authorization: Bearer cp-data") == 403
        assert await status("/metrics", b"authorization: Bearer cp-metrics") == 200
        assert await status("/metrics", b"authorization: Bearer cp-metrics", b"host: b") == 400


def test_an_address_that_cannot_be_bound_is_reported_with_its_setting() -> None:
    assert open_metrics_listener(Settings()) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^metrics_port = {port} .* a port that is free"):
            open_metrics_listener(Settings(metrics_port=port))
    with pytest.raises(ConfigError, match=r"^metrics_host = 'not a name'"):
        open_metrics_listener(Settings(metrics_port=port, metrics_host="not a name"))
