"""Commands of the operator actions: made from the table of actions, except for editors, pages and files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.text import Text

from proxy.cli import prompt
from proxy.cli.remote import (
    Branch,
    Limit,
    RemoteCommand,
    Session,
    Yes,
    ask_to_confirm,
    make_group,
    quote_id,
    remote_command,
)
from proxy.cli.terminal import (
    TableColumn,
    edit_text,
    escape_controls,
    format_age,
    format_count,
    format_time,
    print_paged,
    print_pairs,
    print_table,
    print_text,
    style_word,
)
from proxy.cli.transfer import Out, save_lines
from proxy.operator.actions import ACTIONS, REQUIRED, Action, make_signature
from proxy.operator.response_models import (
    DecisionResult,
    MemoDetails,
    PromptMessage,
    RebuildResult,
    ScratchpadDetails,
    StateDetails,
)

GROUPS: Final = {
    "context": make_group("The next prompt of a session: show it, and say what is in it."),
    "groups": make_group("Groups of a session, a user prompt with all that it caused each: list, show."),
    "state": make_group("The state in the next prompt: show it, set it, edit it."),
    "scratchpad": make_group("A session's scratchpad: show it, set it, edit it."),
    "notes": make_group("An operator's notes in force: list them, withdraw one (`add` makes one)."),
    "feedback": make_group("What users thought of the iterations: give it, list it."),
    "memos": make_group("Memos, which models keep across sessions: list, show, edit, delete, export."),
}
"""Groups of commands, by their word."""
DASH_TEXT_SETTINGS: Final = {"ignore_unknown_options": True}
"""Settings of commands whose text may begin with a dash, as lists do."""

Id = Annotated[str, typer.Argument(help="Its id.", show_default=False)]
Ids = Annotated[
    list[str], typer.Argument(help="Ids of groups or messages, as lists and prompts have them.", show_default=False)
]
GroupId = Annotated[str, typer.Argument(metavar="GID", help="Its id.", show_default=False)]
Window = Annotated[int, typer.Argument(min=0, help="Groups that stay; 0: all.", show_default=False)]
GivenText = Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads it from stdin.", show_default=False)]
ARGUMENTS: Final[dict[str, tuple[Any, Any]]] = {
    "ids": (Ids, REQUIRED),
    "groups": (Window, REQUIRED),
    "group": (GroupId, REQUIRED),
    "note": (Id, REQUIRED),
    "memo": (Id, REQUIRED),
    "text": (GivenText, REQUIRED),
    "branch": (Branch, None),
}
"""Arguments on the command line: their type, and their default."""


def read_text(text: str) -> str:
    """Return the text of the command line, or stdin if the text is `-`."""
    return sys.stdin.read() if text == "-" else text


def make_command(action: Action) -> Callable[..., None]:
    """Return the command of an action, in the form that typer takes."""

    def run(command: RemoteCommand, session: str = "", yes: bool = False, **given: Any) -> None:
        if action.confirm and not yes:
            words = {name: ", ".join(value) if isinstance(value, list) else value for name, value in given.items()}
            ask_to_confirm(action.confirm.format(**words))
        if "text" in given:
            given["text"] = read_text(given["text"])
        result = send_action(command, session, action, given)
        if callable(action.done):
            command.report_done(result, action.done(**given))
        elif action.done:
            command.report_done(result, action.done.format(**{**given, **result}))
        else:
            command.show(result, PRINTERS.get(action.name) or PRINTERS[action.result])

    parameters: dict[str, tuple[Any, Any]] = {"command": (RemoteCommand, REQUIRED)}
    if action.scope == "session":
        parameters["session"] = (Session, REQUIRED)
    parameters |= {name: ARGUMENTS[name] for name in action.arguments}
    if action.confirm:
        parameters["yes"] = (Yes, False)
    run.__signature__ = make_signature(parameters)  # type: ignore[attr-defined]  # inspect reads it
    run.__annotations__ = {name: kind for name, (kind, _) in parameters.items()}
    run.__name__ = action.name
    return remote_command(run)


def send_action(command: RemoteCommand, session: str, action: Action, given: Mapping[str, Any]) -> Any:
    """Send an action with its arguments, and return its result."""
    in_body = action.body.model_fields if action.body is not None else {}
    in_path = {name: quote_id(value) for name, value in given.items() if f"{{{name}}}" in action.path}
    place = command.client.find_session_path(session) if action.scope == "session" else "/api"
    path = place + action.path.format(action=action.name, **in_path)
    body = {name: value for name, value in given.items() if name in in_body} if action.body is not None else None
    query = {name: value for name, value in given.items() if name not in in_body and name not in in_path}
    return command.client.request(action.method, path, body, **query)


def add_commands(to: typer.Typer, groups: Mapping[str, typer.Typer], panel: str) -> None:
    """Add each command of the table that is not written by hand. to: the commands without a group. panel: the place of
    the added ones in its help."""
    for action in ACTIONS:
        for words in action.commands:
            group, _, name = words.rpartition(" ")
            app = groups[group] if group else to
            if name not in list_names(app):
                app.command(
                    name,
                    help=action.summary,
                    rich_help_panel=panel if not group else None,
                    context_settings=DASH_TEXT_SETTINGS if "text" in action.arguments else None,
                )(make_command(action))


def list_names(app: typer.Typer) -> set[str]:
    """Return the names of the commands in a group."""
    return {one.name or str(getattr(one.callback, "__name__", "")) for one in app.registered_commands}


@GROUPS["context"].command("show")
@remote_command
def show_prompt(
    command: RemoteCommand,
    session: Session,
    request: Annotated[str | None, typer.Option("--request", help="That of a past request, by its id.")] = None,
    branch: Branch = None,
    brief: Annotated[bool, typer.Option("--brief", help="A line a message.")] = False,
    first: Annotated[int, typer.Option(help="The message to begin with; negative: counted from the end.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, max=1000, help="Messages to show; without it all.")] = None,
    body: Annotated[bool, typer.Option("--body", help="The bytes, as chat completions, and nothing else.")] = False,
) -> None:
    """Show the exact prompt, with the reason for each message left out or shortened. A long prompt opens in $PAGER."""
    path = command.client.find_session_path(session)
    place = f"/exchanges/{request}/prompt" if request else "/prompt"
    if body:
        first, limit = 0, None
    details = command.client.request(
        "GET", path + place, branch=None if request else branch, first=first or None, limit=limit
    )
    if body:
        typer.echo(details["body"], nl=False)
        return
    command.show(details, prompt.print_outline if brief else lambda shown: print_paged(prompt.render_prompt(shown)))


@remote_command
def build(
    command: RemoteCommand,
    session: Session,
    text: Annotated[bool, typer.Option("--text", help="To be read, in place of the request's JSON.")] = False,
    branch: Branch = None,
) -> None:
    """Print the body of the next request as it would be sent, for a file or a pipe."""
    details = command.client.request("GET", command.client.find_session_path(session) + "/prompt", branch=branch)
    if command.json:
        command.show(details, typer.echo)
    elif text:
        typer.echo(escape_controls(prompt.render_prompt(details).plain), nl=False)
    else:
        typer.echo(details["body"])


GROUP_COLUMNS: Final = (
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


@GROUPS["groups"].command("list")
@remote_command
def list_groups(
    command: RemoteCommand,
    session: Session,
    last: Annotated[
        int | None, typer.Argument(min=1, help="The number of the newest groups to list; without it all.")
    ] = None,
    status: Annotated[str, typer.Option(help="in, changed, out, dropped or removed.")] = "",
    branch: Branch = None,
) -> None:
    """List groups, oldest first: their tokens as received and as sent, and the size of the whole prompt at their
    end."""
    path = command.client.find_session_path(session) + "/groups"
    found = list(command.client.list_items(path, branch=branch, status=status))
    command.show(found[-last:] if last else found, lambda rows: print_table(rows, GROUP_COLUMNS, empty="no group"))


TextKind = Literal["state", "scratchpad"]


@GROUPS["state"].command("edit")
@remote_command
def edit_state(command: RemoteCommand, session: Session, branch: Branch = None) -> None:
    """Open the state in $EDITOR, and set the saved text."""
    _edit_stored_text(command, session, "state", {"branch": branch})


@GROUPS["scratchpad"].command("edit")
@remote_command
def edit_scratchpad(command: RemoteCommand, session: Session) -> None:
    """Open the scratchpad in $EDITOR, and set the saved text."""
    _edit_stored_text(command, session, "scratchpad", {})


def _edit_stored_text(command: RemoteCommand, session: str, kind: TextKind, query: Mapping[str, str | None]) -> None:
    path = f"{command.client.find_session_path(session)}/{kind}"
    before = command.client.request("GET", path, **query)
    new = edit_text(before["text"] or "")
    if new is None:
        command.report_done(before, "nothing was changed")
        return
    command.report_done(
        command.client.request("PUT", path, {"text": new}, **query), f"{kind} set: it stands in the next prompt"
    )


Project = Annotated[str | None, typer.Option("--project", help="Those of this project; empty: of none.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Tags in the place of its own, several times.")]


@GROUPS["memos"].command("list")
@remote_command
def list_memos(
    command: RemoteCommand,
    text: Annotated[str, typer.Option("--text", help="Those that have this in text or tags.")] = "",
    project: Project = None,
    limit: Limit = 50,
) -> None:
    """List memos."""
    columns = (
        TableColumn("id", lambda m: m["memo"], style="cyan", is_never_cut=True),
        TableColumn("tags", lambda m: ", ".join(m["tags"])),
        TableColumn("when", lambda m: format_age(m["updated_at"]), is_number=True),
        TableColumn("text", lambda m: m["content"], takes_rest=True),
    )
    command.show_list("/api/memos", columns, "no memo", limit, q=text, project=project)


@GROUPS["memos"].command("edit")
@remote_command
def edit_memo(
    command: RemoteCommand,
    memo: Id,
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


@GROUPS["memos"].command("export")
@remote_command
def export_memos(command: RemoteCommand, out: Out = Path("-"), project: Project = None) -> None:
    """Write all memos, one JSON object per line."""
    save_lines(command, "/api/memos/export", out, "memos", project=project)


ACTION_WORDS: Final = {
    "drop": "dropped, and still in the store", "restore": "restored", "remove": "removed for good",
    "pin": "pinned", "unpin": "no longer pinned", "undo": "undone",
}  # fmt: skip


def print_decision(decision: Any) -> None:
    """Print a decision on one line: its messages, groups, tokens and action. Then print its note, if it has one."""
    count = len(decision["messages"])
    groups = f" of {', '.join(decision['groups'])}" if decision["groups"] else ""
    what = f"{format_count(count, 'message')}{groups}, {format_count(decision['tokens'], 'token')}"
    print_text(f"{what}: {ACTION_WORDS.get(decision['action'], decision['action'])}")
    if decision.get("note"):
        print_text(escape_controls(decision["note"]))


def _print_rebuilt(rebuilt: Any) -> None:
    by = {"helper": "by the helper", "upstream": "by the upstream", "next_request": "with the next request"}
    print_text(f"state: {rebuilt['outcome']}, {by.get(rebuilt['how'], rebuilt['how'])}")
    if rebuilt.get("text"):
        print_text("\n" + rebuilt["text"])


def _print_text_of(kind: TextKind, stored_text: Any) -> None:
    if not stored_text["text"]:
        print_paged(Text(f"no {kind} yet", "dim"))
        return
    who = (
        f"by the {stored_text['by']}, version {stored_text['versions']}"
        if kind == "state"
        else f"by {stored_text['author']}"
    )
    print_paged(Text.assemble((escape_controls(who) + "\n", "bright_black"), escape_controls(stored_text["text"])))


def _print_notes(notes: Any, empty: str) -> None:
    columns = (
        TableColumn("id", lambda n: n["id"], style="cyan", is_never_cut=True),
        TableColumn("when", lambda n: format_age(n["created_at"]), is_number=True),
        TableColumn("text", lambda n: n["text"], takes_rest=True),
    )
    print_table(notes, columns, empty=empty)


def _print_messages(messages: Any) -> None:
    print_paged(Text("\n").join(prompt.render_message(one) for one in messages))


def _print_memo(memo: Any) -> None:
    print_pairs(
        f"memo {memo['memo']}",
        {"tags": ", ".join(memo["tags"]), "project": memo["project"] or "none",
         "written in": memo["session"] or "a session that was deleted", "at": format_time(memo["updated_at"])},
    )  # fmt: skip
    print_text("\n" + memo["content"])


PRINTERS: Final[Mapping[Any, Callable[[Any], object]]] = {
    DecisionResult: print_decision,
    RebuildResult: _print_rebuilt,
    StateDetails: partial(_print_text_of, "state"),
    ScratchpadDetails: partial(_print_text_of, "scratchpad"),
    list[PromptMessage]: _print_messages,
    MemoDetails: _print_memo,
    "list_notes": partial(_print_notes, empty="no note"),
    "list_feedback": partial(_print_notes, empty="no feedback"),
}
"""Printers of results, by the name of the action or the type of its result."""
