"""The files of a SQLite store: who may read them, who may open them, and whether they are still the same ones.

Conversations hold secrets, so every file is 0600 whatever the umask; SQLite gives -wal and -shm the mode of the
database when it makes them. A database with two writing processes loses what each believes to be durable, so a lock
file keeps the second out; the lock goes with the process, however it ends, and the file itself is never removed,
since removing it would let two processes hold locks on two files of one name.

The database file itself is never opened here once SQLite has it: closing any descriptor of it would drop the POSIX
locks that SQLite holds in this process. It is only looked at from outside.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import StoreRefused

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_OTHERS = 0o077


def uri(path: Path) -> str:
    """For sqlite3.connect: opens the file only if it is there, so that a deleted one is not made anew by chance."""
    return path.absolute().as_uri() + "?mode=rw"


def beside(path: Path) -> tuple[Path, Path]:
    """The write-ahead log and the shared memory that SQLite keeps beside the database."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def prepare_folder(path: Path) -> None:
    """The folder of `path` exists afterwards. One that is made here is 0700; one that was there is the user's and stays
    as it is. Raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, mode=_PRIVATE_FOLDER)
        path.parent.chmod(_PRIVATE_FOLDER)


def prepare(path: Path) -> None:
    """Folder and file exist afterwards, and only the owner can read the files. Raises StoreRefused.

    Only to be called with the lock in hand: another store of this process may have the file open.
    """
    try:
        prepare_folder(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE))
        make_private(path)
    except OSError as error:
        raise StoreRefused(
            f"the database {path} cannot be opened for writing: {error.strerror}.",
            hint="Give a path in a folder that this user may write to.",
        ) from error


def make_private(path: Path) -> None:
    """Takes the rights of others from the database and what lies beside it."""
    for file in (path, *beside(path)):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mode & _OTHERS:
                file.chmod(_PRIVATE_FILE)


def set_aside(path: Path) -> Path:
    """Moves a damaged database and what lies beside it to the first free name; returns that of the database."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for file in (path, *beside(path)):
        with contextlib.suppress(FileNotFoundError):
            file.rename(target.with_name(target.name + file.name.removeprefix(path.name)))
    return target


class Lock:
    """Held by the one process that may use the database."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raises StoreRefused if another process, or another store of this one, holds it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        try:
            os.fchmod(descriptor, _PRIVATE_FILE)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreRefused(
                f"the database of {self._path} is in use by another process (pid {holder}).",
                hint="Stop that one, give this one another --db, or use PostgreSQL for several processes.",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file it was when it was opened, and how long."""

    device: int
    inode: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Identity:
        found = path.stat()
        return cls(found.st_dev, found.st_ino, found.st_size)

    def check(self, path: Path) -> None:
        """Raises OSError where the path no longer leads to this file, or the file has become shorter: what SQLite
        writes then goes to a file that nobody will find again. Takes back rights that others were given."""
        found = path.stat()
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise OSError(f"the database {path} was replaced by another file")
        if found.st_size < self.size:
            raise OSError(f"the database {path} was truncated")
        if found.st_mode & _OTHERS:
            make_private(path)
