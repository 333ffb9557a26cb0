"""`context-proxy tail`: shows events as they happen.

A connection that breaks is opened again, from the last event that was shown. No event is shown twice, and nothing is
polled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from proxy.cli import terminal
from proxy.cli.remote import RemoteCommand, RemoteRefused, RemoteUnreachable, remote_command
from proxy.cli.terminal import escape_controls, make_console

KIND_STYLES: Final = {"context": "cyan", "state": "green", "memo": "green", "loop": "yellow", "cache": "yellow"}
"""Styles by the first part of an event's kind. All other kinds are faults."""
SILENCE_S: Final = 60.0
"""Seconds without a byte after which the connection counts as dead. The proxy sends a byte every 15 seconds."""
RETRY_WAITS_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts to connect again. The last value repeats."""


@remote_command
def tail(
    command: RemoteCommand,
    session: Annotated[str, typer.Option("--session", "-s", help="Of this session alone.")] = "",
    kind: Annotated[list[str] | None, typer.Option(help="Of this kind alone (`context:*`); several times.")] = None,
    after: Annotated[int | None, typer.Option(min=0, help="Those behind the event of this id first.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this number of events.")] = None,
) -> None:
    """Show events as they happen, until Ctrl-C. With --json: one JSON object per line."""
    if session == "-":
        session = command.client.find_newest_session()
    query: dict[str, object] = {"session": session or None, "kind": kind or None}
    remaining = count
    for event in _name_kinds(command, _follow_events(command, query, after)):
        if command.json:
            typer.echo(json.dumps(event))
        else:
            make_console().print(render_event(event), soft_wrap=True)
        remaining = None if remaining is None else remaining - 1
        if remaining == 0:
            return


def _name_kinds(command: RemoteCommand, events: Iterator[Any]) -> Iterator[Any]:
    """Yield the events. A refusal of an unknown kind names the kinds that exist."""
    try:
        yield from events
    except RemoteRefused as problem:
        if problem.status != 400 or "/api/events/kinds" not in problem.hint:
            raise
        kinds = ", ".join(one["kind"] for one in command.client.request("GET", "/api/events/kinds"))
        hint = f"The kinds are {kinds}; a pattern such as `context:*` stands for several."
        raise RemoteRefused(problem.status, problem.message, hint) from None


def _follow_events(command: RemoteCommand, query: dict[str, object], after: int | None) -> Iterator[Any]:
    """Yield events, over as many connections as needed. Raises RemoteUnreachable if the first one fails."""
    remote, last, failed = replace(command.client, seconds=SILENCE_S), after, -1
    while True:
        headers = {"accept": "text/event-stream"}
        if last is not None:
            headers["last-event-id"] = str(last)
        try:
            for event in read_events(remote.read_lines("/api/events", headers, query)):
                failed = 0
                last = event["id"] or last
                yield event
        except RemoteUnreachable as problem:
            if failed < 0:
                raise
            terminal.print_notice(f"{problem.message} Trying again.")
        else:
            failed = max(failed, 0)  # the proxy stopped in order, and may come back
        time.sleep(RETRY_WAITS_S[min(failed, len(RETRY_WAITS_S) - 1)])
        failed += 1


def read_events(lines: Iterable[bytes]) -> Iterator[Any]:
    """Yield the events of a stream, read as JSON, without comments. Raises RemoteUnreachable for other texts."""
    data: list[bytes] = []
    for raw in lines:
        field, _, value = raw.rstrip(b"\r\n").partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif not field and not value and data:
            try:
                yield json.loads(b"\n".join(data))
            except ValueError:
                raise RemoteUnreachable("what comes is no stream of events.", hint="Check --url.") from None
            data = []


def render_event(event: Any) -> Text:
    """Return an event on one line: time, kind, session and data."""
    kind = event["kind"]
    shown = ", ".join(f"{name} {_format_value(value)}" for name, value in event["data"].items())
    return Text.assemble(
        (time.strftime("%H:%M:%S", time.localtime(event["at"] or time.time())), "bright_black"), "  ",
        (f"{escape_controls(kind):<18}", KIND_STYLES.get(kind.partition(":")[0], "red")), " ",
        (escape_controls(event["session"]), "bold"), "  " * bool(event["session"]), escape_controls(shown),
    )  # fmt: skip


def _format_value(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} of them" if len(value) > 3 else " ".join(map(str, value))
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:59] + "…"
