"""A block of memos, read back as a model could read it."""

from __future__ import annotations

import json
from typing import Any

from proxy.notes.memo_matching import END, START


def parse_memos(text: str) -> list[dict[str, Any]]:
    """The objects of a rendered block; none for an empty text."""
    if not text:
        return []
    first, *lines, last = text.split("\n")
    assert (first, last) == (START, END)
    return [json.loads(line) for line in lines]
