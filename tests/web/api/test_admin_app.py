from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.settings.load import Settings
from proxy.web.app import ContextProxy
from tests.proxy_server import parse_answer, run_proxy
from tests.raw_upstream import connect, make_post, run_upstream, send_raw
from tests.scripted_model import ScriptedModel
from tests.web.api.conftest import ProxyWithData


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    found: dict[str, Any] = ContextProxy(Settings(db=":memory:", upstream="demo")).api.openapi()
    return found


def test_every_operation_says_what_it_does_and_what_may_go_wrong(described: dict[str, Any]) -> None:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), f"{method} {path}"
            assert {"401", "403", "422"} <= set(operation["responses"]), f"{method} {path}"


def test_the_description_has_examples(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    with_examples = [name for name, schema in schemas.items() if "examples" in str(schema)]
    assert {"SessionListItem", "MessageListItem", "ExchangeDetails", "MemoDetails"} <= set(with_examples)


def test_the_openapi_document_is_served(proxy: ProxyWithData) -> None:
    assert proxy.ask("GET", "/api/openapi.json", key="cp-acme-read").json()["openapi"].startswith("3.")


def test_a_body_over_the_limit_is_413() -> None:
    from tests.proxy_server import run_proxy_in_thread  # noqa: PLC0415

    with run_proxy_in_thread("demo", limits={"body_mb": 1}) as proxy:
        filled = ProxyWithData(proxy)
        got = filled.ask("POST", "/api/context/estimate", {"content": "x" * (1 << 20)}, key=None)
        assert got.status == 413
        assert got.json()["error"]["code"] == "request_too_large"


def test_a_body_with_more_values_than_a_chat_body_may_have_is_413() -> None:
    from tests.proxy_server import run_proxy_in_thread  # noqa: PLC0415

    with run_proxy_in_thread("demo", limits={"values": 1000}) as proxy:
        filled = ProxyWithData(proxy)
        for count, status in ((900, 422), (1100, 413)):
            got = filled.ask("POST", "/api/context/estimate", {"content": [1] * count}, key=None)
            assert got.status == status


def test_only_the_documented_routes_exist(proxy: ProxyWithData) -> None:
    for path in ("/api", "/api/", "/api/docs", "/api/redoc", "/api/nothing"):
        assert proxy.ask("GET", path).status == 404
    assert proxy.ask("PUT", "/api/sessions/talk/messages", {}).status == 405


async def test_bodies_and_answers_of_the_admin_api_share_the_memory_for_bodies() -> None:
    """A body that is held leaves no room for another, and none for a long answer, until it has its own."""
    body = json.dumps({"content": "a" * 700_000}).encode()
    whole = make_post("/api/context/estimate", body, b"content-type: application/json").replace(
        b"test", b"localhost", 1
    )
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, limits={"bodies_mb": 1}) as proxy:
        said = {"model": "m", "messages": [{"role": "user", "content": "a" * 400_000}]}
        assert (await proxy.post(said, b"x-context-session: long")).status == 200
        assert len((await proxy.get("/api/sessions/long/prompt")).body) > 1_200_000
        assert parse_answer(await send_raw(proxy.port, whole)).status == 200
        client = await connect(proxy.port)
        await client.send(whole[:-1])
        async with asyncio.timeout(10):
            while proxy.app.body_budget.held < len(body) - 1:
                await asyncio.sleep(0.01)
        refused = parse_answer(await send_raw(proxy.port, whole))
        assert (refused.status, refused.header("retry-after")) == (503, "1")
        viewed = await proxy.get("/api/sessions/long/prompt")
        assert (viewed.status, viewed.header("retry-after")) == (503, "1")
        assert (await proxy.get("/api/sessions/long/stats")).status == 200
        await client.send(whole[-1:])
        assert parse_answer(await client.reader.read()).status == 200
        client.writer.close()
        await client.writer.wait_closed()
        assert proxy.app.body_budget.held == 0
        assert parse_answer(await send_raw(proxy.port, whole)).status == 200
