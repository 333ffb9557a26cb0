"""Cache of messages already read, found by their bytes.

An agent resends its whole history with every request. A message that was read once (decoded, hashed, counted) is found
by its slice with one dictionary look-up. So the work of a request grows with its new messages only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

from proxy.chat.json_spans import SizeLimits, count_marks
from proxy.chat.message import Message, PrefixCache, Request
from proxy.dialects.completions.request import build_prefix_cache, read_message, read_request

OVERHEAD = 1200
"""Bytes that a Message takes in addition to its text: the object, its digests, its memo."""
COPIES = 4
"""Copies of a text in memory: the slice, the decoded text, and derived values (names, lines, a stub, outgoing bytes).
Measured on 7,000 messages of an agent. A beginning also holds the body."""

FRONTS = 0.75
"""Share of the limit for the beginnings of large bodies, with the messages in them."""
SMALL = 8 * 1024
"""Bytes of a body under which reading it whole costs less than looking for its beginning."""
SAMPLE = 128
"""Bytes by which a beginning is found: those before the largest power of two in its length. A growing history keeps
these bytes, and histories that begin with the same system prompt have others."""
ALIKE = 8
"""Limit on the beginnings kept under the same sample."""


class MessageCache:
    """A bounded cache of messages by their raw bytes, and of bodies by how they begin; least recently used out first.

    A message of a large body stays as long as a beginning that contains it; a message of a small body stays by itself.
    Every message in the cache is found, even if the client rewrites its first message.
    """

    def __init__(self, max_bytes: int, limits: SizeLimits | None = None) -> None:
        """max_bytes: bytes of memory, estimated. limits: size limits of a request; None: no limits."""
        self.max_bytes = max_bytes
        self.limits = limits
        self._live_messages: WeakValueDictionary[bytes, Message] = WeakValueDictionary()
        self._messages: OrderedDict[bytes, Message] = OrderedDict()
        self._messages_size = 0
        self._fronts: OrderedDict[bytes, list[PrefixCache]] = OrderedDict()
        self._fronts_size = 0
        # Large bodies are read in worker threads. Looking needs no lock, changing does, or the sizes drift.
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of memory taken, estimated."""
        return self._messages_size + self._fronts_size

    def get_message(self, raw: bytes) -> Message:
        """Return the message in these bytes. Raises NotManaged as `read_message` does."""
        found = self._find_or_read(raw)
        with self._lock:
            if raw in self._messages:
                self._messages.move_to_end(raw)
                return found
            self._messages[raw] = found
            self._messages_size += _count_message_bytes(raw)
            while self._messages_size > self.max_bytes * (1 - FRONTS) and len(self._messages) > 1:
                old, _ = self._messages.popitem(last=False)
                self._messages_size -= _count_message_bytes(old)
        return found

    def _find_or_read(self, raw: bytes) -> Message:
        """Return the same message, without a reference in this cache that keeps it."""
        found = self._live_messages.get(raw)
        if found is None:
            found = read_message(raw)
            with self._lock:
                found = self._live_messages.setdefault(raw, found)
        return found

    def get_request(self, body: bytes) -> tuple[Request, PrefixCache | None]:
        """Return the request in this body and, for a large body, its beginning as remembered. Raises NotManaged."""
        limits = self.limits
        if len(body) < SMALL:
            return read_request(body, self.get_message, limits=limits), None
        if limits is not None:
            limits.check_size(body)
        known = self._find_front(body)
        begin, values = (
            (len(known.body_prefix), known.value_count) if known is not None and known.value_count else (0, 0)
        )
        whole = limits.check_values(body, begin, values) if limits is not None else 0
        request = read_request(body, self._find_or_read, known, is_prefix_checked=known is not None, limits=limits)
        front = build_prefix_cache(request)
        # Nothing is remembered of the text behind the messages: it is counted with each request.
        front.value_count = max(1, whole - count_marks(body[len(front.body_prefix) :])) if whole else 0
        with self._lock:
            if known is not None and request.prefix_messages:
                self._drop_front(known)
                front.keys_tenant, front.keys, front.separator = known.keys_tenant, known.keys, known.separator
            self._add_front(front)
        return request, front

    def count_unread_bytes(self, body: bytes) -> int:
        """Bytes of the body that are not read yet: those behind a beginning that was read before."""
        known = self._find_front(body) if len(body) >= SMALL else None
        return len(body) - (len(known.body_prefix) if known is not None else 0)

    def _find_front(self, body: bytes) -> PrefixCache | None:
        """The longest remembered beginning of this body."""
        best = None
        power = len(body).bit_length() - 1
        for size in (1 << power, 1 << (power - 1)):
            for front in self._fronts.get(body[size - SAMPLE : size], ()):
                if (best is None or len(front.body_prefix) > len(best.body_prefix)) and body.startswith(
                    front.body_prefix
                ):
                    best = front
        return best

    def _add_front(self, front: PrefixCache) -> None:
        if _count_front_bytes(front) > self.max_bytes:
            return  # one conversation must not hold more than the limit of all
        sample = _cut_sample(front.body_prefix)
        alike = self._fronts.setdefault(sample, [])
        self._fronts.move_to_end(sample)
        alike.append(front)
        self._fronts_size += _count_front_bytes(front)
        if len(alike) > ALIKE:
            self._fronts_size -= _count_front_bytes(alike.pop(0))
        while self._fronts_size > self.max_bytes * FRONTS and len(self._fronts) > 1:
            _, old = self._fronts.popitem(last=False)
            self._fronts_size -= sum(map(_count_front_bytes, old))

    def _drop_front(self, front: PrefixCache) -> None:
        """Forget a beginning, since a longer one of the same history takes its place."""
        sample = _cut_sample(front.body_prefix)
        alike = self._fronts.get(sample, [])
        if front in alike:
            alike.remove(front)
            self._fronts_size -= _count_front_bytes(front)
            if not alike:
                del self._fronts[sample]


def _count_message_bytes(raw: bytes) -> int:
    """Bytes of memory that a message takes, estimated."""
    return len(raw) * COPIES + OVERHEAD


def _count_front_bytes(front: PrefixCache) -> int:
    """Bytes of memory that a beginning takes with its messages, estimated."""
    return len(front.body_prefix) * (COPIES + 1) + OVERHEAD * len(front.messages)


def _cut_sample(text: memoryview) -> bytes:
    size = 1 << (len(text).bit_length() - 1)
    return bytes(text[size - SAMPLE : size])
