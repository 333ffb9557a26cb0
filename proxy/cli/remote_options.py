"""Shared parts of the commands that ask a running proxy: its address, key, tenant, --json and exit codes.

Exit codes: 0 done; 1 not found, or refused; 2 used or configured wrongly; 3 the proxy cannot be reached.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_type_hints

import typer

from proxy.cli import terminal
from proxy.cli.remote import AdminClient, RemoteRefused, RemoteUnreachable
from proxy.errors import ConfigError

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Url = Annotated[str, typer.Option("--url", envvar="CONTEXT_PROXY_URL", help="Where the proxy is.")]
Key = Annotated[
    str, typer.Option("--key", envvar="CONTEXT_PROXY_KEY", help="A key of the plane admin, or read to look only.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose, where the key sees every tenant.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON document.")]

Session = Annotated[str, typer.Argument(help="A session's name; - for the one used last.", show_default=False)]
Thread = Annotated[str | None, typer.Option("--thread", help="Its thread; without it the one last spoken in.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Lines at most.")]

SHARED_OPTIONS: Final = ("url", "key", "tenant", "json")
"""Options that every such command has, in the order of its help."""
_DEFAULTS: Final = {"url": (Url, DEFAULT_URL), "key": (Key, ""), "tenant": (Tenant, ""), "json": (Json, False)}


@dataclass(frozen=True, slots=True)
class RemoteCommand:
    """The proxy that a command asks, and the output format of its answer."""

    client: AdminClient
    json: bool
    """True if the answer is printed as JSON."""

    def show(self, value: Any, print_value: Callable[[Any], object]) -> None:
        """Print the value as JSON, or with `people`."""
        if self.json:
            terminal.print_json(value)
        else:
            print_value(value)

    def report_done(self, value: Any, text: str) -> None:
        """Print the changed value as JSON, or `text` for people."""
        self.show(value, lambda _: terminal.print_text(text))


def remote_command(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command, whose first parameter is an Asking, in the form that typer takes: with the shared options last.

    An error of the proxy, or an unreachable proxy, is printed on stderr and ends the command with its exit code.
    """
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    own = [p.replace(annotation=hints[p.name]) for p in list(signature.parameters.values())[1:]]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _DEFAULTS.items()
    ]

    @functools.wraps(command)
    def run(*, url: str, key: str, tenant: str, json: bool, **given: Any) -> None:
        try:
            command(RemoteCommand(AdminClient(url, key, tenant), json), **given)
        except (RemoteRefused, RemoteUnreachable) as problem:
            terminal.print_error(str(problem))
            raise typer.Exit(problem.exit_code) from None
        except ConfigError as problem:
            terminal.print_error(str(problem))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    run.__signature__ = signature.replace(parameters=[*named, *shared])  # type: ignore[attr-defined]  # inspect reads it
    run.__annotations__ = {p.name: p.annotation for p in (*named, *shared)}
    return run


def make_group(about: str) -> typer.Typer:
    """Return a command with subcommands. about: its help."""
    return typer.Typer(help=about, no_args_is_help=True, pretty_exceptions_enable=False)
