"""Losses at the end of a process, written next to the database: a disk that takes no rows takes no gap rows either.

The file gets its room while there is some, and is overwritten in place, which works on a full disk. The next start
stores its content. A proxy that stops with nothing lost removes the file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from proxy.store import sqlite_files
from proxy.store.base import GapRow

log = logging.getLogger(__name__)

FILE_SIZE: Final = 64 << 10
"""Size in bytes: some 300 gaps. Further gaps are added up in one."""
MAX_LOGGED: Final = 20
"""Maximum number of gaps that are logged one by one."""
_ROW: Final = msgspec.json.Decoder(GapRow)


class GapFile:
    """The file of one database."""

    def __init__(self, database: Path) -> None:
        self.path = sqlite_files.find_beside(database, ".gaps")
        self._made = False

    def open(self) -> list[GapRow]:
        """Reserve the file's room, and return the gaps of the last process. Raises OSError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb+") as file:
            written = file.read()
            file.write(b"\n" * (FILE_SIZE - len(written)))
            os.fsync(descriptor)
        self._made = True
        lines = [line for line in written.splitlines() if line]
        rows = [row for row in map(_read, lines) if row is not None]
        if len(rows) < len(lines):
            log.warning("%d lines of the file of gaps %s cannot be read", len(lines) - len(rows), self.path)
        return rows

    def write_gaps(self, gaps: Sequence[GapRow]) -> None:
        """Write these gaps in place of the file's content. Raises OSError."""
        lines = [msgspec.json.encode(gap) + b"\n" for gap in gaps]
        fits, taken = 0, 0
        while fits < len(lines) and taken + len(lines[fits]) <= FILE_SIZE - 1024:
            taken += len(lines[fits])
            fits += 1
        unwritten = gaps[fits:]
        if unwritten:
            bytes_, items = sum(gap.bytes for gap in unwritten), sum(gap.items for gap in unwritten)
            summed = GapRow("", "", "", bytes_, unwritten[0].reason[:200], unwritten[-1].created_at, items)
            lines[fits:] = [msgspec.json.encode(summed) + b"\n"]
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"".join(lines).ljust(FILE_SIZE, b"\n"))
            file.flush()
            os.fsync(descriptor)

    def remove(self) -> None:
        """Remove the file that `open` made or took over, as nothing was lost. Raises OSError."""
        if self._made:
            self.path.unlink(missing_ok=True)


def log_gaps(gaps: Sequence[GapRow]) -> None:
    """Log the gaps: tenant, session and size of each."""
    for gap in gaps[:MAX_LOGGED]:
        log.error(
            "lost: %d items of session %s of %s, %d bytes (%s)",
            *(gap.items, gap.session or "?", gap.tenant or "?", gap.bytes, gap.reason),
        )
    if len(gaps) > MAX_LOGGED:
        log.error("lost: %d items of %d more gaps", sum(g.items for g in gaps[MAX_LOGGED:]), len(gaps) - MAX_LOGGED)


def _read(line: bytes) -> GapRow | None:
    try:
        return _ROW.decode(line)
    except msgspec.DecodeError:
        return None
