"""Recorded agent runs through three proxies that come and go, every request to the next. Asked for with `-m long`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.postgres import execute
from tests.proxy_server import PATIENT_LIMITS
from tests.raw_upstream import free_port
from tests.recorded.test_shared import AGENTS, OPEN, PRICES, SAMPLE, Rows, assert_sound, files, run, score
from tests.replicas.fleet import Fleet, fleet

pytestmark = pytest.mark.long

EVERY_S = 20.0
"""One replica is ended in order and another one killed so often."""
NEAR = 0.02


async def come_and_go(proxies: Fleet) -> None:
    """Until it is cancelled."""
    while True:
        await asyncio.sleep(EVERY_S / 2)
        await proxies.kill()
        await asyncio.sleep(EVERY_S / 2)
        await proxies.restart()


@pytest.mark.parametrize("names", [SAMPLE, AGENTS], ids=["sample", "all"])
async def test_replicas_that_come_and_go_cost_what_one_process_costs(
    shared: Path, tmp_path: Path, database: str, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    tree = {
        "policy": "thrifty",
        "db": database,
        "upstream": f"http://127.0.0.1:{port}/v1",
        **PATIENT_LIMITS,
        "log_level": "error",
    }
    began = time.monotonic()
    async with fleet(3, **tree) as proxies:
        going = asyncio.create_task(come_and_go(proxies))
        where = ["--proxy", proxies.url, "--upstream-port", str(port), "--stream"]
        rows: Rows = await asyncio.to_thread(
            run, shared, tmp_path / "three.json", *where, *files(shared / OPEN, *names)
        )
        going.cancel()
        await asyncio.wait([going])
        told = f"{proxies.ended} ended, {proxies.killed} killed in {time.monotonic() - began:.0f} s"
    alone = await asyncio.to_thread(score, shared, tmp_path, "thrifty", names, "--stream")
    ratios = [rows["TOTAL"][f"cost@{price}"] / alone["TOTAL"][f"cost@{price}"] for price in PRICES]
    kinds = await execute(database, "SELECT kind, count(*) FROM branches GROUP BY kind ORDER BY kind")
    with capsys.disabled():
        costs = ", ".join(f"{price} {ratio:.4f}" for price, ratio in zip(PRICES, ratios, strict=True))
        print(f"\n{rows['TOTAL']['steps']} requests, {told}; cost of one process: {costs}; branches {kinds}")
        print({key: rows["TOTAL"][key] for key in ("invalid", "altered", "errors")})
    assert_sound(rows)
    assert max(ratios) <= 1 + NEAR
