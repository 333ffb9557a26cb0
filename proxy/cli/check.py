"""`context-proxy check`: prints the settings in force, or the error in the configuration."""

from __future__ import annotations

import sqlite3

import typer

from proxy.cli.flags import Config, Db, Host, PolicyName, Port, Upstream, read_settings
from proxy.cli.settings_toml import render_settings
from proxy.store import wal_reset


def check(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    upstream: Upstream = None,
    db: Db = None,
    policy: PolicyName = None,
) -> None:
    """Read the configuration and print the settings in force. If it is wrong, print line and key (exit code 2)."""
    settings = read_settings(config, host=host, port=port, upstream=upstream, db=db, policy=policy)
    typer.echo("# The configuration can be used. In force is:\n")
    typer.echo(render_settings(settings), nl=False)
    if "://" not in settings.db:
        typer.echo("\n# " + (wal_reset.describe_bug() or f"SQLite {sqlite3.sqlite_version}"))
    typer.echo("\n# Policies: " + ", ".join(sorted(settings.find_policy_files())))
    typer.echo(f"# Models known by name or pattern: {len(settings.load_models())}")
