from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import ConfigError, StoreRefused
from tests.cli.conftest import CommandRunner, EndedCommand
from tests.store.test_maintenance import make_old_store


def test_a_dry_run_tells_what_would_be_done_and_apply_does_it(shop: CommandRunner, tmp_path: Path) -> None:
    db = str(make_old_store(tmp_path, 2))
    found = shop.json("migrate", "--db", db)
    assert (found["version"], found["applied"], found["missing"][0]["number"]) == (2, 0, 3)
    assert "migrate --apply" in shop.ok("migrate", "--db", db).out
    assert f"brought to {found['latest']}" in shop.ok("migrate", "--db", db, "--apply").out
    assert "nothing is missing" in shop.ok("migrate", "--db", db).out


def test_vacuum_tells_what_it_gave_back(shop: CommandRunner, tmp_path: Path) -> None:
    found = shop.json("vacuum", "--db", str(make_old_store(tmp_path)))
    assert found["before"] >= found["after"] > 0
    assert "MB after" in shop.ok("vacuum", "--db", found["file"]).out


@pytest.mark.parametrize("command", ["migrate", "vacuum"])
def test_migrate_and_vacuum_refuse_postgresql_missing_files_and_stores_in_use(
    shop: CommandRunner, tmp_path: Path, command: str
) -> None:
    with pytest.raises(ConfigError, match="a SQLite file"):
        shop.run(command, "--db", "postgresql://u:secret@h/d")
    with pytest.raises(StoreRefused, match="no database"):
        shop.run(command, "--db", str(tmp_path / "none"))
    if command == "vacuum":
        with pytest.raises(StoreRefused, match="in use"):
            shop.run(command, "--db", shop.world.proxy.app.settings.db)


def test_a_backup_is_made_of_a_running_proxy_and_restored_where_none_runs(shop: CommandRunner, tmp_path: Path) -> None:
    db, copy = shop.world.proxy.app.settings.db, tmp_path / "copy"
    assert "written to" in shop.ok("backup", str(copy), "--db", db).out
    assert shop.json("backup", str(copy) + "2", "--db", db)["bytes"] > 0
    with pytest.raises(StoreRefused, match="in use"):
        shop.run("restore", str(copy), "--db", db)
    fresh = str(tmp_path / "fresh" / "a.sqlite3")
    assert shop.json("restore", str(copy), "--db", fresh) == {"db": fresh, "file": str(copy), "replaced": None}
    told = shop.ok("restore", str(copy), "--db", fresh).out
    assert f"the store that was there is now {fresh}.replaced-1" in told
    for command, said in (("backup", "pg_dump"), ("restore", "pg_restore")):
        with pytest.raises(ConfigError, match=said):
            shop.run(command, str(copy), "--db", "postgresql://u:secret@h/d")
        with pytest.raises(ConfigError, match="FILE = '-' is not usable"):
            shop.run(command, "-", "--db", fresh)


POWERS = "-dac_override,-dac_read_search"
"""The powers of root that let it pass over the permissions of files."""


def run_as_plain_user(*words: str) -> EndedCommand:
    """One command line of a user whom permissions hold."""
    plain = ["setpriv", "--bounding-set", POWERS, "--inh-caps", POWERS] if os.geteuid() == 0 else []
    command = [*plain, sys.executable, "-m", "proxy.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return EndedCommand(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may read every file")
def test_the_store_of_another_user_is_reported_as_such(tmp_path: Path) -> None:
    db = make_old_store(tmp_path)
    db.chmod(0)
    for command in ("migrate", "vacuum", "backup"):
        ran = run_as_plain_user(command, *([str(tmp_path / "copy")] if command == "backup" else []), "--db", str(db))
        told = f"context-proxy: the database {db} cannot be read: Permission denied. Run this as the user that the "
        assert (ran.code, ran.err.startswith(told)) == (2, True), ran
    tmp_path.joinpath("closed").mkdir(mode=0)
    for file, told in ((db, "Permission denied"), (tmp_path / "closed" / "a.sqlite3", "cannot be written to")):
        found = run_as_plain_user("doctor", "--db", str(file), "--json").json()
        [store] = [one for one in found["findings"] if one["about"] == "store"]
        assert (store["status"], told in store["text"]) == ("fault", True)


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write to every folder")
def test_a_store_in_a_folder_that_is_only_read_is_read(shop: CommandRunner, tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    db = folder / "a.sqlite3"
    shop.ok("backup", str(db), "--db", shop.world.proxy.app.settings.db)
    with closing(sqlite3.connect(db)) as there:
        there.execute("PRAGMA journal_mode = WAL")  # as the file of a proxy that has ended
    folder.chmod(0o555)
    try:
        for words in (["migrate"], ["backup", str(tmp_path / "copy")], ["export", "--csv", str(tmp_path / "t.csv")]):
            ran = run_as_plain_user(*words, "--db", str(db))
            assert (ran.code, ran.err) == (0, ""), ran
        assert [file.name for file in folder.iterdir()] == [db.name]
    finally:
        folder.chmod(0o755)
