"""Commands that ask a running proxy: the client of its admin API, and the options and exit codes that they share.

The client uses the standard library's HTTP client, not the project's own. The project's client is made for upstreams
(pools, retries, rules on where it may connect) and lives in an event loop. A command that asks one thing needs
neither. urllib is not used: it follows redirects and the environment's proxies. The proxy's key goes to the given
address and nowhere else.
"""

from __future__ import annotations

import functools
import http.client
import inspect
import json
import re
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, get_type_hints
from urllib.parse import quote, urlencode, urlsplit

import typer

from proxy.cli import terminal
from proxy.cli.help_group import HelpGroup
from proxy.errors import ConfigError, ProxyError, describe_cause
from proxy.web.session_address import write_address

USAGE_STATUSES: Final = frozenset({400, 401, 413, 415, 421, 422})
"""Statuses after which the command line, its key or its address has to change, and not the request."""
HINT_COMMANDS: Final = {
    "GET /api/sessions": "`context-proxy sessions list`",
    "GET /api/memos": "`context-proxy memos list`",
    "?tenant=": "--tenant",
}
"""Texts in the API's hints, and the commands that replace them."""
PAGE_SIZE: Final = 200
"""List items requested at once."""


class RemoteRefused(ProxyError):
    """The proxy answered with an error. exit_code: 1, or 2 if the command line was wrong."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.exit_code = 2 if status in USAGE_STATUSES else 1


class RemoteUnreachable(ProxyError):
    """No answer came, the answer is not from a context-proxy, or the answer was cut off."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class AdminClient:
    """The address of a proxy, and the credentials for it."""

    url: str
    key: str = ""
    """The key; empty: none."""
    tenant: str = ""
    """The tenant, for a key that sees every tenant; empty: none is named."""
    seconds: float = 120.0
    """Timeout for an answer."""

    def request(self, method: str, path: str, body: Any = None, **query: object) -> Any:
        """Send a request with a JSON body, and return the JSON answer. Raises RemoteRefused and RemoteUnreachable."""
        raw = None if body is None else json.dumps(body).encode()
        return self.send_body(method, path, raw, "application/json", **query)

    def send_body(self, method: str, path: str, raw: bytes | None, kind: str, **query: object) -> Any:
        """Send a body of a media type, and return the JSON answer. Raises RemoteRefused and RemoteUnreachable."""
        with self._open_answer(method, path, raw, {"content-type": kind}, query) as answer:
            text = answer.read()
        try:
            return json.loads(text)
        except ValueError:
            raise RemoteUnreachable(
                f"{self.url} does not answer as a context-proxy does.", hint="Check --url."
            ) from None

    def read_lines(self, path: str, headers: dict[str, str], query: dict[str, object]) -> Iterator[bytes]:
        """Yield the lines of an endless or long answer, each with its line end."""
        with self._open_answer("GET", path, None, headers, query) as answer:
            while line := answer.readline():
                yield line

    def list_items(self, path: str, max_items: int | None = None, **query: object) -> Iterator[Any]:
        """Yield the items of a list, page by page. max_items: the largest number of items."""
        remaining, cursor = max_items, None
        while remaining is None or remaining > 0:
            page = self.request("GET", path, limit=min(PAGE_SIZE, remaining or PAGE_SIZE), cursor=cursor, **query)
            yield from page["items"]
            remaining = None if remaining is None else remaining - len(page["items"])
            cursor = page["next"]
            if cursor is None:
                return

    def find_session_path(self, name: str) -> str:
        """Return the path of a session; `-` is the one used last. Raises RemoteRefused if there is none."""
        if name != "-":
            # `name` is never an address already, so a name that begins with ~ is written as an address.
            return f"/api/sessions/{quote(write_address(name), safe='~')}"
        return f"/api/sessions/{quote(self.find_newest_session(), safe='~')}"

    def check_tenant(self) -> None:
        """Raise RemoteRefused if a tenant is named that has no session."""
        if self.tenant and self.tenant not in self.list_tenants():
            raise RemoteRefused(
                404, f"no tenant {self.tenant!r} has a session.", "Without --tenant, `sessions list` names them."
            )

    def list_tenants(self) -> list[str]:
        """Return the names of the tenants that the key sees."""
        return [one["tenant"] for one in replace(self, tenant="").list_items("/api/tenants")]

    def find_newest_session(self) -> str:
        """Return the address of the session used last. Raises RemoteRefused if there is no session yet."""
        newest = self.request("GET", "/api/sessions", limit=1)["items"]
        if not newest:
            raise RemoteRefused(404, "there is no session yet.", "Send a request through the proxy first.")
        return str(newest[0]["address"])

    @contextmanager
    def _open_answer(
        self, method: str, path: str, raw: bytes | None, headers: dict[str, str], query: dict[str, object]
    ) -> Iterator[http.client.HTTPResponse]:
        given = {"tenant": self.tenant or None, **query}
        asked = {name: _format_query_value(value) for name, value in given.items() if value is not None}
        target = path + ("?" + urlencode(asked, doseq=True) if asked else "")
        if not self.key.isprintable():
            raise ConfigError("key", "***", "a key as `context-proxy key` makes them", source="--key")
        sent = {"x-context-key": self.key, **headers} if self.key else headers
        connection = _make_connection(self.url, self.seconds)
        try:
            connection.request(method, target, raw, sent)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _read_refusal(self.url, answer.status, answer.read())
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise RemoteUnreachable(
                f"{self.url} cannot be reached: {describe_cause(error)}.",
                hint="Start it with `context-proxy serve`, or say where it is with --url or $CONTEXT_PROXY_URL.",
            ) from error
        except UnicodeEncodeError:
            raise ConfigError("key", "***", "a key as `context-proxy key` makes them", source="--key") from None
        finally:
            connection.close()


def quote_id(text: str) -> str:
    """Return an id as one segment of a path, with all special characters quoted."""
    return quote(text, safe="")


def _make_connection(url: str, seconds: float) -> http.client.HTTPConnection:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or not _is_host(host)
        or parts.path.rstrip("/") not in ("", "/v1")
    ):
        raise ConfigError("url", url, "a proxy's address such as http://127.0.0.1:8080", source="--url")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=seconds)


def _is_host(host: str) -> bool:
    return host.isprintable() and " " not in host


def _format_query_value(value: object) -> str | list[str]:
    if isinstance(value, list):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_refusal(url: str, status: int, raw: bytes) -> ProxyError:
    try:
        error = json.loads(raw)["error"]
        message, hint = str(error["message"]), str(error.get("hint") or "")
    except (ValueError, TypeError, KeyError):
        return RemoteUnreachable(
            f"{url} does not answer as a context-proxy does (status {status}).", hint="Check --url."
        )
    if status == 401:
        hint = "Give a key of the plane admin or read with --key or $CONTEXT_PROXY_KEY."
    for route, command in HINT_COMMANDS.items():
        hint = hint.replace(route, command)
    return RemoteRefused(status, _end_sentence(message), hint)


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


# Shared parts of the commands that ask a running proxy: its address, key, tenant, --json and exit codes.
#
# Exit codes: 0 done; 1 not found, or refused; 2 used or configured wrongly; 3 the proxy cannot be reached.


SHORT_HASH: Final = 8
"""Digits of a tenant's hash that a table shows. The option --tenant takes them too."""
LEAST_HASH: Final = 6
"""Digits of a hash that --tenant needs to complete it. A shorter value is taken as a name."""
DEFAULT_URL: Final = "http://127.0.0.1:8080"

Url = Annotated[str, typer.Option("--url", envvar="CONTEXT_PROXY_URL", help="Where the proxy is.")]
Key = Annotated[
    str, typer.Option("--key", envvar="CONTEXT_PROXY_KEY", help="A key of the plane admin, or read to look only.")
]
Tenant = Annotated[
    str,
    typer.Option("--tenant", help="Whose, where the key sees every tenant: its name, or 6 digits or more of a hash."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON document.")]

Session = Annotated[str, typer.Argument(help="A session's name; - for the one used last.", show_default=False)]
Branch = Annotated[str | None, typer.Option("--branch", help="Its branch; without it the one last spoken in.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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
        """Print the value as JSON, or with `print_value`."""
        if self.json:
            terminal.print_json(value)
        else:
            print_value(value)

    def show_list(
        self, path: str, columns: Sequence[terminal.TableColumn], empty: str, limit: int, **query: object
    ) -> None:
        """Print a list as JSON or as a table. empty: the text without items. limit: the largest number of items."""
        found = list(self.client.list_items(path, limit, **query))
        self.show(found, lambda rows: terminal.print_table(rows, columns, empty=empty))

    def report_done(self, value: Any, text: str) -> None:
        """Print the changed value as JSON, or `text` for people."""
        self.show(value, lambda _: terminal.print_text(text))


def remote_command(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command, whose first parameter is a RemoteCommand, in the form that typer takes: with the shared options
    last.

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
            command(RemoteCommand(_complete_tenant(AdminClient(url, key, tenant)), json), **given)
        except (RemoteRefused, RemoteUnreachable) as problem:
            terminal.print_notice(str(problem))
            raise typer.Exit(problem.exit_code) from None
        except ConfigError as problem:
            terminal.print_notice(str(problem))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    run.__signature__ = signature.replace(parameters=[*named, *shared])  # type: ignore[attr-defined]  # inspect reads it
    run.__annotations__ = {p.name: p.annotation for p in (*named, *shared)}
    return run


def ask_to_confirm(question: str) -> None:
    """Ask a person. Raises Abort for any answer but yes, and Refused if stdin ends before an answer."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        sys.stderr.write("\n")
        raise RemoteRefused(
            400, "nothing was done, since nobody answers.", "--yes does it without a question."
        ) from None
    if not agreed:
        raise typer.Abort


def shorten_tenant(tenant: str) -> str:
    """Return a tenant's name, or the beginning of one that is a hash of a credential."""
    return f"{tenant[:SHORT_HASH]}…" if re.fullmatch(r"[0-9a-f]{32}", tenant) else tenant


def _complete_tenant(client: AdminClient) -> AdminClient:
    """Return the client with the whole name of its tenant, if the given name is the beginning of one hash alone.

    Raises RemoteRefused if it is the beginning of several."""
    given = client.tenant.removesuffix("…")
    if not re.fullmatch(rf"[0-9a-f]{{{LEAST_HASH},31}}", given):
        return client
    names = client.list_tenants()
    meant = [name for name in names if name.startswith(given)]
    if given in names or not meant:
        return client
    if len(meant) > 1:
        raise RemoteRefused(409, f"{len(meant)} tenants begin with {given}.", "Give more digits of the one you mean.")
    return replace(client, tenant=meant[0])


def make_group(about: str) -> typer.Typer:
    """Return a command with subcommands. about: its help."""
    return typer.Typer(cls=HelpGroup, help=about, no_args_is_help=True, pretty_exceptions_enable=False)
