"""H7, J1: what is not rewritten arrives as it was sent, and what breaks parsers costs little."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.fuzzing import TARGETS, inputs
from tests.faults.test_content import HEAVY, fine
from tests.faults.test_load import answer
from tests.proxy_server import CHAT, parse_answer, run_proxy
from tests.raw_upstream import Connection, RawRequest, connect, make_post, run_upstream, send_raw

Record = Callable[[str, object], None]

BODIES = int(os.environ.get("BODIES", "10000"))
"""In the long form."""


PLAIN = ("1.0", "1e5", "-0", "1E+2", "0.10", "1" * 40, "null", "true", '"\\u00e9"', '"é"', '"\\/"')


def value(chance: random.Random, depth: int = 0) -> str:
    """JSON in one of its many ways to be written."""
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind < 3:
        return chance.choice(
            ("1.0", "1e5", "-0", "1E+2", "0.10", "1" * 40, "null", "true", '"\\u00e9"', '"é"', '"\\/"')
        )
    if kind < 6:
        return json.dumps(
            "".join(chance.choices('aé"\\\n\t\u2028😀\x00', k=chance.randrange(9))), ensure_ascii=kind == 3
        )
    gap = chance.choice(("", " ", "\n\t", "  "))
    some = [value(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind < 8:  # keys in no order, and more than once
        return "{" + f",{gap}".join(f'"{chance.choice("zyaab")}"{gap}:{gap}{one}' for one in some) + gap + "}"
    return f"[{gap}" + f"{gap},".join(some) + "]"


def bodies(count: int, chance: random.Random) -> Iterator[bytes]:
    """Requests with unknown fields of all kinds, whole ones and damaged ones, and bytes that mean nothing."""
    damaged = inputs(TARGETS["chat"], count, chance)
    for _ in range(count):
        kind = chance.randrange(8)
        if kind < 5:
            said = f'[{{"role":"user","content":"a","x":{value(chance)}}}]'
            yield f'{{"y":{value(chance)},"messages":{said},"model":"m","z":{value(chance)}}}'.encode()
        else:
            yield next(damaged) if kind < 7 else chance.randbytes(chance.randrange(300))


@pytest.mark.parametrize("count", [400, pytest.param(BODIES, marks=pytest.mark.long, id="long")])
@pytest.mark.parametrize("path", [CHAT, "/v1/x"])
async def test_h7_a_body_that_is_not_rewritten_arrives_as_sent(path: str, count: int, record_property: Record) -> None:
    got: list[bytes] = []

    async def note(request: RawRequest, connection: Connection) -> None:
        got.append(sha256(request.body).digest())
        await fine(request, connection)

    chance = random.Random(7)
    async with run_upstream(note) as upstream, run_proxy(upstream.port, policy="passthrough") as proxy:
        client = await connect(proxy.port)
        for body in bodies(count, chance):
            await client.send(make_post(path, body).replace(b"connection: close\r\n", b""))
            await answer(client)
            assert got.pop() == sha256(body).digest(), body
            assert got == []
        client.writer.transport.abort()
    record_property("measured", f"{count:,} bodies to {path}, each with its digest")


PROMISED_S = 0.2
"""Of processor time."""


def read_processor_time(pid: int) -> float:
    """Seconds of processor time of all its threads, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


@pytest.mark.parametrize("name", HEAVY)
async def test_j1_bodies_that_break_parsers_take_little_processor_time(
    fork_server: ForkServer, name: str, record_property: Record
) -> None:
    async with run_upstream(fine) as upstream:
        url = f"http://127.0.0.1:{upstream.port}/v1"
        pid, port = await fork_server.started(upstream=url, db=":memory:", log_level="error")

        async def taken(body: bytes) -> float:
            before = read_processor_time(pid)
            assert parse_answer(await send_raw(port, make_post(CHAT, body), 30)).status == 200
            await asyncio.sleep(0.05)
            return read_processor_time(pid) - before

        await taken(b"{}")
        least = min([await taken(HEAVY[name]) for _ in range(3)])
        record_property("measured", f"{name}: {least * 1000:.0f} ms of processor time")
        await asyncio.to_thread(fork_server.kill, pid)
        assert least <= 4 * PROMISED_S
