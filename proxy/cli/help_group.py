"""The list of commands in a help text, each with its description as one paragraph."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from typer.core import TyperGroup


class HelpGroup(TyperGroup):
    """A group of commands. Typer's table keeps the line ends of a docstring, which then break lines of the terminal a
    second time."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the first paragraph of each command's docstring on one line, for the terminal to
        wrap."""
        for command in self.commands.values():
            first, *_ = cleandoc(command.help or "").split("\n\n")
            command.short_help = " ".join(first.split())
        super().format_help(ctx, formatter)
