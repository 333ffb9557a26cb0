"""`context-proxy`: the commands, and the exit of a command whose configuration is wrong."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from proxy.cli import context, groups, memos, messages, notes, sessions
from proxy.cli.build import build
from proxy.cli.check import check
from proxy.cli.docs import docs
from proxy.cli.key import key
from proxy.cli.replay import replay
from proxy.cli.serve import serve
from proxy.cli.shell import shell
from proxy.cli.stats import stats
from proxy.cli.tail import tail
from proxy.cli.transfer import export, import_files
from proxy.cli.upkeep import migrate, vacuum
from proxy.errors import ConfigError, StoreRefused

app = typer.Typer(
    name="context-proxy",
    help="An OpenAI-compatible proxy that keeps an agent's context small, cheap and truthful.",
    no_args_is_help=True,
    # Tracebacks with values of local variables would show keys and messages.
    pretty_exceptions_enable=False,
)
for command in (serve, check, key, replay):
    app.command(rich_help_panel="The proxy itself")(command)
for command in (stats, shell, tail):
    app.command(rich_help_panel="Look on")(command)
for name, several in (("sessions", sessions.app), ("groups", groups.app), ("messages", messages.app)):
    app.add_typer(several, name=name, rich_help_panel="Look on")
app.add_typer(context.app, name="context", rich_help_panel="Steer a session")
for command in (context.undo, build):
    app.command(rich_help_panel="Steer a session")(command)
app.command(rich_help_panel="Steer a session", context_settings=notes.DASH_TEXT_SETTINGS)(notes.add)
app.command("compress", rich_help_panel="Steer a session")(context.compress)
for name, several in (("state", notes.state_app), ("scratchpad", notes.scratchpad_app), ("notes", notes.notes_app)):
    app.add_typer(several, name=name, rich_help_panel="Steer a session")
app.add_typer(notes.feedback_app, name="feedback", rich_help_panel="Steer a session")
app.add_typer(memos.app, name="memos", rich_help_panel="Steer a session")
app.command(rich_help_panel="What is stored")(export)
app.command("import", rich_help_panel="What is stored")(import_files)
app.command(rich_help_panel="What is stored")(migrate)
app.command(rich_help_panel="What is stored")(vacuum)
app.command(rich_help_panel="The proxy itself")(docs)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("context-proxy"))
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
