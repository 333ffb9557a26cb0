"""Faults that need a process of their own: kill -9, a full disk, I/O errors, a second process (D1, D3, D4, D10)."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proxy.errors import StoreRefused
from tests.store import child
from tests.stores import sqlite_store

CHILD = [sys.executable, "-W", "error", child.__file__]
NAMESPACE = ["unshare", "--map-root-user", "--mount", "--"]
EIO = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"]


def works(command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=20).returncode == 0


def check_integrity(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def acknowledged(output: str) -> set[int]:
    return {int(line.split()[1]) for line in output.splitlines() if line.startswith("acknowledged") and line[-1] != "d"}


async def check_stored(path: Path, numbers: set[int]) -> None:
    """All of the turns are there, each byte as it was put, nothing twice and no sequence number missing."""
    store = sqlite_store(path)
    await store.open()
    for number in numbers:
        assert await store.read_exchange("t1", "s1", f"x{number}") is not None, number
    chain = await store.read_chain("t1", "s1", child.digest(f"k{2 * max(numbers) + 1}"))
    assert [record.body for record in chain] == [child.body(n) for n in range(2 * max(numbers) + 2)]
    assert len({record.seq for record in chain}) == len(chain)
    await store.close()


@pytest.mark.slow
async def test_what_was_acknowledged_is_stored_after_kill_9_ten_times(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    seen: set[int] = set()
    for _ in range(10):
        start = max(seen, default=-1) + 1
        process = subprocess.Popen([*CHILD, "acknowledge", str(path), str(start)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(random.uniform(0.02, 0.3))
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=20)
        whole = output[: output.rfind("\n") + 1]
        seen |= acknowledged(whole)
        check_integrity(path)
        if seen:
            await check_stored(path, seen)
    assert len(seen) > 20


async def test_a_second_process_on_the_same_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    process = subprocess.Popen([*CHILD, "acknowledge", str(path), "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    try:
        with pytest.raises(StoreRefused, match=rf"in use by another process \(pid {process.pid}\)"):
            await sqlite_store(path).open()
    finally:
        process.kill()
        process.communicate(timeout=20)
    store = sqlite_store(path)
    await store.open()
    await store.close()


def run_child(prefix: list[str], mode: str, path: Path) -> str:
    done = subprocess.run([*prefix, *CHILD, mode, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_full_disk_loses_nothing_that_waits_and_records_what_it_refused(tmp_path: Path) -> None:
    if not works([*NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]):
        pytest.skip("a small file system cannot be mounted here")
    path = tmp_path / "store.sqlite3"
    script = (
        f"mount -t tmpfs -o size=3m,mode=700 none {tmp_path} && {sys.executable} -W error {child.__file__} full {path}"
        f" && {sys.executable} -c \"import sqlite3; print(sqlite3.connect('{path}').execute('PRAGMA integrity_check')"
        '.fetchall())"'
    )
    output = run_namespace(script)
    assert "refused 20\n" in output
    assert "gaps 20\n" in output
    assert "OperationalError: database or disk is full" in output
    assert output.endswith("closed\n[('ok',)]\n")


def run_namespace(script: str) -> str:
    done = subprocess.run([*NAMESPACE, "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_files_that_may_not_grow_lose_nothing_that_waits_and_record_what_was_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    output = run_child([], "limited", path)
    assert "refused 20\n" in output
    assert "gaps 20\n" in output
    assert output.endswith("closed\n")
    check_integrity(path)


async def test_a_failed_sync_acknowledges_nothing_and_is_survived(tmp_path: Path) -> None:
    if not works([*EIO, "true"]):
        pytest.skip("strace cannot trace here")
    path = tmp_path / "store.sqlite3"
    run_child([], "sync_fails", path)
    other = tmp_path / "faulty.sqlite3"
    output = run_child([*EIO, "-e", "inject=fsync,fdatasync:error=EIO:when=30..42+3"], "sync_fails", other)
    assert acknowledged(output) == set(range(40))
    check_integrity(other)
    await check_stored(other, set(range(40)))


def test_files_are_private_even_with_an_open_umask(tmp_path: Path) -> None:
    path = tmp_path / "data" / "store.sqlite3"
    command = ["sh", "-c", f"umask 000; exec {' '.join(CHILD)} acknowledge {path} 0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for _ in range(3):
            process.stdout.readline()
        modes = {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}
    finally:
        process.kill()
        process.communicate(timeout=20)
    names = [f"store.sqlite3{end}" for end in ("", "-wal", "-shm", ".lock", ".gaps")]
    assert modes == dict.fromkeys(names, "0o600")
    assert path.parent.stat().st_mode & 0o777 == 0o700
