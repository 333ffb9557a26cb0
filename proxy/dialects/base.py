"""The contract of a dialect: one wire format, read into chat-completions messages and written back.

All packages above work on canonical messages in the form of chat completions. A dialect reads a body of its wire format
into these messages and writes the messages that a plan has changed back into the body. Every byte that no change
concerns stays the client's.

Some models bind their reasoning to the prompt in front of it: an opaque token records that prompt. A request that
sends the token back behind another prompt is refused, or loses the reasoning. `Binding` is the prompt as hashes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec

from proxy.chat.json_spans import SizeLimits
from proxy.dialects.known_prefix import (
    CHANGING_TAIL,
    TRACED,
    BodyHistory,
    HistoryMemo,
    PrefixMemo,
    keep_objects,
    read_history,
)
from proxy.dialects.written_history import OutgoingMessage

BOUND_SEPARATOR = " "
"""Separator of the tokens in one entry of `WireRequest.bound`. Tokens are base64, so none contains it."""

HASH_BYTES = 16
"""Bytes of a hash in a binding. With 128 bits, neither chance nor search finds a collision."""


class WireRequest(Protocol):
    """A request in a wire format, with its canonical messages."""

    @property
    def body(self) -> bytes:
        """The client's bytes."""

    @property
    def chat_body(self) -> bytes:
        """The request as a chat-completions body. A wire body that has only grown gives `messages` that only grew."""

    @property
    def canonical(self) -> Sequence[bytes]:
        """The messages of `chat_body`; () where nothing is kept."""

    @property
    def bound(self) -> tuple[str | None, ...]:
        """For each canonical message the tokens that bind it, joined by `BOUND_SEPARATOR`; None without tokens."""

    @property
    def is_cut(self) -> bool:
        """True if an answer in it cannot be sent as it is, since the client lacks a part that was withheld from it."""

    @property
    def memo(self) -> HistoryMemo | None:
        """The known beginnings of its bodies, from earlier requests of the history; None where nothing is kept."""

    def write(self, messages: Sequence[OutgoingMessage], *, tools: bytes = b"") -> bytes:
        """The wire body with these messages in place of its own, and with tools added behind the client's own.

        tools: definitions in the form of chat completions, with commas between. A canonical message of the request that
        no outgoing message is made from is removed. Raises ValueError for a change that the dialect does not allow.
        """


class GrowingRequest(WireRequest, Protocol):
    """A request from which a longer one of the same history is read."""

    @property
    def prefix_end(self) -> int:
        """The end of the part that the next body of the history is expected to begin with; 0 if none is expected."""

    @property
    def value_count(self) -> int:
        """A bound of the JSON values of its body, as `SizeLimits.check_body`."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of the values beside the history, as far as the request keeps copies of them."""


def check_grown_body(body: bytes, limits: SizeLimits | None, before: GrowingRequest | None) -> int:
    """Check the size of a body; only what has come behind an earlier request is counted. Return a bound of its JSON
    values, as `SizeLimits.check_body`; 0 without limits. Raises NotManaged."""
    if limits is None:
        return 0
    begin, known = (before.prefix_end, before.value_count) if before is not None else (0, 0)
    return limits.check_body(body, begin, known)


W = TypeVar("W", bound=GrowingRequest)
WireReader = Callable[[bytes, SizeLimits | None, W | None], W]
"""Reader of a body, with its limits, and with an earlier request whose bytes up to `prefix_end` the body begins with:
only the rest is read. None: all of it is read."""


@dataclass(frozen=True, slots=True)
class Breakpoints:
    """Places at which the proxy wants a provider to end an entry of its prompt cache."""

    has_tail: bool = False
    """True for the end of the prompt; then the end of the system prompt is wanted too."""
    answers: tuple[int, ...] = ()
    """Ends of prefixes that no later edit is expected to change, the most wanted one first. Each is the number of
    answers in it: the prefix ends in front of the next answer."""


NO_BREAKPOINTS = Breakpoints()

UNSIGNED: Final = b'"skip_thought_signature_validator"'
"""Google's signature for calls that its model has not made."""

MADE_CALL_ID: Final = "gemini_"
"""Beginning of the ids of calls that have none on the wire. They are made here, of the name and arguments, and never go
upstream."""


@dataclass(frozen=True, slots=True)
class ClientMarks:
    """The cache breakpoints that a client has set in a request."""

    lifetime: str = ""
    """The lifetime that the last one asks for, `5m` where it names none; empty if there is none."""
    in_history: bool = False
    """True if one stands behind the tools and the system prompt."""


NO_MARKS = ClientMarks()


@dataclass(frozen=True, slots=True)
class ClearedResults:
    """Tool results that a provider says it has cleared from a prompt."""

    tool_uses: int
    tokens: int


LONG_LIFETIME = "1h"
"""The longer lifetime of an entry in Anthropic's cache. The other one is five minutes."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The prompt that one piece of reasoning was made under."""

    system_tools: bytes
    """Hash of the parts of the prompt that stand outside of the messages."""
    chain: bytes
    """Hash of all messages before the reasoning."""
    after: str
    """The token of the reasoning before it in the same prompt; "" for the first."""


def find_broken(outgoing: Mapping[str, Binding], known: Mapping[str, Binding]) -> list[str]:
    """The tokens of an outgoing body, in order, that do not find the prompt they were made under (rule W15).

    A token without a known binding is not judged. The first token may have lost the reasoning before it: reasoning may
    leave from the front, but a gap is refused.
    """
    return [token for token, binding in outgoing.items() if _is_broken(binding, known.get(token, binding))]


def _is_broken(binding: Binding, known: Binding) -> bool:
    if (binding.system_tools, binding.chain) != (known.system_tools, known.chain):
        return True
    return bool(binding.after) and binding.after != known.after


def read_dropped_reasoning(response: Mapping[str, Any]) -> tuple[str, ...]:
    """For each piece of reasoning that a provider says it left out of the prompt, the reason; () if it says none."""
    reports = keep_objects(response.get("input_transformations"))
    return tuple(str(one.get("reason")) for one in reports if one.get("action") == "removed")


def extend_to_newest(tokens: Iterable[str], broken: Iterable[str]) -> list[str]:
    """The tokens from the first broken one to the newest. Removing a run at the end leaves no gap, which is legal."""
    wanted, ordered = set(broken), list(tokens)
    first = next((n for n, token in enumerate(ordered) if token in wanted), len(ordered))
    return ordered[first:]


class ChainHash:
    """A rolling hash of JSON values. Key order and spacing do not count, values do."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=HASH_BYTES)

    def add(self, value: Any) -> None:
        """Add one value. Values are delimited: two of them never hash as one."""
        piece = msgspec.json.encode(value, order="sorted")
        self._hash.update(b"%d:" % len(piece))
        self._hash.update(piece)

    def copy(self) -> ChainHash:
        """A hash of the same values, to which others can be added."""
        made = ChainHash()
        made._hash = self._hash.copy()
        return made

    @property
    def value(self) -> bytes:
        """The hash of all values so far."""
        return self._hash.digest()


def select_added(violations: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Those of the violations found whose rule, the first word, is broken more often than among the allowed ones."""
    before, now = (Counter(line.split()[0] for line in lines) for lines in (allowed, violations))
    return [line for line in violations if now[line.split()[0]] > before[line.split()[0]]]


class BindingTrace:
    """The bindings in a prompt, while it is read from its beginning to its end."""

    __slots__ = ("_chain", "after", "bindings", "system_tools")

    def __init__(self, outside: ChainHash) -> None:
        """outside: the parts of the prompt that stand outside of its messages."""
        self.system_tools = outside.value
        self.bindings: dict[str, Binding] = {}
        """By token, the prompt that it stands behind, in the order of the tokens."""
        self.after = ""
        """The last token so far."""
        self._chain = ChainHash()

    def add(self, value: Any) -> None:
        """Add a part of a message."""
        self._chain.add(value)

    def add_token(self, token: str) -> None:
        """Add a piece of reasoning, which is no part of the prompt itself."""
        self.bindings.setdefault(token, Binding(self.system_tools, self._chain.value, self.after))
        self.after = token

    def copy(self) -> BindingTrace:
        """The trace of the same prompt, which can go on; it has no bindings yet."""
        made = BindingTrace(ChainHash())
        made.system_tools, made.after, made._chain = self.system_tools, self.after, self._chain.copy()
        return made

    def fork(self) -> BindingTrace:
        """The same with its bindings."""
        made = self.copy()
        made.bindings = dict(self.bindings)
        return made


@dataclass(frozen=True, slots=True)
class HistoryTracer:
    """Finds the bindings in the bodies of one wire format."""

    messages_name: str
    """The member of a body that has the messages."""
    head_names: tuple[str, ...]
    """The members on which the part of the prompt outside of the messages depends."""
    begin: Callable[[BodyHistory[Any]], BindingTrace]
    """Makes the trace with that part."""
    add: Callable[[BindingTrace, Sequence[Any]], None]
    """Adds messages to a trace."""
    is_outside: Callable[[Any], bool] = lambda _: False
    """True for a message that belongs to that part too."""

    def trace(self, body: bytes, memo: PrefixMemo | None = None) -> BindingTrace:
        """The bindings in a body. memo: only the messages behind the known beginning are read, and a beginning is
        noted.

        A beginning holds only where no message behind it belongs to the part outside. Raises ValueError or
        RecursionError if a text is not JSON.
        """
        history = read_history(body, self.messages_name, memo.find_prefix(TRACED, body) if memo is not None else None)
        head = tuple(history.cut_value(name) for name in self.head_names)
        if history.state is not None and (history.state[0] != head or any(map(self.is_outside, history.new))):
            history = read_history(body, self.messages_name, None)
        trace: BindingTrace = history.state[1].fork() if history.state is not None else self.begin(history)
        last = max(0, len(history.places) - CHANGING_TAIL - history.first)
        self.add(trace, history.new[:last])
        if memo is not None and last and not any(map(self.is_outside, history.new[last:])):
            history.remember(memo, TRACED, history.first + last, (head, trace.fork()))
        self.add(trace, history.new[last:])
        return trace
