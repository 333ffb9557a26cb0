"""Backups: whole while a proxy writes, checked, never over another file; and their restoration, which loses nothing."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import StoreRefused
from proxy.store import backup, sqlite_files
from proxy.store.backup import backup_file, restore_file
from proxy.store.gap_file import GapFile
from proxy.store.schema import MIGRATIONS
from tests.conversations import Json, user
from tests.documentation.commands import POSTGRES_LINES
from tests.postgres import drop_database, find_binaries, new_database
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.store.test_maintenance import damage_page, make_old_store

SESSIONS = 4


async def talk(proxy: RunningProxy, name: str, acknowledged: list[str], stop: asyncio.Event) -> None:
    """Turns of a session until `stop`. Each text is noted once the client has the whole answer."""
    messages: list[Json] = []
    for n in range(10_000):
        if stop.is_set():
            return
        text = f"{name} says {n}. " + "word " * 50
        messages.append(user(text))
        answer = await proxy.post({"model": "m", "messages": messages}, f"x-context-session: {name}".encode())
        assert (answer.status, answer.whole) == (200, True)
        messages.append(answer.message)
        acknowledged.append(text)


@pytest.mark.slow
async def test_a_backup_under_load_has_every_turn_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    db, copy, restored = (tmp_path / name for name in ("a.sqlite3", "copy.sqlite3", "b.sqlite3"))
    acknowledged: list[str] = []
    async with run_upstream(ScriptedModel("Well.")) as upstream:
        async with run_proxy(upstream.port, db=str(db)) as proxy:
            stop = asyncio.Event()
            talks = [asyncio.create_task(talk(proxy, f"s{n}", acknowledged, stop)) for n in range(SESSIONS)]
            while len(acknowledged) < 40:
                await asyncio.sleep(0.01)
            command = (sys.executable, "-m", "proxy.cli.main", "backup", str(copy), "--db", str(db), "--json")
            before = list(acknowledged)
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            out, _ = await process.communicate()
            assert process.returncode == 0
            assert len(acknowledged) > len(before), "the proxy served meanwhile"
            stop.set()
            await asyncio.gather(*talks)
        assert json.loads(out) == {"file": str(copy), "bytes": copy.stat().st_size, "db": str(db)}
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert restore_file(copy, restored) is None
        async with run_proxy(upstream.port, db=str(restored)) as proxy:
            found = await asyncio.to_thread(texts, await proxy.get("/api/export"))
            assert not [text for text in before if text not in found]
            assert (await proxy.post({"model": "m", "messages": [user("On we go.")]})).status == 200


def texts(exported: object) -> set[str]:
    body = getattr(exported, "body", b"")
    return {message["content"] for line in body.splitlines() for message in json.loads(line)["messages"]}


def test_the_journal_of_a_killed_process_is_in_the_copy(tmp_path: Path) -> None:
    """Its rows lie in the log alone, and no process has the store open."""
    path = make_old_store(tmp_path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE late (x)")
    writer.execute("INSERT INTO late VALUES (1)")
    assert sqlite_files.list_wal_files(path)[0].stat().st_size > 0
    backup_file(path, tmp_path / "copy")
    writer.close()
    with closing(sqlite3.connect(tmp_path / "copy")) as there:
        assert there.execute("SELECT * FROM late").fetchall() == [(1,)]
    assert not [file for file in tmp_path.iterdir() if "part" in file.name]


def test_nothing_is_written_over_and_a_copy_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = make_old_store(tmp_path), tmp_path / "copy"
    target.write_text("precious")
    with pytest.raises(StoreRefused, match="is there already"):
        backup_file(path, target)
    assert target.read_text() == "precious"
    with pytest.raises(StoreRefused, match="cannot be copied"):
        backup_file(path, tmp_path / "none" / "copy")
    with pytest.raises(StoreRefused, match="no database"):
        backup_file(tmp_path / "nothing", tmp_path / "other")

    def full(_done: int, _all: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup, "PAGES", 1)
    there = sorted(tmp_path.iterdir())
    with pytest.raises(StoreRefused, match="No space left"):
        backup_file(path, tmp_path / "other", full)
    assert sorted(tmp_path.iterdir()) == there


def test_a_damaged_page_is_found_before_the_backup_has_its_name(tmp_path: Path) -> None:
    path = make_old_store(tmp_path)
    damage_page(path)
    with pytest.raises(StoreRefused, match=r"damaged|malformed"):
        backup_file(path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_store_that_is_replaced_is_kept_with_the_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    path, copy = make_old_store(tmp_path), tmp_path / "copy"
    backup_file(path, copy)
    with closing(sqlite3.connect(path, isolation_level=None)) as there:
        there.execute("CREATE TABLE newer (x)")
    GapFile(path).path.write_text("gaps")
    for n in (1, 2):
        aside = restore_file(copy, path)
        assert aside == tmp_path / f"a.sqlite3.replaced-{n}"
    with closing(sqlite3.connect(tmp_path / "a.sqlite3.replaced-1")) as there:
        assert there.execute("SELECT count(*) FROM newer").fetchone() == (0,)
    assert (tmp_path / "a.sqlite3.replaced-1.gaps").read_text() == "gaps"
    assert not GapFile(path).path.exists()
    assert copy.exists()
    path.write_bytes(b"no database at all")
    assert restore_file(copy, path) == tmp_path / "a.sqlite3.replaced-3"
    assert (tmp_path / "a.sqlite3.replaced-3").read_bytes() == b"no database at all"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_leads_to_the_store_that_was_restored(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    path, copy, link = make_old_store(tmp_path), tmp_path / "copy", tmp_path / "link"
    backup_file(path, copy)
    path.write_bytes(b"no database at all")
    link.symlink_to(path)
    assert restore_file(copy, link) == tmp_path / "a.sqlite3.replaced-1"
    assert link.is_symlink()
    with closing(sqlite3.connect(path)) as there:
        assert there.execute("PRAGMA quick_check").fetchall() == [("ok",)]


def test_what_cannot_be_restored_changes_nothing(tmp_path: Path) -> None:
    path, copy = make_old_store(tmp_path), tmp_path / "copy"
    backup_file(path, copy)
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match="the store itself"):
        restore_file(path, path)
    foreign = tmp_path / "foreign"
    foreign.write_text("hello")
    with pytest.raises(StoreRefused, match=r"cannot be read.*`context-proxy backup` has written"):
        restore_file(foreign, path)
    with pytest.raises(StoreRefused, match=r"there is no database .*`context-proxy backup` has written"):
        restore_file(tmp_path / "nonesuch", path)
    lock = sqlite_files.FileLock(path)
    lock.acquire()
    with pytest.raises(StoreRefused, match="in use"):
        restore_file(copy, path)
    lock.release()
    with closing(sqlite3.connect(copy, isolation_level=None)) as there:
        there.execute(f"PRAGMA user_version = {MIGRATIONS[-1].number + 1}")
    with pytest.raises(StoreRefused, match="newer than this version"):
        restore_file(copy, path)
    assert path.read_bytes() == before


@pytest.mark.slow
async def test_the_lines_of_the_page_save_a_postgresql_store_and_bring_it_back(postgres: str, tmp_path: Path) -> None:
    programs = find_binaries()
    if programs is None or not (programs / "pg_dump").exists():
        pytest.skip("pg_dump is not beside the server")
    old, new = await new_database(postgres), await new_database(postgres)
    try:
        async with run_upstream(ScriptedModel("Well.")) as upstream:
            async with run_proxy(upstream.port, db=old) as proxy:
                assert (await proxy.post({"model": "m", "messages": [user("Keep this.")]})).status == 200
                await asyncio.to_thread(shell, POSTGRES_LINES[0], programs, old, tmp_path)
            await asyncio.to_thread(shell, POSTGRES_LINES[1], programs, new, tmp_path)
            async with run_proxy(upstream.port, db=new) as proxy:
                assert "Keep this." in await asyncio.to_thread(texts, await proxy.get("/api/export"))
    finally:
        for url in (old, new):
            await drop_database(url)


def shell(line: str, programs: Path, url: str, folder: Path) -> None:
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "CONTEXT_PROXY_DB": url}
    done = subprocess.run(["sh", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
