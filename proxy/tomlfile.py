"""TOML files that a person wrote: read with errors that name the line, which tomllib does not tell."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from proxy.errors import ConfigError

Tree = dict[str, Any]
Keys = tuple[str | int, ...]


def read_toml(file: Path) -> tuple[Tree, str]:
    """A TOML file as a tree and as its text. Raises ConfigError where it cannot be read."""
    try:
        text = file.read_text("utf-8")
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise ConfigError(
            "config", str(file), f"TOML: {error}", line=int(at[1]) if at else None, source=str(file)
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config", str(file), f"a TOML file in UTF-8 that can be read ({error})") from None


def line_of(text: str, path: Keys) -> int | None:
    """The line of a key, or of the deepest table on the way to it that is there; None where nothing is.

    tomllib tells no lines. But of all prefixes of the text that are TOML by themselves, the first that has the key
    ends with the statement that sets it, whatever it is written as: table, dotted key, array over several lines.
    """
    lines = text.splitlines(keepends=True)
    best, depth, start = None, 0, 0
    for end in range(1, len(lines) + 1):
        try:
            tree: Any = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        there = 0
        for part in path:
            children = tree if isinstance(tree, dict) else dict(enumerate(tree)) if isinstance(tree, list) else {}
            if part not in children:
                break
            tree, there = children[part], there + 1
        if there > depth:
            best, depth = start + 1, there
        start = end
    return best


def dotted(path: Keys) -> str:
    """A path as one writes it: `upstreams.main.models[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
