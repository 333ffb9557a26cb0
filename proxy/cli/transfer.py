"""`context-proxy export` and `import`: conversations as JSONL, out of a running proxy and into it.

Each conversation is imported by itself. One that exists already, or cannot be read, is reported at the end and does not
stop the others. An import that was cut off is repeated as it is.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from proxy.cli.check import Config, Db, read_settings
from proxy.cli.progress_bar import show_progress
from proxy.cli.remote import RemoteCommand, RemoteRefused, remote_command
from proxy.cli.terminal import format_count, print_json, print_notice, print_text
from proxy.contrib import std_slop
from proxy.errors import ConfigError
from proxy.settings.load import Settings

NDJSON: Final = "application/x-ndjson"

TOLD_REFUSALS: Final = 20
"""Refusals of an import that are reported one by one: a file of another kind has one for each line."""
Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write; - for stdout.")]


@remote_command
def export(
    command: RemoteCommand,
    session: Annotated[
        str | None, typer.Argument(help="A session's name, - for the one used last; without it all of them.")
    ] = None,
    out: Out = Path("-"),
    parquet: Annotated[
        Path | None, typer.Option(help="Write exchanges and their costs instead, as Parquet, read from the store.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="The same as CSV; - for stdout.")] = None,
    since: Annotated[str, typer.Option(help="Exchanges that began at this time or later: ISO 8601, UTC.")] = "",
    until: Annotated[str, typer.Option(help="Exchanges that began before it; without it 15 minutes ago.")] = "",
    config: Config = None,
    db: Db = None,
) -> None:
    """Write conversations as JSONL, one per line, in the format that `import` and `replay` read; or a table of
    exchanges."""
    command.client.check_tenant()  # an empty file would be taken for a backup
    is_table = parquet is not None or csv is not None
    # Options of the other kind of file would be passed over without a word.
    for name, value, is_meant in (("out", out, not is_table), ("since", since, is_table), ("until", until, is_table)):
        if str(value) not in ("", "-") and not is_meant:
            allowed = "nothing beside --csv or --parquet" if is_table else "a time beside --csv or --parquet"
            raise ConfigError(name, str(value), allowed, source=f"--{name}")
    if not is_table and (db is not None or config is not None):
        raise ConfigError(
            "db" if db is not None else "config",
            str(config) if db is None else "***" if "://" in db else db,
            "a store beside --csv or --parquet. Conversations come from the proxy that --url names: let "
            "`context-proxy serve --db ... --port ...` serve that store",
        )
    if is_table:
        _export_table(command, session, parquet, csv, since, until, read_settings(config, db=db))
        return
    path = "/api" if session is None else command.client.find_session_path(session)
    save_lines(command, path + "/export", out, "conversations")


def _export_table(
    command: RemoteCommand,
    session: str | None,
    parquet: Path | None,
    csv: Path | None,
    since: str,
    until: str,
    settings: Settings,
) -> None:
    """Write exchanges to one file. Raises ConfigError and StoreRefused."""
    from proxy.cli.exchange_files import export_exchanges  # noqa: PLC0415  it needs much that other exports do not

    if session is not None or (parquet is not None and csv is not None):
        raise ConfigError("SESSION" if session else "csv", session or str(csv), "one file of all sessions at a time")
    out, name = (parquet, "parquet") if parquet is not None else (csv or Path("-"), "csv")
    try:
        with open_replacement(out) as file, show_progress("exchanges") as move:
            done = export_exchanges(
                settings, file, move, is_parquet=parquet is not None, since=since, until=until,
                tenant=command.client.tenant,
            )  # fmt: skip
    except BrokenPipeError:
        raise  # the reader of stdout has seen enough, as with every command
    except OSError as error:
        raise ConfigError(
            name, str(out), f"a file that can be written ({error.strerror})", source=f"--{name}"
        ) from None
    written = f"{format_count(done['exchanges'], 'exchange')} until {done['until']} written"
    later = f"; the next export goes on with --since {done['next_since']}"
    if str(out) == "-":
        print_notice(written + later)  # stdout is the table's
    else:
        command.report_done({"file": str(out), **done}, f"{written} to {out}{later}")


@remote_command
def import_files(
    command: RemoteCommand,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSONL as `export` writes it, or std::slop's SQLite file; - for stdin.", show_default=False
        ),
    ],
) -> None:
    """Store conversations of JSONL files or of std::slop's database, with its states, scratchpads and memos."""
    tally = ImportTally()
    for file in files:
        if str(file) != "-" and std_slop.is_sqlite(file):
            _import_slop(command, file, tally)
        else:
            _import_jsonl(command, file, tally)
    for problem in tally.refused[:TOLD_REFUSALS]:
        print_notice(problem)
    if len(tally.refused) > TOLD_REFUSALS:
        print_notice(f"{len(tally.refused) - TOLD_REFUSALS:,} more were refused; --json lists all of them.")
    if command.json:
        print_json(tally.to_json())
    else:
        print_text(tally.render_text())
    if tally.refused:
        raise typer.Exit(1)


@dataclass
class ImportTally:
    """The counts of an import, and its refusals."""

    conversations: int = 0
    messages: int = 0
    memos: int = 0
    already_stored: int = 0
    """Conversations that were in the store already."""
    sessions: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "conversations": self.conversations, "messages": self.messages, "memos": self.memos,
            "already_there": self.already_stored, "sessions": list(dict.fromkeys(self.sessions)),
            "refused": self.refused,
        }  # fmt: skip

    def render_text(self) -> str:
        parts = [
            f"{format_count(self.conversations, 'conversation')} with {format_count(self.messages, 'message')} imported"
        ]
        parts += [format_count(self.memos, "memo")] * bool(self.memos)
        parts += [f"{self.already_stored} {'was' if self.already_stored == 1 else 'were'} there already"] * bool(
            self.already_stored
        )
        return ", ".join([*parts, *([f"{len(self.refused)} refused"] * bool(self.refused))])


def _import_jsonl(command: RemoteCommand, file: Path, tally: ImportTally) -> None:
    name = "stdin" if str(file) == "-" else str(file)
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as lines:
            size = os.fstat(lines.fileno()).st_size if str(file) != "-" else None
            with show_progress("importing", size, bytes_=True) as move:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        _import_line(command, line, name, tally, number)
                    move(len(line))
    except OSError as error:
        raise ConfigError("FILE", name, f"a file that can be read ({error.strerror})") from None


def _import_line(
    command: RemoteCommand, line: bytes, source: str, tally: ImportTally, number: int | None = None
) -> str | None:
    """Store a conversation. Return its session's name, None if it was not stored. number: of its line."""
    try:
        result = command.client.send_body("POST", "/api/import", line.strip() + b"\n", NDJSON, first_line=number)
    except RemoteRefused as problem:
        if problem.status == 409 and "already" in problem.message:
            tally.already_stored += 1
        elif problem.status in (400, 409, 413, 422) and "--tenant" not in problem.hint:  # it would be so for each
            place = source if number is None else f"{source}:{number}"
            tally.refused.append(f"{place}: {str(problem).removeprefix(f'line {number or 1}: ')}")
        else:
            raise
        return None
    tally.conversations += result["conversations"]
    tally.messages += result["messages"]
    tally.sessions += result["sessions"]
    return str(result["sessions"][0])


def _import_slop(command: RemoteCommand, file: Path, tally: ImportTally) -> None:
    talks, memos = std_slop.read_database(file)
    with show_progress("importing", len(talks) + len(memos)) as move:
        for talk in talks:
            body = {"session": talk.session, "messages": talk.messages}
            session = _import_line(command, json.dumps(body).encode(), f"{file}: session {talk.session}", tally)
            if session is not None:
                _store_session_extras(command, session, talk, tally)
            move(1)
        for memo in memos:
            _import_memo(command, memo, tally)
            move(1)


def _store_session_extras(command: RemoteCommand, session: str, talk: std_slop.SlopSession, tally: ImportTally) -> None:
    """Store the data that std::slop kept of a session in addition to its messages."""
    path = command.client.find_session_path(session)
    steps: list[tuple[str, str, dict[str, Any]]] = []
    if talk.state.strip():
        steps.append(("PUT", "/state", {"text": talk.state}))
    if talk.scratchpad.strip():
        steps.append(("PUT", "/scratchpad", {"text": talk.scratchpad}))
    if talk.window is not None:
        steps.append(("POST", "/window", {"groups": talk.window}))
    if talk.dropped:
        left_out = set(talk.dropped)
        prompt = command.client.request("GET", path + "/prompt")["messages"]
        ids = [m["id"] for m in prompt if m["index"] in left_out and m.get("id")]
        steps.append(("POST", "/decide/drop", {"ids": ids}))
    for method, where, body in steps:
        try:
            command.client.request(method, path + where, body)
        except RemoteRefused as problem:
            if problem.status not in (400, 409, 422):
                raise
            tally.refused.append(f"session {session}, {where.rpartition('/')[2]}: {problem}")


def _import_memo(command: RemoteCommand, memo: std_slop.SlopMemo, tally: ImportTally) -> None:
    try:
        command.client.request("POST", "/api/memos", {"content": memo.content, "tags": memo.tags})
        tally.memos += 1
    except RemoteRefused as problem:
        if problem.status not in (409, 422):
            raise
        tally.refused.append(f"a memo: {problem}")


def save_lines(command: RemoteCommand, path: str, out: Path, what: str, **query: object) -> None:
    """Write the lines of an answer to stdout, or to a file that appears only once it is complete."""
    if str(out) == "-":
        for line in command.client.read_lines(path, {}, query):
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    count = 0
    try:
        with open_replacement(out) as file, show_progress(what) as move:
            for line in command.client.read_lines(path, {}, query):
                file.write(line)
                count += 1
                move(1)
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written ({error.strerror})", source="--out") from None
    command.report_done(
        {"file": str(out), what: count}, f"{format_count(count, what.removesuffix('s'))} written to {out}"
    )


@contextmanager
def open_replacement(out: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `out` once it is complete; stdout for -. If `out` is no regular file (a
    device, a FIFO), it is written directly. A symbolic link stays, and its target is written. Raises OSError."""
    if str(out) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if out.is_symlink():
        out = Path(os.path.realpath(out))
    if out.exists() and not out.is_file():
        with out.open("wb") as through:
            yield through
        return
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
