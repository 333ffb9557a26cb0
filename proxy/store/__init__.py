"""What is remembered: `connect` gives the store that `db` names.

A path is a SQLite file; ":memory:" a store that forgets. Both behave the same, as the same tests show.
"""

from __future__ import annotations

from typing import Literal

from proxy.errors import StoreRefused
from proxy.store.base import Store
from proxy.store.memory import MemoryStore
from proxy.store.sqlite import SqliteStore


def connect(db: str, *, durability: Literal["full", "normal"] = "full", spool_mb: int = 64) -> Store:
    """A store that is not open yet. `db`: a path, "sqlite:///path" or ":memory:". Raises StoreRefused."""
    if db == ":memory:":
        return MemoryStore()
    scheme, found, rest = db.partition("://")
    if not found:
        return SqliteStore(db, durability=durability, spool_mb=spool_mb)
    if scheme == "sqlite" and rest.startswith("/"):
        return SqliteStore(rest[1:], durability=durability, spool_mb=spool_mb)
    raise StoreRefused(f"there is no store for {scheme}://.", hint="Give a path or :memory: as --db.")
