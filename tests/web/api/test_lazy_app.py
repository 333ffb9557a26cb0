from __future__ import annotations

import asyncio
import threading

from proxy.settings.load import Settings
from proxy.web.app import ContextProxy
from tests.proxy_server import RawAnswer, RunningProxy, make_key, parse_answer, run_proxy
from tests.raw_upstream import run_upstream, send_raw
from tests.scripted_model import ScriptedModel


async def get(proxy: RunningProxy, path: str, key: str) -> RawAnswer:
    raw = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-context-key: {key}\r\nconnection: close\r\n\r\n"
    return parse_answer(await send_raw(proxy.port, raw.encode()))


async def test_first_requests_that_come_at_once_are_answered_by_one_application() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        threads: list[int] = []
        proxy.app.lazy_api.on_built = lambda: threads.append(threading.get_ident())
        answers = await asyncio.gather(*(proxy.get(f"/api/sessions?limit={n}") for n in range(1, 7)))
        assert [answer.status for answer in answers] == [200] * 6
        assert proxy.app.api is proxy.app.api
        assert len(threads) == 1
        assert threads[0] != threading.get_ident(), "it is built beside this event loop"


async def test_the_first_request_is_let_in_by_the_planes_of_its_route() -> None:
    for plane, path, status in (
        ("read", "/api/sessions", 200),
        ("read", "/api/nothing", 403),
        ("data", "/api/sessions", 403),
        ("admin", "/api/nothing", 404),
        ("unknown", "/api/sessions", 401),
    ):
        async with run_proxy("demo", keys=[make_key(name, plane=name) for name in ("read", "data", "admin")]) as proxy:
            assert (await get(proxy, path, plane)).status == status, (plane, path)


def test_the_description_is_there_before_any_request() -> None:
    proxy = ContextProxy(Settings(db=":memory:", upstream="demo"))
    assert "/api/sessions" in proxy.api.openapi()["paths"]
