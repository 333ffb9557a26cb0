"""`context-proxy sessions`: sessions, and what was recorded of each."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from proxy.cli.remote import (
    Branch,
    Limit,
    RemoteCommand,
    RemoteRefused,
    Session,
    Yes,
    ask_to_confirm,
    make_group,
    remote_command,
    shorten_tenant,
)
from proxy.cli.terminal import (
    TableColumn,
    format_age,
    format_count,
    format_number,
    format_time,
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
    days: Annotated[float | None, typer.Option(min=0, help="Used within this number of days.")] = None,
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
    sessions = list(command.client.list_items("/api/sessions", limit, **query))
    if not sessions:
        command.client.check_tenant()
    several = len({row["tenant"] for row in sessions}) > 1
    command.show(
        sessions, lambda rows: print_table(rows, (TENANT_COLUMN, *COLUMNS) if several else COLUMNS, empty="no session")
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


def _print_session(session: Any) -> None:
    named = "named by the client" if session["explicit"] else "recognised by its messages"
    settings = ", ".join(f"{k} = {v}" for k, v in session["settings"].items())
    rows = ", ".join(_count_rows(name, number) for name, number in session["rows"].items() if number)
    print_pairs(
        session["session"],
        {"tenant": session["tenant"], "name": named, "begun": format_time(session["created_at"]),
         "settings": settings or "as the policy says", "stored": rows},
    )  # fmt: skip
    print_table(
        session["branches"],
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


def _describe_settings(session_settings: Any) -> dict[str, Any]:
    names = {"policy": "", "schedule": "", "window": -1, "max_iterations": None, "urgency": ""}
    lines = {name: session_settings.get(name, none) for name, none in names.items()}
    shown = {name: "as the policy says" if lines[name] in (none, None) else lines[name] for name, none in names.items()}
    if session_settings.get("force") or session_settings.get("ask"):
        asked = "asks for the state" if session_settings.get("ask") else ""
        shown["next request"] = ", ".join(filter(None, [session_settings.get("force"), asked]))
    return shown


@app.command()
@remote_command
def delete(command: RemoteCommand, session: Session, yes: Yes = False) -> None:
    """Delete everything that is stored of a session. Memos that were written in it stay."""
    path = command.client.find_session_path(session)
    name = command.client.request("GET", path)["session"]
    if not yes:
        ask_to_confirm(f"Delete all that is stored of {name!r}?")
    report = command.client.request("DELETE", path)
    if not report["verified"]:
        raise RemoteRefused(
            409, "rows of the session came in while it was deleted.", "Stop its agent and delete it again."
        )
    command.report_done(report, f"{name}: {format_count(report['removed'], 'row')} deleted, nothing of it is left")


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


def _print_iterations(reports: list[Any]) -> None:
    for report in reports:
        heading = ", ".join(
            filter(None, [report["mode"], report["progress_assessment"], format_age(report["timestamp"])])
        )
        print_text(f"{report['iteration']}. {heading}" + (f": {report['synthesis']}" if report["synthesis"] else ""))
        for call in report["tool_calls"]:
            lesson = call["insights"] or call["learning"]
            print_text(f"   {call['tool']}: {call['outcome']}" + (f" → {lesson}" if lesson else ""))
    if not reports:
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
