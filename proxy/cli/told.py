"""Texts that a session's model gets in addition to its history: `state`, `scratchpad`, `notes`, `add` and
`feedback`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from proxy.cli.asks import Asking, Session, Thread, asks, group
from proxy.cli.remote import part
from proxy.cli.terminal import Column, ago, edited, plain, read, said, table

state = group("The state that the next prompt is told: show it, set it, edit it.")
scratchpad = group("A session's scratchpad: show it, set it, edit it.")
notes = group("An operator's notes in force: list them, withdraw one (`add` makes one).")
feedback = group("What users thought of the iterations: give it, list it.")

Text_ = Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads it from stdin.", show_default=False)]
Kind = Literal["state", "scratchpad"]

WORDS = {"ignore_unknown_options": True}
"""Settings of commands whose text may begin with a dash, as lists do."""

NOTES = (
    Column("id", lambda n: n["id"], style="cyan", fits=True),
    Column("when", lambda n: ago(n["created_at"]), number=True),
    Column("text", lambda n: n["text"], fills=True),
)


def given(text: str) -> str:
    """Return the text of the command line, or stdin if the text is `-`."""
    return sys.stdin.read() if text == "-" else text


def _path(asking: Asking, session: str, kind: Kind) -> str:
    return f"{asking.remote.session(session)}/{kind}"


def _query(kind: Kind, thread: str | None) -> dict[str, str | None]:
    return {"thread": thread} if kind == "state" else {}


def _show(asking: Asking, session: str, kind: Kind, thread: str | None) -> None:
    found = asking.remote.ask("GET", _path(asking, session, kind), **_query(kind, thread))
    asking.show(found, lambda value: read(_text(kind, value)))


def _text(kind: Kind, found: Any) -> Text:
    if not found["text"]:
        return Text(f"no {kind} yet", "dim")
    who = f"by the {found['by']}, version {found['versions']}" if kind == "state" else f"by {found['author']}"
    return Text.assemble((plain(who) + "\n", "bright_black"), plain(found["text"]))


def _set(asking: Asking, session: str, kind: Kind, text: str, thread: str | None) -> None:
    found = asking.remote.ask("PUT", _path(asking, session, kind), {"text": text}, **_query(kind, thread))
    asking.done(found, f"{kind} set: it stands in the next prompt")


def _edit(asking: Asking, session: str, kind: Kind, thread: str | None) -> None:
    path, query = _path(asking, session, kind), _query(kind, thread)
    before = asking.remote.ask("GET", path, **query)
    new = edited(before["text"] or "")
    if new is None:
        asking.done(before, "nothing was changed")
        return
    asking.done(asking.remote.ask("PUT", path, {"text": new}, **query), f"{kind} set: it stands in the next prompt")


@state.command("show")
@asks
def show_state(asking: Asking, session: Session, thread: Thread = None) -> None:
    """Show the state that stands in the next prompt."""
    _show(asking, session, "state", thread)


@state.command("set", context_settings=WORDS)
@asks
def set_state(asking: Asking, session: Session, text: Text_, thread: Thread = None) -> None:
    """Set a state in place of the model's own state."""
    _set(asking, session, "state", given(text), thread)


@state.command("edit")
@asks
def edit_state(asking: Asking, session: Session, thread: Thread = None) -> None:
    """Open the state in $EDITOR, and set the saved text."""
    _edit(asking, session, "state", thread)


@scratchpad.command("show")
@asks
def show_scratchpad(asking: Asking, session: Session) -> None:
    """Show the scratchpad."""
    _show(asking, session, "scratchpad", None)


@scratchpad.command("set", context_settings=WORDS)
@asks
def set_scratchpad(asking: Asking, session: Session, text: Text_) -> None:
    """Set a text in place of the scratchpad."""
    _set(asking, session, "scratchpad", given(text), None)


@scratchpad.command("edit")
@asks
def edit_scratchpad(asking: Asking, session: Session) -> None:
    """Open the scratchpad in $EDITOR, and set the saved text."""
    _edit(asking, session, "scratchpad", None)


@asks
def add(asking: Asking, session: Session, text: Text_) -> None:
    """Add an operator's note at the end of the next prompt. The note stays there."""
    found = asking.remote.ask("POST", asking.remote.session(session) + "/notes", {"text": given(text)})
    asking.done(found, f"note {found['id']} stands in the next prompt")


@notes.command("list")
@asks
def list_notes(asking: Asking, session: Session) -> None:
    """List the notes in force, oldest first."""
    found = asking.remote.ask("GET", asking.remote.session(session) + "/notes")
    asking.show(found, lambda rows: table(rows, NOTES, empty="no note"))


@notes.command("withdraw")
@asks
def withdraw(
    asking: Asking, session: Session, note: Annotated[str, typer.Argument(help="Its id.", show_default=False)]
) -> None:
    """Remove a note from the prompts."""
    found = asking.remote.ask("DELETE", f"{asking.remote.session(session)}/notes/{part(note)}")
    asking.done(found, f"note {note} leaves the prompts")


@feedback.command("list")
@asks
def list_feedback(asking: Asking, session: Session, thread: Thread = None) -> None:
    """List the feedback on a thread's iterations, oldest first."""
    found = asking.remote.ask("GET", asking.remote.session(session) + "/feedback", thread=thread)
    asking.show(found, lambda rows: table(rows, NOTES, empty="no feedback"))


@feedback.command("give", context_settings=WORDS)
@asks
def give_feedback(asking: Asking, session: Session, text: Text_, thread: Thread = None) -> None:
    """Give feedback on the iterations so far. It stands in the next iteration's record."""
    path = asking.remote.session(session) + "/feedback"
    found = asking.remote.ask("POST", path, {"text": given(text)}, thread=thread)
    asking.show(found, lambda _: said("it stands in the next iteration's record"))
