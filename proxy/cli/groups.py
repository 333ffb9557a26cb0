"""`context-proxy groups`: the groups of a session. A group is a user prompt with all messages that it caused."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from proxy.cli import prompt
from proxy.cli.asks import Asking, Session, Thread, asks, group
from proxy.cli.remote import part
from proxy.cli.terminal import Column, marked, read, table

app = group("Groups of a session, a user prompt with all that it caused each: list, show.")

COLUMNS = (
    Column("id", lambda g: g["id"], style="cyan", fits=True),
    Column("status", lambda g: marked(g["status"])),
    Column("msgs", lambda g: g["messages"], number=True),
    Column("tokens", lambda g: g["tokens"], number=True),
    Column("sent", lambda g: g["sent"], number=True),
    Column("weight", lambda g: g["snapshot"], number=True),
    Column(
        "prompt",
        lambda g: Text.assemble(("pinned ", "blue") if g["pinned"] else "", prompt.line(g["title"])),
        fills=True,
    ),
)


@app.command("list")
@asks
def list_groups(
    asking: Asking,
    session: Session,
    last: Annotated[int | None, typer.Argument(min=1, help="The last so many; without it all.")] = None,
    status: Annotated[str, typer.Option(help="in, changed, out, dropped or removed.")] = "",
    thread: Thread = None,
) -> None:
    """List groups, oldest first: their tokens as received and as sent, and the size of the whole prompt at their
    end."""
    path = asking.remote.session(session) + "/groups"
    found = list(asking.remote.every(path, thread=thread, status=status))
    asking.show(found[-last:] if last else found, lambda rows: table(rows, COLUMNS, empty="no group"))


@app.command()
@asks
def show(
    asking: Asking,
    session: Session,
    gid: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
    thread: Thread = None,
) -> None:
    """Show a group's messages in full, with the reason if a message is not sent as it came."""
    found = asking.remote.ask("GET", f"{asking.remote.session(session)}/groups/{part(gid)}", thread=thread)
    asking.show(found, lambda messages: read(_whole(messages)))


def _whole(messages: list[Any]) -> Text:
    return Text("\n").join(prompt.one_message(one) for one in messages)
