"""Power loss, replayed: what a process wrote is read from a trace of its system calls, and the files are made again as
a disk may hold them at any moment: everything up to each file's last sync, and of what came after it any part, in any
order, torn at sectors.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
"""Bytes that a disk writes whole or not at all."""
CALLS = "trace=openat,pwrite64,write,ftruncate,fsync,fdatasync,close,unlink"
TRACE = ["strace", "-f", "-qq", "-xx", "-s", "1000000", "-e", CALLS]

_LINE = re.compile(r"^(\d+) +(.*)$")
_CALL = re.compile(r"^(\w+)\((.*?)(\) += +(-?\d+).*| <unfinished \.\.\.>)$")
_RESUMED = re.compile(r"^<\.\.\. (\w+) resumed>.*\) += +(-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True)
class Write:
    path: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Cut:
    path: str
    length: int


@dataclass(frozen=True)
class Gone:
    """A file was removed: certain once its folder is synced."""

    path: str


@dataclass(frozen=True)
class Sync:
    path: str


@dataclass(frozen=True)
class Said:
    """A line on stdout: what the process told others."""

    text: str


Change = Write | Cut | Gone
Event = Change | Sync | Said


def _bytes(argument: str) -> bytes:
    found = _TEXT.search(argument)
    return bytes.fromhex(found[1].replace("\\x", "")) if found else b""


def events(trace: Path) -> Iterator[Event]:  # noqa: C901  a case a system call
    """In the order of the trace. A sync counts from when it returned, all else from when it began."""
    paths: dict[int, str] = {}
    begun: dict[str, tuple[str, str]] = {}
    said = ""
    for raw in trace.read_text().splitlines():
        line = _LINE.match(raw)
        if line is None:
            continue
        branch, text = line[1], line[2]
        resumed = _RESUMED.match(text)
        if resumed:
            name, arguments = begun.pop(branch)
            if name in ("fsync", "fdatasync") and resumed[2] == "0":
                yield Sync(paths.get(int(arguments), "?"))
            elif name == "openat" and int(resumed[2]) >= 0:
                paths[int(resumed[2])] = _bytes(arguments).decode()
            continue
        call = _CALL.match(text)
        if call is None:
            continue
        name, arguments, result = call[1], call[2], call[4]
        if result is None:
            begun[branch] = (name, arguments)
            if name in ("fsync", "fdatasync", "openat"):
                continue
        if name == "openat" and result is not None and int(result) >= 0:
            paths[int(result)] = _bytes(arguments).decode()
        elif name in ("fsync", "fdatasync") and result == "0":
            yield Sync(paths.get(int(arguments), "?"))
        elif name == "pwrite64":
            descriptor, rest = arguments.split(",", 1)
            yield Write(paths[int(descriptor)], int(rest.rsplit(",", 1)[1]), _bytes(rest))
        elif name == "ftruncate":
            descriptor, length = arguments.split(",")
            yield Cut(paths[int(descriptor)], int(length))
        elif name == "unlink":
            yield Gone(_bytes(arguments).decode())
        elif name == "write" and arguments.startswith("1,"):
            *lines, said = (said + _bytes(arguments).decode()).split("\n")
            yield from map(Said, lines)


@dataclass
class Disk:
    """The bytes that are on disk for certain, and those that are not yet."""

    certain: dict[str, bytearray] = field(default_factory=dict)
    floating: list[Change] = field(default_factory=list)

    def take(self, event: Event) -> None:
        if isinstance(event, Write | Cut | Gone):
            self.floating.append(event)
        elif isinstance(event, Sync):
            self._sync(event.path)

    def _sync(self, path: str) -> None:
        """Of a file: its contents, and that a file of its name that was there before is gone. Of a folder: that
        all that were removed are."""
        still = []
        for one in self.floating:
            if one.path == path or (isinstance(one, Gone) and str(Path(one.path).parent) == path):
                _apply(self.certain, one)
            else:
                still.append(one)
        self.floating = still

    def crash(self, folder: Path, chance: random.Random) -> None:
        """The files as they may be found: named as they were, in `folder`."""
        found = {path: bytearray(data) for path, data in self.certain.items()}
        for path in sorted({one.path for one in self.floating}):
            self._settle(found, [one for one in self.floating if one.path == path], chance)
        for path, data in found.items():
            (folder / Path(path).name).write_bytes(data)

    def _settle(self, found: dict[str, bytearray], changes: list[Change], chance: random.Random) -> None:
        """One name's changes: up to a removal that happened or did not, some of what was written, in any order."""
        removals = [n for n, one in enumerate(changes) if isinstance(one, Gone)]
        if removals:
            happened = chance.choice([None, *removals])
            if happened is not None:
                found.pop(changes[0].path, None)
            start = 0 if happened is None else happened + 1
            changes = changes[start : next((n for n in removals if n >= start), None)]
        pieces: list[Change] = []
        for one in changes:
            if isinstance(one, Write):
                sectors = range(0, len(one.data), SECTOR)
                pieces += (Write(one.path, one.offset + at, one.data[at : at + SECTOR]) for at in sectors)
            else:
                pieces.append(one)
        share = chance.choice((0.0, 0.2, 0.5, 0.9, 1.0))
        kept = [piece for piece in pieces if chance.random() < share]
        if chance.random() < 0.5:
            chance.shuffle(kept)
        for piece in kept:
            _apply(found, piece)


def _apply(files: dict[str, bytearray], one: Change) -> None:
    if isinstance(one, Gone):
        files.pop(one.path, None)
        return
    data = files.setdefault(one.path, bytearray())
    if isinstance(one, Cut):
        del data[one.length :]
        data.extend(b"\0" * (one.length - len(data)))
        return
    data.extend(b"\0" * (one.offset - len(data)))
    data[one.offset : one.offset + len(one.data)] = one.data
