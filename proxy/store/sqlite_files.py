"""The files of a SQLite store: their permissions, the lock against a second process, and the check that they are still
the same files.

Conversations hold secrets, so every file is 0600 whatever the umask. SQLite gives -wal and -shm the mode of the
database when it makes them. A database with two writing processes loses rows that each believes to be durable, so a
lock file keeps the second process out. The lock ends with the process, however the process ends. The lock file itself
is never removed, since two processes could then hold locks on two files of one name.

The database file itself is never opened here once SQLite has it. Closing any descriptor of the file would drop the
POSIX locks that SQLite holds in this process. So only its metadata is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import StoreRefused

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_OTHERS = 0o077
LOCK_ENDING = ".lock"
PLACE_HINT = "Give a path in a folder that this user may write to."
OWNER_HINT = "Run this as the user that the proxy runs as."


def build_uri(path: Path) -> str:
    """The URI for sqlite3.connect: it opens a file that is there, and creates none."""
    return path.absolute().as_uri() + "?mode=rw"


def build_read_uri(path: Path, hint: str) -> str:
    """The URI for sqlite3.connect to read the file alone. hint: what a person does if there is none. Raises
    StoreRefused if there is none, or this user may not read it: SQLite does not say which of the two it is.

    SQLite reads through shared memory, which it makes beside the file. Where nothing can be made there, and no log is
    there, no process writes to the file. It is then read as one that does not change.
    """
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        regular = False
    except OSError as error:
        raise _refuse_reading(path, error.strerror) from error
    if not regular:
        raise StoreRefused(f"there is no database {path}.", hint=hint)
    if not os.access(path, os.R_OK):
        raise _refuse_reading(path, os.strerror(errno.EACCES))
    log, _ = list_wal_files(path)
    unchanging = not os.access(log.parent, os.W_OK) and not log.exists()
    return path.absolute().as_uri() + "?mode=ro" + ("&immutable=1" if unchanging else "")


def _refuse_reading(path: Path, reason: str | None) -> StoreRefused:
    return StoreRefused(f"the database {path} cannot be read: {reason}.", hint=OWNER_HINT)


def find_beside(path: Path, ending: str) -> Path:
    """The path of the file with this ending next to the database. SQLite keeps its own files next to the file that a
    link leads to. All others are there too, so that a file with two names has one lock."""
    found = path.resolve()
    return found.with_name(found.name + ending)


def list_wal_files(path: Path) -> tuple[Path, Path]:
    """The paths of the write-ahead log and the shared memory that SQLite keeps next to the database."""
    return find_beside(path, "-wal"), find_beside(path, "-shm")


def prepare_folder(path: Path) -> None:
    """Create a missing folder of `path` with 0700; one that exists stays unchanged. Raises OSError."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, mode=_PRIVATE_FOLDER)
        path.parent.chmod(_PRIVATE_FOLDER)


def prepare_files(path: Path) -> None:
    """Create folder and file if they are missing, and make the files readable to the owner alone. Raises StoreRefused.

    Call only while holding the lock: another store of this process may have the file open.
    """
    try:
        prepare_folder(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE))
        make_private(path)
    except OSError as error:
        raise StoreRefused(
            f"the database {path} cannot be opened for writing: {error.strerror}.",
            hint=PLACE_HINT,
        ) from error


def make_private(path: Path) -> None:
    """Remove other users' permissions from the database, its log and its shared memory."""
    for file in (path, *list_wal_files(path)):
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mode & _OTHERS:
                file.chmod(_PRIVATE_FILE)


def read_opening_time(path: Path) -> float:
    """The time (Unix seconds) at which a process last took the lock of this database; 0.0 if none has."""
    try:
        return find_beside(path, LOCK_ENDING).stat().st_mtime
    except OSError:
        return 0.0


class FileLock:
    """Lock file, held by the one process that may use the database."""

    def __init__(self, path: Path) -> None:
        self._database = path
        self._path = find_beside(path, LOCK_ENDING)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises StoreRefused if another store holds it, or if its file cannot be used."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        except OSError as error:
            raise self._refuse(error) from error
        try:
            if os.fstat(descriptor).st_mode & _OTHERS:
                os.fchmod(descriptor, _PRIVATE_FILE)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                os.close(descriptor)
                raise self._refuse(error) from error
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreRefused(
                f"the database {self._database} is in use by another process (pid {holder}).",
                hint="Stop that one, give this one another --db, or use PostgreSQL for several processes.",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def _refuse(self, error: OSError) -> StoreRefused:
        """The error of a lock file that cannot be used, for example one of another user."""
        return StoreRefused(
            f"the database {self._database} cannot be opened: its lock file {self._path} cannot be used "
            f"({error.strerror}).",
            hint=PLACE_HINT,
        )

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Identity of the file when it was opened, and its size in bytes."""

    device: int
    inode: int
    size: int

    @classmethod
    def read(cls, path: Path) -> FileIdentity:
        found = path.stat()
        return cls(found.st_dev, found.st_ino, found.st_size)

    def check_unchanged(self, path: Path) -> None:
        """Check the file, and remove permissions that others were given.

        Raises OSError if the path no longer leads to this file, or the file has become shorter: SQLite's writes would
        then be lost.
        """
        status = path.stat()
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            raise OSError(f"the database {path} was replaced by another file")
        if status.st_size < self.size:
            raise OSError(f"the database {path} was truncated")
        if status.st_mode & _OTHERS:
            make_private(path)
