"""A read-only view of one message, held as the slice of the body that it came in.

The layers above ask a Message for its role, its text, its calls and, for a result, the call that it answers. Only
`dialects` knows the wire fields of these. Facts derived from a message (its size in tokens, its lines, its identifiers)
are computed once and stored with the message. So the work of a request grows with the number of its new messages.

Long work on messages can be stopped at each `checkpoint`, past a deadline that the caller sets (`cancellation_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import force_setattr

T = TypeVar("T")

ContentShape = Literal["string", "parts", "mixed", "none"]
"""Form of the content: a string; a list of text parts only; a list with images or the like; no text at all."""

CHAT_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of chat completions."""
_MISSING: Final = object()
"""In place of a fact that was not derived yet. A look-up that raises takes twice the time, and a new history of 218 KB
has 800 of them."""
_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an assistant message. `arguments` is the string as the model wrote it, JSON or not."""

    id: str
    name: str
    arguments: str
    derived_values: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Facts derived from the call so far, by the function that computes them."""

    def derive(self, compute: Callable[[Call], T]) -> T:
        """`compute(self)`, as `Message.derive`."""
        value: T = self.derived_values.get(compute, _MISSING)
        if value is _MISSING:
            checkpoint()
            value = self.derived_values[compute] = compute(self)
        return value


class Message(msgspec.Struct, frozen=True, weakref=True, eq=False):
    """One message of a conversation."""

    raw: bytes
    """The bytes in which the message came."""
    role: str
    text: str
    """The text parts joined; those of a result begin on lines of their own."""
    calls: tuple[Call, ...]
    """The tool calls that the message makes."""
    call_id: str | None
    """The id of the call that a tool result answers."""
    reasoning: str
    """The model's reasoning, if upstream shows it."""
    shape: ContentShape
    media_count: int
    """The number of parts that are not text."""
    has_cache_mark: bool
    """True if the client has put a cache mark into the message."""
    digest: bytes
    """A digest of 16 bytes of the canonical form (`key`)."""
    form: bytes
    """A digest of 16 bytes of the raw bytes."""
    part_count: int = 0
    """Number of content parts, if the content is a list; otherwise 0."""
    continues: bool = False
    """True for an answer that continues the one before it. That answer has a call that the provider runs itself, and
    this one has its result, or calls that it made. One without the other is refused."""
    is_system: bool = False
    """True for system and developer messages: instructions, not part of the chain. Set from the role."""
    is_result: bool = False
    """True for the result of a tool call (or of a function call of the old kind). Set from the role."""
    derived_values: dict[Any, Any] = {}
    """Facts derived so far, by key (see `derive`). Code that asks for facts of each message looks here first."""

    def __post_init__(self) -> None:
        # Fields rather than properties: both are read several times per message and request.
        force_setattr(self, "is_system", self.role in ("system", "developer"))
        force_setattr(self, "is_result", self.role in ("tool", "function"))
        force_setattr(self, "derived_values", {})  # a changed copy of a Message derives its own

    def derive(self, compute: Callable[[Message], T], key: Hashable = None) -> T:
        """`compute(self)`, computed at the first call and stored under `key` (or under the function itself).

        The function must be pure, and must either be long-lived or have a `key`. Raises what the caller's check
        raises (`checkpoint`).
        """
        name = compute if key is None else key
        value: T = self.derived_values.get(name, _MISSING)
        if value is _MISSING:
            checkpoint()
            value = self.derived_values[name] = compute(self)
        return value


class Request(msgspec.Struct, frozen=True, eq=False):
    """A chat request as received: its messages, and the other facts that a rewrite needs."""

    body: bytes
    """The bytes of the body."""
    spans: dict[str, tuple[int, int]]
    """The (start, end) of each top-level value in the body."""
    messages: tuple[Message, ...]
    model: str
    stream: bool
    tools: bytes | None
    """The bytes of the tools array, with the proxy's tools once they are offered."""
    tool_names: tuple[str, ...]
    is_free_text: bool
    """The answer will be one free text with optional calls (no JSON format, one choice, no forced tool, no log
    probabilities of its tokens). Such a model can be asked for a STATE block."""
    usage_wanted: bool
    """The client asked for usage in its stream."""
    choices: int
    reasoning_effort: str
    is_continuation: bool = False
    """True if the model is to continue the last message, which is the assistant's, and not to answer it."""
    max_tokens: int | None = None
    """Limit of the answer in tokens as the client set it; None if the client sets none."""
    known_messages: tuple[Message, ...] = ()
    """The messages of an earlier request of the same history, with which this one begins."""
    prefix_bytes: int = 0
    """Byte offset in the body at which the part after the known prefix begins."""
    is_spliced: bool = False
    """True if messages were inserted: they differ from the body's, and `write_request` writes them."""
    memo_values: dict[Hashable, Any] = {}
    """Memo of facts about a prefix of the messages, by name (see `memo`), for later requests of the history."""

    def memo(self, name: str, compute: Callable[[int, T | None], T], owner: Hashable = None) -> T:
        """Incremental memo: compute a fact for the new messages only and join it to the result stored for the shared
        prefix.

        compute: called with the number of messages that the stored result covers, and with that result (None if there
        is none). `compute` must not modify that result. owner: distinguishes callers whose results differ; only the
        last owner's result is stored."""
        begin, value = self.read_memo(name, owner)
        if value is None or begin < len(self.messages):
            value = compute(begin, value)
            self.memo_values[name] = self.messages, owner, value
        made: T = value
        return made

    def read_memo(self, name: str, owner: Hashable = None) -> tuple[int, Any]:
        """(messages that the stored result covers, the result); (0, None) without one for this owner and prefix."""
        before, whose, value = self.memo_values.get(name, ((), owner, None))
        if value is None or whose != owner:
            return 0, None
        is_known = before is self.messages or before is self.known_messages or self.messages[: len(before)] == before
        return (len(before), value) if is_known else (0, None)

    def find_indices(self, name: str, predicate: Callable[[Message], bool]) -> list[int]:
        """The indices of the messages for which `predicate` is true. name: the memo's key for this question."""
        messages = self.messages
        return self.memo(
            name,
            lambda begin, known: [*(known or ()), *(n for n in range(begin, len(messages)) if predicate(messages[n]))],
        )

    def find_chained_indices(self) -> list[int]:
        """The indices of the messages that have a chain key of their own: all but system messages."""
        return self.find_indices("in chain", _is_chained)


@dataclass(slots=True, eq=False)
class PrefixCache:
    """A request's body up to the end of its messages: the expected prefix of the next body."""

    body_prefix: memoryview
    """The body up to, not including, the closing bracket of the messages. It is a view, since a copy of a long history
    takes longer than all other work on it."""
    messages_start: int
    """The offset at which the messages array begins."""
    spans: dict[str, tuple[int, int]]
    """The (start, end) of the values before the array."""
    messages: tuple[Message, ...]
    memo_values: dict[Hashable, Any] = field(default_factory=dict)
    """The memo of the request."""
    value_count: int = 0
    """Upper bound of the number of JSON values in `body_prefix`; 0: not counted (`json_spans.SizeLimits`)."""
    tenant_keys: tuple[str | None, tuple[bytes, ...]] = (None, ())
    """(tenant, the messages' chain keys for this tenant). They are one value, since worker threads of two tenants may
    read and write it at the same time."""
    separator: bytes | None = None
    """The bytes between any two messages, None if unknown."""


def _is_chained(message: Message) -> bool:
    return not message.is_system


@contextmanager
def cancellation_check(check: Callable[[], None]) -> Iterator[None]:
    """Cancellation of pure work past its deadline. `check` is called at every checkpoint inside the block, in this
    thread or task alone, and raises where work is to stop.

    A thread cannot be ended from outside. So long work passes a checkpoint before each piece: a fact of a message, a
    proposal of a stage. Results computed before the stop stay remembered, and the next attempt continues from there.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def checkpoint() -> None:
    """Call the current check, if there is one. Raises what the check raises."""
    check = _CHECK.get()
    if check is not None:
        check()
