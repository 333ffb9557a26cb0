"""The words of a text that say what it is about."""

from __future__ import annotations

import re

WORD = re.compile(r"[^\W_]{2,40}")

STOP = frozenset(re.findall(r"\w+",
    "the and for that this with you are was were not but have has had its it is in on of to be as at by or an if do"
    " does did so we me my your our us they them he she his her from into out up down over then than there here what"
    " which who when where why how all any each can could should would will may might must just now also please let"
    " lets one two more most some no yes ok about after before again file files use using used make get see look run"
))  # fmt: skip
"""Words that say nothing of a topic: those of the language, and those of every request to an agent."""


def telling(text: str) -> list[str]:
    """Words of two characters or more in their order, lower case, parts of names apart, without stop words."""
    return [word for word in WORD.findall(text.lower()) if word not in STOP]
