"""Redaction of a secret in bytes that pass in pieces: an upstream's error may repeat the operator's key to a client.

The key is found as it is, percent-encoded, and in base64 by itself. It is replaced by the same number of asterisks, so
that a Content-Length stays true. Bytes that may begin the key are held back until the next piece decides.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote


@lru_cache(maxsize=64)
def list_key_encodings(key: str) -> tuple[bytes, ...]:
    """Return the key as it is, percent-encoded in each usual way, and in base64 of both alphabets without its padding.
    Each form occurs once, the longest first."""
    raw = key.encode()
    quoted = [quote(key, safe=safe) for safe in ("", "/", "/+=")]
    quoted += [re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), text) for text in quoted]
    encoded = [base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")]
    return tuple(sorted({raw, *(text.encode() for text in quoted), *encoded}, key=lambda form: (-len(form), form)))


class Redactor:
    """Redactor of one body. `feed` each piece, then `end`."""

    __slots__ = ("_forms", "_held", "_pattern")

    def __init__(self, forms: Sequence[bytes]) -> None:
        """Prepare the search. forms: the texts to redact, the longest first."""
        self._forms = forms
        self._pattern = re.compile(b"|".join(map(re.escape, forms)))
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece. Return the bytes that may go on now."""
        found = self._blanked(self._held + piece)
        keep = 0
        for form in self._forms:
            keep = max(keep, next((n for n in range(len(form) - 1, keep, -1) if found.endswith(form[:n])), 0))
        self._held = found[len(found) - keep :]
        return found[: len(found) - keep]

    def end(self) -> bytes:
        """Return the rest."""
        rest, self._held = self._held, b""
        return rest

    def _blanked(self, text: bytes) -> bytes:
        return self._pattern.sub(lambda found: b"*" * len(found[0]), text)
