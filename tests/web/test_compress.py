"""The paths of gateways: who may call them, and what else is behind them."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.exchange.test_compress_rows import COMPRESS, result
from tests.proxy_server import RawAnswer, RunningProxy, make_key, parse_answer, run_proxy
from tests.raw_upstream import run_upstream, send_raw
from tests.scripted_model import ScriptedModel

ROWS = {"model": "gpt-5", "messages": [result(0), result(1)]}


async def get(proxy: RunningProxy, path: str, *lines: bytes) -> RawAnswer:
    head = b"".join(line + b"\r\n" for line in (b"host: 127.0.0.1", b"connection: close", *lines))
    return parse_answer(await send_raw(proxy.port, b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), head)))


@pytest.mark.parametrize("line", [b"x-context-key: anna", b"x-other: 1"])
async def test_a_data_key_opens_both_paths_also_as_a_bearer_token(line: bytes) -> None:
    keys = [make_key("anna", "anna"), make_key("boss", "*", "admin")]
    async with (
        run_upstream(ScriptedModel("x")) as upstream,
        run_proxy(upstream.port, keys=keys, policy="thrifty") as proxy,
    ):
        sent = "anna" if line.startswith(b"x-other") else "sk-of-the-gateway"
        assert (await proxy.post(ROWS, line, path=COMPRESS, key=sent)).status == 200
        assert (await proxy.post(ROWS, path=COMPRESS, key="nobody")).status == 401
        assert (await proxy.post(ROWS, path=COMPRESS, key="boss")).status == 403
        assert (await get(proxy, "/v1/retrieve/0123456789abcdef")).status == 401
        assert (await get(proxy, "/v1/retrieve/0123456789abcdef", b"authorization: Bearer anna")).status == 404


async def test_a_key_belongs_to_a_tenant_and_opens_no_other_tenants_originals() -> None:
    rows: dict[str, Any] = {"model": "gpt-5", "messages": [result(turn) for turn in range(5)]}
    async with (
        run_upstream(ScriptedModel("x")) as upstream,
        run_proxy(upstream.port, keys=[make_key("anna", "anna"), make_key("bert", "bert")], policy="thrifty") as proxy,
    ):
        hashes: list[str] = []
        for count in range(1, 6):
            body = rows | {"messages": rows["messages"][:count]}
            hashes = (await proxy.post(body, path=COMPRESS, key="anna")).json()["ccr_hashes"]
        (name,) = hashes
        assert (await get(proxy, f"/v1/retrieve/{name}", b"authorization: Bearer anna")).status == 200
        assert (await get(proxy, f"/v1/retrieve/{name}", b"authorization: Bearer bert")).status == 404


async def test_the_path_names_a_session_as_for_chat() -> None:
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        assert (await proxy.post(ROWS, path=f"/s/night{COMPRESS}")).session == "night"


async def test_a_compressed_body_is_read() -> None:
    body = gzip.compress(json.dumps(ROWS).encode())
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await proxy.post(body, b"content-encoding: gzip", path=COMPRESS)
        assert answer.json()["messages"] == ROWS["messages"]
        assert proxy.count("requests_total", route="compress", status="200") == 1


async def test_a_page_of_another_site_is_kept_out() -> None:
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        assert (await proxy.post(ROWS, b"origin: https://evil.example", path=COMPRESS)).status == 403


async def test_other_methods_go_upstream_as_any_path_does() -> None:
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await get(proxy, COMPRESS)
        assert [request.line.split()[1] for request in upstream.requests] == [b"/v1/compress"]


async def test_a_body_over_the_limit_is_refused() -> None:
    rows = {"messages": [result(0, "x" * (2 << 20))]}
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, limits={"body_mb": 1}) as proxy:
        assert (await proxy.post(rows, path=COMPRESS)).status == 413
