"""The settings of a relay: what it keeps from the client, and how much of an answer it holds."""

from __future__ import annotations

import msgspec

from proxy.stream.sse import EVENT_LIMIT


class ClientEcho(msgspec.Struct, frozen=True):
    """The parts of an answer that tell of the request, where the client's own request differs from the one sent."""

    instructions: bytes | None = None
    """The client's own `instructions` as JSON (`null` for none), if others were sent: a response repeats them. None if
    they were sent unchanged."""
    hidden_member: str = ""
    """The member that tells what the provider cleared, where only the proxy asked for that; "" for none."""


class RelayOptions(msgspec.Struct, frozen=True):
    """The options of the relay of a stream, in every dialect. Without any, the bytes go out as they come."""

    withheld: tuple[str, ...] = ()
    """The headings of the blocks that are removed from the text."""
    drop_usage: bool = False
    """True if the proxy asked for usage and the client did not. Chat completions alone have streams without usage."""
    limit: int = EVENT_LIMIT
    """Bytes of an event that is read, and of an answer that is held."""
    hidden_tools: frozenset[str] = frozenset()
    """The names of the proxy's tools, whose calls the client never sees."""
    hold_text: bool = False
    """True if text waits until it is known that no hidden call follows it."""
    echo: ClientEcho = ClientEcho()


NO_OPTIONS = RelayOptions()
