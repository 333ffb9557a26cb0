"""Context of a tool call: the session, services and messages of one request, and nothing of other sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.chat.message import Message
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.store.reads import Store
from proxy.tools.sandbox import Sandbox, TenantSlots

MAX_MESSAGE_READS: Final = 4
"""Concurrent reads of many stored messages, for a recall, a search or a page of a list. Each may hold tens of MB."""


def make_read_slots() -> TenantSlots:
    """Return the slots for all such reads of a process."""
    return TenantSlots(MAX_MESSAGE_READS)


def _ignore_memo(_memo: str, _merged: bool) -> None:
    """Ignore the event: nobody listens."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of one request, made new for each request that may call tools. Tenant and session come from the
    exchange, never from a model."""

    tenant: str
    session: str
    branch: str
    explicit: bool
    """True if the client named the session: memos need that, or `memos.scope = "tenant"`. Conversations that begin
    alike may share a session that nobody has named."""
    project: str
    """The namespace of memos that the client named; "": the tenant's own."""
    store: Store
    settings: Settings
    metrics: Metrics
    now: Callable[[], float] = time.time
    sandbox: Sandbox = field(default_factory=Sandbox)
    """Shared by all requests, because it bounds the number of concurrent children."""
    read_slots: TenantSlots = field(default_factory=make_read_slots)
    """Shared by all requests, because they bound the memory of concurrent reads."""
    prompt: Sequence[Message] = ()
    """The messages that the model sees in this request: they tell what need not be saved and how old a message is."""
    prompt_keys: Sequence[bytes] = ()
    """The chain keys of these messages."""
    has_scratchpad: bool = True
    """False if the session's scratchpad may be another conversation's."""
    on_memo_saved: Callable[[str, bool], None] = _ignore_memo
    """Called for each memo that is saved, with its id and True if it replaced another."""
    offered_tools: frozenset[str] | None = None
    """The tools that this request offers; None: all. No other tool is ever run."""

    @property
    def readable_keys(self) -> frozenset[bytes] | None:
        """The chain keys of the messages that tools may read; None: those of the whole session."""
        return None if self.explicit else frozenset(self.prompt_keys)
