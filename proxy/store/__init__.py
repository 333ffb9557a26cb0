"""The store: `create_store` gives the store that `db` names.

A path is a SQLite file, a postgresql:// URL a database that many replicas share, ":memory:" a store that forgets. All
behave the same, as the same tests show.
"""

from __future__ import annotations

from typing import Literal

from proxy.errors import StoreRefused
from proxy.store.in_memory import InMemoryStore
from proxy.store.reads import Store
from proxy.store.sqlite import SqliteStore

REPORT_READ_S = 60.0
"""Seconds that a read of a report may take."""


def create_store(
    db: str,
    *,
    durability: Literal["full", "normal"] = "full",
    spool_mb: int = 64,
    read_s: float = 2.0,
    retention_days: float = 0,
    longest_request_s: float = Store.longest_request_s,
) -> Store:
    """A store that is not open yet. `db`: a path, "sqlite:///path", "postgresql://..." or ":memory:". retention_days:
    the days after which its rows will be removed, 0 for never. longest_request_s: seconds after which a request that is
    still open is read as lost. Raises StoreRefused if `db` names no store, or if the driver is not installed."""
    found = _make_store(db, durability, spool_mb, read_s, retention_days)
    found.longest_request_s = longest_request_s
    return found


def _make_store(
    db: str, durability: Literal["full", "normal"], spool_mb: int, read_s: float, retention_days: float
) -> Store:
    if db == ":memory:":
        return InMemoryStore()
    scheme, has_scheme, address = db.partition("://")
    if not has_scheme:
        return SqliteStore(db, durability=durability, spool_mb=spool_mb, read_s=read_s)
    if scheme == "sqlite" and address.startswith("/"):
        return SqliteStore(address[1:], durability=durability, spool_mb=spool_mb, read_s=read_s)
    if scheme in ("postgresql", "postgres"):
        return _create_postgres_store(db, durability, spool_mb, read_s, retention_days)
    raise StoreRefused(
        f"there is no store for {scheme}://.", hint="Give a path, a postgresql:// URL or :memory: as --db."
    )


def _create_postgres_store(
    db: str, durability: Literal["full", "normal"], spool_mb: int, read_s: float, retention_days: float
) -> Store:
    """The PostgreSQL store. Raises StoreRefused if its driver, an extra, is missing."""
    try:
        from proxy.store.postgres import PostgresStore  # noqa: PLC0415  only where it is asked for
        from proxy.store.postgres_partitions import choose_days  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise StoreRefused(
            "PostgreSQL needs the package asyncpg.", hint="Install agent-context-proxy[postgres]."
        ) from error
    days = choose_days(retention_days)
    return PostgresStore(db, durability=durability, spool_mb=spool_mb, read_s=read_s, partition_days=days)


async def open_for_reports(db: str) -> Store:
    """The store that `db` names, open for reading alone, beside the proxies that use it. Raises StoreRefused."""
    store = create_store(db, read_s=REPORT_READ_S)
    if isinstance(store, SqliteStore):
        from proxy.store.readonly import ReadOnlyStore  # noqa: PLC0415  reports alone need it

        store = ReadOnlyStore(store.path)
        await store.open()
    elif isinstance(store, InMemoryStore):
        raise StoreRefused("a store in memory is gone with its proxy.", hint="Name a store with --db.")
    else:
        await store.open_for_reports()  # type: ignore[attr-defined]  # of PostgresStore, which may not be installed
    return store
