"""A process of its own that writes to a store, for tests that kill it or take its disk away. Run as a script.

Prints one line for each thing that happened, so that the parent knows what was acknowledged and when.
"""

from __future__ import annotations

import asyncio
import hashlib
import resource
import sys
from pathlib import Path

from proxy.errors import StoreUnavailable
from proxy.store.base import BranchRow, BranchTipRow, ExchangeRow, FormRow, MessageRow, Row, SessionRow
from proxy.store.sqlite import SqliteStore
from tests.stores import count_rows, sqlite_store


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def body(number: int) -> bytes:
    return b"body %d " % number * 200


def turn(number: int) -> list[Row]:
    """The rows of a request with its answer: two messages, an exchange, the head."""
    rows: list[Row] = [SessionRow("t1", "s1", True, 0.0)]
    for n in (2 * number, 2 * number + 1):
        key, parent = digest(f"k{n}"), digest(f"k{n - 1}")
        rows.append(
            MessageRow(
                *("t1", "s1", key, parent, n, "main", "user", "g", body(n), digest(f"b{n}"), None),
                *("completed", "openai", 9, bool(n % 2), True, float(n)),
            )
        )
    rows.append(
        ExchangeRow(
            *("t1", "s1", f"x{number}", "main", rows[-1].key, 2, b"e", b"[]", 0, b"[]", "thrifty", "always", "m"),  # type: ignore[union-attr]
            *("default", "openai", 1, 1, None, float(number)),
        )
    )
    rows.append(BranchTipRow("t1", "s1", "main", digest(f"k{2 * number + 1}"), None, float(number), None))
    return rows


async def acknowledge(store: SqliteStore, start: int) -> None:
    """Turn after turn, four at a time, each number printed once it is durable, until it is killed."""
    await store.put([SessionRow("t1", "s1", True, 0.0), BranchRow("t1", "s1", "main", None, None, "main", b"", 0.0)])

    async def one(number: int) -> None:
        await store.put(turn(number))
        print("acknowledged", number, flush=True)

    while True:
        await asyncio.gather(*(one(number) for number in range(start, start + 4)))
        start += 4


async def until(store: SqliteStore, healthy: bool) -> None:
    for _ in range(1000):
        if store.healthy is healthy:
            return
        await asyncio.sleep(0.01)
    raise TimeoutError(f"the store never became {'healthy' if healthy else 'unhealthy'}: {store.trouble}")


async def lose_room(store: SqliteStore, take_away: object, give_back: object) -> None:
    """Writes until the disk is full and beyond the spool's bound, gives room back, and sees all of it stored."""
    assert callable(take_away)
    assert callable(give_back)
    await store.put(turn(0))
    take_away()
    futures: list[asyncio.Future[None]] = []
    for number in range(1, 400):
        futures.append(store.put([*turn(number), FormRow("t1", "s1", digest(f"f{number}"), b"x" * 20000)]))
        await asyncio.sleep(0.001)
        if store.dropped >= 20:
            break
    await until(store, False)
    refused = sum(1 for future in futures if future.done() and future.exception() is not None)
    early = [number for number, future in enumerate(futures, 1) if future.done() and future.exception() is None]
    waiting = [number for number, future in enumerate(futures, 1) if not future.done()]
    print("refused", refused, flush=True)
    print("trouble", store.trouble, flush=True)
    assert refused == store.dropped == 20
    assert waiting
    for number in early:
        assert await store.read_exchange("t1", "s1", f"x{number}") is not None
    give_back()
    for number in waiting:
        await asyncio.wait_for(futures[number - 1], 10)
    await until(store, True)
    await store.put(turn(1000))
    for number in [0, *early, *waiting, 1000]:
        assert await store.read_exchange("t1", "s1", f"x{number}") is not None
    gaps = 0
    for _ in range(100):
        gaps = (await count_rows(store))["gaps"]
        if gaps == refused:
            break
        await asyncio.sleep(0.02)
    print("gaps", gaps, flush=True)


async def full(store: SqliteStore, folder: Path) -> None:
    """On a small file system, half of which a filler takes until it is removed."""
    filler = folder / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:  # a buffer would try once more to be written when it is closed
            while True:
                try:
                    file.write(b"x" * 65536)
                except OSError:
                    break

    await lose_room(store, fill, filler.unlink)


async def limited(store: SqliteStore, _folder: Path) -> None:
    """With a bound on the size of files, which gives I/O errors rather than a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def take_away() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))

    await lose_room(store, take_away, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))


async def sync_fails(store: SqliteStore, _folder: Path) -> None:
    """Some syncs fail while it writes; nothing may be acknowledged by a sync that did not happen."""
    for number in range(40):
        await asyncio.wait_for(store.put(turn(number)), 10)
        print("acknowledged", number, flush=True)


async def main() -> None:
    mode, path = sys.argv[1], Path(sys.argv[2])
    store = sqlite_store(path, spool_mb=1)
    try:
        await store.open()
    except StoreUnavailable as error:
        print(error)
        return
    print("open", flush=True)
    match mode:
        case "acknowledge":
            await acknowledge(store, int(sys.argv[3]))
        case "full":
            await full(store, path.parent)
        case "limited":
            await limited(store, path.parent)
        case "sync_fails":
            await sync_fails(store, path.parent)
    await store.close()
    print("closed", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
