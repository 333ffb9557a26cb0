"""How commands show what they were told: tables that fit 80 columns, texts that cannot play with the terminal."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.errors import ConfigError
from proxy.settings import program

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves cursors, colours lines, sets titles or turns the direction of writing; line ends and tabs stay."""

STATUS: Final[Mapping[str, str]] = {
    "in": "green", "changed": "yellow", "out": "bright_black", "dropped": "red", "removed": "red",
}  # fmt: skip
"""Of a message or group in the next prompt."""
ROLES: Final[Mapping[str, str]] = {
    "system": "magenta", "developer": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow",
    "function": "yellow",
}  # fmt: skip

Cell = Text | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. of: what it shows of a row. fills: takes what width is left, cut where that is too little.
    fits: never cut, as what is copied must not be."""

    title: str
    of: Callable[[Any], Cell]
    number: bool = False
    fills: bool = False
    fits: bool = False
    style: str = ""


def plain(text: object) -> str:
    """A text of others that can be written to a terminal: what would steer it stands there to be read."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", str(text))


def console() -> Console:
    """stdout as it is now."""
    return Console(highlight=False)


def table(rows: Iterable[Any], columns: Sequence[Column], *, empty: str = "nothing there") -> None:
    """Rows, one a line; what is said where there are none."""
    shown = list(rows)
    if not shown:
        console().print(Text(empty, "dim"))
        return
    made = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
        expand=any(c.fills for c in columns),
    )
    for column in columns:
        made.add_column(
            column.title, justify="right" if column.number else "left", style=column.style,
            no_wrap=True, overflow="ellipsis", ratio=1 if column.fills else None,
            min_width=max((len(_cell(column.of(row)).plain) for row in shown), default=0) if column.fits else None,
        )  # fmt: skip
    for row in shown:
        made.add_row(*(_cell(column.of(row)) for column in columns))
    console().print(made)


def _cell(value: Cell) -> Text:
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", "dim")
    if isinstance(value, bool):
        return Text("yes" if value else "")
    if isinstance(value, int | float):
        return Text(number(value))
    return Text(" ".join(plain(value).split()))


def pairs(title: str, lines: Mapping[str, Cell]) -> None:
    """What a thing is, name and value, under its title."""
    out = console()
    out.print(Text(plain(title), "bold"))
    out.print(Text("─" * min(len(plain(title)), out.width), "dim"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bright_black", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines.items():
        grid.add_row(name, _cell(value))
    out.print(grid)


def read(text: Text) -> None:
    """A long text: through $PAGER where stdout is a terminal that it does not fit into."""
    out = console()
    if not out.is_terminal or len(text.wrap(out, max(out.width, 1))) < out.height:
        out.print(text, soft_wrap=not out.is_terminal)
        return
    pager = shlex.split(program("PAGER", otherwise="less -R"))
    with out.capture() as kept:
        out.print(text, soft_wrap=True)
    coloured = Path(pager[0]).name == "less"
    try:
        shown = kept.get() if coloured else text.plain + "\n"
        options = ["-R"] if coloured and "-R" not in pager else []
        subprocess.run([*pager, *options], input=shown.encode("utf-8", "replace"), check=False)  # noqa: S603  # theirs
    except OSError:
        out.print(text)  # no such program: it scrolls by, as it would without a pager


def edited(text: str) -> str | None:
    """The text after $EDITOR; None where it was left as it was. Raises ConfigError where there is no such editor."""
    editor = shlex.split(program("VISUAL", "EDITOR", otherwise="vi"))
    with tempfile.TemporaryDirectory(prefix="context-proxy-") as folder:
        file = Path(folder) / "text.md"
        file.write_text(text, "utf-8")
        try:
            code = subprocess.run([*editor, str(file)], check=False).returncode  # noqa: S603  # what they have chosen
        except OSError as error:
            raise ConfigError("EDITOR", editor[0], f"an editor that can be started ({error.strerror})") from None
        if code != 0:
            raise ConfigError("EDITOR", editor[0], f"an editor that ends well (it ended with {code}; nothing was set)")
        new = file.read_text("utf-8", "replace")
    # Most editors put a line end behind the last line; that alone is no change.
    return None if new.rstrip("\n") == text.rstrip("\n") else new


def as_json(value: Any) -> None:
    """One JSON document, in ASCII: no terminal, locale or pipe can do anything to it."""
    typer.echo(json.dumps(value, indent=2))


def said(text: str) -> None:
    """What was done, for people: on stdout, and never part of a document."""
    console().print(Text(plain(text)), soft_wrap=True)


def warn(text: str) -> None:
    """What went wrong, on stderr."""
    Console(stderr=True, highlight=False).print(Text(f"context-proxy: {plain(text)}"), soft_wrap=True)


def marked(word: str, styles: Mapping[str, str] = STATUS) -> Text:
    """A word in the colour of what it means."""
    return Text(plain(word), styles.get(word, ""))


def number(value: float) -> str:
    """12,847, or 0.83."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def percent(part: float | None) -> str:
    """80 %, of a part of 1."""
    return "-" if part is None else f"{part * 100:.0f} %"


def dollars(value: float | None) -> str:
    """$0.0123; nothing where no price is known."""
    return "-" if value is None else f"${value:,.4f}" if value < 1 else f"${value:,.2f}"


def ago(at: float | None) -> str:
    """How long ago a Unix time was, in its largest unit."""
    if at is None:
        return "-"
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def moment(at: float | None) -> str:
    """A Unix time as this machine's clock says it."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
