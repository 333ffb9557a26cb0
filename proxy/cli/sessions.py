"""`context-proxy sessions`: lists, searches, shows, configures and deletes sessions."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from proxy.cli.operator_actions import Yes
from proxy.cli.remote import RemoteRefused
from proxy.cli.remote_options import Limit, RemoteCommand, Session, Thread, make_group, remote_command
from proxy.cli.terminal import TableColumn, format_age, format_time, print_pairs, print_table, print_text, style_word

app = make_group("Sessions: list and search, show, set, delete; their threads, requests, iterations and summaries.")

Policy = Annotated[str | None, typer.Option("--policy", help="The policy by which its prompts are rewritten.")]

COLUMNS = (
    TableColumn("session", lambda s: s["session"], takes_rest=True, style="cyan"),
    TableColumn("policy", lambda s: s["policy"]),
    TableColumn("messages", lambda s: s["messages"], is_number=True),
    TableColumn("requests", lambda s: s["exchanges"], is_number=True),
    TableColumn("used", lambda s: format_age(s["last_at"]), is_number=True),
)
TENANT_COLUMN = TableColumn("tenant", lambda s: s["tenant"])
EXCHANGE_STYLES = {"complete": "green", "open": "cyan", "failed": "red", "rejected": "red", "partial": "yellow"}


@app.command("list")
@remote_command
def list_sessions(
    command: RemoteCommand,
    limit: Limit = 50,
    policy: Annotated[str, typer.Option(help="Those with this policy in their newest request.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Used in so many days.")] = None,
) -> None:
    """List sessions, the last used one first."""
    _list(command, limit, policy=policy, since=_since(days))


@app.command()
@remote_command
def search(
    command: RemoteCommand,
    text: Annotated[str, typer.Argument(help="A part of the name.", show_default=False)],
    limit: Limit = 50,
) -> None:
    """List the sessions with a text in their name (`messages search` searches the messages)."""
    _list(command, limit, q=text)


def _list(command: RemoteCommand, limit: int, **query: object) -> None:
    found = list(command.client.list_items("/api/sessions", limit, **query))
    several = len({row["tenant"] for row in found}) > 1
    command.show(
        found, lambda rows: print_table(rows, (TENANT_COLUMN, *COLUMNS) if several else COLUMNS, empty="no session")
    )


def _since(days: float | None) -> float | None:
    return None if days is None else max(0.0, time.time() - days * 86400)


@app.command()
@remote_command
def show(command: RemoteCommand, session: Session) -> None:
    """Show one session: its threads, its settings, and the number of its rows in the store."""
    found = command.client.request("GET", command.client.find_session_path(session))
    command.show(found, _shown)


def _shown(found: Any) -> None:
    named = "named by the client" if found["explicit"] else "told by its messages"
    settings = ", ".join(f"{k} = {v}" for k, v in found["settings"].items())
    rows = ", ".join(f"{n} {name}" for name, n in found["rows"].items() if n)
    print_pairs(
        found["session"],
        {"tenant": found["tenant"], "name": named, "begun": format_time(found["created_at"]),
         "settings": settings or "as the policy says", "stored": rows},
    )  # fmt: skip
    print_table(
        found["threads"],
        (
            TableColumn("thread", lambda t: t["thread"], style="cyan", is_never_cut=True),
            TableColumn("kind", lambda t: t["kind"]),
            TableColumn("from", lambda t: t["parent"]),
            TableColumn("begun", lambda t: format_age(t["created_at"]), is_number=True),
        ),
        empty="no thread",
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
    command.show(found, lambda value: print_pairs("settings", _settings(value)))


def _settings(found: Any) -> dict[str, Any]:
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
        typer.confirm(f"Delete all that is stored of {name!r}?", abort=True, err=True)
    found = command.client.request("DELETE", path)
    if not found["verified"]:
        raise RemoteRefused(
            409, "rows of the session came in while it was deleted.", "Stop its agent and delete it again."
        )
    command.report_done(found, f"{name}: {found['removed']} rows deleted, nothing of it is left")


@app.command()
@remote_command
def threads(command: RemoteCommand, session: Session, limit: Limit = 200) -> None:
    """List the threads of a session, including forks, twins and side calls."""
    found = list(command.client.list_items(command.client.find_session_path(session) + "/threads", limit))
    columns = (
        TableColumn("thread", lambda t: t["thread"], style="cyan", is_never_cut=True),
        TableColumn("kind", lambda t: t["kind"]),
        TableColumn("edits", lambda t: t["edits"], is_number=True),
        TableColumn("states", lambda t: t["states"], is_number=True),
        TableColumn("used", lambda t: format_age(t["last_at"]), is_number=True),
        TableColumn(
            "", lambda t: f"stopped: {t['stopped']}" if t["stopped"] else "newest" * t["is_newest"], takes_rest=True
        ),
    )
    command.show(found, lambda rows: print_table(rows, columns, empty="no thread"))


@app.command()
@remote_command
def requests(command: RemoteCommand, session: Session, thread: Thread = None, limit: Limit = 20) -> None:
    """List the requests of a session, newest first, with tokens as received and as sent."""
    found = list(
        command.client.list_items(command.client.find_session_path(session) + "/exchanges", limit, thread=thread)
    )
    columns = (
        TableColumn("id", lambda e: e["exchange"], style="cyan", is_never_cut=True),
        TableColumn("status", lambda e: style_word(e["status"], EXCHANGE_STYLES)),
        TableColumn("came", lambda e: e["tokens_before"], is_number=True),
        TableColumn("sent", lambda e: e["tokens_after"], is_number=True),
        TableColumn("cached", lambda e: e["cached_tokens"], is_number=True),
        TableColumn("when", lambda e: format_age(e["started_at"]), is_number=True),
        TableColumn("model", lambda e: f"fallback: {e['fallback']}" if e["fallback"] else e["model"], takes_rest=True),
    )
    command.show(found, lambda rows: print_table(rows, columns, empty="no request"))


@app.command()
@remote_command
def iterations(command: RemoteCommand, session: Session, thread: Thread = None, limit: Limit = 50) -> None:
    """Show the records of a session's iterations: tool calls, their outcomes, and insights."""
    found = list(
        command.client.list_items(command.client.find_session_path(session) + "/iterations", limit, thread=thread)
    )
    command.show(found, _iterations)


def _iterations(found: list[Any]) -> None:
    for one in found:
        heading = ", ".join(filter(None, [one["mode"], one["progress_assessment"], format_age(one["timestamp"])]))
        print_text(f"{one['iteration']}. {heading}" + (f": {one['synthesis']}" if one["synthesis"] else ""))
        for call in one["tool_calls"]:
            learnt = call["insights"] or call["learning"]
            print_text(f"   {call['tool']}: {call['outcome']}" + (f" → {learnt}" if learnt else ""))
    if not found:
        print_table([], (), empty="no iteration")


@app.command()
@remote_command
def summaries(command: RemoteCommand, session: Session, thread: Thread = None, limit: Limit = 50) -> None:
    """List the summaries that replace messages, and the answers of helper models."""
    found = list(
        command.client.list_items(command.client.find_session_path(session) + "/summaries", limit, thread=thread)
    )
    columns = (
        TableColumn("by", lambda s: s["by"]),
        TableColumn("message", lambda s: s["message"], style="cyan"),
        TableColumn("before", lambda s: s["tokens_before"], is_number=True),
        TableColumn("after", lambda s: s["tokens_after"], is_number=True),
        TableColumn("text", lambda s: s["text"], takes_rest=True),
    )
    command.show(found, lambda rows: print_table(rows, columns, empty="no summary"))
