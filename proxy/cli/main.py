"""`context-proxy`: the commands, and the exit of a command whose configuration is wrong.

A command's module is imported when that command is run. All of them are imported for the help, and for the commands of
operator actions, which are made from their table.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError

from proxy.cli.help_group import HelpGroup
from proxy.errors import ConfigError, StoreRefused
from proxy.settings.load import describe_plain_type
from proxy.version import VERSION

ITSELF, LOOK_ON, STEER, STORED = "The proxy itself", "Look on", "Steer a session", "What is stored"
"""Titles of the help, above the commands."""


@dataclass(frozen=True, slots=True)
class CommandModule:
    """A command, and the module that has its function."""

    name: str
    module: str
    function: str
    title: str
    takes_foreign_options: bool = False
    """True if options behind the first argument belong to another program."""


BEFORE_ACTIONS: Final = (
    *(CommandModule(name, f"proxy.cli.{name}", name, ITSELF) for name in ("serve", "check", "doctor", "key", "replay")),
    CommandModule("mcp", "proxy.cli.mcp", "mcp", ITSELF),
    CommandModule("stats", "proxy.cli.stats", "stats", LOOK_ON),
    CommandModule("report", "proxy.cli.experiment", "report", LOOK_ON),
    *(CommandModule(name, f"proxy.cli.{name}", name, LOOK_ON) for name in ("shell", "tail")),
    CommandModule("wrap", "proxy.cli.wrap", "wrap", ITSELF, takes_foreign_options=True),
)
AFTER_ACTIONS: Final = (
    CommandModule("export", "proxy.cli.transfer", "export", STORED),
    CommandModule("import", "proxy.cli.transfer", "import_files", STORED),
    *(CommandModule(name, "proxy.cli.upkeep", name, STORED) for name in ("backup", "restore", "migrate", "vacuum")),
    CommandModule("docs", "proxy.cli.docs", "docs", ITSELF),
)
"""The commands before and after those of the operator actions, in the order of the help."""
NEEDS_ALL: Final = frozenset({"docs", "shell"})
"""Commands that read the whole command line."""


def make_app(only: str = "") -> typer.Typer:
    """Return the command line. only: the one command that it has; empty: all of them."""
    app = _make_empty_app()
    if only:
        (found,) = (command for command in (*BEFORE_ACTIONS, *AFTER_ACTIONS) if command.name == only)
        _add_command(app, found)
        return app
    for command in BEFORE_ACTIONS:
        _add_command(app, command)
    _add_actions(app)
    for command in AFTER_ACTIONS:
        _add_command(app, command)
    return app


def choose_app(word: str) -> typer.Typer:
    """Return the command line with a command as in the whole one and few others. word: the first argument."""
    if word in {one.name for one in (*BEFORE_ACTIONS, *AFTER_ACTIONS)} - NEEDS_ALL:
        return make_app(word)
    if word and not word.startswith("-") and word not in NEEDS_ALL:
        app = _make_empty_app()
        _add_actions(app)
        commands = {one.name or str(getattr(one.callback, "__name__", "")) for one in app.registered_commands}
        if word in commands | {group.name for group in app.registered_groups}:
            return app
    return make_app()  # also for an unknown word, which may be like a known one


class PlainErrorGroup(HelpGroup):
    """The commands. A value of an option that cannot be used is refused in the words of the settings: typer passes on
    pydantic's."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command of the command line."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as problem:
            cause = problem.__cause__
            found = cause.errors()[0] if isinstance(cause, ValidationError) else None
            if found is not None and (allowed := describe_plain_type(found)):
                problem.message = f"{found['input']!r} is not usable; allowed: {allowed}"
            raise


def _make_empty_app() -> typer.Typer:
    app = typer.Typer(
        name="context-proxy",
        cls=PlainErrorGroup,
        help="An OpenAI-compatible proxy that keeps an agent's context small, cheap and truthful.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        # Tracebacks with values of local variables would show keys and messages.
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    return app


def _add_command(app: typer.Typer, command: CommandModule) -> None:
    settings = {"allow_interspersed_args": False} if command.takes_foreign_options else None
    function = getattr(import_module(command.module), command.function)
    app.command(command.name, rich_help_panel=command.title, context_settings=settings)(function)


def _add_actions(app: typer.Typer) -> None:
    from proxy.cli import messages, operator_actions, sessions  # noqa: PLC0415  models of actions take a third of a second

    groups = {**operator_actions.GROUPS, "sessions": sessions.app, "messages": messages.app}
    app.command(rich_help_panel=STEER)(operator_actions.build)
    operator_actions.add_commands(app, groups, STEER)
    for name, several in groups.items():
        looks = name in ("sessions", "groups", "messages")
        app.add_typer(several, name=name, rich_help_panel=LOOK_ON if looks else STEER)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


def options(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """An OpenAI-compatible proxy that keeps an agent's context small, cheap and truthful."""


@cache
def _make_whole_app() -> typer.Typer:
    return make_app()


def __getattr__(name: str) -> Any:
    """Return `app`, the whole command line, which imports every command."""
    if name == "app":
        return _make_whole_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run() -> None:
    """Entry point of the installed command. Exit code 2: the configuration or the store cannot be used; stderr says
    why."""
    word = next(iter(sys.argv[1:]), "")
    # What is imported stays. The garbage collector would visit all of it again and again: a tenth of a start.
    gc.disable()
    try:
        app = choose_app(word)
        gc.freeze()
    finally:
        gc.enable()
    try:
        app()
    except (ConfigError, StoreRefused) as error:
        sys.stderr.write(f"context-proxy: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    run()
