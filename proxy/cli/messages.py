"""`context-proxy messages`: the messages of a session, each message once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from proxy.cli import prompt
from proxy.cli.remote import (
    Limit,
    RemoteCommand,
    Session,
    make_group,
    quote_id,
    remote_command,
)
from proxy.cli.terminal import (
    ROLE_STYLES,
    TableColumn,
    escape_controls,
    format_age,
    format_number,
    print_paged,
    print_table,
    style_word,
)

app = make_group("Messages of a session: list and search, show one, remove for good.")

MESSAGE_COLUMNS = (
    TableColumn("id", lambda m: m["id"], style="cyan", is_never_cut=True),
    TableColumn("group", lambda m: m["group"], style="bright_black", is_never_cut=True),
    TableColumn("role", lambda m: style_word(m["role"], ROLE_STYLES)),
    TableColumn("snapshot", lambda m: m["snapshot"] if m["snapshot"] is not None else "-", is_number=True),
    TableColumn("tokens", lambda m: m["tokens"], is_number=True),
    TableColumn("when", lambda m: format_age(m["created_at"]), is_number=True),
    TableColumn("text", lambda m: m["text"], takes_rest=True),
)


@app.command("list")
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


@app.command("search")
@remote_command
def search_messages(
    command: RemoteCommand,
    session: Session,
    words: Annotated[str, typer.Argument(help="Words of what was said.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=50, help="Lines at most.")] = 10,
) -> None:
    """Find messages and summaries by their words, best first."""
    matches = command.client.request("GET", command.client.find_session_path(session) + "/search", q=words, limit=limit)
    columns = (
        TableColumn("id", lambda m: m["id"], style="cyan", is_never_cut=True),
        TableColumn("kind", lambda m: m["kind"]),
        TableColumn("text", lambda m: m["text"], takes_rest=True),
    )
    command.show(matches, lambda rows: print_table(rows, columns, empty="nothing has these words"))


@app.command("show")
@remote_command
def show_message(
    command: RemoteCommand,
    session: Session,
    message: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
) -> None:
    """Show one message in full, with every decision about it that is in force."""
    found = command.client.request("GET", f"{command.client.find_session_path(session)}/messages/{quote_id(message)}")
    command.show(found, lambda one: print_paged(_render_message(one)))


def _render_message(message: Any) -> Text:
    text = Text()
    text.append(escape_controls(message["role"]), f"bold {ROLE_STYLES.get(message['role'], '')}".strip())
    text.append(f"  {message['id']}", "cyan")
    text.append(
        f"  group {message['group']}, {format_number(message['tokens'])} tokens, {format_age(message['created_at'])}\n"
    )
    for edit in message["edits"]:
        figures = f"{format_number(edit['before'])} → {format_number(edit['after'])} tokens"
        text.append(
            f"  {escape_controls(edit['action'])} by {escape_controls(edit['stage'])}:"
            f" {escape_controls(edit['reason'])} ({figures})\n",
            "yellow",
        )
    text.append(prompt.render_body(message["message"]))
    return text
