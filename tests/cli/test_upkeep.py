from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import ConfigError, StoreRefused
from tests.cli.conftest import CommandRunner
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
def test_what_cannot_be_is_refused(shop: CommandRunner, tmp_path: Path, command: str) -> None:
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
