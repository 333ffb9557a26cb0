"""Texts added to a prompt that are no part of the history: guidelines, the model's own state, the request for a state.

Literal policies put these texts behind the system prompt, and make them again for each request, as their source does.
All other policies put them at the tail, where they cost only their own tokens. A text that is to stay (the model's note
to itself) is written at the tail once and kept there. An insert that moves is paid for with every request.
"""

from __future__ import annotations

from proxy.chat.message import Message
from proxy.context import system_texts
from proxy.context.branch_state import BranchState, count_losses
from proxy.context.plan import Insert, View
from proxy.context.policy import Policy
from proxy.notes import state_block


def make_inserts(view: View, session: BranchState, policy: Policy, lossy_edits: int) -> tuple[list[Insert], bool]:
    """Return (the inserts of this request, True if the model is asked for a STATE block).

    lossy_edits: how many edits in force have taken something out. A state that is written again with every answer is
    not kept: otherwise the prompt would grow by one note for each answer."""
    if policy.state_place == "system":
        return system_texts.make_system_inserts(view.request, session, policy, lossy_edits)
    found: list[Insert] = []
    always = policy.ask == "always"
    asked = system_texts.may_ask(view.request) and system_texts.is_state_wanted(policy, session, lossy_edits)
    asked = asked and (always or lossy_edits > count_losses(session.edits) or _is_worth_asking(view))
    if (
        (lossy_edits or session.is_state_external or always)
        and session.state
        and not _is_state_in_prompt(view, session.state)
    ):
        note = "\n\n" + state_block.render_recap(session.state)
        found.append(Insert("tail", "state", note, persistent=session.is_state_external or not always))
    if asked:
        found.append(Insert("tail", "ask", "\n\n" + state_block.build_prompt()))
    return found, asked


def _is_worth_asking(view: View) -> bool:
    """True if a model that has not answered yet is asked once more.

    The model is asked with each prompt of the user's. Behind results it is asked ever more seldom: at the 1st, 2nd, 4th
    and 8th step of a prompt, and so on. A text at the tail moves. So the provider caches the message in front of the
    text once with the text and once without it.
    """
    if view.messages[-1].role == "user":
        return True
    step = sum(message.role == "assistant" for message in view.messages[view.active_start :])
    return step & (step - 1) == 0


def _is_state_in_prompt(view: View, text: str) -> bool:
    """True if the newest state has been written into the prompt already, and is still there."""
    wanted = state_block.render_recap(text)
    return any(edit.text is not None and wanted in edit.text for edit in view.edits.values())


def find_tail_target(view: View) -> tuple[int | None, bool]:
    """Return (index of the message that texts at the tail are appended to, True if a user message of ours is needed
    instead).

    After a user message: that message. After a tool result: as the model's `after_tool` says (WIRE.md 1.7, W6).
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


def find_system_target(view: View) -> int | None:
    """The index of the leading system message, or None if the client sent none. Without it all inserts go to the tail
    (FEATURES.md A9)."""
    return 0 if system_texts.has_appendable_system(view.request) else None


def may_add_user_message(view: View) -> bool:
    """True if a user message of ours may follow the last message, which is an answer of the assistant's.

    It may not where the model is to continue that answer, as all models of Anthropic's do.
    """
    last = view.messages[-1]
    return (
        last.role == "assistant"
        and not last.calls
        and not view.request.is_continuation
        and view.strategy != "anthropic"
    )
