"""`context-proxy memos`: notes that models keep for later sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.asks import Asking, Limit, asks, group
from proxy.cli.remote import part
from proxy.cli.sessions import Yes
from proxy.cli.terminal import Column, ago, edited, moment, pairs, said, table
from proxy.cli.told import given
from proxy.cli.transfer import Out, save

app = group("Memos, which models keep across sessions: list, show, edit, delete, export.")

Memo = Annotated[str, typer.Argument(help="Its id.", show_default=False)]
Project = Annotated[str | None, typer.Option("--project", help="Those of this project; empty: of none.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Tags in the place of its own, several times.")]


@app.command("list")
@asks
def list_memos(
    asking: Asking,
    text: Annotated[str, typer.Option("--text", help="Those that have this in text or tags.")] = "",
    project: Project = None,
    limit: Limit = 50,
) -> None:
    """List memos."""
    found = list(asking.remote.every("/api/memos", limit, q=text, project=project))
    columns = (
        Column("id", lambda m: m["memo"], style="cyan", fits=True),
        Column("tags", lambda m: ", ".join(m["tags"])),
        Column("when", lambda m: ago(m["updated_at"]), number=True),
        Column("text", lambda m: m["content"], fills=True),
    )
    asking.show(found, lambda rows: table(rows, columns, empty="no memo"))


@app.command()
@asks
def show(asking: Asking, memo: Memo) -> None:
    """Show one memo."""
    asking.show(asking.remote.ask("GET", f"/api/memos/{part(memo)}"), _shown)


def _shown(found: Any) -> None:
    pairs(
        f"memo {found['memo']}",
        {"tags": ", ".join(found["tags"]), "project": found["project"] or "none",
         "written in": found["session"] or "a session that was deleted", "at": moment(found["updated_at"])},
    )  # fmt: skip
    said("\n" + found["content"])


@app.command()
@asks
def edit(
    asking: Asking,
    memo: Memo,
    text: Annotated[str | None, typer.Option("--text", help="Its new text, - for stdin; without it: $EDITOR.")] = None,
    tag: Tags = None,
) -> None:
    """Change a memo. Without --text and --tag the memo opens in $EDITOR."""
    path = f"/api/memos/{part(memo)}"
    body: dict[str, Any] = {"tags": tag} if tag else {}
    if text is not None:
        body["content"] = given(text)
    if not body:
        before = asking.remote.ask("GET", path)
        new = edited(before["content"])
        if new is None:
            asking.done(before, "nothing was changed")
            return
        body["content"] = new
    asking.done(asking.remote.ask("PUT", path, body), f"memo {memo} mended")


@app.command()
@asks
def delete(asking: Asking, memo: Memo, yes: Yes = False) -> None:
    """Delete a memo. A later write does not bring it back."""
    if not yes:
        typer.confirm(f"Delete the memo {memo}?", abort=True, err=True)
    asking.done(asking.remote.ask("DELETE", f"/api/memos/{part(memo)}"), f"memo {memo} deleted")


@app.command()
@asks
def export(asking: Asking, out: Out = Path("-"), project: Project = None) -> None:
    """Write all memos, one JSON object per line."""
    save(asking, "/api/memos/export", out, "memos", project=project)
