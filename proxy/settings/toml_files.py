"""TOML files, read with the line of each key: tomllib gives lines for errors of syntax alone."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from proxy.errors import ConfigError, describe_cause

TomlTree = dict[str, Any]
KeyPath = tuple[str | int, ...]


def read_toml(file: Path) -> tuple[TomlTree, str]:
    """Return a TOML file as a tree and as its text. Raises ConfigError if the file cannot be read."""
    try:
        text = file.read_text("utf-8-sig")  # some editors put a mark in front, which TOML does not know
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise ConfigError(
            "config", str(file), f"TOML: {error}", line=int(at[1]) if at else None, source=str(file)
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "config", str(file), f"a TOML file in UTF-8 that can be read ({describe_cause(error)})"
        ) from None


def find_line(text: str, path: KeyPath) -> int | None:
    """Return the line of a key, or of the deepest table on the way to it that exists. None if no such table exists.

    tomllib gives no lines for keys. Some prefixes of the text are TOML by themselves. The first such prefix that has
    the key ends with the statement that sets it. This holds for every way to write it: table, dotted key, array over
    several lines.
    """
    lines = text.splitlines(keepends=True)
    best, depth, start = None, 0, 0
    for end in range(1, len(lines) + 1):
        try:
            tree: Any = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        found_depth = 0
        for part in path:
            children = tree if isinstance(tree, dict) else dict(enumerate(tree)) if isinstance(tree, list) else {}
            if part not in children:
                break
            tree, found_depth = children[part], found_depth + 1
        if found_depth > depth:
            best, depth = start + 1, found_depth
        start = end
    return best


def format_key_path(path: KeyPath) -> str:
    """Return a path as a person writes it: `upstreams.main.models[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
