"""What is added to a prompt that is no part of the history: guidelines, the model's own state, the asking for it.

Literal policies put them behind the system prompt, made anew each time, as their source has it. All others put
them at the tail, where they cost their own tokens only; and what is to stay (the model's note to itself) is
written there once and kept where it is, since an insert that moves along is paid for with every request.
"""

from __future__ import annotations

from proxy.chat.message import Message
from proxy.context import front
from proxy.context.plan import Insert, View
from proxy.context.policy import Policy
from proxy.context.session import Session, losses
from proxy.memory import state


def inserts(view: View, session: Session, policy: Policy, edits: int) -> tuple[list[Insert], bool]:
    """(the inserts of this request, whether the model is asked for a STATE block). edits: how many in force have taken
    something out. What is written anew with every answer is not kept: the prompt would grow by a note each time."""
    if policy.state_place == "system":
        return front.system_inserts(view.request, session, policy, edits)
    found: list[Insert] = []
    always = policy.ask == "always"
    asked = front.may_ask(view.request) and front.wants(policy, session, edits)
    asked = asked and (always or edits > losses(session.edits) or _is_worth_asking(view))
    if (edits or session.is_told or always) and session.state and not _stands(view, session.state):
        note = "\n\n" + state.recap(session.state)
        found.append(Insert("tail", "state", note, kept=session.is_told or not always))
    if asked:
        found.append(Insert("tail", "ask", "\n\n" + state.ask()))
    return found, asked


def _is_worth_asking(view: View) -> bool:
    """Whether a model that has not answered yet is asked once more: with each prompt of the user's, and behind results
    ever more seldom (at the 1st, 2nd, 4th, 8th step of a prompt). A text at the tail moves along, so that the provider
    caches the message in front of it once with the text and once without it."""
    if view.messages[-1].role == "user":
        return True
    step = sum(message.role == "assistant" for message in view.messages[view.active :])
    return step & (step - 1) == 0


def _stands(view: View, text: str) -> bool:
    """Whether the newest state has been written into the prompt already, and is still there."""
    wanted = state.recap(text)
    return any(edit.text is not None and wanted in edit.text for edit in view.edits.values())


def tail_target(view: View) -> tuple[int | None, bool]:
    """(index of the message that texts at the tail are appended to, whether a user message of ours is needed instead).

    After a user message: that one. After a tool result: as the model's `after_tool` says (WIRE.md 1.7, W6).
    """
    last = len(view.messages) - 1
    message = view.messages[last]
    if message.role == "user":
        return (last, False) if _takes_text(message) else (None, False)
    if message.is_result:
        if view.model.after_tool == "user":
            return None, True
        if view.model.after_tool == "append" and _takes_text(message):
            return last, False
    return None, False


def _takes_text(message: Message) -> bool:
    return message.shape != "none"


def system_target(view: View) -> int | None:
    """The leading system message, None where the client sent none: then everything goes to the tail (FEATURES.md
    A9)."""
    return 0 if front.takes_texts(view.request) else None


def may_answer(view: View) -> bool:
    """Whether a user message of ours may stand behind the last message, an answer of the assistant's: not where the
    model is to go on with that answer, as all of Anthropic's do."""
    last = view.messages[-1]
    return last.role == "assistant" and not last.calls and not view.request.goes_on and view.strategy != "anthropic"
