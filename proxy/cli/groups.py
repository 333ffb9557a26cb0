"""`context-proxy groups`: the groups of a session. A group is a user prompt with all messages that it caused."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from proxy.cli import prompt
from proxy.cli.remote import quote_id
from proxy.cli.remote_options import RemoteCommand, Session, Thread, make_group, remote_command
from proxy.cli.terminal import TableColumn, print_paged, print_table, style_word

app = make_group("Groups of a session, a user prompt with all that it caused each: list, show.")

COLUMNS = (
    TableColumn("id", lambda g: g["id"], style="cyan", is_never_cut=True),
    TableColumn("status", lambda g: style_word(g["status"])),
    TableColumn("msgs", lambda g: g["messages"], is_number=True),
    TableColumn("tokens", lambda g: g["tokens"], is_number=True),
    TableColumn("sent", lambda g: g["sent"], is_number=True),
    TableColumn("weight", lambda g: g["snapshot"], is_number=True),
    TableColumn(
        "prompt",
        lambda g: Text.assemble(("pinned ", "blue") if g["pinned"] else "", prompt.join_lines(g["title"])),
        takes_rest=True,
    ),
)


@app.command("list")
@remote_command
def list_groups(
    command: RemoteCommand,
    session: Session,
    last: Annotated[int | None, typer.Argument(min=1, help="The last so many; without it all.")] = None,
    status: Annotated[str, typer.Option(help="in, changed, out, dropped or removed.")] = "",
    thread: Thread = None,
) -> None:
    """List groups, oldest first: their tokens as received and as sent, and the size of the whole prompt at their
    end."""
    path = command.client.find_session_path(session) + "/groups"
    found = list(command.client.list_items(path, thread=thread, status=status))
    command.show(found[-last:] if last else found, lambda rows: print_table(rows, COLUMNS, empty="no group"))


@app.command()
@remote_command
def show(
    command: RemoteCommand,
    session: Session,
    gid: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
    thread: Thread = None,
) -> None:
    """Show a group's messages in full, with the reason if a message is not sent as it came."""
    found = command.client.request(
        "GET", f"{command.client.find_session_path(session)}/groups/{quote_id(gid)}", thread=thread
    )
    command.show(found, lambda messages: print_paged(_whole(messages)))


def _whole(messages: list[Any]) -> Text:
    return Text("\n").join(prompt.render_message(one) for one in messages)
