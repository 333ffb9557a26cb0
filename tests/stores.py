"""Stores whose time limits are those of a busy machine. A test that is about a limit gives its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proxy.store.postgres import PostgresStore
from proxy.store.reads import Store
from proxy.store.sqlite import SqliteStore
from tests.raw_upstream import HANGS_S

TABLES = (
    "sessions", "branches", "messages", "forms", "edits", "states", "exchanges", "gaps", "helper_answers", "embeddings",
    "spending", "indexed", "iterations", "hidden_rounds", "scratchpads", "memos", "notes", "context_windows",
    "response_names", "bindings",
)  # fmt: skip
"""The tables that rows are written to: all but the journal."""


def sqlite_store(path: str | Path, **settings: Any) -> SqliteStore:
    """`SqliteStore`, whose reads and last writes may take a minute."""
    return SqliteStore(path, **{"read_s": HANGS_S, "drain_s": HANGS_S, **settings})


def postgres_store(url: str, **settings: Any) -> PostgresStore:
    """`PostgresStore`, whose connections, reads and writes may take a minute."""
    limits = dict.fromkeys(("connect_s", "read_s", "write_s", "drain_s"), HANGS_S)
    return PostgresStore(url, **{**limits, **settings})


async def count_rows(store: Store) -> dict[str, int]:
    """The number of rows in each table."""
    reader: Any = store
    counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)
    return dict(zip(TABLES, (await reader._fetch(f"SELECT {counts}", ()))[0], strict=True))
