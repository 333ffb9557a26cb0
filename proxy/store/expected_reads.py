"""The rows that a request is going to read, named before its first read.

A store behind a network reads them together. A store in the same process reads each when it is asked for.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

MAX_STORED_STATES = 16
"""Limit on the stored states of a session that are searched for one that a new branch goes on with."""


class ExpectedNotes(NamedTuple):
    """The notes that a new prompt is given: its scratchpad, and a number of memos of a project."""

    scratchpad: bool = False
    project: str = ""
    memos: int = 0


NO_NOTES = ExpectedNotes()


class ExpectedReads(Struct, frozen=True, gc=False):
    """One request's place in the store, and what memory has of it already."""

    tenant: str
    session: str
    keys: list[bytes]
    """Chain keys of the request's messages that are not in memory, root first."""
    rounds: list[bytes]
    """Chain keys of the ends of requests whose hidden rounds are not in memory."""
    branch: str = ""
    """The branch of the deepest message that is in memory."""
    moves: list[float] = []
    """The times of the positions of that branch that memory knows."""
    edits: int = 0
    """The highest number of its edits in memory."""
    states: int = 0
    """The number of its states in memory."""
    is_moved: bool = True
    """The branch is not in memory, or the request has an answer that is not: another process may have moved it on."""
    is_new: bool = False
    """The request may begin a new branch: the session's other branches and states count."""
    system: bytes = b""
    """The digest of the system prompt, if `is_new`."""
    scratchpad: bool = False
    project: str = ""
    memos: int = 0
    """Number of the project's memos that are read."""


class ImmediateReads:
    """A store that makes each read when it is asked for."""

    def expect_reads(self, wanted: ExpectedReads) -> None:
        """Take note of the reads of the request that the current task works on. A read that was not announced, or that
        comes after a `put` of the same task, is made by itself."""
