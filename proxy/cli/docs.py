"""`context-proxy docs`: writes the reference tables of docs/ and config/default.toml, or lists the files that drift."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.settings_toml import render_defaults
from proxy.cli.tables import TABLE_NAMES, MissingSource, render_table


def docs(
    context: typer.Context,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 where something drifts.")] = False,
    folder: Annotated[Path, typer.Option(help="The checkout, with docs/ and config/ in it.")] = Path(),
) -> None:
    """Write the tables of docs/ between their markers, and config/default.toml, from the code."""
    pages = [file for file in (folder / "README.md", *sorted((folder / "docs").rglob("*.md"))) if file.is_file()]
    before = {page: page.read_text("utf-8") for page in pages}
    everything = "".join(before.values())
    for name in TABLE_NAMES:
        if _start(name) not in everything:
            typer.echo(f"no page has markers for the table {name}: not written")
    after = {page: fill_tables(text, context.find_root().command) for page, text in before.items()}
    after[folder / "config" / "default.toml"] = render_defaults()
    drifted = []
    for file, text in after.items():
        if file.is_file() and file.read_text("utf-8") == text:
            continue
        drifted.append(file)
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
            typer.echo(f"{file} written")
    if check and drifted:
        for file in drifted:
            typer.echo(f"{file} does not say what the code says; run `context-proxy docs`")
        raise typer.Exit(1)


def fill_tables(text: str, commands: Any) -> str:
    """Return the text with each table between `<!-- docs:NAME -->` and `<!-- /docs:NAME -->` made again."""
    for name in TABLE_NAMES:
        start, end = _start(name), f"<!-- /docs:{name} -->"
        if start not in text or end not in text:
            continue
        try:
            content = render_table(name, commands)
        except MissingSource as reason:
            typer.echo(f"the table {name} is left as it is: {reason}")
            continue
        between = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = between.sub(lambda _, new=f"{start}\n\n{content}\n{end}": new, text)  # type: ignore[misc]  # a bound value
    return text


def _start(name: str) -> str:
    return f"<!-- docs:{name} -->"
