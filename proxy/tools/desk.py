"""What a tool may see and use: whose session it works in, and nothing of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.chat.message import Message
from proxy.metrics import Metrics
from proxy.settings import Settings
from proxy.store.base import Store
from proxy.tools.sandbox import Sandbox


def _nobody(_memo: str, _merged: bool) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Desk:
    """Made anew for each request that may call tools. Tenant and session come from the exchange, never from a model."""

    tenant: str
    session: str
    thread: str
    explicit: bool
    """Whether the client named the session: memos need that, or `memos.scope = "tenant"`."""
    project: str
    """The namespace of memos that the client named; "": the tenant's own."""
    store: Store
    settings: Settings
    metrics: Metrics
    now: Callable[[], float] = time.time
    sandbox: Sandbox = field(default_factory=Sandbox)
    """Shared by all requests, since it bounds how many children there are at once."""
    prompt: Sequence[Message] = ()
    """What the model sees in this request, for telling what it need not save and how old a message is."""
    keys: Sequence[bytes] = ()
    """The chain keys of these messages."""
    saved: Callable[[str, bool], None] = _nobody
    """Told of each memo that is saved: its id, and whether it took the place of another."""
    offered: frozenset[str] | None = None
    """The tools that this request offers; None: all. No other is ever run."""
