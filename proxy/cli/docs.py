"""`context-proxy docs`: writes the reference tables of docs/ and config/default.toml, or lists the files that drift.

Each table is made from the code that it describes, so that none is forgotten or out of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli import reference
from proxy.cli.remote import SHARED_OPTIONS
from proxy.cli.settings_toml import TABLE_SETTINGS, read_fields, read_summary, render_defaults, render_literal
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.policy import Policy
from proxy.context.stages import BUILT_IN_STAGES
from proxy.errors import ConfigError, ProxyError, RequestError, UpstreamError
from proxy.metrics import PROCESS_METRICS, Metrics
from proxy.settings.load import Settings, UpstreamSettings, WebhookSettings
from proxy.settings.model import ApiKeySettings, SettingsSection
from proxy.web import app as web
from proxy.web.api.admin_app import ROUTERS
from proxy.web.routes import RouteTable


def docs(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where something drifts.")] = False,
    folder: Annotated[Path, typer.Option(help="The checkout, with docs/ and config/ in it.")] = Path(),
) -> None:
    """Write the tables of docs/ between their markers, and config/default.toml, from the code. For those who change
    the code: it needs a checkout."""
    if not (folder / "docs").is_dir():
        raise ConfigError(
            "folder", str(folder), "a checkout of context-proxy: it has docs/ and config/", source="--folder"
        )
    pages = [file for file in (folder / "README.md", *sorted((folder / "docs").rglob("*.md"))) if file.is_file()]
    before = {page: page.read_text("utf-8") for page in pages}
    everything = "".join(before.values())
    for name in TABLE_NAMES:
        if _make_start_marker(name) not in everything:
            typer.echo(f"no page has markers for the table {name}: not written")
    after = {page: fill_tables(text, context.find_root().command) for page, text in before.items()}
    after[folder / "config" / "default.toml"] = render_defaults()
    drifted = []
    for file, text in after.items():
        if file.is_file() and file.read_text("utf-8") == text:
            continue
        drifted.append(file)
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
            typer.echo(f"{file} written")
    if check and drifted:
        for file in drifted:
            typer.echo(f"{file} does not say what the code says; run `context-proxy docs`")
        raise typer.Exit(1)


def fill_tables(text: str, commands: Any) -> str:
    """Return the text with each table between `<!-- docs:NAME -->` and `<!-- /docs:NAME -->` made again."""
    for name in TABLE_NAMES:
        start, end = _make_start_marker(name), f"<!-- /docs:{name} -->"
        if start not in text or end not in text:
            continue
        try:
            content = render_table(name, commands)
        except MissingSource as reason:
            typer.echo(f"the table {name} is left as it is: {reason}")
            continue
        between = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = between.sub(lambda _, new=f"{start}\n\n{content}\n{end}": new, text)  # type: ignore[misc]  # a bound value
    return text


def _make_start_marker(name: str) -> str:
    return f"<!-- docs:{name} -->"


TABLE_NAMES = (
    "settings", "stages", "injections", "metrics", "commands", "routes", "request_headers", "response_headers",
    "webhook_headers", "limits", "errors", "fallbacks", "policy_keys",
)  # fmt: skip
"""Names of all tables, as the markers in docs/ have them."""

TABLE_HEADS = {
    "request_headers": ("Request header", "Effect"),
    "response_headers": ("Response header", "Meaning"),
    "webhook_headers": ("Header", "Meaning"),
    "fallbacks": ("Reason", "When"),
    "limits": ("What", "Bound (default)", "Beyond it"),
}
"""Column titles of the tables whose rows are in `reference`."""
NAMED_ROWS = {
    "request_headers": reference.REQUEST_HEADERS,
    "response_headers": reference.RESPONSE_HEADERS,
    "webhook_headers": reference.WEBHOOK_HEADERS,
    "fallbacks": reference.FALLBACKS,
}
"""Rows of these tables that begin with a name. The table of limits is made by `reference.list_limits`."""

ADMIN_ROUTES = RouteTable(route for router in ROUTERS for route in router.routes)


class MissingSource(Exception):
    """The source of a table does not exist yet."""


def render_table(name: str, commands: Any) -> str:
    """Return a table in Markdown. commands: the whole command line, as typer made it (its types are private). Raises
    MissingSource if the source of the table is missing."""
    listings = {
        "settings": _list_settings, "stages": _list_stages, "injections": _list_injections,
        "metrics": _list_metrics, "routes": _list_routes, "errors": _list_errors, "policy_keys": _list_policy_keys,
    }  # fmt: skip
    if name == "commands":
        rows = _list_commands(commands)
    elif name in listings:
        rows = listings[name]()
    else:
        rows = _list_reference_rows(name)
    return "\n".join(rows) + "\n"


def _list_settings() -> Iterator[str]:
    yield from _render_head("Key", "Default", "What it does")
    for field in read_fields(Settings):
        if field.name not in TABLE_SETTINGS and not isinstance(field.default, SettingsSection):
            yield _render_row(f"`{field.name}`", f"`{_shorten_default(field.default)}`", field.text)
    for field in read_fields(Settings):
        if isinstance(field.default, SettingsSection):
            for below in read_fields(type(field.default)):
                yield _render_row(f"`{field.name}.{below.name}`", f"`{_shorten_default(below.default)}`", below.text)
    for field in read_fields(UpstreamSettings):
        default = "required" if field.required else f"`{_shorten_default(field.default)}`"
        yield _render_row(f"`upstreams.NAME.{field.name}`", default, field.text)
    for field in read_fields(ApiKeySettings):
        yield _render_row(f"`keys[].{field.name}`", "required", field.text)
    for field in read_fields(WebhookSettings):
        default = "required" if field.required else f"`{_shorten_default(field.default)}`"
        yield _render_row(f"`webhooks[].{field.name}`", default, field.text)


def _list_stages() -> Iterator[str]:
    return _list_parts("Stage", BUILT_IN_STAGES)


def _list_injections() -> Iterator[str]:
    return _list_parts("Injection", BUILT_IN_INJECTIONS)


def _list_parts(title: str, kinds: Mapping[str, type]) -> Iterator[str]:
    yield from _render_head(title, "What it does", "Settings")
    for name, kind in kinds.items():
        settings = [f"`{field.name} = {_shorten_default(field.default)}` {field.text}" for field in read_fields(kind)]
        yield _render_row(f"`{name}`", read_summary(kind), "<br>".join(settings) or "none")


def _list_metrics() -> Iterator[str]:
    yield from _render_head("Metric", "Kind", "Labels", "What it tells")
    for described in (*Metrics().descriptions, *PROCESS_METRICS):
        labels = ", ".join(f"`{label}`" for label in described.labels)
        yield _render_row(f"`{described.name}`", described.kind, labels, described.description)


def _list_commands(group: Any) -> Iterator[str]:
    yield from _render_head("Command", "Option", "What it does")
    shared: list[Any] = []
    for name, command in _find_commands(group):
        yield _render_row(f"`context-proxy {name}`", "", inspect.cleandoc(command.help or "").split("\n\n")[0])
        asks = {option.name for option in command.params} >= set(SHARED_OPTIONS)
        for option in command.params:
            if asks and option.name in SHARED_OPTIONS:
                shared = shared if len(shared) == len(SHARED_OPTIONS) else [*shared, option]
            elif option.name != "session" or option.param_type_name != "argument":
                yield _render_row("", f"`{max(option.opts, key=len)}`", getattr(option, "help", None) or "")
    if shared:
        yield _render_row("of all that ask a running proxy", "", "SESSION is a session's name, `-` the one used last.")
    for option in shared:
        yield _render_row("", f"`{max(option.opts, key=len)}`", getattr(option, "help", None) or "")


def _find_commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command without subcommands, by all its words, with the session if it takes one."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _find_commands(command, f"{before}{name} ")
        else:
            sessions = [p for p in command.params if p.name == "session" and p.param_type_name == "argument"]
            takes = "".join(" SESSION" if session.required else " [SESSION]" for session in sessions)
            yield f"{before}{name}{takes}", command


def _list_routes() -> Iterator[str]:
    yield from _render_head("Method", "Path", "What it does")
    routes: Sequence[tuple[str, str, str]] | None = getattr(web, "ROUTES", None)
    if routes is None:
        raise MissingSource("proxy.web.app has no ROUTES: (methods, path, what it does)")
    for methods, path, text in routes:
        yield _render_row(methods, f"`{path}`", text)
    for router in ROUTERS:
        for route in router.routes:
            path, text = getattr(route, "path", ""), inspect.cleandoc(getattr(route, "description", ""))
            for method in sorted(getattr(route, "methods", None) or ()):
                keys = " Also with a read key." if ADMIN_ROUTES.find_route(method, path).planes > {"admin"} else ""
                yield _render_row(method, f"`{path}`", text.split("\n\n")[0] + keys)


def _list_reference_rows(name: str) -> Iterator[str]:
    """Yield a table whose rows are in `reference`."""
    named = ((f"`{first}`", *more) for first, *more in NAMED_ROWS.get(name, ()))
    rows: Iterable[tuple[str, ...]] = reference.list_limits() if name == "limits" else named
    yield from _render_head(*TABLE_HEADS[name])
    for row in rows:
        yield _render_row(*row)


def _list_errors() -> Iterator[str]:
    """Yield the table of errors that a client can get."""
    yield from _render_head("Status", "`code`", "`type`", "When")
    error_types = [kind for base in (RequestError, UpstreamError) for kind in (base, *base.__subclasses__())]
    for kind in error_types:
        if kind is not RequestError and kind is not UpstreamError:
            yield _render_row(str(kind.status), f"`{kind.code}`", f"`{kind.type}`", _remove_status(read_summary(kind)))
    yield _render_row(
        "500", f"`{ProxyError.code}`", f"`{ProxyError.type}`", "A mistake in the proxy. Its log says where."
    )


def _list_policy_keys() -> Iterator[str]:
    """Yield the table of a policy file's keys, without the tables of its stages and injections."""
    yield from _render_head("Key", "Default", "What it does")
    tables = {"tools": "tools.enabled", "offer": "tools.offer"}
    for field in read_fields(Policy):
        if field.name == "name":
            yield _render_row("`name`", "required", "The policy's name.")
        elif field.name not in ("stages", "injections", "stands_for"):
            default = "none" if field.default is None else f"`{_shorten_default(field.default)}`"
            yield _render_row(f"`{tables.get(field.name, field.name)}`", default, field.text)


def _remove_status(text: str) -> str:
    text = re.sub(r"^\d{3}: ", "", text)
    return text[:1].upper() + text[1:]


def _render_head(*titles: str) -> Iterable[str]:
    return _render_row(*titles), "|" + "---|" * len(titles)


def _render_row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _shorten_default(value: object) -> str:
    """Return a default on one line. A long list is cut after its first item, since config/default.toml has it whole."""
    if isinstance(value, tuple) and len(render_literal(value)) > 60:
        return f"[{render_literal(value[0])}, ...]"
    return render_literal(value)
