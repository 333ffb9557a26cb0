"""Placeholders in texts of a policy file: `<LEFT>` stands for a value that is known only when the text is used."""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.errors import ConfigError

_PLACEHOLDER = re.compile(r"<([A-Z]+)>")


def check(key: str, text: object, required: Sequence[str], optional: Sequence[str] | None = ()) -> None:
    """Raise ConfigError if a text is blank, lacks a placeholder that it needs, or has a placeholder that nobody fills.

    optional: placeholders that the text may have as well. None: any, because the text may contain tags.
    """
    listed = " and ".join(f"<{name}>" for name in required)
    found = set(_PLACEHOLDER.findall(text)) if isinstance(text, str) else set()
    if not isinstance(text, str) or not text.strip() or not found.issuperset(required):
        raise ConfigError(key, text, f"a text with {listed} in it" if listed else "a text")
    if optional is not None and (unknown := found.difference(required, optional)):
        known = ", ".join(f"<{name}>" for name in (*required, *optional)) or "none"
        raise ConfigError(key, text, f"a text with these placeholders at most: {known}; not <{min(unknown)}>")


def fill(text: str, **values: object) -> str:
    """The text with its placeholders filled. Placeholders inside the values are not filled."""
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), text)
