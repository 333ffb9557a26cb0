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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from proxy.cli import slop
from proxy.cli.asks import Asking, asks
from proxy.cli.remote import Refused
from proxy.cli.terminal import as_json, said, warn
from proxy.errors import ConfigError

LINES: Final = "application/x-ndjson"

Out = Annotated[Path, typer.Option("--out", "-o", help="The file to write; - for stdout.")]


@asks
def export(
    asking: Asking,
    session: Annotated[
        str | None, typer.Argument(help="A session's name, - for the one used last; without it all of them.")
    ] = None,
    out: Out = Path("-"),
) -> None:
    """Write conversations as JSONL, one per line, in the format that `import` and `replay` read."""
    path = "/api" if session is None else asking.remote.session(session)
    save(asking, path + "/export", out, "conversations")


@asks
def bring(
    asking: Asking,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSONL as `export` writes it, or std::slop's SQLite file; - for stdin.", show_default=False
        ),
    ],
) -> None:
    """Store conversations of JSONL files or of std::slop's database, with its states, scratchpads and memos."""
    tally = Tally()
    for file in files:
        if str(file) != "-" and slop.is_sqlite(file):
            _slop(asking, file, tally)
        else:
            _jsonl(asking, file, tally)
    for problem in tally.refused:
        warn(problem)
    if asking.json:
        as_json(tally.shown())
    else:
        said(tally.told())
    if tally.refused:
        raise typer.Exit(1)


@dataclass
class Tally:
    """The counts of an import, and its refusals."""

    conversations: int = 0
    messages: int = 0
    memos: int = 0
    there: int = 0
    """Conversations that were in the store already."""
    sessions: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        return {
            "conversations": self.conversations, "messages": self.messages, "memos": self.memos,
            "already_there": self.there, "sessions": list(dict.fromkeys(self.sessions)), "refused": self.refused,
        }  # fmt: skip

    def told(self) -> str:
        parts = [f"{self.conversations} conversations with {self.messages} messages imported"]
        parts += [f"{self.memos} memos"] * bool(self.memos) + [f"{self.there} were there already"] * bool(self.there)
        return ", ".join([*parts, *([f"{len(self.refused)} refused"] * bool(self.refused))])


def _jsonl(asking: Asking, file: Path, tally: Tally) -> None:
    name = "stdin" if str(file) == "-" else str(file)
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as lines:
            size = os.fstat(lines.fileno()).st_size if str(file) != "-" else None
            with progress("importing", size, bytes_=True) as move:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        _one(asking, line, f"{name}:{number}", tally)
                    move(len(line))
    except OSError as error:
        raise ConfigError("FILE", name, f"a file that can be read ({error.strerror})") from None


def _one(asking: Asking, line: bytes, place: str, tally: Tally) -> str | None:
    """Store a conversation. Return the name of its session, None if the conversation was not stored."""
    try:
        found = asking.remote.send("POST", "/api/import", line.strip() + b"\n", LINES)
    except Refused as problem:
        if problem.status == 409 and "already" in problem.message:
            tally.there += 1
        elif problem.status in (400, 409, 413, 422):
            tally.refused.append(f"{place}: {problem.message.removeprefix('line 1: ')}")
        else:
            raise
        return None
    tally.conversations += found["conversations"]
    tally.messages += found["messages"]
    tally.sessions += found["sessions"]
    return str(found["sessions"][0])


def _slop(asking: Asking, file: Path, tally: Tally) -> None:
    talks, memos = slop.read(file)
    with progress("importing", len(talks) + len(memos)) as move:
        for talk in talks:
            body = {"session": talk.session, "messages": talk.messages}
            session = _one(asking, json.dumps(body).encode(), f"{file}: session {talk.session}", tally)
            if session is not None:
                _beside(asking, session, talk, tally)
            move(1)
        for memo in memos:
            _memo(asking, memo, tally)
            move(1)


def _beside(asking: Asking, session: str, talk: slop.Talk, tally: Tally) -> None:
    """Store the data that std::slop kept of a session in addition to its messages."""
    path = asking.remote.session(session)
    steps: list[tuple[str, str, dict[str, Any]]] = []
    if talk.state.strip():
        steps.append(("PUT", "/state", {"text": talk.state}))
    if talk.scratchpad.strip():
        steps.append(("PUT", "/scratchpad", {"text": talk.scratchpad}))
    if talk.window is not None:
        steps.append(("POST", "/window", {"groups": talk.window}))
    if talk.dropped:
        left_out = set(talk.dropped)
        prompt = asking.remote.ask("GET", path + "/prompt")["messages"]
        ids = [m["id"] for m in prompt if m["index"] in left_out and m.get("id")]
        steps.append(("POST", "/decide/drop", {"ids": ids}))
    for method, where, body in steps:
        try:
            asking.remote.ask(method, path + where, body)
        except Refused as problem:
            if problem.status not in (400, 409, 422):
                raise
            tally.refused.append(f"session {session}, {where.rpartition('/')[2]}: {problem.message}")


def _memo(asking: Asking, memo: slop.Noted, tally: Tally) -> None:
    try:
        asking.remote.ask("POST", "/api/memos", {"content": memo.content, "tags": memo.tags})
        tally.memos += 1
    except Refused as problem:
        if problem.status not in (409, 422):
            raise
        tally.refused.append(f"a memo: {problem.message}")


def save(asking: Asking, path: str, out: Path, what: str, **query: object) -> None:
    """Write the lines of an answer to stdout, or to a file that appears only once it is complete."""
    if str(out) == "-":
        for line in asking.remote.lines(path, {}, query):
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    count = 0
    try:
        with replacing(out) as file, progress(what) as move:
            for line in asking.remote.lines(path, {}, query):
                file.write(line)
                count += 1
                move(1)
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written ({error.strerror})", source="--out") from None
    asking.done({"file": str(out), what: count}, f"{count} {what} written to {out}")


@contextmanager
def replacing(out: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `out` once it is complete. If `out` is no regular file (a device, a FIFO),
    it is written directly. A symbolic link stays, and its target is written. Raises OSError."""
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


@contextmanager
def progress(what: str, total: int | None = None, *, bytes_: bool = False) -> Iterator[Any]:
    """Show a progress bar on stderr if stderr is a terminal. Yields the function that moves it on. total: None if
    unknown."""
    console = Console(stderr=True)
    counted = TextColumn("{task.percentage:>3.0f} %") if bytes_ and total else MofNCompleteColumn()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), counted, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda by: bar.advance(task, by)
