"""A progress bar on stderr, for commands that take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def show_progress(what: str, total: int | None = None, *, bytes_: bool = False) -> Iterator[Callable[[float], None]]:
    """Show a progress bar if stderr is a terminal. Yields the function that moves it on. total: None if unknown."""
    console = Console(stderr=True)
    counted = TextColumn("{task.percentage:>3.0f} %") if bytes_ and total else MofNCompleteColumn()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), counted, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda by: bar.advance(task, by)
