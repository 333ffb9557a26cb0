"""Texts added to a prompt that are no part of the history: guidelines, the model's own state, the request for a state.

Literal policies put these texts after the system prompt, and make them again for each request, as the programs do from
which these policies are taken. All other policies put them at the tail, where they cost only their own tokens. A text
that is to stay (the model's note to itself) is written at the tail once and kept there. An insert that moves is paid
for with every request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.chat.chain import public_id
from proxy.chat.message import Message, Request
from proxy.context.analysis.file_views import ViewState, make_state_test
from proxy.context.analysis.refetch import find_confirmed, find_sources
from proxy.context.branch_state import BranchState, count_losses
from proxy.context.plan import WHOLE_TEXT_ACTIONS, Edit, Insert, Note
from proxy.context.policy import Policy
from proxy.context.summaries.references import is_thinned
from proxy.context.view import View
from proxy.notes import state_block

QUOTE = "confirmed_result"
"""The source of an insert that quotes a result which a client takes to be in the prompt."""
CUT_ABOVE: dict[ViewState, str] = {
    "current": "This is all of it",
    "changed": "The file was changed since; as it was",
    "gone": "The file was deleted or moved away since; as it was",
}
"""Words in front of a result that a client takes to be in the prompt, by the state of its file."""


def make_inserts(view: View, state: BranchState, policy: Policy, lossy_edits: int) -> tuple[list[Insert], bool]:
    """Return (the inserts of this request, True if the model is asked for a STATE block).

    lossy_edits: how many edits in force have taken something out. A state that is written again with every answer is
    not kept: otherwise the prompt would grow by one note for each answer."""
    if policy.state_place == "system":
        return make_system_inserts(view.request, state, policy, lossy_edits)
    made_inserts: list[Insert] = []
    always = policy.ask == "always"
    asked = may_ask(view.request) and is_state_wanted(policy, state, lossy_edits)
    asked = asked and (always or _has_new_losses(view, state, lossy_edits) or _is_worth_asking(view))
    if (
        state.states
        and state.state
        and (lossy_edits or state.is_state_external or always)
        and not _is_state_in_prompt(view, state.state)
    ):
        note = "\n\n" + state_block.render_recap(state.state)
        made_inserts.append(Insert("tail", "state", note, persistent=state.is_state_external or not always))
    if asked:
        made_inserts.append(Insert("tail", "ask", "\n\n" + state_block.build_prompt()))
    return made_inserts, asked


def quote_confirmed_results(view: View) -> list[Insert]:
    """Return the texts of results that are cut here, and that the newest results say to be in the prompt.

    A client that answers a repeated read by "unchanged since last read" knows nothing of the cut: without the text
    the model could never read that file again. A text that an earlier answer has brought is there already.
    """
    newest = view.history.assistant_indexes[-1] if view.history.assistant_indexes else -1
    wanted = [n for n, note in find_confirmed(view).items() if note > newest and _is_text_cut(view.find_edit(n))]
    if not wanted:
        return []
    find_state, sources = make_state_test(view), find_sources(view)
    appended = [edit.text for edit in view.edits.values() if edit.text is not None]
    quotes = []
    for n in wanted:
        head = f"The earlier view of {sources[n].path} is shortened in this prompt. {CUT_ABOVE[find_state(n)]}:"
        text = f"\n\n[{head}]\n{view.messages[n].text}"
        if not any(text in known for known in appended):  # also in a retry of this request
            quotes.append(Insert("tail", QUOTE, text, not view.literal, quoted_keys=(view.keys[n],)))
    return quotes


def is_quote(insert: Insert) -> bool:
    """True if it is one of `quote_confirmed_results`."""
    return insert.source == QUOTE


def _is_text_cut(edit: Edit | None) -> bool:
    return edit is not None and edit.action not in WHOLE_TEXT_ACTIONS and not is_thinned(edit)


def _has_new_losses(view: View, state: BranchState, lossy_edits: int) -> bool:
    """True if this request takes out more than the session's edits did before. lossy_edits: those of this request.

    The number of edits in force is known already. Most requests have no more, so that nothing has to be counted.
    """
    return lossy_edits > view.edited_history.lossy_edit_count and lossy_edits > count_losses(state.edits)


def _is_worth_asking(view: View) -> bool:
    """True if a model that has not answered yet is asked once more.

    The model is asked with each prompt of the user's. After results it is asked less and less often: at the 1st, 2nd,
    4th and 8th step of a prompt, and so on. A text at the tail moves. So the provider caches the message before
    the text once with the text and once without it.
    """
    if view.messages[-1].role == "user":
        return True
    step = view.request_counts[-1] - (view.request_counts[view.active_start - 1] if view.active_start else 0)
    return step & (step - 1) == 0


def _is_state_in_prompt(view: View, text: str) -> bool:
    """True if the newest state has been written into the prompt already, and is still there."""
    wanted = state_block.render_recap(text)
    return any(edit.text is not None and wanted in edit.text for edit in view.edits.values())


def find_tail_target(view: View) -> tuple[int | None, bool]:
    """Return (index of the message that texts at the tail are appended to, True if a user message of the proxy is
    needed instead).

    After a user message: that message. After a tool result: as the model's `after_tool` says (rule W6 in
    `context.validate`).
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
    """True if a text can be appended. Some formats have results that hold no text: a screenshot, a patch that was
    applied, a list of tools that were found."""
    return message.shape != "none" and not (message.is_result and message.media_count and not message.text)


def find_system_target(view: View) -> int | None:
    """The index of the leading system message; None without one, and then all inserts go to the tail."""
    return 0 if has_appendable_system(view.request) else None


def may_add_user_message(view: View) -> bool:
    """True if a user message of the proxy may follow the last message, which is an answer of the assistant's.

    It may not where the model is to continue that answer, as all models of Anthropic's do.
    """
    last = view.messages[-1]
    return (
        last.role == "assistant"
        and not last.calls
        and not view.request.is_continuation
        and view.inputs.strategy != "anthropic"
    )


# Texts that literal policies put after the system prompt: guidelines, the Global Anchor, the request for a new
# one.
#
# These texts precede all messages, so they are made before anything else. They are needed to write the
# prompt, and also to predict how much of it the provider's cache holds.


MIN_ANSWER_TOKENS = 400
"""Tokens of an answer below which no note is requested: the note would be cut off, and the answer with it."""


def make_system_inserts(
    request: Request, state: BranchState, policy: Policy, lossy_edits: int
) -> tuple[list[Insert], bool]:
    """Return (the inserts after the system prompt, True if the model is asked for its state).

    lossy_edits: how many edits in force have taken something out.
    """
    system_inserts: list[Insert] = []
    asked = may_ask(request) and is_state_wanted(policy, state, lossy_edits)
    if asked or policy.ask == "always":
        system_inserts.append(
            Insert("system", "guidelines", "\n\n" + (policy.guidelines or state_block.get_guidelines()))
        )
    if state.state:
        system_inserts.append(Insert("system", "state", "\n\n" + state_block.render_anchor(state.state)))
    if asked:
        system_inserts.append(Insert("system", "ask", "\n\n" + state_block.build_prompt()))
    return system_inserts, asked


def make_system_texts(request: Request, state: BranchState, policy: Policy) -> list[str]:
    """The texts that will follow the system prompt of this request; none if there is no system prompt."""
    if policy.state_place != "system" or state.stopped is not None or not has_appendable_system(request):
        return []
    return [insert.text for insert in make_system_inserts(request, state, policy, count_losses(state.edits))[0]]


def has_appendable_system(request: Request) -> bool:
    """True if the client sent a leading system message that a text can be appended to."""
    first = request.messages[0]
    return first.is_system and first.shape in ("string", "parts")


def may_ask(request: Request) -> bool:
    """True if the model can be asked for a STATE block.

    The answer has to be one free text with room for a note after it, and it has to be the model's turn.
    """
    last = request.messages[-1]
    if request.max_tokens is not None and request.max_tokens < MIN_ANSWER_TOKENS:
        return False
    return request.is_free_text and (last.role == "user" or last.is_result)


def is_state_wanted(policy: Policy, state: BranchState, lossy_edits: int) -> bool:
    """True if the policy asks for a state with this request.

    `when_needed`: more has left the prompt since an answer with text last came to a request that asked.
    """
    if policy.ask == "when_needed":
        return lossy_edits > state.last_state_request.lossy_edits
    return policy.ask == "always"


def make_quote_notes(
    wanted: Sequence[Insert], placed: Sequence[tuple[int, Insert]], edits: Mapping[bytes, Edit]
) -> list[Note]:
    """Notes of the messages that inserts quote. An insert that found no place in the prompt quotes nothing."""
    if not any(insert.quoted_keys for insert in wanted):
        return []
    texts = [i.text for _, i in placed] + [e.text for e in edits.values() if e.text]
    return [
        Note(insert.source, " ".join(map(public_id, insert.quoted_keys)), {"items": len(insert.quoted_keys)})
        for insert in wanted
        if insert.quoted_keys and any(insert.text in text for text in texts)
    ]
