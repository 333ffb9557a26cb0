"""Texts that literal policies put behind the system prompt: guidelines, the Global Anchor, the request for a new one.

These texts stand in front of all messages, so they are made before anything else. They are needed to write the prompt,
and also to predict how much of it the provider's cache holds.
"""

from __future__ import annotations

from proxy.chat.message import Request
from proxy.context.plan import Insert
from proxy.context.policy import Policy
from proxy.context.session import Session, losses
from proxy.memory import state

NOTE_ROOM = 400
"""Tokens of an answer below which no note is requested: the note would be cut off, and the answer with it."""


def system_inserts(request: Request, session: Session, policy: Policy, edits: int) -> tuple[list[Insert], bool]:
    """Return (the inserts behind the system prompt, True if the model is asked for its state).

    edits: how many edits in force have taken something out.
    """
    found: list[Insert] = []
    asked = may_ask(request) and wants(policy, session, edits)
    if asked or policy.ask == "always":
        found.append(Insert("system", "guidelines", "\n\n" + (policy.guidelines or state.guidelines())))
    if session.state:
        found.append(Insert("system", "state", "\n\n" + state.anchor(session.state)))
    if asked:
        found.append(Insert("system", "ask", "\n\n" + state.ask()))
    return found, asked


def system_texts(request: Request, session: Session, policy: Policy) -> list[str]:
    """The texts that will stand behind the system prompt of this request; none if there is no system prompt."""
    if policy.state_place != "system" or session.stopped is not None or not takes_texts(request):
        return []
    return [insert.text for insert in system_inserts(request, session, policy, losses(session.edits))[0]]


def takes_texts(request: Request) -> bool:
    """True if the client sent a leading system message that a text can be appended to (FEATURES.md A9)."""
    first = request.messages[0]
    return first.is_system and first.shape in ("string", "parts")


def may_ask(request: Request) -> bool:
    """True if the model can be asked for a STATE block.

    The answer has to be one free text with room for a note behind it, and it has to be the model's turn.
    """
    last = request.messages[-1]
    if request.max_tokens is not None and request.max_tokens < NOTE_ROOM:
        return False
    return request.plain and (last.role == "user" or last.is_result)


def wants(policy: Policy, session: Session, edits: int) -> bool:
    """True if the policy asks for a state with this request.

    `when_needed`: more has left the prompt since an answer with text last came to a request that asked.
    """
    if policy.ask == "when_needed":
        return edits > session.asked.losses
    return policy.ask == "always"
