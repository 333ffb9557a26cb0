"""`context-proxy backup`, `restore`, `migrate` and `vacuum`: care for a SQLite store.

A backup is made while a proxy serves. The others need a store that no proxy uses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.check import Config, read_settings
from proxy.cli.progress_bar import show_progress
from proxy.cli.terminal import print_json, print_text
from proxy.errors import ConfigError
from proxy.store import backup as store_backup
from proxy.store import maintenance

SqliteFile = Annotated[str | None, typer.Option("--db", help="The store: a SQLite file.")]
Json = Annotated[bool, typer.Option("--json", help="Print what was found or done as one JSON document.")]


def migrate(
    config: Config = None,
    db: SqliteFile = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without it nothing is changed.")] = False,
    json: Json = False,
) -> None:
    """Show the schema of the store and the migrations that are missing. With --apply run them, as a start does."""
    path = _find_sqlite_file(config, db)
    schema = maintenance.read_schema_status(path)
    done = maintenance.migrate_file(path) if apply and schema.missing else 0
    missing = [{"number": m.number, "reason": m.reason} for m in schema.missing]
    if json:
        print_json({"version": schema.version, "latest": schema.latest, "missing": missing, "applied": done})
        return
    if schema.version > schema.latest:
        print_text(f"{path}: schema {schema.version}, newer than this version of context-proxy knows ({schema.latest})")
    elif not missing:
        print_text(f"{path}: schema {schema.version}, nothing is missing")
    elif done:
        print_text(f"{path}: schema {schema.version} brought to {schema.latest}")
    else:
        print_text(
            f"{path}: schema {schema.version} of {schema.latest}; `context-proxy migrate --apply`, or a start, runs:"
        )
        for one in missing:
            print_text(f"  {one['number']}. {one['reason']}")


def vacuum(config: Config = None, db: SqliteFile = None, json: Json = False) -> None:
    """Rewrite the store's file without free space. A running proxy gives free space back by itself, in small steps."""
    path = _find_sqlite_file(config, db)
    with show_progress("writing it anew") as move:
        before, after = maintenance.vacuum(path, lambda: move(1))
    if json:
        print_json({"file": str(path), "before": before, "after": after})
    else:
        print_text(f"{path}: {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB after")


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not be there yet.", show_default=False)],
    config: Config = None,
    db: SqliteFile = None,
    json: Json = False,
) -> None:
    """Copy the store to a file, also while a proxy serves from it. The copy has all that was acknowledged before."""
    path = _find_sqlite_file(config, db, "PostgreSQL is saved by pg_dump")
    if str(file) == "-":
        raise ConfigError("FILE", "-", "a file: the copy is checked before it has its name, which stdout cannot be")
    with show_progress("copying", 100, bytes_=True) as move:
        size = store_backup.backup_file(path, file, _make_heartbeat(move))
    if json:
        print_json({"file": str(file), "bytes": size, "db": str(path)})
    else:
        print_text(f"{path}: {size / 1e6:,.1f} MB written to {file}, and checked")


def restore(
    file: Annotated[Path, typer.Argument(help="A backup, as `backup` writes it.", show_default=False)],
    config: Config = None,
    db: SqliteFile = None,
    json: Json = False,
) -> None:
    """Put a backup in the place of the store, while no proxy runs. The store that was there is kept beside it."""
    path = _find_sqlite_file(config, db, "PostgreSQL is restored by pg_restore")
    if str(file) == "-":
        raise ConfigError("FILE", "-", "a file: it is checked before it takes the place of the store")
    with show_progress("copying", 100, bytes_=True) as move:
        aside = store_backup.restore_file(file, path, _make_heartbeat(move))
    if json:
        print_json({"db": str(path), "file": str(file), "replaced": None if aside is None else str(aside)})
        return
    print_text(f"{path}: restored from {file}")
    if aside is not None:
        print_text(f"the store that was there is now {aside}")


def _make_heartbeat(move: Callable[[float], None]) -> store_backup.Heartbeat:
    """Return a function that moves a progress bar of 100 steps to the share that is done."""
    shown = 0.0

    def heartbeat(done: int, pages: int) -> None:
        nonlocal shown
        share = 100 * done / max(pages, 1)
        move(share - shown)
        shown = share

    return heartbeat


def _find_sqlite_file(
    config: Path | None, db: str | None, otherwise: str = "PostgreSQL cleans up by itself, and is migrated at the start"
) -> Path:
    """Return the SQLite file that the settings name. Raises ConfigError for another store; `otherwise`: what does the
    same for PostgreSQL."""
    settings = read_settings(config, db=db)
    if "://" in settings.db or settings.db == ":memory:":
        shown = "***" if "://" in settings.db else settings.db
        raise ConfigError("db", shown, f"a SQLite file; {otherwise}")
    return Path(settings.db)
