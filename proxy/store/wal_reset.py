"""SQLite's WAL-reset bug: the versions that have it, and the reason why it cannot occur here.

Up to 3.51.2 a checkpoint can run while another connection commits and thereby resets the log. The checkpoint may then
count pages as copied that are not. The database is then damaged, or a commit is lost
(https://sqlite.org/wal.html#walresetbug). The bug is fixed in 3.51.3, and in 3.50.7 and 3.44.6 of the older lines.

The bug takes two connections that write or checkpoint at the same time. Here one connection does both, in one thread,
and a lock on the file keeps a second proxy out.
"""

from __future__ import annotations

import sqlite3
from typing import Final

FIXED: Final = (3, 51, 3)
BACKPORTED: Final = ((3, 50, 7), (3, 44, 6))
"""The first fixed versions of two older lines."""

Version = tuple[int, int, int]


def has_bug(version: Version) -> bool:
    """True if this version of SQLite has the bug."""
    line = next((fixed for fixed in BACKPORTED if fixed[:2] == version[:2]), FIXED)
    return version < line


def describe_bug_briefly(version: Version = sqlite3.sqlite_version_info) -> str:
    """Addition to the log line of a start, which is no warning: the bug cannot strike here; "" without the bug."""
    return "; its WAL-reset bug cannot strike here, see `context-proxy check`" if has_bug(version) else ""


def describe_bug(version: Version = sqlite3.sqlite_version_info) -> str:
    """All that an operator should know of this version, for `check`; "" if there is nothing."""
    if not has_bug(version):
        return ""
    name = ".".join(map(str, version))
    return (
        f"SQLite {name} has the WAL-reset bug. It cannot strike through this proxy: one connection writes and"
        " checkpoints, and all others only read. Let no other program write to the file or checkpoint it while the"
        " proxy runs, or install a Python with SQLite 3.51.3 or later."
    )
