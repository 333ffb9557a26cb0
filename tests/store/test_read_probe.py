"""A read that is repeated in the background until it succeeds."""

from __future__ import annotations

import asyncio

import pytest

from proxy.errors import StoreUnavailable
from proxy.store import read_probe
from proxy.store.read_probe import ReadProbe
from tests.raw_upstream import wait_until


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_probe, "PROBE_PAUSE_S", 0.001)


async def test_it_reads_until_it_succeeds_however_often_it_is_started() -> None:
    reads: list[int] = []

    async def read() -> None:
        reads.append(len(reads))
        if len(reads) < 4:
            raise StoreUnavailable("not yet.")

    probe = ReadProbe(read)
    for _ in range(5):
        probe.start()
    await wait_until(lambda: len(reads) == 4)
    await asyncio.sleep(0.05)
    assert len(reads) == 4, "once it has succeeded it is at an end"
    probe.start()
    await wait_until(lambda: len(reads) == 5)
    await probe.close()


async def test_the_end_does_not_wait_for_a_read_that_hangs() -> None:
    hanging = asyncio.Event()

    async def read() -> None:
        hanging.set()
        await asyncio.Event().wait()

    probe = ReadProbe(read)
    await probe.close()
    probe.start()
    assert probe._task is None, "a closed one begins nothing"
    probe = ReadProbe(read)
    probe.start()
    await hanging.wait()
    async with asyncio.timeout(20):
        await probe.close()
