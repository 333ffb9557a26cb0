"""`context-proxy migrate` and `vacuum`: maintenance of the store while no proxy uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.check import Config, Db, read_settings
from proxy.cli.terminal import print_json, print_text
from proxy.cli.transfer import show_progress
from proxy.errors import ConfigError
from proxy.store import maintenance

Json = Annotated[bool, typer.Option("--json", help="Print what was found or done as one JSON document.")]


def migrate(
    config: Config = None,
    db: Db = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without it nothing is changed.")] = False,
    json: Json = False,
) -> None:
    """Show the schema of the store and the migrations that are missing. With --apply run them, as a start does."""
    path = _file(config, db)
    found = maintenance.read_schema_status(path)
    done = maintenance.migrate_file(path) if apply and found.missing else 0
    missing = [{"number": m.number, "reason": m.reason} for m in found.missing]
    if json:
        print_json({"version": found.version, "latest": found.latest, "missing": missing, "applied": done})
        return
    if found.version > found.latest:
        print_text(f"{path}: schema {found.version}, newer than this version of context-proxy knows ({found.latest})")
    elif not missing:
        print_text(f"{path}: schema {found.version}, nothing is missing")
    elif done:
        print_text(f"{path}: schema {found.version} brought to {found.latest}")
    else:
        print_text(
            f"{path}: schema {found.version} of {found.latest}; `context-proxy migrate --apply`, or a start, runs:"
        )
        for one in missing:
            print_text(f"  {one['number']}. {one['reason']}")


def vacuum(config: Config = None, db: Db = None, json: Json = False) -> None:
    """Rewrite the store's file without free space. A running proxy gives free space back by itself, in small steps."""
    path = _file(config, db)
    with show_progress("writing it anew") as move:
        before, after = maintenance.vacuum(path, lambda: move(1))
    if json:
        print_json({"file": str(path), "before": before, "after": after})
    else:
        print_text(f"{path}: {before / 1e6:,.1f} MB before, {after / 1e6:,.1f} MB after")


def _file(config: Path | None, db: str | None) -> Path:
    settings = read_settings(config, db=db)
    if "://" in settings.db or settings.db == ":memory:":
        shown = "***" if "://" in settings.db else settings.db
        raise ConfigError("db", shown, "a SQLite file; PostgreSQL cleans up by itself, and is migrated at the start")
    return Path(settings.db)
