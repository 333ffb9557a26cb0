"""Texts that literal policies put behind the system prompt: guidelines, the Global Anchor, the request for a new one.

These texts stand in front of all messages, so they are made before anything else. They are needed to write the prompt,
and also to predict how much of it the provider's cache holds.
"""

from __future__ import annotations

from proxy.chat.message import Request
from proxy.context.branch_state import BranchState, count_losses
from proxy.context.plan import Insert
from proxy.context.policy import Policy
from proxy.notes import state_block

MIN_ANSWER_TOKENS = 400
"""Tokens of an answer below which no note is requested: the note would be cut off, and the answer with it."""


def make_system_inserts(
    request: Request, session: BranchState, policy: Policy, lossy_edits: int
) -> tuple[list[Insert], bool]:
    """Return (the inserts behind the system prompt, True if the model is asked for its state).

    lossy_edits: how many edits in force have taken something out.
    """
    found: list[Insert] = []
    asked = may_ask(request) and is_state_wanted(policy, session, lossy_edits)
    if asked or policy.ask == "always":
        found.append(Insert("system", "guidelines", "\n\n" + (policy.guidelines or state_block.get_guidelines())))
    if session.state:
        found.append(Insert("system", "state", "\n\n" + state_block.render_anchor(session.state)))
    if asked:
        found.append(Insert("system", "ask", "\n\n" + state_block.build_prompt()))
    return found, asked


def make_system_texts(request: Request, session: BranchState, policy: Policy) -> list[str]:
    """The texts that will stand behind the system prompt of this request; none if there is no system prompt."""
    if policy.state_place != "system" or session.stopped is not None or not has_appendable_system(request):
        return []
    return [insert.text for insert in make_system_inserts(request, session, policy, count_losses(session.edits))[0]]


def has_appendable_system(request: Request) -> bool:
    """True if the client sent a leading system message that a text can be appended to (FEATURES.md A9)."""
    first = request.messages[0]
    return first.is_system and first.shape in ("string", "parts")


def may_ask(request: Request) -> bool:
    """True if the model can be asked for a STATE block.

    The answer has to be one free text with room for a note behind it, and it has to be the model's turn.
    """
    last = request.messages[-1]
    if request.max_tokens is not None and request.max_tokens < MIN_ANSWER_TOKENS:
        return False
    return request.is_free_text and (last.role == "user" or last.is_result)


def is_state_wanted(policy: Policy, session: BranchState, lossy_edits: int) -> bool:
    """True if the policy asks for a state with this request.

    `when_needed`: more has left the prompt since an answer with text last came to a request that asked.
    """
    if policy.ask == "when_needed":
        return lossy_edits > session.last_state_request.lossy_edits
    return policy.ask == "always"
