"""`context-proxy doctor`: looks at all that has to be right before the proxy saves anything, and says what costs.

Each look gives a finding: good, a loss, or a fault, with the setting that mends it. Nothing is changed. A request that
costs is sent only with --send.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import httpx2
import typer
from rich.text import Text

from proxy.cli.agents import (
    AGENTS,
    ANTHROPIC,
    FIRST_PARTY,
    KEY_VARIABLES,
    TOOL_SEARCH,
    AgentSurroundings,
    is_anthropic,
    read_agent,
)
from proxy.cli.check import Config, Db, PolicyName, Upstream, read_settings
from proxy.cli.remote import DEFAULT_URL, AdminClient, Key, RemoteRefused, RemoteUnreachable
from proxy.cli.terminal import (
    TableColumn,
    escape_controls,
    format_count,
    format_dollars,
    format_number,
    print_json,
    print_table,
    print_text,
    style_word,
)
from proxy.cli.wire_formats import find_plain_model, find_wire_format
from proxy.cli.wrap import SETTLE_S, hold_store, read_overview
from proxy.context.fit import find_limit
from proxy.context.models import Model, find_model
from proxy.context.policy import Policy
from proxy.dialects.usage import read_usage
from proxy.errors import ConfigError, StoreRefused, describe_cause
from proxy.settings.load import (
    Settings,
    UpstreamSettings,
    copy_environment,
    find_unreached_upstreams,
    select_upstream,
)
from proxy.settings.model import DEMO
from proxy.store import create_store, maintenance
from proxy.store.schema import LATEST_VERSION
from proxy.store.sqlite import SqliteStore
from proxy.upstream.aws_signing import AwsSigner
from proxy.upstream.headers import choose_key_header, write_credential
from proxy.web.app import make_policies

ANSWER_S: Final = 20.0
"""Seconds in which an upstream has to answer."""
ANSWER_TOKENS: Final = 16
"""Tokens of the answer that --send asks for."""
FREE_BYTES: Final = 1 << 30
"""Bytes of free disk below which the store's disk is reported."""
FULL_BYTES: Final = 1 << 20
"""Bytes of free disk below which it is full: a new store takes 0.7 MB."""
GATEWAY_TOKENS: Final = "30,600 tokens more a request with 107 tools"
"""The cost of Claude Code's tool search being off, as measured by others."""

REFUSAL_REMEDIES: Final[Mapping[int, str]] = {
    401: "Give a key that this upstream takes.",
    403: "Give a key that this upstream takes for this model.",
    404: "Check base_url, whose path is /v1 with most upstreams; or name another model with --model.",
    429: "Wait, or raise the limit at the provider.",
}
"""Remedies by the status with which an upstream refuses a request."""

Status = Literal["good", "loss", "fault", "unknown"]
STYLES: Final = {"good": "green", "loss": "yellow", "fault": "red", "unknown": "bright_black"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing that was looked at. remedy: the way to mend it, empty if nothing is wrong."""

    about: str
    status: Status
    text: str
    remedy: str = ""


def doctor(
    context: typer.Context,
    config: Config = None,
    upstream: Upstream = None,
    db: Db = None,
    policy: PolicyName = None,
    model: Annotated[str, typer.Option(help="The model that is asked about, by its name in requests.")] = "",
    send: Annotated[bool, typer.Option("--send", help="Send one small request to each upstream. It costs.")] = False,
    proxy: Annotated[str, typer.Option("--proxy", envvar="CONTEXT_PROXY_URL", help="A running proxy.")] = DEFAULT_URL,
    key: Key = "",
    json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON document.")] = False,
) -> None:
    """Look at upstream, key, model table, store and agents, and say whether edits can happen and what loses money (exit
    code 1 at a fault)."""
    source = context.get_parameter_source("proxy")
    is_named = source is not None and source.name == "COMMANDLINE"  # a variable may stand in a profile for long
    is_default = source is None or source.name == "DEFAULT"

    def look_at_running(port: int) -> Finding:
        url = f"http://127.0.0.1:{port}" if is_default and port else proxy
        return check_running(AdminClient(url, key, seconds=SETTLE_S), is_named=is_named)

    flags = {"upstream": upstream, "db": db, "policy": policy}
    findings = list(_find_findings(config, model, send, look_at_running, flags))
    faults = sum(one.status == "fault" for one in findings)
    if json:
        print_json({"findings": [asdict(one) for one in findings], "faults": faults})
    else:
        print_findings(findings)
        print_text(_summarize_findings(findings, sent=send))
    raise typer.Exit(1 if faults else 0)


def _find_findings(
    config: Path | None,
    model: str,
    send: bool,
    look_at_running: Callable[[int], Finding],
    flags: Mapping[str, object],
) -> Iterator[Finding]:
    """Yield the findings. look_at_running: returns the one about the proxy that runs, for the port of the settings."""
    try:
        settings = read_settings(config, **flags)
    except ConfigError as problem:
        yield Finding("configuration", "fault", str(problem), "Correct it; `context-proxy check` reads it again.")
        return
    policies = make_policies(settings)
    yield Finding("configuration", "good", f"readable; policy {settings.policy}")
    models, unreached = settings.load_models(), find_unreached_upstreams(settings.active_upstreams)
    for name, target in settings.active_upstreams.items():
        yield check_upstream(name, target)
        if name in unreached:
            taker = unreached[name]
            text = f"no request goes there: {taker} comes first, and takes its models"
            yield Finding(f"routing to {name}", "fault", text, f"Name in upstreams.{taker}.models what it has.")
            continue
        asked = find_asked_model(settings, name, model, models)
        if asked is None:
            continue
        facts = find_model(models, asked)
        yield check_model(name, asked, facts)
        yield check_edits(name, policies[target.policy or settings.policy], facts)
        if send:
            yield send_request(name, target, asked, facts)
    yield check_store(settings)
    yield look_at_running(settings.port)
    yield from check_agents(AgentSurroundings(copy_environment(), Path.cwd()))


def find_asked_model(settings: Settings, name: str, model: str, models: Iterable[Model]) -> str | None:
    """Return the model by which an upstream is looked at; None if it is not routed there. It is the one that --model
    names, else a usual one, else the first one of the model table. models: the model table."""
    upstreams = settings.active_upstreams
    known = (one.name.removesuffix("*") for one in models)
    usual = [find_plain_model(upstreams[name]), *(one for one in known if one and not set(one) & set("*?["))]
    return next((one for one in ([model] if model else usual) if select_upstream(upstreams, one) == name), None)


def _read_key(target: UpstreamSettings) -> tuple[str, str]:
    """Return (the key, the variable that it is in), empty if there is none."""
    if key := target.read_api_key():
        return key.get_secret_value(), target.api_key_env
    names = find_wire_format(target).key_variables
    known = copy_environment()
    return next(((known[name], name) for name in names if known.get(name)), ("", ""))


def _ask(target: UpstreamSettings, path: str, key: str, body: Any = None) -> httpx2.Response:
    """Send a request past the proxy, by the upstream's own settings. httpx2.HTTPError and OSError pass through."""
    wire_format = find_wire_format(target)
    base = target.base_url if urlsplit(target.base_url).path else target.base_url + wire_format.version
    headers = wire_format.make_headers("")
    if key:
        url = urlsplit(base + path)
        key_header = choose_key_header(
            url.path, key, host=url.hostname or "", strategy=target.strategy, key_header=target.key_header
        )
        headers[key_header.decode()] = write_credential(key_header, key).decode()
    certificate = (target.client_cert, target.client_key or target.client_cert) if target.client_cert else None
    with httpx2.Client(
        verify=target.ca_bundle or True, cert=certificate, proxy=target.find_outbound_proxy() or None,
        trust_env=False, timeout=ANSWER_S,
    ) as client:  # fmt: skip
        return client.request("GET" if body is None else "POST", base + path, headers=headers, json=body)


def check_upstream(name: str, target: UpstreamSettings) -> Finding:
    """Look whether an upstream can be reached, and takes the key. The list of its models costs nothing."""
    about = f"upstream {name}"
    if target.base_url == DEMO:
        return Finding(about, "good", "the scripted model in the package", "Name a real one with --upstream URL.")
    if target.auth:
        return check_aws_credentials(about, target)
    key, variable = _read_key(target)
    try:
        answer = _ask(target, "/models", key)
    except (httpx2.HTTPError, OSError, ValueError) as problem:
        return Finding(
            about,
            "fault",
            f"{target.base_url} cannot be reached: {describe_cause(problem)}",
            "Check base_url and proxy.",
        )
    if answer.status_code in (401, 403) or b"API_KEY_INVALID" in answer.content:  # Google answers with 400
        if key:
            return Finding(about, "fault", f"it refuses the key in {variable}: {answer.status_code}", "Get another.")
        return Finding(about, "good", f"{target.base_url} answers; each client brings a key of its own")
    if answer.status_code >= 500:
        return Finding(about, "fault", f"{target.base_url} answers with {answer.status_code}", "Ask its operator.")
    if answer.status_code == 404:
        remedy = "Where requests get 404 as well, check its path, which is /v1 with most; --send asks for an answer."
        return Finding(about, "unknown", f"{target.base_url} answers, but has no list of models (404)", remedy)
    taken = f", and takes the key in {variable}" if key and answer.status_code < 300 else ""
    return Finding(about, "good", f"{target.base_url} answers{taken}")


def check_aws_credentials(about: str, target: UpstreamSettings) -> Finding:
    """Look whether requests to AWS can be signed. Nothing is sent: AWS has no list of models there."""
    url = urlsplit(target.base_url)
    try:
        method = AwsSigner(f"{url.scheme}://{url.netloc}", url.hostname or "").find_credentials().method
    except LookupError as problem:
        return Finding(about, "fault", f"requests cannot be signed: {describe_cause(problem)}", "Log in to AWS.")
    return Finding(about, "good", f"requests to {target.base_url} are signed with AWS credentials ({method})")


def check_model(name: str, asked: str, model: Model) -> Finding:
    """Look at what the model table knows of a model."""
    about = f"model of {name}"
    if model.name == "*":
        remedy = f'Put [models."{asked}"] with window, input and output into a models_file.'
        return Finding(about, "loss", f"{asked} is not in the model table: no budget, and dollars are unknown", remedy)
    if model.input is None:
        remedy = f'Put input and output of [models."{asked}"] into a models_file.'
        return Finding(about, "loss", f"no price is known for {asked}, so dollars are unknown", remedy)
    window = "no window" if model.window is None else f"a window of {format_number(model.window)} tokens"
    price = f"${model.input:g} and ${model.output or 0:g} per million tokens"
    return Finding(about, "good", f"{asked} has {window}, {price}, and cached tokens at {model.r:g} of that")


def check_edits(name: str, policy: Policy, model: Model) -> Finding:
    """Look whether prompts can be edited at all."""
    about = f"edits for {name}"
    if policy.mode != "rewrite":
        remedy = "Choose one that rewrites: thrifty."
        return Finding(about, "fault", f"the policy {policy.name} never edits (mode {policy.mode})", remedy)
    limit = find_limit(policy, model)
    when = {
        "always": "with every request", "when_it_pays": "when they pay for the cache that they spoil",
        "append_only": "only what was never sent before", "over_budget": "when a prompt is over its budget",
        "provider": "by the provider, when that pays, or when it pays where the provider cannot",
    }[policy.schedule]  # fmt: skip
    room = f"; a prompt is full at {format_number(int(limit * policy.budget))} tokens" if limit else ""
    if not limit:
        remedy = "Set `window` for the model in a models_file, or in the policy."
        return Finding(about, "loss", f"{policy.name} edits {when}, but no window is known: nothing limits it", remedy)
    return Finding(about, "good", f"{policy.name} edits {when}{room}; a short conversation goes out as received")


def send_request(name: str, target: UpstreamSettings, asked: str, model: Model) -> Finding:
    """Send one small request, and look at what the answer tells of its cost."""
    about = f"request to {name}"
    if target.base_url == DEMO:
        return Finding(about, "good", "not sent: the scripted model always answers")
    if target.auth:
        return Finding(about, "unknown", "not sent: only the running proxy signs requests", "Send one through it.")
    key, _ = _read_key(target)
    path, body = find_wire_format(target).make_request(asked, "Say OK.", ANSWER_TOKENS)
    began = time.monotonic()
    try:
        answer = _ask(target, path, key, body)
        decoded = answer.json()
    except (httpx2.HTTPError, OSError, ValueError) as problem:
        return Finding(
            about, "fault", f"no answer that can be read: {describe_cause(problem)}", "Check base_url, proxy and model."
        )
    if answer.status_code != 200 or not isinstance(decoded, dict):
        error = decoded.get("error") if isinstance(decoded, dict) else None
        why = str(error.get("message") if isinstance(error, dict) else decoded)[:200]
        remedy = REFUSAL_REMEDIES.get(answer.status_code, "Name another model with --model.")
        return Finding(about, "fault", f"{asked}: {answer.status_code}: {why}", remedy)
    took = f"{asked} answered in {time.monotonic() - began:.1f} s"
    usage = read_usage(decoded.get("usage") or decoded.get("usageMetadata"))
    if usage is None:
        return Finding(about, "loss", f"{took} without usage: dollars stay unknown", "Have the server report usage.")
    cost = None if model.input is None else (usage.prompt * model.input + usage.completion * (model.output or 0)) / 1e6
    cached = "cached tokens are not reported" if usage.cached is None else "cached tokens are reported"
    told = f"{usage.prompt} and {usage.completion} tokens, {format_dollars(cost)}"
    return Finding(about, "good", f"{took}: {told}; {cached}")


def check_store(settings: Settings) -> Finding:
    """Look at the store: its place, its lock, its schema, and the room on its disk."""
    if settings.db == ":memory:":
        return Finding("store", "loss", "in memory: everything is lost at the end", "Name a file with --db.")
    try:
        store = create_store(settings.db)
        if not isinstance(store, SqliteStore):
            return asyncio.run(_check_postgres(settings.db, store))
    except StoreRefused as problem:
        return Finding("store", "fault", problem.message, problem.hint)
    path = store.path
    # access() first: is_dir() ends with an error where a folder above it may not be entered.
    folder = next(one for one in (path.parent, *path.absolute().parents) if os.access(one, os.F_OK) and one.is_dir())
    if not os.access(folder, os.W_OK):
        return Finding("store", "fault", f"{folder} cannot be written to", "Name another file with --db.")
    free = shutil.disk_usage(folder).free
    if free < FULL_BYTES:
        return Finding("store", "fault", f"the disk of {path} is full: new requests are not stored", "Make room.")
    finding = _check_file(path)
    if finding.status == "good" and free < FREE_BYTES:
        return Finding("store", "loss", f"the disk of {path} has {free / 1e6:,.0f} MB left", "Make room.")
    return finding


async def _check_postgres(url: str, store: Any) -> Finding:
    """Look at the database of a PostgreSQL store, without a change to it. Raises StoreRefused."""
    parts, database = urlsplit(url), await store.inspect()
    place = f"PostgreSQL at {parts.hostname or 'localhost'}:{parts.port or 5432}"
    if database.is_standby:
        return Finding("store", "fault", f"{place} is a standby and takes no writes", "Name the primary with --db.")
    if database.version is not None and database.version > LATEST_VERSION:
        return Finding("store", "fault", f"{place} was written by a newer version", "Install that version.")
    if not database.may_create:
        remedy = "Grant its role CREATE on the schema."
        return Finding("store", "fault", f"{place} does not let the proxy create tables and functions", remedy)
    if database.version is None:
        return Finding("store", "good", f"{place}; its tables will be made")
    return Finding("store", "good", f"{place}, schema {database.version} of {LATEST_VERSION}")


def _check_file(path: Path) -> Finding:
    """Look at the SQLite file, in a folder that can be written to."""
    if not path.exists():
        return Finding("store", "good", f"{path} will be made")
    try:
        with hold_store(path):
            schema = maintenance.read_schema_status(path)
            maintenance.check_pages(path)
    except StoreRefused as problem:
        if "in use" in problem.message:
            return Finding("store", "good", f"{path} is in use, as it is while a proxy runs")
        return Finding("store", "fault", problem.message, problem.hint)
    size = f"{path.stat().st_size / 1e6:,.1f} MB"
    if schema.version > schema.latest:
        return Finding("store", "fault", f"{path} was written by a newer version", "Install that version.")
    return Finding("store", "good", f"{path}, {size}, schema {schema.version} of {schema.latest}")


def check_running(client: AdminClient, *, is_named: bool) -> Finding:
    """Look at the proxy that runs. is_named: True if the command line names it, so that it has to be there."""
    url = client.url
    try:
        overview = client.request("GET", "/api/stats")
        if not isinstance(overview, dict) or not isinstance(overview.get("targets"), list):
            raise RemoteUnreachable(f"{url} does not answer as a context-proxy does.", hint="Check --proxy.")
    except RemoteRefused as problem:
        return Finding("running proxy", "unknown", f"{url} tells nothing: {problem.message}", problem.hint)
    except RemoteUnreachable as problem:
        remedy = "`context-proxy serve`, or `wrap`, starts one."
        return Finding("running proxy", "fault" if is_named else "unknown", problem.message, remedy)
    if not overview["healthy"]:
        return Finding("running proxy", "fault", f"its store is in trouble: {overview['trouble']}", "See its log.")
    figures = overview["figures"]
    requests, back = int(figures.get("requests", 0)), int(figures.get("fallbacks", 0))
    text = f"{url}, version {overview['version']}, policy {overview['policy']}; {format_count(requests, 'request')}"
    if requests and back * 2 > requests:
        remedy = "Look for `x-context-fallback` in answers; it names the reason."
        return Finding("running proxy", "loss", f"{text}, of which {back:,} went out as received", remedy)
    return Finding("running proxy", "good", text)


def check_agents(surroundings: AgentSurroundings) -> Iterator[Finding]:
    """Look at each agent that is installed: where its requests go now, and what it loses there."""
    installed = [name for name in AGENTS if shutil.which(name, path=surroundings.environment.get("PATH"))]
    if not installed:
        yield Finding("agents", "unknown", "none of " + ", ".join(AGENTS) + " is on the PATH", "")
    for name in installed:
        try:
            setup = read_agent(name, surroundings)
        except ConfigError as problem:
            yield Finding(name, "loss", str(problem), "Only then can it go through the proxy.")
            continue
        bases = [upstream.base_url for upstream in setup.upstreams]
        through = [base for base in bases if _is_proxy(base)]
        if "ANTHROPIC_BASE_URL" in setup.environment and name == "claude" and not is_anthropic(bases[0]):
            yield from _check_claude(surroundings, bases[0])
        elif through:
            yield Finding(name, "good", f"asks the proxy at {', '.join(through)}")
        else:
            yield Finding(
                name, "good", f"asks {', '.join(dict.fromkeys(bases))} by itself", f"context-proxy wrap {name}"
            )
        if not any(surroundings.environment.get(variable) for variable in KEY_VARIABLES[name]):
            names = " or ".join(KEY_VARIABLES[name])
            yield Finding(f"{name}'s key", "unknown", f"not in {names}; a login of its own may do", "")


def _is_proxy(base: str) -> bool:
    local = urlsplit(base).hostname in ("127.0.0.1", "localhost", "::1")
    return local and read_overview(base.rstrip("/").removesuffix("/v1"), named=False) is not None


def _check_claude(surroundings: AgentSurroundings, base: str) -> Iterator[Finding]:
    """Look at what Claude Code switches off in front of an address that is not Anthropic's."""
    missing = read_agent("claude", surroundings, upstream=ANTHROPIC).environment
    if TOOL_SEARCH in missing:
        text = f"behind {base} its search for MCP tools is off: {GATEWAY_TOKENS}"
        yield Finding("claude", "loss", text, f"export {TOOL_SEARCH}=true")
    if FIRST_PARTY in missing:
        text = f"behind {base} it takes the window for 200,000 tokens, and compacts early"
        yield Finding("claude", "loss", text, f"export {FIRST_PARTY}=1, only if that leads to api.anthropic.com")
    if not {TOOL_SEARCH, FIRST_PARTY} & set(missing):
        yield Finding("claude", "good", f"asks {base}, with tool search and the long window")


def print_findings(findings: list[Finding]) -> None:
    """Print the findings as a table whose texts are whole at any width."""
    print_table(findings, COLUMNS)


def _render_finding(finding: Finding) -> Text:
    text = Text(escape_controls(finding.text))
    if finding.remedy:
        text.append(f"\n-> {escape_controls(finding.remedy)}", "dim")
    return text


COLUMNS: Final = (
    TableColumn("about", lambda one: one.about, style="cyan", is_folded=True),
    TableColumn("state", lambda one: style_word(one.status, STYLES)),
    TableColumn(
        "what was found, and what mends it",
        _render_finding,
        is_folded=True,
        whole=lambda one: _render_finding(one).plain,  # a text in one line
    ),
)


def _summarize_findings(findings: list[Finding], *, sent: bool) -> str:
    """Return the sentence for the end."""
    faults = [finding.about for finding in findings if finding.status == "fault"]
    losses = sum(finding.status == "loss" for finding in findings)
    edits = [finding for finding in findings if finding.about.startswith("edits for ")]
    can = bool(edits) and all(finding.status != "fault" for finding in edits)
    lines = ["Edits can happen." if can else "No edit can happen as it is now."]
    lines.append(f"To mend: {', '.join(faults)}." if faults else "No fault was found.")
    if losses:
        lines.append(f"{losses} of these cost something, as said there.")
    if not sent:
        lines.append("No request was sent; --send sends a small one to each upstream, which costs.")
    return " ".join(lines)
