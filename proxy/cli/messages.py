"""`context-proxy messages`: the messages of a session, each message once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from proxy.cli import prompt
from proxy.cli.asks import Asking, Limit, Session, Thread, asks, group
from proxy.cli.context import Ids, decide
from proxy.cli.remote import part
from proxy.cli.sessions import Yes
from proxy.cli.terminal import ROLES, Column, ago, marked, number, plain, read, table

app = group("Messages of a session: list and search, show one, remove for good.")

COLUMNS = (
    Column("id", lambda m: m["id"], style="cyan", fits=True),
    Column("group", lambda m: m["group"], style="bright_black", fits=True),
    Column("role", lambda m: marked(m["role"], ROLES)),
    Column("snapshot", lambda m: m["snapshot"] if m["snapshot"] is not None else "-", number=True),
    Column("tokens", lambda m: m["tokens"], number=True),
    Column("when", lambda m: ago(m["created_at"]), number=True),
    Column("text", lambda m: m["text"], fills=True),
)


@app.command("list")
@asks
def list_messages(
    asking: Asking,
    session: Session,
    limit: Limit = 50,
    role: Annotated[str, typer.Option(help="Those of this role.")] = "",
    group_id: Annotated[str, typer.Option("--group", help="Those of this group.")] = "",
    text: Annotated[str, typer.Option("--text", help="Those that have this in their text.")] = "",
    thread: Annotated[str, typer.Option(help="Those of this thread's line.")] = "",
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
) -> None:
    """List messages in the order in which they were stored."""
    query = {"role": role, "group": group_id, "q": text, "thread": thread, "newest": newest}
    found = list(asking.remote.every(asking.remote.session(session) + "/messages", limit, **query))
    asking.show(found, lambda rows: table(rows, COLUMNS, empty="no message"))


@app.command()
@asks
def search(
    asking: Asking,
    session: Session,
    words: Annotated[str, typer.Argument(help="Words of what was said.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=50, help="Lines at most.")] = 10,
) -> None:
    """Find messages and summaries by their words, best first."""
    found = asking.remote.ask("GET", asking.remote.session(session) + "/search", q=words, limit=limit)
    columns = (
        Column("id", lambda m: m["id"], style="cyan", fits=True),
        Column("kind", lambda m: m["kind"]),
        Column("text", lambda m: m["text"], fills=True),
    )
    asking.show(found, lambda rows: table(rows, columns, empty="nothing has these words"))


@app.command()
@asks
def show(
    asking: Asking,
    session: Session,
    message: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
) -> None:
    """Show one message in full, with every decision about it that is in force."""
    found = asking.remote.ask("GET", f"{asking.remote.session(session)}/messages/{part(message)}")
    asking.show(found, lambda one: read(_whole(one)))


def _whole(found: Any) -> Text:
    text = Text()
    text.append(plain(found["role"]), f"bold {ROLES.get(found['role'], '')}".strip())
    text.append(f"  {found['id']}", "cyan")
    text.append(f"  group {found['group']}, {number(found['tokens'])} tokens, {ago(found['created_at'])}\n")
    for edit in found["edits"]:
        figures = f"{number(edit['before'])} → {number(edit['after'])} tokens"
        text.append(
            f"  {plain(edit['action'])} by {plain(edit['stage'])}: {plain(edit['reason'])} ({figures})\n", "yellow"
        )
    text.append(prompt.body(found["message"]))
    return text


@app.command()
@asks
def remove(asking: Asking, session: Session, ids: Ids, thread: Thread = None, yes: Yes = False) -> None:
    """Remove groups or messages for good: their content leaves the store as well."""
    if not yes:
        typer.confirm(f"Remove {', '.join(ids)} for good?", abort=True, err=True)
    decide(asking, session, "remove", ids, thread)
