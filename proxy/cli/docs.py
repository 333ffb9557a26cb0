"""`context-proxy docs`: writes the README's reference tables and config/default.toml, or tells where they drift."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.render import defaults
from proxy.cli.tables import NAMES, NoSource, table


def docs(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where something drifts.")] = False,
    folder: Annotated[Path, typer.Option(help="The checkout, with README.md and config/ in it.")] = Path(),
) -> None:
    """Write the README's tables between their markers, and config/default.toml, from the code."""
    drifted = []
    for file, wanted in ((folder / "README.md", None), (folder / "config" / "default.toml", defaults())):
        is_there = file.is_file()
        if not is_there and wanted is None:
            typer.echo(f"{file} is not there: no tables written")
            continue
        before = file.read_text("utf-8") if is_there else ""
        after = filled(before, context.find_root().command) if wanted is None else wanted
        if after == before:
            continue
        drifted.append(file)
        if not check:
            file.write_text(after, "utf-8")
            typer.echo(f"{file} written")
    if check and drifted:
        for file in drifted:
            typer.echo(f"{file} does not say what the code says; run `context-proxy docs`")
        raise typer.Exit(1)


def filled(text: str, commands: Any) -> str:
    """The text with each table between `<!-- docs:NAME -->` and `<!-- /docs:NAME -->` made anew."""
    for name in NAMES:
        start, end = f"<!-- docs:{name} -->", f"<!-- /docs:{name} -->"
        if start not in text or end not in text:
            typer.echo(f"no markers for the table {name}: not written")
            continue
        try:
            content = table(name, commands)
        except NoSource as reason:
            typer.echo(f"the table {name} is left as it is: {reason}")
            continue
        between = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = between.sub(lambda _, new=f"{start}\n\n{content}\n{end}": new, text)  # type: ignore[misc]  # a bound value
    return text
