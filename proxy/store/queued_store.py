"""The common part of stores with a writer of their own: queueing rows for the writer, and the writer's state."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from proxy.store import gap_file
from proxy.store.base import GapRow, Row
from proxy.store.reads import StoreReads
from proxy.store.write_queue import WriteQueue

log = logging.getLogger(__name__)


class StoreWriter(Protocol):
    """A writer: takes the items from the spool's inbox, and settles them."""

    commits: int
    trouble: str
    """The writer's fault, "" for none."""
    queue: WriteQueue


class QueuedStore(StoreReads):
    """The writing half of a `Store`; a backend adds opening, closing and reading."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writing = writer

    @abstractmethod
    def _reading(self) -> str:
        """The fault of the last read, "" for none."""

    @property
    def healthy(self) -> bool:
        return not self.trouble

    @property
    def trouble(self) -> str:
        return self._writing.trouble or self._reading()

    @property
    def queued(self) -> int:
        return self._writing.queue.item_count

    @property
    def dropped(self) -> int:
        return self._writing.queue.dropped

    @property
    def commits(self) -> int:
        """Number of transactions so far; far fewer than items under load."""
        return self._writing.commits

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        return self._writing.queue.put(rows)

    def put_deferred(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        return self._writing.queue.put(rows, waited=False)

    def flush_deferred(self) -> None:
        self._writing.queue.flush_deferred()

    def _keep_gaps(self, gaps: Sequence[GapRow]) -> None:
        """Store the gaps outside of the store itself, if the backend can."""

    def _tell_closed(self) -> None:
        gaps = self._writing.queue.take_unrecorded_gaps()
        gap_file.log_gaps(gaps)
        self._keep_gaps(gaps)
        if self.dropped:
            log.warning("store closed; %d items were not stored", self.dropped)
        else:
            log.info("store closed; 0 items dropped")
