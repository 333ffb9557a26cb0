"""A SQLite store as the next start would have it: a copy in memory, with the journal's rows in the tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from proxy.store.readonly import copy_with_journal


def snapshot(path: Path | str) -> sqlite3.Connection:
    """The rows that are durable in the file now, whoever writes to it. The caller closes the connection."""
    with closing(sqlite3.connect(path)) as source:
        return copy_with_journal(source)
