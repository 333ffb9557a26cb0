"""The proxy's own tools that a branch offers its model: decided once, and the same bytes from then on.

Tool definitions are at the front of the provider's cached prefix, so a changed list invalidates the whole prompt.
Tools are left out where they could not be used, or where a strict upstream would refuse them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from proxy.chat import json_spans
from proxy.chat.message import Request
from proxy.context.policy import OfferTime as When
from proxy.context.policy import Policy
from proxy.settings.load import Settings
from proxy.tools import registry

ToolChoice = Literal["auto", "none", "required", "one", "allowed"]


class ToolOffer(msgspec.Struct, frozen=True):
    """Names of tools, and the definition of each as it is in the prompt."""

    names: tuple[str, ...] = ()
    definition_list: tuple[bytes, ...] = ()

    @property
    def definitions(self) -> bytes:
        """All definitions with commas between, b"" for none."""
        return b",".join(self.definition_list)

    def without_tools(self, taken_names: Sequence[str]) -> ToolOffer:
        """Return the offer without the tools whose names are taken; itself if none is."""
        if not any(name in taken_names for name in self.names):
            return self
        kept = [(n, m) for n, m in zip(self.names, self.definition_list, strict=True) if n not in taken_names]
        return ToolOffer(tuple(n for n, _ in kept), tuple(m for _, m in kept))


NO_TOOLS = ToolOffer()
"""The offer of a branch that never offers anything."""


class _Function(msgspec.Struct, frozen=True):
    name: str


class _Tool(msgspec.Struct, frozen=True):
    function: _Function


def encode_offer(offer: ToolOffer) -> bytes:
    """Encode the offer as it is stored: a JSON array of the definitions, b"" for none."""
    return b"[" + offer.definitions + b"]" if offer.definition_list else b""


def decode_offer(array: bytes) -> ToolOffer:
    """Decode a stored offer. Raises ValueError if it cannot be read."""
    if not array:
        return NO_TOOLS
    members = tuple(array[start:end] for start, end in json_spans.find_elements(array) or ())
    return ToolOffer(tuple(msgspec.json.decode(raw, type=_Tool).function.name for raw in members), members)


def find_offer_time(settings: Settings, policy: Policy) -> When:
    """The time at which a branch's tools are offered; "never" for a policy that leaves requests as they are."""
    if policy.mode != "rewrite":
        return "never"
    return policy.offer if settings.tools.offer == "policy" else settings.tools.offer


def choose_tools(settings: Settings, policy: Policy, request: Request, *, explicit: bool) -> ToolOffer:
    """Choose the tools of a branch by its deciding request. explicit: the client named the session."""
    if read_tool_choice(request) not in ("auto", "required") or not may_offer_tools(request):
        return NO_TOOLS
    memos = explicit or settings.memos.scope == "tenant"
    names = registry.choose_tool_names(settings.tools.enabled, policy.tools, request.tool_names, memos=memos)
    return ToolOffer(names, tuple(registry.join_definitions([name]) for name in names)) if names else NO_TOOLS


def select_present_tools(offer: ToolOffer, request: Request) -> ToolOffer:
    """The part of a branch's offer that is in this request."""
    if not offer.names or not may_offer_tools(request):
        return NO_TOOLS
    return offer.without_tools(request.tool_names)


def may_offer_tools(request: Request) -> bool:
    """True if the proxy's tools may be in the request: it has tools, and one answer that is read as text."""
    if request.tools is None or request.choices != 1 or "functions" in request.spans:
        return False
    return b"audio" not in _read_raw_field(request, "modalities")


def read_tool_choice(request: Request) -> ToolChoice:
    """The request's choice of tools, from its `tool_choice`."""
    raw = _read_raw_field(request, "tool_choice")
    if raw[:1] == b"{":
        return "allowed" if b"allowed_tools" in raw else "one"
    named = json_spans.decode_string(raw) if raw else None
    return "none" if named == "none" else "required" if named == "required" else "auto"


def _read_raw_field(request: Request, name: str) -> bytes:
    span = request.spans.get(name)
    return request.body[span[0] : span[1]] if span else b""
