"""Messages already read, found again by their bytes.

An agent resends its whole history with every request. A message that was read once (decoded, hashed, counted)
is found by its slice with one dictionary look-up, so the work of a request grows with what is new in it.
"""

from __future__ import annotations

from collections import OrderedDict

from proxy.chat.dialects.completions import read_message
from proxy.chat.message import Message

OVERHEAD = 1200
"""Bytes that a Message takes beside its text: the object, its digests, its memo."""
COPIES = 3
"""The slice, the decoded text, and what is derived from it (lines, a stub, outgoing bytes)."""


class MessageCache:
    """A bounded cache of messages by their raw bytes, least recently used out first."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of memory, estimated."""
        self.limit = limit
        self.size = 0
        self._messages: OrderedDict[bytes, Message] = OrderedDict()

    def read(self, raw: bytes) -> Message:
        """The message in these bytes. Raises NotManaged as `read_message` does."""
        found = self._messages.get(raw)
        if found is not None:
            self._messages.move_to_end(raw)
            return found
        found = self._messages[raw] = read_message(raw)
        self.size += len(raw) * COPIES + OVERHEAD
        while self.size > self.limit and len(self._messages) > 1:
            old, _ = self._messages.popitem(last=False)
            self.size -= len(old) * COPIES + OVERHEAD
        return found
