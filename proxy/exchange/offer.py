"""The proxy's own tools that a thread offers its model: decided once, and the same bytes from then on.

Tool definitions stand at the front of the provider's cached prefix, so a changed list invalidates the whole prompt.
Tools are left out where they could not be used, or where a strict upstream would refuse them (WIRE.md 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from proxy.chat import slices
from proxy.chat.message import Request
from proxy.context.policy import Offer as When
from proxy.context.policy import Policy
from proxy.settings import Settings
from proxy.tools import catalog

Choice = Literal["auto", "none", "required", "one", "allowed"]


@dataclass(frozen=True, slots=True)
class Offer:
    """Names of tools, and the definition of each as it stands in the prompt."""

    names: tuple[str, ...] = ()
    members: tuple[bytes, ...] = ()

    @property
    def definitions(self) -> bytes:
        """All definitions with commas between, b"" for none."""
        return b",".join(self.members)

    def without(self, taken: Sequence[str]) -> Offer:
        """Return the offer without the tools whose names are taken; itself if none is."""
        if not any(name in taken for name in self.names):
            return self
        kept = [(n, m) for n, m in zip(self.names, self.members, strict=True) if n not in taken]
        return Offer(tuple(n for n, _ in kept), tuple(m for _, m in kept))


NONE = Offer()
"""The offer of a thread that never offers anything."""


class _Function(msgspec.Struct, frozen=True):
    name: str


class _Tool(msgspec.Struct, frozen=True):
    function: _Function


def write(offer: Offer) -> bytes:
    """Encode the offer as it is stored: a JSON array of the definitions, b"" for none."""
    return b"[" + offer.definitions + b"]" if offer.members else b""


def read(array: bytes) -> Offer:
    """Decode a stored offer. Raises ValueError if it cannot be read."""
    if not array:
        return NONE
    members = tuple(array[start:end] for start, end in slices.elements(array) or ())
    return Offer(tuple(msgspec.json.decode(raw, type=_Tool).function.name for raw in members), members)


def when(settings: Settings, policy: Policy) -> When:
    """The time at which a thread's tools are offered; "never" for a policy that leaves requests as they are."""
    if policy.mode != "rewrite":
        return "never"
    return policy.offer if settings.tools.offer == "policy" else settings.tools.offer


def decide(settings: Settings, policy: Policy, request: Request, *, explicit: bool) -> Offer:
    """Choose the tools that a thread offers, by the request with which it decides. explicit: the client named the
    session."""
    if choice(request) not in ("auto", "required") or not allowed(request):
        return NONE
    memos = explicit or settings.memos.scope == "tenant"
    names = catalog.chosen(settings.tools.enabled, policy.tools, request.tool_names, memos=memos)
    return Offer(names, tuple(catalog.definitions([name]) for name in names)) if names else NONE


def present(offer: Offer, request: Request) -> Offer:
    """The part of a thread's offer that stands in this request."""
    if not offer.names or not allowed(request):
        return NONE
    return offer.without(request.tool_names)


def allowed(request: Request) -> bool:
    """True if tools of ours may stand in the request: it has tools of its own, and one answer that is read as text."""
    if request.tools is None or request.choices != 1 or "functions" in request.spans:
        return False
    return b"audio" not in _raw(request, "modalities")


def choice(request: Request) -> Choice:
    """The request's choice of tools, from its `tool_choice`."""
    raw = _raw(request, "tool_choice")
    if raw[:1] == b"{":
        return "allowed" if b"allowed_tools" in raw else "one"
    named = slices.string(raw) if raw else None
    return "none" if named == "none" else "required" if named == "required" else "auto"


def _raw(request: Request, name: str) -> bytes:
    span = request.spans.get(name)
    return request.body[span[0] : span[1]] if span else b""
