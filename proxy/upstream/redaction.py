"""Blanks a secret in bytes that pass in pieces: an upstream's error may repeat the operator's key to a client.

As many asterisks take its place, so that a Content-Length stays true. What might be the beginning of the secret is held
back until the next piece tells.
"""

from __future__ import annotations


class Redactor:
    """One body. `feed` each piece, then `end`."""

    __slots__ = ("_held", "_instead", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._instead = b"*" * len(secret)
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What may go on by now."""
        found = (self._held + piece).replace(self._secret, self._instead)
        keep = next((n for n in range(len(self._secret) - 1, 0, -1) if found.endswith(self._secret[:n])), 0)
        self._held = found[len(found) - keep :]
        return found[: len(found) - keep]

    def end(self) -> bytes:
        """The rest."""
        rest, self._held = self._held, b""
        return rest
