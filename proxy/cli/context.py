"""`context-proxy context`: the next prompt of a session, and an operator's decisions about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from proxy.cli import prompt
from proxy.cli.asks import Asking, Session, Thread, asks, group
from proxy.cli.terminal import number, plain, read, said

app = group("The next prompt of a session: show it, and say what is in it.")

Ids = Annotated[
    list[str], typer.Argument(help="Ids of groups or messages, as lists and prompts have them.", show_default=False)
]


@app.command()
@asks
def show(
    asking: Asking,
    session: Session,
    request: Annotated[str | None, typer.Option("--request", help="That of a past request, by its id.")] = None,
    thread: Thread = None,
    brief: Annotated[bool, typer.Option("--brief", help="A line a message.")] = False,
    body: Annotated[bool, typer.Option("--body", help="The exact bytes, and nothing else.")] = False,
) -> None:
    """Show the exact prompt, with the reason for each message left out or shortened. A long prompt opens in $PAGER."""
    path = asking.remote.session(session)
    place = f"/exchanges/{request}/prompt" if request else "/prompt"
    found = asking.remote.ask("GET", path + place, thread=None if request else thread)
    if body:
        typer.echo(found["body"], nl=False)
        return
    asking.show(found, prompt.outline if brief else lambda shown: read(prompt.whole(shown)))


@app.command()
@asks
def window(
    asking: Asking,
    session: Session,
    groups: Annotated[int, typer.Argument(min=0, help="Groups that stay; 0: all.", show_default=False)],
) -> None:
    """Keep only the given number of newest groups in the prompt, from the next request on."""
    found = asking.remote.ask("POST", asking.remote.session(session) + "/window", {"groups": groups})
    asking.done(found, "the whole history is in the prompt" if groups == 0 else f"the last {groups} groups stay")


@app.command()
@asks
def prune(asking: Asking, session: Session) -> None:
    """Plan the next request as if its budget were smaller than its prompt."""
    found = asking.remote.ask("POST", asking.remote.session(session) + "/prune")
    asking.done(found, "the next request is pruned")


@app.command()
@asks
def compress(asking: Asking, session: Session) -> None:
    """Make every edit that the policy proposes with the next request, whether the edit pays or not."""
    found = asking.remote.ask("POST", asking.remote.session(session) + "/compress")
    asking.done(found, "the next request makes every edit that its policy proposes")


@app.command()
@asks
def rebuild(asking: Asking, session: Session, thread: Thread = None) -> None:
    """Have the state rewritten from the current content of the prompt."""
    found = asking.remote.ask("POST", asking.remote.session(session) + "/rebuild", {"thread": thread})
    asking.show(found, _rebuilt)


def _rebuilt(found: Any) -> None:
    by = {"helper": "by the helper", "upstream": "by the upstream", "next_request": "with the next request"}
    said(f"state: {found['outcome']}, {by.get(found['how'], found['how'])}")
    if found.get("text"):
        said("\n" + found["text"])


@app.command()
@asks
def drop(asking: Asking, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Take groups or messages out of the prompt; they stay in the store."""
    decide(asking, session, "drop", ids, thread)


@app.command()
@asks
def restore(asking: Asking, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Bring groups or messages back in full, whoever took them out."""
    decide(asking, session, "restore", ids, thread)


@app.command()
@asks
def pin(asking: Asking, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Keep groups or messages as they are: no policy edits them."""
    decide(asking, session, "pin", ids, thread)


@app.command()
@asks
def unpin(asking: Asking, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Let policies edit groups or messages again."""
    decide(asking, session, "unpin", ids, thread)


@asks
def undo(asking: Asking, session: Session, thread: Thread = None) -> None:
    """Take the last group out of the prompt, and restore the state from before that group."""
    found = asking.remote.ask("POST", asking.remote.session(session) + "/undo", {"thread": thread})
    asking.show(found, changed)


def decide(asking: Asking, session: str, action: str, ids: Sequence[str], thread: str | None) -> None:
    """Send a decision about groups or messages, and print the result. action: drop, restore, remove, pin or unpin."""
    body = {"ids": list(ids), "thread": thread}
    asking.show(asking.remote.ask("POST", f"{asking.remote.session(session)}/decide/{action}", body), changed)


DONE = {
    "drop": "dropped, and still in the store", "restore": "restored", "remove": "removed for good",
    "pin": "pinned", "unpin": "no longer pinned", "undo": "undone",
}  # fmt: skip


def changed(found: Any) -> None:
    """Print a decision on one line: its messages, groups, tokens and action. Then print its note, if it has one."""
    count = len(found["messages"])
    groups = f" of {', '.join(found['groups'])}" if found["groups"] else ""
    what = f"{count} message{'' if count == 1 else 's'}{groups}, {number(found['tokens'])} tokens"
    said(f"{what}: {DONE.get(found['action'], found['action'])}")
    if found.get("note"):
        said(plain(found["note"]))
