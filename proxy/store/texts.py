"""Text of models, clients and operators on its way into a column and back.

What is content is stored as bytes. A label goes into a text column, which refuses half a surrogate pair (SQLite) or NUL
(PostgreSQL), and JSON can carry both.
"""

from __future__ import annotations


def to_bytes(text: str) -> bytes:
    """Text of a model or client, as it is stored. Lone surrogates, which JSON can carry, survive."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def plain(label: str) -> str:
    """The label with `?` for what no text column takes; as it is, at no cost, where all is well."""
    if label.isascii() and "\x00" not in label:
        return label
    return label.encode("utf-8", "replace").decode().replace("\x00", "?")
