"""Texts that a session's model gets in addition to its history: `state_app`, `scratchpad_app`, `notes_app`, `add` and
`feedback_app`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from proxy.cli.remote import quote_id
from proxy.cli.remote_options import RemoteCommand, Session, Thread, make_group, remote_command
from proxy.cli.terminal import TableColumn, edit_text, escape_controls, format_age, print_paged, print_table, print_text

state_app = make_group("The state that the next prompt is told: show it, set it, edit it.")
scratchpad_app = make_group("A session's scratchpad: show it, set it, edit it.")
notes_app = make_group("An operator's notes in force: list them, withdraw one (`add` makes one).")
feedback_app = make_group("What users thought of the iterations: give it, list it.")

Text_ = Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads it from stdin.", show_default=False)]
TextKind = Literal["state", "scratchpad"]

DASH_TEXT_SETTINGS = {"ignore_unknown_options": True}
"""Settings of commands whose text may begin with a dash, as lists do."""

NOTE_COLUMNS = (
    TableColumn("id", lambda n: n["id"], style="cyan", is_never_cut=True),
    TableColumn("when", lambda n: format_age(n["created_at"]), is_number=True),
    TableColumn("text", lambda n: n["text"], takes_rest=True),
)


def read_text(text: str) -> str:
    """Return the text of the command line, or stdin if the text is `-`."""
    return sys.stdin.read() if text == "-" else text


def _path(command: RemoteCommand, session: str, kind: TextKind) -> str:
    return f"{command.client.find_session_path(session)}/{kind}"


def _query(kind: TextKind, thread: str | None) -> dict[str, str | None]:
    return {"thread": thread} if kind == "state" else {}


def _show(command: RemoteCommand, session: str, kind: TextKind, thread: str | None) -> None:
    found = command.client.request("GET", _path(command, session, kind), **_query(kind, thread))
    command.show(found, lambda value: print_paged(_text(kind, value)))


def _text(kind: TextKind, found: Any) -> Text:
    if not found["text"]:
        return Text(f"no {kind} yet", "dim")
    who = f"by the {found['by']}, version {found['versions']}" if kind == "state" else f"by {found['author']}"
    return Text.assemble((escape_controls(who) + "\n", "bright_black"), escape_controls(found["text"]))


def _set(command: RemoteCommand, session: str, kind: TextKind, text: str, thread: str | None) -> None:
    found = command.client.request("PUT", _path(command, session, kind), {"text": text}, **_query(kind, thread))
    command.report_done(found, f"{kind} set: it stands in the next prompt")


def _edit(command: RemoteCommand, session: str, kind: TextKind, thread: str | None) -> None:
    path, query = _path(command, session, kind), _query(kind, thread)
    before = command.client.request("GET", path, **query)
    new = edit_text(before["text"] or "")
    if new is None:
        command.report_done(before, "nothing was changed")
        return
    command.report_done(
        command.client.request("PUT", path, {"text": new}, **query), f"{kind} set: it stands in the next prompt"
    )


@state_app.command("show")
@remote_command
def show_state(command: RemoteCommand, session: Session, thread: Thread = None) -> None:
    """Show the state that stands in the next prompt."""
    _show(command, session, "state", thread)


@state_app.command("set", context_settings=DASH_TEXT_SETTINGS)
@remote_command
def set_state(command: RemoteCommand, session: Session, text: Text_, thread: Thread = None) -> None:
    """Set a state in place of the model's own state."""
    _set(command, session, "state", read_text(text), thread)


@state_app.command("edit")
@remote_command
def edit_state(command: RemoteCommand, session: Session, thread: Thread = None) -> None:
    """Open the state in $EDITOR, and set the saved text."""
    _edit(command, session, "state", thread)


@scratchpad_app.command("show")
@remote_command
def show_scratchpad(command: RemoteCommand, session: Session) -> None:
    """Show the scratchpad."""
    _show(command, session, "scratchpad", None)


@scratchpad_app.command("set", context_settings=DASH_TEXT_SETTINGS)
@remote_command
def set_scratchpad(command: RemoteCommand, session: Session, text: Text_) -> None:
    """Set a text in place of the scratchpad."""
    _set(command, session, "scratchpad", read_text(text), None)


@scratchpad_app.command("edit")
@remote_command
def edit_scratchpad(command: RemoteCommand, session: Session) -> None:
    """Open the scratchpad in $EDITOR, and set the saved text."""
    _edit(command, session, "scratchpad", None)


@remote_command
def add(command: RemoteCommand, session: Session, text: Text_) -> None:
    """Add an operator's note at the end of the next prompt. The note stays there."""
    found = command.client.request(
        "POST", command.client.find_session_path(session) + "/notes", {"text": read_text(text)}
    )
    command.report_done(found, f"note {found['id']} stands in the next prompt")


@notes_app.command("list")
@remote_command
def list_notes(command: RemoteCommand, session: Session) -> None:
    """List the notes in force, oldest first."""
    found = command.client.request("GET", command.client.find_session_path(session) + "/notes")
    command.show(found, lambda rows: print_table(rows, NOTE_COLUMNS, empty="no note"))


@notes_app.command("withdraw")
@remote_command
def withdraw_note(
    command: RemoteCommand, session: Session, note: Annotated[str, typer.Argument(help="Its id.", show_default=False)]
) -> None:
    """Remove a note from the prompts."""
    found = command.client.request("DELETE", f"{command.client.find_session_path(session)}/notes/{quote_id(note)}")
    command.report_done(found, f"note {note} leaves the prompts")


@feedback_app.command("list")
@remote_command
def list_feedback(command: RemoteCommand, session: Session, thread: Thread = None) -> None:
    """List the feedback on a thread's iterations, oldest first."""
    found = command.client.request("GET", command.client.find_session_path(session) + "/feedback", thread=thread)
    command.show(found, lambda rows: print_table(rows, NOTE_COLUMNS, empty="no feedback"))


@feedback_app.command("give", context_settings=DASH_TEXT_SETTINGS)
@remote_command
def give_feedback(command: RemoteCommand, session: Session, text: Text_, thread: Thread = None) -> None:
    """Give feedback on the iterations so far. It stands in the next iteration's record."""
    path = command.client.find_session_path(session) + "/feedback"
    found = command.client.request("POST", path, {"text": read_text(text)}, thread=thread)
    command.show(found, lambda _: print_text("it stands in the next iteration's record"))
