"""`context-proxy memos`: notes that models keep for later sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.remote import quote_id
from proxy.cli.remote_options import Limit, RemoteCommand, make_group, remote_command
from proxy.cli.session_actions import Yes, read_text
from proxy.cli.terminal import TableColumn, edit_text, format_age, format_time, print_pairs, print_table, print_text
from proxy.cli.transfer import Out, save_lines

app = make_group("Memos, which models keep across sessions: list, show, edit, delete, export.")

Memo = Annotated[str, typer.Argument(help="Its id.", show_default=False)]
Project = Annotated[str | None, typer.Option("--project", help="Those of this project; empty: of none.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Tags in the place of its own, several times.")]


@app.command("list")
@remote_command
def list_memos(
    command: RemoteCommand,
    text: Annotated[str, typer.Option("--text", help="Those that have this in text or tags.")] = "",
    project: Project = None,
    limit: Limit = 50,
) -> None:
    """List memos."""
    found = list(command.client.list_items("/api/memos", limit, q=text, project=project))
    columns = (
        TableColumn("id", lambda m: m["memo"], style="cyan", is_never_cut=True),
        TableColumn("tags", lambda m: ", ".join(m["tags"])),
        TableColumn("when", lambda m: format_age(m["updated_at"]), is_number=True),
        TableColumn("text", lambda m: m["content"], takes_rest=True),
    )
    command.show(found, lambda rows: print_table(rows, columns, empty="no memo"))


@app.command()
@remote_command
def show(command: RemoteCommand, memo: Memo) -> None:
    """Show one memo."""
    command.show(command.client.request("GET", f"/api/memos/{quote_id(memo)}"), _shown)


def _shown(found: Any) -> None:
    print_pairs(
        f"memo {found['memo']}",
        {"tags": ", ".join(found["tags"]), "project": found["project"] or "none",
         "written in": found["session"] or "a session that was deleted", "at": format_time(found["updated_at"])},
    )  # fmt: skip
    print_text("\n" + found["content"])


@app.command()
@remote_command
def edit(
    command: RemoteCommand,
    memo: Memo,
    text: Annotated[str | None, typer.Option("--text", help="Its new text, - for stdin; without it: $EDITOR.")] = None,
    tag: Tags = None,
) -> None:
    """Change a memo. Without --text and --tag the memo opens in $EDITOR."""
    path = f"/api/memos/{quote_id(memo)}"
    body: dict[str, Any] = {"tags": tag} if tag else {}
    if text is not None:
        body["content"] = read_text(text)
    if not body:
        before = command.client.request("GET", path)
        new = edit_text(before["content"])
        if new is None:
            command.report_done(before, "nothing was changed")
            return
        body["content"] = new
    command.report_done(command.client.request("PUT", path, body), f"memo {memo} mended")


@app.command()
@remote_command
def delete(command: RemoteCommand, memo: Memo, yes: Yes = False) -> None:
    """Delete a memo. A later write does not bring it back."""
    if not yes:
        typer.confirm(f"Delete the memo {memo}?", abort=True, err=True)
    command.report_done(command.client.request("DELETE", f"/api/memos/{quote_id(memo)}"), f"memo {memo} deleted")


@app.command()
@remote_command
def export(command: RemoteCommand, out: Out = Path("-"), project: Project = None) -> None:
    """Write all memos, one JSON object per line."""
    save_lines(command, "/api/memos/export", out, "memos", project=project)
