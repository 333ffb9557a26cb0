"""`context-proxy sessions`: lists, searches, shows, configures and deletes sessions."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from proxy.cli.asks import Asking, Limit, Session, Thread, asks, group
from proxy.cli.remote import Refused
from proxy.cli.terminal import Column, ago, marked, moment, pairs, said, table

app = group("Sessions: list and search, show, set, delete; their threads, requests, iterations and summaries.")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Policy = Annotated[str | None, typer.Option("--policy", help="The policy by which its prompts are rewritten.")]

COLUMNS = (
    Column("session", lambda s: s["session"], fills=True, style="cyan"),
    Column("policy", lambda s: s["policy"]),
    Column("messages", lambda s: s["messages"], number=True),
    Column("requests", lambda s: s["exchanges"], number=True),
    Column("used", lambda s: ago(s["last_at"]), number=True),
)
TENANT = Column("tenant", lambda s: s["tenant"])
OUTCOMES = {"complete": "green", "open": "cyan", "failed": "red", "rejected": "red", "partial": "yellow"}


@app.command("list")
@asks
def list_sessions(
    asking: Asking,
    limit: Limit = 50,
    policy: Annotated[str, typer.Option(help="Those with this policy in their newest request.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Used in so many days.")] = None,
) -> None:
    """List sessions, the last used one first."""
    _list(asking, limit, policy=policy, since=_since(days))


@app.command()
@asks
def search(
    asking: Asking,
    text: Annotated[str, typer.Argument(help="A part of the name.", show_default=False)],
    limit: Limit = 50,
) -> None:
    """List the sessions with a text in their name (`messages search` searches the messages)."""
    _list(asking, limit, q=text)


def _list(asking: Asking, limit: int, **query: object) -> None:
    found = list(asking.remote.every("/api/sessions", limit, **query))
    several = len({row["tenant"] for row in found}) > 1
    asking.show(found, lambda rows: table(rows, (TENANT, *COLUMNS) if several else COLUMNS, empty="no session"))


def _since(days: float | None) -> float | None:
    return None if days is None else max(0.0, time.time() - days * 86400)


@app.command()
@asks
def show(asking: Asking, session: Session) -> None:
    """Show one session: its threads, its settings, and the number of its rows in the store."""
    found = asking.remote.ask("GET", asking.remote.session(session))
    asking.show(found, _shown)


def _shown(found: Any) -> None:
    named = "named by the client" if found["explicit"] else "told by its messages"
    settings = ", ".join(f"{k} = {v}" for k, v in found["settings"].items())
    rows = ", ".join(f"{n} {name}" for name, n in found["rows"].items() if n)
    pairs(
        found["session"],
        {"tenant": found["tenant"], "name": named, "begun": moment(found["created_at"]),
         "settings": settings or "as the policy says", "stored": rows},
    )  # fmt: skip
    table(
        found["threads"],
        (
            Column("thread", lambda t: t["thread"], style="cyan", fits=True),
            Column("kind", lambda t: t["kind"]),
            Column("from", lambda t: t["parent"]),
            Column("begun", lambda t: ago(t["created_at"]), number=True),
        ),
        empty="no thread",
    )


@app.command()
@asks
def settings(
    asking: Asking,
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
    path = asking.remote.session(session) + "/settings"
    found = asking.remote.ask("PATCH", path, changes) if changes else asking.remote.ask("GET", path)
    asking.show(found, lambda value: pairs("settings", _settings(value)))


def _settings(found: Any) -> dict[str, Any]:
    names = {"policy": "", "schedule": "", "window": -1, "max_iterations": None, "urgency": ""}
    lines = {name: found.get(name, none) for name, none in names.items()}
    shown = {name: "as the policy says" if lines[name] in (none, None) else lines[name] for name, none in names.items()}
    if found.get("force") or found.get("ask"):
        asked = "asks for the state" if found.get("ask") else ""
        shown["next request"] = ", ".join(filter(None, [found.get("force"), asked]))
    return shown


@app.command()
@asks
def delete(asking: Asking, session: Session, yes: Yes = False) -> None:
    """Delete everything that is stored of a session. Memos that were written in it stay."""
    path = asking.remote.session(session)
    name = asking.remote.ask("GET", path)["session"]
    if not yes:
        typer.confirm(f"Delete all that is stored of {name!r}?", abort=True, err=True)
    found = asking.remote.ask("DELETE", path)
    if not found["verified"]:
        raise Refused(409, "rows of the session came in while it was deleted.", "Stop its agent and delete it again.")
    asking.done(found, f"{name}: {found['removed']} rows deleted, nothing of it is left")


@app.command()
@asks
def threads(asking: Asking, session: Session, limit: Limit = 200) -> None:
    """List the threads of a session, including forks, twins and side calls."""
    found = list(asking.remote.every(asking.remote.session(session) + "/threads", limit))
    columns = (
        Column("thread", lambda t: t["thread"], style="cyan", fits=True),
        Column("kind", lambda t: t["kind"]),
        Column("edits", lambda t: t["edits"], number=True),
        Column("states", lambda t: t["states"], number=True),
        Column("used", lambda t: ago(t["last_at"]), number=True),
        Column("", lambda t: f"stopped: {t['stopped']}" if t["stopped"] else "newest" * t["is_newest"], fills=True),
    )
    asking.show(found, lambda rows: table(rows, columns, empty="no thread"))


@app.command()
@asks
def requests(asking: Asking, session: Session, thread: Thread = None, limit: Limit = 20) -> None:
    """List the requests of a session, newest first, with tokens as received and as sent."""
    found = list(asking.remote.every(asking.remote.session(session) + "/exchanges", limit, thread=thread))
    columns = (
        Column("id", lambda e: e["exchange"], style="cyan", fits=True),
        Column("status", lambda e: marked(e["status"], OUTCOMES)),
        Column("came", lambda e: e["tokens_before"], number=True),
        Column("sent", lambda e: e["tokens_after"], number=True),
        Column("cached", lambda e: e["cached_tokens"], number=True),
        Column("when", lambda e: ago(e["started_at"]), number=True),
        Column("model", lambda e: f"fallback: {e['fallback']}" if e["fallback"] else e["model"], fills=True),
    )
    asking.show(found, lambda rows: table(rows, columns, empty="no request"))


@app.command()
@asks
def iterations(asking: Asking, session: Session, thread: Thread = None, limit: Limit = 50) -> None:
    """Show the records of a session's iterations: tool calls, their outcomes, and insights."""
    found = list(asking.remote.every(asking.remote.session(session) + "/iterations", limit, thread=thread))
    asking.show(found, _iterations)


def _iterations(found: list[Any]) -> None:
    for one in found:
        heading = ", ".join(filter(None, [one["mode"], one["progress_assessment"], ago(one["timestamp"])]))
        said(f"{one['iteration']}. {heading}" + (f": {one['synthesis']}" if one["synthesis"] else ""))
        for call in one["tool_calls"]:
            learnt = call["insights"] or call["learning"]
            said(f"   {call['tool']}: {call['outcome']}" + (f" → {learnt}" if learnt else ""))
    if not found:
        table([], (), empty="no iteration")


@app.command()
@asks
def summaries(asking: Asking, session: Session, thread: Thread = None, limit: Limit = 50) -> None:
    """List the summaries that replace messages, and the answers of helper models."""
    found = list(asking.remote.every(asking.remote.session(session) + "/summaries", limit, thread=thread))
    columns = (
        Column("by", lambda s: s["by"]),
        Column("message", lambda s: s["message"], style="cyan"),
        Column("before", lambda s: s["tokens_before"], number=True),
        Column("after", lambda s: s["tokens_after"], number=True),
        Column("text", lambda s: s["text"], fills=True),
    )
    asking.show(found, lambda rows: table(rows, columns, empty="no summary"))
