"""`context-proxy build`: the next prompt as a request would carry it, for a file or a pipe."""

from __future__ import annotations

from typing import Annotated

import typer

from proxy.cli import prompt
from proxy.cli.asks import Asking, Session, Thread, asks
from proxy.cli.terminal import plain


@asks
def build(
    asking: Asking,
    session: Session,
    text: Annotated[bool, typer.Option("--text", help="To be read, in place of the request's JSON.")] = False,
    thread: Thread = None,
) -> None:
    """Print the body of the next request as it would be sent, for a file or a pipe."""
    found = asking.remote.ask("GET", asking.remote.session(session) + "/prompt", thread=thread)
    if asking.json:
        asking.show(found, typer.echo)
    elif text:
        typer.echo(plain(prompt.whole(found).plain), nl=False)
    else:
        typer.echo(found["body"])
