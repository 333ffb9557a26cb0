"""Conversion of text from models, clients and operators into a column's form and back.

Content is stored as bytes. A label goes into a text column, which refuses lone surrogates (SQLite) or NUL (PostgreSQL);
JSON can carry both.
"""

from __future__ import annotations

from proxy.chat.unicode_text import replace_surrogates


def to_bytes(text: str) -> bytes:
    """The stored form of a model's or client's text. Lone surrogates, which JSON can carry, survive."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def sanitize_label(label: str) -> str:
    """The label with `?` for every character that no text column takes; itself if there is none."""
    if label.isascii() and "\x00" not in label:
        return label
    return replace_surrogates(label).replace("\x00", "?")
