"""A read-only view of one message, held as the slice of the body that it came in.

The floors above ask a Message for its role, its text, its calls and whose result it is; which wire fields
those come from is known in `dialects` alone. What is derived from a message (its size in tokens, its lines,
its identifiers) is computed once and stays with it, so the work of a request grows with what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from proxy.chat.checkpoint import checkpoint

T = TypeVar("T")

Shape = Literal["string", "parts", "mixed", "none"]
"""How the text is held: a string; a list of text parts only; a list with images or the like; not at all."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an assistant message. `arguments` is the string as the model wrote it, JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Message:
    """One message of a conversation.

    raw: the bytes it came in. text: its text parts joined. calls: the tool calls it makes. call_id: of a tool
    result, the call that it answers. reasoning: what the model thought, where upstream shows it. media: how many
    parts are not text. marked: it bears a cache mark of the client's. digest: 16 bytes of its canonical form
    (`key`). form: 16 bytes of its raw bytes.
    """

    raw: bytes
    role: str
    text: str
    calls: tuple[Call, ...]
    call_id: str | None
    reasoning: str
    shape: Shape
    media: int
    marked: bool
    digest: bytes
    form: bytes
    parts: int = 0
    """Parts that its content has, where that is a list."""
    is_system: bool = field(init=False)
    """System and developer messages: instructions, not part of the chain."""
    is_result: bool = field(init=False)
    """The answer to a tool call (or to a function call of the old kind)."""
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        # Fields rather than properties: both are asked for several times a message and request.
        object.__setattr__(self, "is_system", self.role in ("system", "developer"))
        object.__setattr__(self, "is_result", self.role in ("tool", "function"))

    def derive(self, fact: Callable[[Message], T], key: Hashable = None) -> T:
        """`fact(self)`, computed the first time it is asked for, remembered under `key` (or the function itself).

        The function must be pure, and either lasting or named by its key. Raises what a check of the caller's raises
        (`checkpoint`).
        """
        name = fact if key is None else key
        try:
            found: T = self._derived[name]
        except KeyError:
            checkpoint()
            found = self._derived[name] = fact(self)
        return found

    def derived(self, key: Hashable) -> bool:
        """Whether that fact is there already, so that asking for it is free."""
        return key in self._derived


@dataclass(frozen=True, slots=True)
class Request:
    """A chat request as it came: its messages, and what else a rewrite must know of it.

    body: the bytes. spans: the place of each top-level value in it. tools: the tools array's bytes, with ours once they
    are offered.
    plain: the answer will be one free text with optional calls (no JSON format, one choice, no forced tool), so
    that the model can be asked for a STATE block. usage_wanted: the client asked for usage in its stream.
    """

    body: bytes
    spans: dict[str, tuple[int, int]]
    messages: tuple[Message, ...]
    model: str
    stream: bool
    tools: bytes | None
    tool_names: tuple[str, ...]
    plain: bool
    usage_wanted: bool
    choices: int
    effort: str
    goes_on: bool = False
    """The model is to go on with the last message, the assistant's, and not to answer it."""
    max_tokens: int | None = None
    """Tokens to which the client limits the answer; None where it does not."""
    shared: int = 0
    """How many messages at the front were known from an earlier request of the same history."""
    rest: int = 0
    """Where in the body what was not known begins."""
    woven: bool = False
    """Its messages are others than those in its body: some were put in, and `write_request` writes them."""
    notes: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What was found out about a front of its messages, by who has: handed on to the next request of the history."""

    def grown(self, name: str, make: Callable[[int, T | None], T], owner: Hashable = None) -> T:
        """What `make` finds out about the messages, gone on from what it found out about a front of them with an
        earlier request of the same history.

        make: called with the number of messages at the front that it has looked at, and with what it found; it leaves
        that as it is. owner: who asks, where another would find something else; only the last one's is remembered.
        """
        begin, found = self.noted(name, owner)
        if found is None or begin < len(self.messages):
            found = make(begin, found)
            self.notes[name] = self.messages, owner, found
        made: T = found
        return made

    def noted(self, name: str, owner: Hashable = None) -> tuple[int, Any]:
        """Of how many messages at the front that is known, and what: (0, None) where it is not."""
        before, whose, found = self.notes.get(name, ((), owner, None))
        if found is None or whose != owner or self.messages[: len(before)] != before:
            return 0, None
        return len(before), found

    def which(self, name: str, fits: Callable[[Message], bool]) -> list[int]:
        """The indices of the messages that fit. name: of what is asked."""
        messages = self.messages
        return self.grown(
            name, lambda begin, known: [*(known or ()), *(n for n in range(begin, len(messages)) if fits(messages[n]))]
        )


@dataclass(slots=True, eq=False)
class Front:
    """A request's body up to the end of its messages, as the beginning of the next one: an agent resends its history.

    text: the body up to, not including, the closing bracket of the messages; a view, since a copy of a long history
    takes longer than all else that is done with it. start: where that array begins.
    spans: of the values in front of it. chain: the tenant for which `keys` holds the messages' chain keys. gap: what
    stands between any two messages, None where that is not known. notes: the request's.
    """

    text: memoryview
    start: int
    spans: dict[str, tuple[int, int]]
    messages: tuple[Message, ...]
    notes: dict[Hashable, Any] = field(default_factory=dict)
    values: int = 0
    """How many JSON values are in `text` at most; 0: not counted (`size_limits`)."""
    chain: str | None = None
    keys: tuple[bytes, ...] = ()
    gap: bytes | None = None
