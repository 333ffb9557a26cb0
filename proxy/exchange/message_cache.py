"""Cache of messages already read, found by their bytes.

An agent resends its whole history with every request. A message that was read once (decoded, hashed, counted) is found
by its slice with one dictionary look-up. So the work of a request grows with its new messages only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from proxy.chat.json_spans import SizeLimits, count_marks
from proxy.chat.message import Message, PrefixCache, Request
from proxy.dialects.base import GrowingRequest, W, WireReader
from proxy.dialects.completions.request import TOOLS, build_prefix_cache, read_message, read_request
from proxy.dialects.known_prefix import PREFIXES

MESSAGE_OVERHEAD = 1200
"""Bytes that a Message takes in addition to its text: the object, its digests, its memo."""
TEXT_COPIES = 4
"""Copies of a text in memory: the slice, the decoded text, and derived values (names, lines, a stub, outgoing bytes).
Measured on 7,000 messages of an agent. A beginning also holds the body."""

WIRE_OVERHEAD = 500
"""Bytes that a canonical message takes in a request of another wire format, in addition to its text."""

MESSAGE_SHARE = 0.25
"""Largest share of the limit for the messages of small bodies. The beginnings of large bodies have the rest, and the
room of messages that were not used for longer."""
LARGE_PREFIX_FACTOR = 1.25
"""Limit on the one beginning that is kept in addition to the others, as a multiple of `max_bytes`. By default that is
a body of 8 MB, two million tokens. A body of 16 MB took 129 MB of memory for as long as the process lived."""
SMALL_BODY_BYTES = 8 * 1024
"""Bytes of a body under which reading it whole costs less than looking for its beginning."""
SMALL_WIRE_BYTES = 512
"""The same for a body in another wire format, which takes longer to read."""
SAMPLE_BYTES = 128
"""Bytes by which a beginning is found: those before a round number in the last fifth of its length. A growing history
keeps these bytes, and histories that begin with the same system prompt have others."""
MAX_ALIKE = 32
"""Limit on the beginnings kept under the same sample. Agents that work side by side on one task have the same sample.
A body is compared with the end of each, and with all of those that have the same end."""
END_BYTES: Final = 64
"""Bytes of that end."""
CHAT: Final = ""
"""The wire format of chat completions."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class BodyPrefix(Generic[T]):
    """The beginning of a body that was read: the next body of the same history is expected to have the same bytes."""

    text: memoryview
    size: int
    """Bytes of memory that it takes with all that is remembered of it, estimated."""
    value: T
    """The result of reading it."""
    used_at: int = 0
    """The count of uses of the cache at which it was added."""
    end: memoryview = field(init=False)
    """Its last bytes."""

    def __post_init__(self) -> None:
        self.end = self.text[-END_BYTES:]

    def __len__(self) -> int:
        return len(self.text)


class BodyPrefixes:
    """The beginnings of bodies, by wire format and a sample of their bytes; least recently used out first."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of memory, estimated."""
        self.alike: dict[tuple[str, bytes], list[BodyPrefix[Any]]] = {}
        """By wire format and sample, the beginnings with that sample."""
        self._places: dict[BodyPrefix[Any], tuple[str, bytes]] = {}
        """The wire format and the sample of each, the last used at the end."""

    def find(self, wire_format: str, body: bytes) -> BodyPrefix[Any] | None:
        """The longest remembered beginning of this body."""
        for end in _list_sample_ends(len(body)):
            alike = self.alike.get((wire_format, body[end - SAMPLE_BYTES : end]), ())
            # Their ends are compared first: agents that were forked from one history differ there alone.
            found = [one for one in alike if body.endswith(one.end, 0, len(one.text)) and body.startswith(one.text)]
            if found:
                return max(found, key=len)
        return None

    def add(self, wire_format: str, new: BodyPrefix[Any]) -> None:
        """Remember a beginning; a very short one is not worth it."""
        if len(new) < SAMPLE_BYTES:
            return
        place = (wire_format, _cut_sample(new.text))
        alike = self.alike.setdefault(place, [])
        alike.append(new)
        self._places[new] = place
        self.size += new.size
        if len(alike) > MAX_ALIKE:
            self.drop(alike[0])

    def find_oldest(self) -> BodyPrefix[Any] | None:
        """The beginning to forget next; None if there is only the newest one."""
        return next(iter(self._places)) if len(self._places) > 1 else None

    def drop_oldest(self) -> None:
        """Forget the beginning of `find_oldest`."""
        self.drop(next(iter(self._places)))

    def drop(self, old: BodyPrefix[Any]) -> None:
        """Forget a beginning, if it is there."""
        place = self._places.pop(old, None)
        if place is not None:
            self.size -= old.size
            self.alike[place].remove(old)
            if not self.alike[place]:
                del self.alike[place]


class MessageCache:
    """A bounded cache of messages by their raw bytes, and of bodies by how they begin; least recently used out first.

    A body too large for the share of the beginnings has a place of its own, which holds the newest such body. Without
    this place a conversation of 7 MB is read again with every request (100 ms and more). Among the other beginnings it
    would leave no room for them. A body over LARGE_PREFIX_FACTOR is not kept.

    A message of a large body stays as long as a beginning that contains it; a message of a small body stays by itself.
    Every message in the cache is found, even if the client rewrites its first message.
    """

    def __init__(self, max_bytes: int, limits: SizeLimits | None = None) -> None:
        """max_bytes: bytes of memory without the one larger body, estimated. limits: of a request; None: none."""
        self.max_bytes = max_bytes
        self.limits = limits
        self._live_messages: WeakValueDictionary[bytes, Message] = WeakValueDictionary()
        self._messages: OrderedDict[bytes, tuple[Message, int]] = OrderedDict()
        """Messages of small bodies, each with the count of uses at its last use."""
        self._messages_size = 0
        self._max_messages = int(max_bytes * MESSAGE_SHARE)
        self._prefixes = BodyPrefixes()
        self._max_large_prefix = int(max_bytes * LARGE_PREFIX_FACTOR)
        self._large_prefix = BodyPrefixes()
        self._uses = 0
        # Large bodies are read in worker threads. Looking needs no lock, changing does, or the sizes drift.
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of memory taken, estimated."""
        return self._messages_size + self._prefixes.size + self._large_prefix.size

    def get_message(self, raw: bytes) -> Message:
        """Return the message in these bytes. Raises NotManaged as `read_message` does."""
        message = self._find_or_read(raw)
        with self._lock:
            self._uses += 1
            if raw not in self._messages:
                self._messages_size += _count_message_bytes(raw)
            self._messages[raw] = message, self._uses
            self._messages.move_to_end(raw)
            self._shrink()
        return message

    def _shrink(self) -> None:
        """Forget what was not used for longest, until all of it is within the limits."""
        while self._messages_size > self._max_messages and len(self._messages) > 1:
            self._drop_oldest_message()
        while self._messages_size + self._prefixes.size > self.max_bytes:
            prefix = self._prefixes.find_oldest()
            _, used_at = next(iter(self._messages.values()), (None, self._uses + 1))
            if prefix is not None and prefix.used_at < used_at:
                self._prefixes.drop_oldest()
            elif used_at < self._uses:
                self._drop_oldest_message()
            else:
                return  # what is left is the newest

    def _drop_oldest_message(self) -> None:
        old, _ = self._messages.popitem(last=False)
        self._messages_size -= _count_message_bytes(old)

    def _find_or_read(self, raw: bytes) -> Message:
        """Return the same message, without a reference in this cache that keeps it."""
        message = self._live_messages.get(raw)
        if message is None:
            message = read_message(raw)
            with self._lock:
                message = self._live_messages.setdefault(raw, message)
        return message

    def get_request(self, body: bytes) -> tuple[Request, PrefixCache | None]:
        """Return the request in this body and, for a large body, its beginning as remembered. Raises NotManaged."""
        return self.read_with_prefix(body, self.find_prefix(body))

    def read_with_prefix(
        self, body: bytes, old: BodyPrefix[PrefixCache] | None, canonical: Sequence[bytes] = ()
    ) -> tuple[Request, PrefixCache | None]:
        """The same, with the beginning that `find_prefix` has found. canonical: the messages of a body that was written
        from another wire format; the new ones are kept as these objects, and not a second time."""
        limits = self.limits
        if len(body) < SMALL_BODY_BYTES:
            return read_request(body, self.get_message, limits=limits), None
        known = old.value if old is not None else None
        counted = (len(known.body_prefix), known.value_count) if known is not None else ()
        value_count = limits.check_body(body, *counted) if limits is not None else 0
        read = self._find_or_read
        if canonical:
            own = {raw: raw for raw in canonical[len(known.messages) if known is not None else 0 :]}
            read = lambda raw: self._find_or_read(own.get(raw, raw))  # noqa: E731  one of two
        request = read_request(body, read, known, is_prefix_checked=known is not None, limits=limits)
        prefix_cache = build_prefix_cache(request)
        # Nothing is remembered of the text after the messages: it is counted with each request.
        prefix_cache.value_count = (
            max(1, value_count - count_marks(body[len(prefix_cache.body_prefix) :])) if value_count else 0
        )
        if known is not None and request.known_messages:
            prefix_cache.tenant_keys = known.tenant_keys
            prefix_cache.separator = known.separator
        new = BodyPrefix(prefix_cache.body_prefix, _count_prefix_bytes(prefix_cache), prefix_cache)
        self._replace(CHAT, old if request.known_messages else None, new)
        return request, prefix_cache

    def read_wire_with_prefix(self, wire_format: str, body: bytes, old: BodyPrefix[W] | None, read: WireReader[W]) -> W:
        """Return the request that `read` finds in this body of another wire format. Raises NotManaged."""
        request = read(body, self.limits, old.value if old is not None else None)
        if request.prefix_end >= SMALL_WIRE_BYTES:
            size = _count_wire_bytes(request)
            self._replace(wire_format, old, BodyPrefix(memoryview(body)[: request.prefix_end], size, request))
        return request

    def _replace(self, wire_format: str, old: BodyPrefix[T] | None, new: BodyPrefix[T]) -> None:
        """Remember the beginning of a body, in place of a shorter one."""
        with self._lock:
            if old is not None:
                self._prefixes.drop(old)
                self._large_prefix.drop(old)
            self._uses += 1
            new.used_at = self._uses
            if new.size <= self.max_bytes - self._max_messages:
                self._prefixes.add(wire_format, new)
                self._shrink()
            elif new.size <= self._max_large_prefix:
                self._large_prefix.add(wire_format, new)
                while self._large_prefix.find_oldest() is not None:
                    self._large_prefix.drop_oldest()

    def find_prefix(self, body: bytes, wire_format: str = CHAT) -> BodyPrefix[Any] | None:
        """The part of the body that was read before, as its beginning; None if there is none, or it is short."""
        if len(body) < (SMALL_WIRE_BYTES if wire_format else SMALL_BODY_BYTES):
            return None
        return self._prefixes.find(wire_format, body) or self._large_prefix.find(wire_format, body)


def _count_message_bytes(raw: bytes) -> int:
    """Bytes of memory that a message takes, estimated."""
    return len(raw) * TEXT_COPIES + MESSAGE_OVERHEAD


def _count_prefix_bytes(prefix_cache: PrefixCache) -> int:
    """Bytes of memory that a beginning takes with its messages, estimated.

    The body stays whole, with the tools that may follow the messages. The tools are kept twice more, with those
    of the proxy and without. The bodies that bindings of reasoning keep are those of the request before, which are as
    long."""
    memo = prefix_cache.memo_values.get(PREFIXES)
    kept = memo.sent_bytes if memo is not None else 0
    kept += 2 * len(prefix_cache.memo_values.get(TOOLS, (b"",))[0])
    whole = memoryview(prefix_cache.body_prefix.obj).nbytes
    return whole + len(prefix_cache.body_prefix) * TEXT_COPIES + MESSAGE_OVERHEAD * len(prefix_cache.messages) + kept


def _count_wire_bytes(request: GrowingRequest) -> int:
    """Bytes of memory that a request of another wire format takes in addition to its canonical messages, estimated.

    These are its body, what was copied from it, and the bodies that went upstream. One of these will be written. There
    are as many as for the request before."""
    kept = request.memo.sent_bytes if request.memo is not None else 0
    whole = len(request.body)
    return whole + request.frame_bytes + max(whole, kept) + WIRE_OVERHEAD * len(request.bound)


def _cut_sample(text: memoryview) -> bytes:
    end = next(_list_sample_ends(len(text)))
    return bytes(text[end - SAMPLE_BYTES : end])


def _list_sample_ends(length: int) -> Iterator[int]:
    """Yield the ends that the sample of a beginning may have, the last one first. They are 7, 6, 5 and 4 times a power
    of two, down to a quarter of the length."""
    power = length.bit_length() - 3
    for shift in (power, power - 1):
        for times in (7, 6, 5, 4):
            if SAMPLE_BYTES <= times << shift <= length:
                yield times << shift
