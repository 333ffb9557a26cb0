"""`context-proxy context`: the next prompt of a session, and an operator's decisions about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from proxy.cli import prompt
from proxy.cli.remote_options import RemoteCommand, Session, Thread, make_group, remote_command
from proxy.cli.terminal import escape_controls, format_number, print_paged, print_text

app = make_group("The next prompt of a session: show it, and say what is in it.")

Ids = Annotated[
    list[str], typer.Argument(help="Ids of groups or messages, as lists and prompts have them.", show_default=False)
]


@app.command()
@remote_command
def show(
    command: RemoteCommand,
    session: Session,
    request: Annotated[str | None, typer.Option("--request", help="That of a past request, by its id.")] = None,
    thread: Thread = None,
    brief: Annotated[bool, typer.Option("--brief", help="A line a message.")] = False,
    body: Annotated[bool, typer.Option("--body", help="The exact bytes, and nothing else.")] = False,
) -> None:
    """Show the exact prompt, with the reason for each message left out or shortened. A long prompt opens in $PAGER."""
    path = command.client.find_session_path(session)
    place = f"/exchanges/{request}/prompt" if request else "/prompt"
    found = command.client.request("GET", path + place, thread=None if request else thread)
    if body:
        typer.echo(found["body"], nl=False)
        return
    command.show(found, prompt.print_outline if brief else lambda shown: print_paged(prompt.render_prompt(shown)))


@app.command()
@remote_command
def window(
    command: RemoteCommand,
    session: Session,
    groups: Annotated[int, typer.Argument(min=0, help="Groups that stay; 0: all.", show_default=False)],
) -> None:
    """Keep only the given number of newest groups in the prompt, from the next request on."""
    found = command.client.request("POST", command.client.find_session_path(session) + "/window", {"groups": groups})
    command.report_done(
        found, "the whole history is in the prompt" if groups == 0 else f"the last {groups} groups stay"
    )


@app.command()
@remote_command
def prune(command: RemoteCommand, session: Session) -> None:
    """Plan the next request as if its budget were smaller than its prompt."""
    found = command.client.request("POST", command.client.find_session_path(session) + "/prune")
    command.report_done(found, "the next request is pruned")


@app.command()
@remote_command
def compress(command: RemoteCommand, session: Session) -> None:
    """Make every edit that the policy proposes with the next request, whether the edit pays or not."""
    found = command.client.request("POST", command.client.find_session_path(session) + "/compress")
    command.report_done(found, "the next request makes every edit that its policy proposes")


@app.command()
@remote_command
def rebuild(command: RemoteCommand, session: Session, thread: Thread = None) -> None:
    """Have the state rewritten from the current content of the prompt."""
    found = command.client.request("POST", command.client.find_session_path(session) + "/rebuild", {"thread": thread})
    command.show(found, _rebuilt)


def _rebuilt(found: Any) -> None:
    by = {"helper": "by the helper", "upstream": "by the upstream", "next_request": "with the next request"}
    print_text(f"state: {found['outcome']}, {by.get(found['how'], found['how'])}")
    if found.get("text"):
        print_text("\n" + found["text"])


@app.command()
@remote_command
def drop(command: RemoteCommand, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Take groups or messages out of the prompt; they stay in the store."""
    send_decision(command, session, "drop", ids, thread)


@app.command()
@remote_command
def restore(command: RemoteCommand, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Bring groups or messages back in full, whoever took them out."""
    send_decision(command, session, "restore", ids, thread)


@app.command()
@remote_command
def pin(command: RemoteCommand, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Keep groups or messages as they are: no policy edits them."""
    send_decision(command, session, "pin", ids, thread)


@app.command()
@remote_command
def unpin(command: RemoteCommand, session: Session, ids: Ids, thread: Thread = None) -> None:
    """Let policies edit groups or messages again."""
    send_decision(command, session, "unpin", ids, thread)


@remote_command
def undo(command: RemoteCommand, session: Session, thread: Thread = None) -> None:
    """Take the last group out of the prompt, and restore the state from before that group."""
    found = command.client.request("POST", command.client.find_session_path(session) + "/undo", {"thread": thread})
    command.show(found, print_decision)


def send_decision(command: RemoteCommand, session: str, action: str, ids: Sequence[str], thread: str | None) -> None:
    """Send a decision about groups or messages, and print the result. action: drop, restore, remove, pin or unpin."""
    body = {"ids": list(ids), "thread": thread}
    command.show(
        command.client.request("POST", f"{command.client.find_session_path(session)}/decide/{action}", body),
        print_decision,
    )


ACTION_WORDS = {
    "drop": "dropped, and still in the store", "restore": "restored", "remove": "removed for good",
    "pin": "pinned", "unpin": "no longer pinned", "undo": "undone",
}  # fmt: skip


def print_decision(found: Any) -> None:
    """Print a decision on one line: its messages, groups, tokens and action. Then print its note, if it has one."""
    count = len(found["messages"])
    groups = f" of {', '.join(found['groups'])}" if found["groups"] else ""
    what = f"{count} message{'' if count == 1 else 's'}{groups}, {format_number(found['tokens'])} tokens"
    print_text(f"{what}: {ACTION_WORDS.get(found['action'], found['action'])}")
    if found.get("note"):
        print_text(escape_controls(found["note"]))
