"""`context-proxy sessions`, `messages` and `stats`: sessions, their messages and their figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from proxy.cli import prompt
from proxy.cli.remote import (
    Branch,
    Limit,
    RemoteCommand,
    RemoteRefused,
    Session,
    Yes,
    ask_to_confirm,
    make_group,
    quote_id,
    remote_command,
    shorten_tenant,
)
from proxy.cli.terminal import (
    ROLE_STYLES,
    TableColumn,
    escape_controls,
    format_age,
    format_count,
    format_dollars,
    format_number,
    format_percent,
    format_time,
    make_console,
    print_paged,
    print_pairs,
    print_table,
    print_text,
    style_word,
)

app = make_group("Sessions: list, search, show, settings, delete; their branches, requests, iterations and summaries.")

Policy = Annotated[str | None, typer.Option("--policy", help="The policy by which its prompts are rewritten.")]

COLUMNS = (
    TableColumn("session", lambda s: s["session"], takes_rest=True, style="cyan"),
    TableColumn("policy", lambda s: s["policy"]),
    TableColumn("messages", lambda s: s["messages"], is_number=True),
    TableColumn("requests", lambda s: s["exchanges"], is_number=True),
    TableColumn("used", lambda s: format_age(s["last_at"]), is_number=True),
)
TENANT_COLUMN = TableColumn("tenant", lambda s: shorten_tenant(s["tenant"]), whole=lambda s: s["tenant"])
EXCHANGE_STYLES = {
    "complete": "green",
    "open": "cyan",
    "partial": "yellow",
    "failed": "red",
    "rejected": "red",
    "lost": "red",
}


@app.command("list")
@remote_command
def list_sessions(
    command: RemoteCommand,
    limit: Limit = 50,
    policy: Annotated[str, typer.Option(help="Those with this policy in their newest request.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Used in so many days.")] = None,
) -> None:
    """List sessions, the last used one first."""
    _list_sessions(command, limit, policy=policy, since=_find_since(days))


@app.command()
@remote_command
def search(
    command: RemoteCommand,
    text: Annotated[str, typer.Argument(help="A part of the name.", show_default=False)],
    limit: Limit = 50,
) -> None:
    """List the sessions with a text in their name (`messages search` searches the messages)."""
    _list_sessions(command, limit, q=text)


def _list_sessions(command: RemoteCommand, limit: int, **query: object) -> None:
    found = list(command.client.list_items("/api/sessions", limit, **query))
    if not found:
        command.client.check_tenant()
    several = len({row["tenant"] for row in found}) > 1
    command.show(
        found, lambda rows: print_table(rows, (TENANT_COLUMN, *COLUMNS) if several else COLUMNS, empty="no session")
    )


def _find_since(days: float | None) -> float | None:
    return None if days is None else max(0.0, time.time() - days * 86400)


@app.command()
@remote_command
def show(command: RemoteCommand, session: Session) -> None:
    """Show one session: its branches, its settings, and the number of its rows in the store."""
    found = command.client.request("GET", command.client.find_session_path(session))
    command.show(found, _print_session)


def _count_rows(name: str, number: int) -> str:
    """Return a number with the name of its table, which is a plural: 1 branch, 2 helper answers."""
    one = "branch" if name == "branches" else name.removesuffix("s")
    return f"{format_number(number)} {(one if number == 1 else name).replace('_', ' ')}"


def _print_session(found: Any) -> None:
    named = "named by the client" if found["explicit"] else "recognised by its messages"
    settings = ", ".join(f"{k} = {v}" for k, v in found["settings"].items())
    rows = ", ".join(_count_rows(name, number) for name, number in found["rows"].items() if number)
    print_pairs(
        found["session"],
        {"tenant": found["tenant"], "name": named, "begun": format_time(found["created_at"]),
         "settings": settings or "as the policy says", "stored": rows},
    )  # fmt: skip
    print_table(
        found["branches"],
        (
            TableColumn("branch", lambda t: t["branch"], style="cyan", is_never_cut=True),
            TableColumn("kind", lambda t: t["kind"]),
            TableColumn("from", lambda t: t["parent"]),
            TableColumn("begun", lambda t: format_age(t["created_at"]), is_number=True),
        ),
        empty="no branch",
    )


@app.command()
@remote_command
def settings(
    command: RemoteCommand,
    session: Session,
    policy: Policy = None,
    schedule: Annotated[str | None, typer.Option(help="When edits are made.")] = None,
    window: Annotated[int | None, typer.Option(min=0, help="Groups that stay; 0: all.")] = None,
    max_iterations: Annotated[int | None, typer.Option(min=1, help="Iterations that a task may take.")] = None,
    urgency: Annotated[str | None, typer.Option(help="The urgency of its texts: off, gentle, firm.")] = None,
    unset: Annotated[list[str] | None, typer.Option(help="As the policy says again; several times.")] = None,
) -> None:
    """Show the settings of a session, or change the given ones."""
    given = {"policy": policy, "schedule": schedule, "window": window, "max_iterations": max_iterations,
             "urgency": urgency}  # fmt: skip
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in unset or []:
        if (field := name.replace("-", "_")) not in given:
            raise typer.BadParameter(f"{name}: one of {', '.join(given)}", param_hint="--unset")
        changes[field] = None
    path = command.client.find_session_path(session) + "/settings"
    found = command.client.request("PATCH", path, changes) if changes else command.client.request("GET", path)
    command.show(found, lambda value: print_pairs("settings", _describe_settings(value)))


def _describe_settings(found: Any) -> dict[str, Any]:
    names = {"policy": "", "schedule": "", "window": -1, "max_iterations": None, "urgency": ""}
    lines = {name: found.get(name, none) for name, none in names.items()}
    shown = {name: "as the policy says" if lines[name] in (none, None) else lines[name] for name, none in names.items()}
    if found.get("force") or found.get("ask"):
        asked = "asks for the state" if found.get("ask") else ""
        shown["next request"] = ", ".join(filter(None, [found.get("force"), asked]))
    return shown


@app.command()
@remote_command
def delete(command: RemoteCommand, session: Session, yes: Yes = False) -> None:
    """Delete everything that is stored of a session. Memos that were written in it stay."""
    path = command.client.find_session_path(session)
    name = command.client.request("GET", path)["session"]
    if not yes:
        ask_to_confirm(f"Delete all that is stored of {name!r}?")
    found = command.client.request("DELETE", path)
    if not found["verified"]:
        raise RemoteRefused(
            409, "rows of the session came in while it was deleted.", "Stop its agent and delete it again."
        )
    command.report_done(found, f"{name}: {format_count(found['removed'], 'row')} deleted, nothing of it is left")


@app.command()
@remote_command
def branches(command: RemoteCommand, session: Session, limit: Limit = 200) -> None:
    """List the branches of a session, including forks, twins and side calls."""
    columns = (
        TableColumn("branch", lambda t: t["branch"], style="cyan", is_never_cut=True),
        TableColumn("kind", lambda t: t["kind"]),
        TableColumn("edits", lambda t: t["edits"], is_number=True),
        TableColumn("states", lambda t: t["states"], is_number=True),
        TableColumn("used", lambda t: format_age(t["last_at"]), is_number=True),
        TableColumn(
            "", lambda t: f"stopped: {t['stopped']}" if t["stopped"] else "newest" * t["is_newest"], takes_rest=True
        ),
    )
    path = command.client.find_session_path(session) + "/branches"
    command.show_list(path, columns, "no branch", limit)


@app.command()
@remote_command
def requests(
    command: RemoteCommand,
    session: Session,
    branch: Annotated[str | None, typer.Option(help="Those of this branch.")] = None,
    limit: Limit = 20,
) -> None:
    """List the requests of a session, newest first. Tokens are as received, as sent, and as reported."""
    columns = (
        TableColumn("id", lambda e: e["exchange"], style="cyan", is_never_cut=True),
        TableColumn("status", lambda e: style_word(e["status"], EXCHANGE_STYLES)),
        TableColumn("came", lambda e: e["tokens_before"], is_number=True),
        TableColumn("sent", lambda e: e["tokens_after"], is_number=True),
        TableColumn("reported", lambda e: e["prompt_tokens"], is_number=True),
        TableColumn("cached", lambda e: e["cached_tokens"], is_number=True),
        TableColumn("when", lambda e: format_age(e["started_at"]), is_number=True),
        TableColumn("model", lambda e: f"fallback: {e['fallback']}" if e["fallback"] else e["model"], takes_rest=True),
    )
    path = command.client.find_session_path(session) + "/exchanges"
    command.show_list(path, columns, "no request", limit, branch=branch)


@app.command()
@remote_command
def iterations(command: RemoteCommand, session: Session, branch: Branch = None, limit: Limit = 50) -> None:
    """Show the records of a session's iterations: tool calls, their outcomes, and insights."""
    found = list(
        command.client.list_items(command.client.find_session_path(session) + "/iterations", limit, branch=branch)
    )
    command.show(found, _print_iterations)


def _print_iterations(found: list[Any]) -> None:
    for one in found:
        heading = ", ".join(filter(None, [one["mode"], one["progress_assessment"], format_age(one["timestamp"])]))
        print_text(f"{one['iteration']}. {heading}" + (f": {one['synthesis']}" if one["synthesis"] else ""))
        for call in one["tool_calls"]:
            lesson = call["insights"] or call["learning"]
            print_text(f"   {call['tool']}: {call['outcome']}" + (f" → {lesson}" if lesson else ""))
    if not found:
        print_table([], (), empty="no iteration")


@app.command()
@remote_command
def summaries(command: RemoteCommand, session: Session, branch: Branch = None, limit: Limit = 50) -> None:
    """List the summaries that replace messages, and the answers of helper models."""
    columns = (
        TableColumn("by", lambda s: s["by"]),
        TableColumn("message", lambda s: s["message"], style="cyan"),
        TableColumn("before", lambda s: s["tokens_before"], is_number=True),
        TableColumn("after", lambda s: s["tokens_after"], is_number=True),
        TableColumn("text", lambda s: s["text"], takes_rest=True),
    )
    path = command.client.find_session_path(session) + "/summaries"
    command.show_list(path, columns, "no summary", limit, branch=branch)


# `context-proxy messages`: the messages of a session, each message once.


messages_app = make_group("Messages of a session: list and search, show one, remove for good.")

MESSAGE_COLUMNS = (
    TableColumn("id", lambda m: m["id"], style="cyan", is_never_cut=True),
    TableColumn("group", lambda m: m["group"], style="bright_black", is_never_cut=True),
    TableColumn("role", lambda m: style_word(m["role"], ROLE_STYLES)),
    TableColumn("snapshot", lambda m: m["snapshot"] if m["snapshot"] is not None else "-", is_number=True),
    TableColumn("tokens", lambda m: m["tokens"], is_number=True),
    TableColumn("when", lambda m: format_age(m["created_at"]), is_number=True),
    TableColumn("text", lambda m: m["text"], takes_rest=True),
)


@messages_app.command("list")
@remote_command
def list_messages(
    command: RemoteCommand,
    session: Session,
    limit: Limit = 50,
    role: Annotated[str, typer.Option(help="Those of this role.")] = "",
    group_id: Annotated[str, typer.Option("--group", help="Those of this group.")] = "",
    text: Annotated[str, typer.Option("--text", help="Those that have this in their text.")] = "",
    branch: Annotated[str, typer.Option(help="Those of this branch's line.")] = "",
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
) -> None:
    """List messages in the order in which they were stored."""
    query = {"role": role, "group": group_id, "q": text, "branch": branch, "newest": newest}
    path = command.client.find_session_path(session) + "/messages"
    command.show_list(path, MESSAGE_COLUMNS, "no message", limit, **query)


@messages_app.command("search")
@remote_command
def search_messages(
    command: RemoteCommand,
    session: Session,
    words: Annotated[str, typer.Argument(help="Words of what was said.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=50, help="Lines at most.")] = 10,
) -> None:
    """Find messages and summaries by their words, best first."""
    found = command.client.request("GET", command.client.find_session_path(session) + "/search", q=words, limit=limit)
    columns = (
        TableColumn("id", lambda m: m["id"], style="cyan", is_never_cut=True),
        TableColumn("kind", lambda m: m["kind"]),
        TableColumn("text", lambda m: m["text"], takes_rest=True),
    )
    command.show(found, lambda rows: print_table(rows, columns, empty="nothing has these words"))


@messages_app.command("show")
@remote_command
def show_message(
    command: RemoteCommand,
    session: Session,
    message: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
) -> None:
    """Show one message in full, with every decision about it that is in force."""
    found = command.client.request("GET", f"{command.client.find_session_path(session)}/messages/{quote_id(message)}")
    command.show(found, lambda one: print_paged(_render_message(one)))


def _render_message(found: Any) -> Text:
    text = Text()
    text.append(escape_controls(found["role"]), f"bold {ROLE_STYLES.get(found['role'], '')}".strip())
    text.append(f"  {found['id']}", "cyan")
    text.append(
        f"  group {found['group']}, {format_number(found['tokens'])} tokens, {format_age(found['created_at'])}\n"
    )
    for edit in found["edits"]:
        figures = f"{format_number(edit['before'])} → {format_number(edit['after'])} tokens"
        text.append(
            f"  {escape_controls(edit['action'])} by {escape_controls(edit['stage'])}:"
            f" {escape_controls(edit['reason'])} ({figures})\n",
            "yellow",
        )
    text.append(prompt.render_body(found["message"]))
    return text


# `context-proxy stats`: figures of one session or of the whole proxy.


@remote_command
def stats(
    command: RemoteCommand,
    session: Annotated[
        str | None, typer.Argument(help="A session's name, - for the one used last; without it the whole proxy.")
    ] = None,
    branch: Branch = None,
) -> None:
    """Show the size of a session's next prompt, by level, and the session's cost. Without a session: figures of the
    proxy."""
    if session is None:
        command.show(command.client.request("GET", "/api/stats"), _print_details)
        return
    path = command.client.find_session_path(session) + "/stats"
    command.show(command.client.request("GET", path, branch=branch), _print_session_stats)


def _print_session_stats(found: Any) -> None:
    limit = found["limit"]
    used = (
        f"{format_number(found['sent'])} / {format_number(limit)} ({format_percent(found['utilisation'])})"
        if limit
        else None
    )
    factor = found["ratio"]
    print_pairs(
        f"{found['session']}: context",
        {
            "total tokens used": used or f"{format_number(found['sent'])} of a window that is not known",
            "as the client sends it": f"{format_count(found['tokens'], 'token')}"
            f" in {format_count(found['items'], 'message')}",
            "messages stored": found["messages_stored"],
            "groups": found["groups"],
            "left out, shortened": f"{found['left_out']}, {found['shortened']}",
            "summaries": found["summaries"],
            "compression ratio": f"{factor:.1f}x average",
            "last compression": format_age(found["last_compression"]) if found["last_compression"] else "never",
            "retrieved items": found["retrieved"],
            "fetched again": _describe_refetches(found["refetched"], found["exchanges"]),
        },
    )
    if found["levels"]:
        make_console().print()
        budgets = found["level_budgets"]
        most = {name: f" / {format_number(budgets[name])}" if name in budgets else "" for name in found["levels"]}
        print_pairs(
            "level breakdown", {n: f"{format_number(tokens)}{most[n]} tokens" for n, tokens in found["levels"].items()}
        )
    make_console().print()
    print_pairs(
        "requests and money",
        {
            "policy, model": f"{found['policy']}, {found['model']}",
            "requests": format_number(found["exchanges"])
            + " (the newest; no older one is added up)" * found.get("more", False),
            "prompt, answer": f"{format_number(found['prompt_tokens'])} tokens,"
            f" {format_number(found['completion_tokens'])} tokens",
            "cached": f"{format_number(found['cached_reported'])} reported,"
            f" {format_number(found['cached_predicted'])} predicted",
            "cost": _describe_cost(found),
        },
    )
    if found["over_budget"]:
        make_console().print(
            f"\n[red]{format_number(found['over_budget'])} tokens over the budget, with all out that may go[/red]"
        )
    if found["needs_pruning"]:
        make_console().print("\n[yellow]over 80 % of the window: `context-proxy context prune` makes room[/yellow]")


def _describe_cost(found: Any) -> str:
    """Return the cost paid, with a cost to compare it with: without the proxy, or of the plan if plans were only
    observed."""
    count = found.get("unbilled", 0)  # a proxy that runs already may be older
    left = f" ({format_count(count, 'request')} without a bill: no usage reported)" if count else ""
    if found["cost"] is None:
        return f"unknown: the model has no price, or no usage was reported{left}"
    paid = format_dollars(found["cost"])
    if found["cost_planned"] is None:
        return f"{paid}, without the proxy {format_dollars(found['cost_without'])}{left}"
    return (
        f"paid {paid}; {found['planned_as'] or 'the plan'} would have paid about"
        f" {format_dollars(found['cost_planned'])}{left}"
    )


def _describe_refetches(counts: Mapping[str, int], requests: int) -> str:
    """Return the number of cut results that the model fetched again, by kind, and their share of the requests."""
    if not counts:
        return "none"
    kinds = ", ".join(f"{count} by {kind}" for kind, count in sorted(counts.items()))
    return f"{kinds} ({format_percent(sum(counts.values()) / max(requests, 1))} of the requests)"


def _print_details(found: Any) -> None:
    health = "healthy" if found["healthy"] else f"away: {found['trouble']}"
    print_pairs(
        f"context-proxy {found['version']}",
        {
            "policy": found["policy"],
            "upstreams": ", ".join(found["upstreams"]),
            "store": f"{health}, {format_count(found['queued'], 'row')} queued,"
            f" {format_number(found['dropped'])} dropped",
            "live branches": found["live_branches"],
            "spent on helpers today": format_dollars(found["dollars_spent_today"]),
        },
    )
    if found["figures"]:
        make_console().print()
        figures = {n.replace("_", " "): _format_figure(n, v) for n, v in found["figures"].items() if v}
        print_pairs("since it started", figures)


def _format_figure(name: str, value: float) -> str:
    """Return a figure of the proxy. Dollars have more than two places: a request often costs less than a cent."""
    return format_dollars(value) if "dollars" in name else format_number(int(value) if value == int(value) else value)
