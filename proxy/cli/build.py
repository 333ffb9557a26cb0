"""`context-proxy build`: the next prompt as a request would carry it, for a file or a pipe."""

from __future__ import annotations

from typing import Annotated

import typer

from proxy.cli import prompt
from proxy.cli.remote_options import RemoteCommand, Session, Thread, remote_command
from proxy.cli.terminal import escape_controls


@remote_command
def build(
    command: RemoteCommand,
    session: Session,
    text: Annotated[bool, typer.Option("--text", help="To be read, in place of the request's JSON.")] = False,
    thread: Thread = None,
) -> None:
    """Print the body of the next request as it would be sent, for a file or a pipe."""
    found = command.client.request("GET", command.client.find_session_path(session) + "/prompt", thread=thread)
    if command.json:
        command.show(found, typer.echo)
    elif text:
        typer.echo(escape_controls(prompt.render_prompt(found).plain), nl=False)
    else:
        typer.echo(found["body"])
