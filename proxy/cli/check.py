"""`context-proxy check`: prints the settings in force, or the error in the configuration. Flags that set settings."""

from __future__ import annotations

import ipaddress
import socket
import sqlite3
from pathlib import Path
from typing import Annotated

import typer

from proxy.context.policy import Policy, check_models
from proxy.errors import ConfigError, describe_cause
from proxy.settings.load import Settings, load_settings
from proxy.settings.policy_files import find_own_classes, read_policy_file
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
    from proxy.cli.settings_toml import render_settings  # noqa: PLC0415  other commands do not need it
    from proxy.upstream.transport import create_transport, read_targets  # noqa: PLC0415  other commands do not need it

    settings = read_settings(config, host=host, port=port, upstream=upstream, db=db, policy=policy)
    # A start makes the keys of `keys_dir` before it listens.
    resolve_host(settings.host, settings.port, has_keys=bool(settings.keys or settings.keys_dir))
    for target in read_targets(settings):
        create_transport(target, settings.pool)  # reads certificates and outbound proxies, as a start does
    typer.echo("# The configuration can be used. In force is:\n")
    typer.echo(render_settings(settings), nl=False)
    if "://" not in settings.db:
        typer.echo("\n# " + (wal_reset.describe_bug() or f"SQLite {sqlite3.sqlite_version}"))
    known = settings.find_policy_files()
    typer.echo("\n# Policies: " + ", ".join(sorted(known)))
    for file in sorted(Path(settings.policies_dir).glob("*.toml")) if settings.policies_dir else ():
        if known[file.stem] != file:
            typer.echo(f"# Not used: {file}: the package has a policy of this name. Rename the file and its `name`.")
    for own in find_own_classes(read_policies(settings).values()):
        typer.echo(f"# Code of your own: {own.use} of {own.file}, used by {own.policy}")
    typer.echo(f"# Models known by name or pattern: {len(settings.load_models())}")


Config = Annotated[Path | None, typer.Option(help="TOML file with settings.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0: any that is free.")]
Upstream = Annotated[
    str | None, typer.Option(help="The upstream: a base URL, or demo for the built-in scripted model.")
]
Db = Annotated[str | None, typer.Option(help="The store: a SQLite file or a postgresql:// URL.")]


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies that begin so, for the shell's completion."""
    try:
        known = load_settings().find_policy_files()
    except ConfigError:
        return []  # the command itself says what is wrong
    return [name for name in sorted(known) if name.startswith(incomplete)]


PolicyName = Annotated[
    str | None, typer.Option(help="The policy by which prompts are rewritten.", autocompletion=complete_policy)
]


def read_settings(config: Path | None, **flags: object) -> Settings:
    """Return the settings in force. Raises ConfigError if a setting, a policy or a model cannot be read."""
    settings = load_settings(config, flags)
    check_models(read_policies(settings), settings.load_models())
    return settings


def resolve_host(host: str, port: int, *, has_keys: bool) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address family and the address to listen on. Raises ConfigError if the host is not known, or if others
    could reach it and there are no keys."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError("host", host, f"an address or name of this machine ({describe_cause(error)})") from None
    if not has_keys and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        allowed = (
            "127.0.0.1, ::1 or localhost: others could reach anything else, and no keys are configured "
            "(`context-proxy key` makes one and prints its [[keys]] entry)"
        )
        raise ConfigError("host", host, allowed)
    return family, (str(address[0]), int(address[1]))


def read_policies(settings: Settings) -> dict[str, Policy]:
    """Return every policy as its file has it. Raises ConfigError if one cannot be read."""
    return {name: read_policy_file(file) for name, file in settings.find_policy_files().items()}
