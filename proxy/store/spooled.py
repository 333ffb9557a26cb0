"""What stores with a writer of their own have in common, whatever they write to: how rows are given to it, and how it
does."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from proxy.store import gap_file
from proxy.store.base import GapRow, Row
from proxy.store.reads import Reads
from proxy.store.spool import Spool

log = logging.getLogger(__name__)


class Writing(Protocol):
    """A writer: takes what is in the spool's inbox, and settles it."""

    commits: int
    trouble: str
    """What is wrong, "" for nothing."""
    spool: Spool


class Spooled(Reads):
    """The writing half of a `Store`; a backend adds opening, closing and reading."""

    def __init__(self, writer: Writing) -> None:
        self._writing = writer

    @abstractmethod
    def _reading(self) -> str:
        """What went wrong with the last read, "" for nothing."""

    @property
    def healthy(self) -> bool:
        return not self.trouble

    @property
    def trouble(self) -> str:
        return self._writing.trouble or self._reading()

    @property
    def queued(self) -> int:
        return self._writing.spool.waiting

    @property
    def dropped(self) -> int:
        return self._writing.spool.dropped

    @property
    def commits(self) -> int:
        """Transactions so far; far fewer than items under load."""
        return self._writing.commits

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        return self._writing.spool.put(rows)

    def later(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        return self._writing.spool.put(rows, waited=False)

    def hurry(self) -> None:
        self._writing.spool.hurry()

    def _keep_gaps(self, gaps: Sequence[GapRow]) -> None:
        """Remember what was lost where the store itself cannot."""

    def _tell_closed(self) -> None:
        gaps = self._writing.spool.unrecorded()
        gap_file.tell(gaps)
        self._keep_gaps(gaps)
        if self.dropped:
            log.warning("store closed; %d items were not stored", self.dropped)
        else:
            log.info("store closed; 0 items dropped")
