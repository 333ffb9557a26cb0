"""`context-proxy`: the commands, and how a mistake in the configuration ends one of them."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from proxy.cli.check import check
from proxy.cli.docs import docs
from proxy.cli.key import key
from proxy.cli.replay import replay
from proxy.cli.serve import serve
from proxy.errors import ConfigError, StoreRefused

app = typer.Typer(
    name="context-proxy",
    help="An OpenAI-compatible proxy that keeps an agent's context small, cheap and truthful.",
    no_args_is_help=True,
    add_completion=False,
    # Tracebacks with values of local variables would show keys and messages.
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(check)
app.command()(key)
app.command()(replay)
app.command()(docs)


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
    """What the installed command calls. Exit code 2: the configuration cannot be used, and why is on stderr."""
    try:
        app()
    except (ConfigError, StoreRefused) as error:
        sys.stderr.write(f"context-proxy: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    run()
