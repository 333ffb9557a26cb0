from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.tools.tool_context import MAX_MESSAGE_READS
from tests.proxy_server import CHAT, parse_answer, run_proxy
from tests.raw_upstream import Connection, RawRequest, make_post, run_upstream, send_raw
from tests.scripted_model import ScriptedModel
from tests.web.api.conftest import ProxyWithData

if TYPE_CHECKING:
    from tests.faults.fork_server import ForkServer

M = "/api/sessions/talk/messages"


def test_messages_come_in_their_order_and_by_pages(proxy: ProxyWithData) -> None:
    whole = proxy.ask("GET", M + "?limit=200").json()
    assert whole["next"] is None
    seqs = [line["seq"] for line in whole["items"]]
    assert seqs == sorted(seqs)
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = proxy.ask("GET", f"{M}?limit=2{f'&cursor={cursor}' if cursor else ''}").json()
        found += page["items"]
        cursor = page["next"]
    assert found == whole["items"]
    newest = proxy.ask("GET", M + "?limit=200&newest=true").json()["items"]
    assert newest == whole["items"][::-1]


def test_filters_leave_out_what_is_not_asked_for(proxy: ProxyWithData) -> None:
    lines = proxy.ask("GET", M + "?limit=200").json()["items"]
    users = proxy.ask("GET", M + "?role=user").json()["items"]
    assert [line["text"] for line in users] == ["Read the log.", "And the other one?", "Thank you."]
    group = users[1]["group"]
    assert proxy.ask("GET", f"{M}?group={group}").json()["items"] == [li for li in lines if li["group"] == group]
    assert next(line["text"] for line in proxy.ask("GET", M + "?q=OTHER%20one").json()["items"]) == "And the other one?"
    branch = lines[0]["branch"]
    assert proxy.ask("GET", f"{M}?branch={branch}&limit=200").json()["items"] == lines
    assert proxy.ask("GET", M + "?branch=nobody").json()["items"] == []


def test_a_message_is_shown_whole_with_what_became_of_it(proxy: ProxyWithData) -> None:
    tool = proxy.ask("GET", M + "?role=tool").json()["items"][0]
    shown = proxy.ask("GET", f"{M}/{tool['id']}").json()
    assert shown["message"]["content"] == "a line of the log\n" * 40
    assert shown["edits"] == []


def test_search_of_a_session_finds_messages_with_the_word(proxy: ProxyWithData) -> None:
    found = proxy.ask("GET", "/api/sessions/talk/search?q=other").json()
    assert any("other" in one["text"] for one in found)
    assert proxy.ask("GET", "/api/sessions/talk/search?q=xyzzyx").json() == []


E = "/api/sessions/talk/exchanges"


def test_exchanges_come_newest_first_by_pages_and_filters(proxy: ProxyWithData) -> None:
    whole = proxy.ask("GET", E + "?limit=200").json()["items"]
    assert [one["started_at"] for one in whole] == sorted((one["started_at"] for one in whole), reverse=True)
    assert {one["status"] for one in whole} == {"complete"}
    first = proxy.ask("GET", E + "?limit=2").json()
    assert first["items"] == whole[:2]
    assert proxy.ask("GET", f"{E}?limit=2&cursor={first['next']}").json()["items"] == whole[2:4]
    assert proxy.ask("GET", E + "?status=failed").json() == {"items": [], "next": None}
    assert proxy.ask("GET", f"{E}?branch={whole[0]['branch']}&limit=200").json()["items"] == whole
    assert proxy.ask("GET", f"{E}/{whole[1]['exchange']}").json() == whole[1]


def test_the_bytes_of_a_request_come_back_as_they_were(proxy: ProxyWithData) -> None:
    messages = [{"role": "user", "content": "Exactly this."}]
    raw = json.dumps({"model": "demo", "temperature": 0.50, "messages": messages}, indent=1).encode()
    got = proxy.ask("POST", "/v1/chat/completions", raw, key="cp-acme-data", x_context_session="exact")
    assert got.status == 200
    (one,) = proxy.ask("GET", "/api/sessions/exact/exchanges").json()["items"]
    for which in ("original", "sent"):
        path = f"/api/sessions/exact/exchanges/{one['exchange']}/body?which={which}"
        assert proxy.ask("GET", path).body == raw


async def test_a_request_whose_proxy_was_killed_is_lost_in_every_view(fork_server: ForkServer, tmp_path: Path) -> None:
    async def wait(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}).encode()

    async def ask(port: int, path: str) -> Any:
        lines = f"GET {path} HTTP/1.1", "host: 127.0.0.1", "connection: close", "", ""
        return parse_answer(await send_raw(port, "\r\n".join(lines).encode())).json()

    async with run_upstream(wait) as upstream:
        tree = {"upstream": f"http://127.0.0.1:{upstream.port}/v1", "db": str(tmp_path / "db")}
        pid, port = await fork_server.started(**tree)
        asker = asyncio.create_task(send_raw(port, make_post(CHAT, body, b"x-context-session: one")))
        while not (found := await ask(port, "/api/live"))["items"]:
            await asyncio.sleep(0.01)
        assert found["items"][0]["figures"]["status"] == "open"
        assert (await ask(port, "/api/savings?since=0"))["open_requests"] == 1
        fork_server.kill(pid)
        await asyncio.gather(asker, return_exceptions=True)
        _, port = await fork_server.started(**tree)
        (one,) = (await ask(port, "/api/sessions/one/exchanges"))["items"]
        assert (one["status"], one["ended_at"]) == ("lost", None)
        assert (await ask(port, "/api/sessions/one/exchanges?status=open"))["items"] == []
        assert (await ask(port, "/api/live"))["items"][0]["figures"]["status"] == "lost"
        savings = await ask(port, "/api/savings?since=0")
        assert (savings["requests"], savings["open_requests"], savings["failed"]) == (1, 0, 1)
        assert (await ask(port, "/api/money"))["total"]["errors"] == 1


async def test_reads_of_message_pages_wait_for_a_free_slot() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        said = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        assert (await proxy.post(said, b"x-context-session: a")).status == 200
        whole = await proxy.get("/api/sessions/a/messages")  # the first request waits for the API to be loaded
        assert whole.status == 200
        slots = proxy.app.services.read_slots
        async with AsyncExitStack() as taken:
            for _ in range(MAX_MESSAGE_READS):
                await taken.enter_async_context(slots.hold("other"))
            asked = asyncio.ensure_future(proxy.get("/api/sessions/a/messages"))
            await asyncio.sleep(0.2)
            assert not asked.done()
        assert (await asked).json() == whole.json()
        assert slots.free == MAX_MESSAGE_READS
