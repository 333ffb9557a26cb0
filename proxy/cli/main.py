"""`context-proxy`: the commands, and the exit of a command whose configuration is wrong."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from proxy.cli import operator_actions, sessions
from proxy.cli.check import check
from proxy.cli.docs import docs
from proxy.cli.doctor import doctor
from proxy.cli.experiment import report
from proxy.cli.key import key
from proxy.cli.mcp import mcp
from proxy.cli.replay import replay
from proxy.cli.serve import serve
from proxy.cli.sessions import stats
from proxy.cli.shell import shell
from proxy.cli.tail import tail
from proxy.cli.transfer import export, import_files
from proxy.cli.upkeep import backup, migrate, restore, vacuum
from proxy.cli.wrap import wrap
from proxy.errors import ConfigError, StoreRefused
from proxy.version import VERSION

app = typer.Typer(
    name="context-proxy",
    help="An OpenAI-compatible proxy that keeps an agent's context small, cheap and truthful.",
    no_args_is_help=True,
    # Tracebacks with values of local variables would show keys and messages.
    pretty_exceptions_enable=False,
)
for command in (serve, check, doctor, key, replay, mcp):
    app.command(rich_help_panel="The proxy itself")(command)
for command in (stats, report, shell, tail):
    app.command(rich_help_panel="Look on")(command)
# What follows the agent's name is the agent's, options included.
app.command(rich_help_panel="The proxy itself", context_settings={"allow_interspersed_args": False})(wrap)
groups = {**operator_actions.GROUPS, "sessions": sessions.app, "messages": sessions.messages_app}
app.command(rich_help_panel="Steer a session")(operator_actions.build)
operator_actions.add_commands(app, groups, "Steer a session")
for name, several in groups.items():
    looks = name in ("sessions", "groups", "messages")
    app.add_typer(several, name=name, rich_help_panel="Look on" if looks else "Steer a session")
app.command(rich_help_panel="What is stored")(export)
app.command("import", rich_help_panel="What is stored")(import_files)
for command in (backup, restore, migrate, vacuum):
    app.command(rich_help_panel="What is stored")(command)
app.command(rich_help_panel="The proxy itself")(docs)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """An OpenAI-compatible proxy that keeps an agent's context small, cheap and truthful."""


def run() -> None:
    """Entry point of the installed command. Exit code 2: the configuration or the store cannot be used; stderr says
    why."""
    try:
        app()
    except (ConfigError, StoreRefused) as error:
        sys.stderr.write(f"context-proxy: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    run()
