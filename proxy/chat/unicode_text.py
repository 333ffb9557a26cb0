"""Unicode normalization in linear time, and texts that no encoder refuses.

Python sorts a run of combining marks by insertion, and no other thread runs meanwhile: 160 KB of them take 5 s.
Clients, tools and models choose the texts. So a run that no script has is cut into pieces, each of which is sorted by
itself.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

MAX_RUN: Final = 100
"""Characters of a run that are normalized together. Unicode's own bound for such texts is 30 (UAX #15)."""
_RUN: Final = re.compile(rf"[^\w\s\x00-\x7f]{{1,{MAX_RUN}}}+")
"""A run of characters that may be combining marks: every mark is one of these."""


def normalize(form: Literal["NFC", "NFD"], text: str) -> str:
    """Return the text in this form. In a run of over MAX_RUN marks, those of two pieces keep their order."""
    if text.isascii():
        return text
    ends = [found.end() for found in _RUN.finditer(text) if found.end() - found.start() == MAX_RUN]
    pieces = zip([0, *ends], [*ends, len(text)], strict=True)
    return "".join(unicodedata.normalize(form, text[begin:end]) for begin, end in pieces)


def replace_surrogates(text: str) -> str:
    """Return the text with `?` for each half of a surrogate pair: JSON can carry one, UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
