"""Output of the commands: tables that fit the terminal, and texts that cannot control it.

If stdout is no terminal, tables and values are written whole, in aligned columns without lines and without colours.
"""

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

import msgspec
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.errors import ConfigError, describe_cause
from proxy.settings.load import find_program

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move cursors, colour lines, set titles or turn the direction of writing."""

STATUS_STYLES: Final[Mapping[str, str]] = {
    "in": "green", "changed": "yellow", "out": "bright_black", "dropped": "red", "removed": "red",
}  # fmt: skip
"""Styles by the status of a message or group in the next prompt."""
ROLE_STYLES: Final[Mapping[str, str]] = {
    "system": "magenta", "developer": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow",
    "function": "yellow",
}  # fmt: skip

PIPE_COLUMNS: Final = 100_000
"""Columns of a pipe or a file: no line is wrapped or cut there, so that grep and copy find it whole."""

Cell = Text | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class TableColumn:
    title: str
    make_cell: Callable[[Any], Cell]
    """Returns the content of the cell for a row."""
    is_number: bool = False
    takes_rest: bool = False
    """True if the column takes the width that is left. Its texts are cut if that is too little."""
    is_never_cut: bool = False
    """True if the column is never cut, since people copy its values."""
    is_folded: bool = False
    """True if a text that is too long is continued on the next line and not cut."""
    style: str = ""
    whole: Callable[[Any], Cell] | None = None
    """For a column whose `make_cell` abbreviates: returns the whole content, for a pipe or a file."""


def escape_controls(text: object) -> str:
    """Return a foreign text that is safe to write to a terminal: control characters become readable escapes."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", str(text))


def make_console() -> Console:
    """Return a console for the current stdout. Into a pipe or a file each line is written whole."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def print_table(rows: Iterable[Any], columns: Sequence[TableColumn], *, empty: str = "nothing there") -> None:
    """Print rows, one per line, or `empty` if there are none."""
    shown = list(rows)
    out = make_console()
    if not shown:
        out.print(Text(empty, "dim"))
        return
    if not out.is_terminal:
        _print_whole(shown, columns)
        return
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
        expand=any(c.takes_rest for c in columns),
    )
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.is_number else "left", style=column.style,
            no_wrap=not column.is_folded, overflow="fold" if column.is_folded else "ellipsis",
            ratio=1 if column.takes_rest else None,
            min_width=max((len(_render_cell(column.make_cell(row)).plain) for row in shown), default=0)
            if column.is_never_cut else None,
        )  # fmt: skip
    for row in shown:
        table.add_row(*(_render_cell(column.make_cell(row)) for column in columns))
    out.print(table)


def _print_whole(rows: Sequence[Any], columns: Sequence[TableColumn]) -> None:
    """Print rows for a pipe or a file: each on one line, in aligned columns two spaces apart."""
    lines = [[column.title for column in columns]]
    lines += [[_render_cell((column.whole or column.make_cell)(row)).plain for column in columns] for row in rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            " " * (width - cell_len(text)) + text if column.is_number else text + " " * (width - cell_len(text))
            for text, width, column in zip(line, widths, columns, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())


def _render_cell(value: Cell) -> Text:
    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", "dim")
    if isinstance(value, bool):
        return Text("yes" if value else "")
    if isinstance(value, int | float):
        return Text(format_number(value))
    return Text(" ".join(escape_controls(value).split()))


def print_pairs(title: str, lines: Mapping[str, Cell]) -> None:
    """Print a title, and below it lines with name and value."""
    out = make_console()
    if not out.is_terminal:
        width = max(map(cell_len, lines), default=0)
        typer.echo(escape_controls(title))
        for name, value in lines.items():
            typer.echo(f"{name}{' ' * (width - cell_len(name))}  {_render_cell(value).plain}".rstrip())
        return
    out.print(Text(escape_controls(title), "bold"))
    out.print(Text("─" * min(len(escape_controls(title)), out.width), "dim"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bright_black", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in lines.items():
        grid.add_row(name, _render_cell(value))
    out.print(grid)


def print_paged(text: Text) -> None:
    """Print a text. If stdout is a terminal and the text does not fit into it, open $PAGER."""
    out = make_console()
    if not out.is_terminal or len(text.wrap(out, max(out.width, 1))) < out.height:
        out.print(text, soft_wrap=not out.is_terminal)
        return
    pager = shlex.split(find_program("PAGER", default="less -R"))
    with out.capture() as kept:
        out.print(text, soft_wrap=True)
    coloured = Path(pager[0]).name == "less"
    try:
        shown = kept.get() if coloured else text.plain + "\n"
        options = ["-R"] if coloured and "-R" not in pager else []
        subprocess.run([*pager, *options], input=shown.encode("utf-8", "replace"), check=False)  # noqa: S603  # theirs
    except OSError:
        out.print(text)  # there is no such program: the text scrolls by, as without a pager


def edit_text(text: str) -> str | None:
    """Return the text after $EDITOR, None if unchanged. Raises ConfigError if the editor cannot start or fails."""
    editor = shlex.split(find_program("VISUAL", "EDITOR", default="vi"))
    with tempfile.TemporaryDirectory(prefix="context-proxy-") as folder:
        file = Path(folder) / "text.md"
        file.write_text(text, "utf-8")
        try:
            code = subprocess.run([*editor, str(file)], check=False).returncode  # noqa: S603  # the user's own choice
        except OSError as error:
            raise ConfigError("EDITOR", editor[0], f"an editor that can be started ({error.strerror})") from None
        if code != 0:
            raise ConfigError("EDITOR", editor[0], f"an editor that ends well (it ended with {code}; nothing was set)")
        new = file.read_text("utf-8", "replace")
    # Most editors put a line end behind the last line; that alone is no change.
    return None if new.rstrip("\n") == text.rstrip("\n") else new


def print_json(value: Any) -> None:
    """Print one JSON document, in ASCII: no terminal, locale or pipe can change it."""
    typer.echo(json.dumps(value, indent=2))


REPORT_STARTS: Final = (b'{\n "', b"<svg", b"<!doctype html>")
"""The beginnings of a report: as JSON by `write_report`, as a picture, as a page."""


def write_report(file: Path, report: msgspec.Struct) -> None:
    """Write a report as JSON, to stdout for -. Raises ConfigError."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=1).decode()
    if str(file) == "-":
        typer.echo(text)
    else:
        write_file(file, text + "\n")


def write_file(file: Path, text: str) -> None:
    """Write a file of a report. Raises ConfigError."""
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError("OUT", str(file), f"a file that can be written ({describe_cause(error)})") from None


def print_text(text: str) -> None:
    """Print a text for people on stdout. It is never part of a JSON document."""
    make_console().print(Text(escape_controls(text)), soft_wrap=True)


def print_notice(text: str) -> None:
    """Print an error, or a notice beside the output of another program, on stderr."""
    Console(stderr=True, highlight=False).print(Text(f"context-proxy: {escape_controls(text)}"), soft_wrap=True)


def style_word(word: str, styles: Mapping[str, str] = STATUS_STYLES) -> Text:
    """Return a word in the style of its meaning."""
    return Text(escape_controls(word), styles.get(word, ""))


def format_number(value: float) -> str:
    """Return a number as text: 12,847, or 0.83."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 message, 12,847 messages."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_percent(part: float | None) -> str:
    """Return a share of 1 in percent: 80 %."""
    return "-" if part is None else f"{part * 100:.0f} %"


def format_dollars(value: float | None) -> str:
    """Return an amount of dollars: $0.0123; a dash if no price is known."""
    return "-" if value is None else f"${value:,.4f}" if value < 1 else f"${value:,.2f}"


def format_age(at: float | None) -> str:
    """Return the time since a Unix time, in its largest unit."""
    if at is None:
        return "-"
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def format_time(at: float | None) -> str:
    """Return a Unix time in this machine's time zone."""
    return "-" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
