"""Build the view of a request: its conversation with the branch's old edits, the predicted cache, and the budget.

The request and the memory of its branch are joined here. All later code only reads the View.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.chat import chain
from proxy.chat.message import Request
from proxy.context.branch_state import BranchState
from proxy.context.fit import compute_token_budget
from proxy.context.inserts import make_system_texts
from proxy.context.models import Model
from proxy.context.plan import Edit, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.view import (
    BranchMemory,
    EditedHistory,
    FaultCounts,
    History,
    View,
    add_texts_to_mark,
    apply_edits,
    build_history,
    count_common_marks,
)

_NO_EDITS: Mapping[bytes, Edit] = {}


def build_view(
    request: Request, state: BranchState, policy: Policy, model: Model, now: float, inputs: RewriteInputs
) -> View:
    """The View of a request. Literal policies begin from the client's own history, all others from their old edits."""
    keys = chain.compute_keys("", request.messages) if inputs.keys is None else inputs.keys
    token_counter = inputs.token_counter
    memory = BranchMemory(
        state.state, state.helper_answers, state.note_counts, state.pins, state.breakpoints, state.is_new_fork
    )
    history = build_history(request, keys, token_counter, policy.observation)
    edited_history = apply_edits(history, _NO_EDITS if policy.literal else state.edits)
    system_texts = make_system_texts(request, state, policy) if policy.state_place == "system" else []
    prefix_tokens = token_counter.count_tools(request.tools) if request.tools else 0
    token_budget = compute_token_budget(request, policy, model, state.learned_window)
    is_cold = _is_cold(state, model, now)
    warm_tokens = _count_cached_tokens(history, edited_history, prefix_tokens, state, model, system_texts)
    return View(
        request=request,
        messages=request.messages,
        keys=keys,
        original_tokens=history.original_tokens,
        request_counts=history.request_counts,
        is_result=history.is_result,
        steps=history.steps,
        groups=history.groups,
        history=history,
        edits=edited_history.edits,
        tokens=edited_history.tokens,
        edited_history=edited_history,
        prefix_tokens=prefix_tokens,
        tool_tokens=inputs.tool_tokens,
        insert_tokens=0,
        cached_tokens=0 if is_cold or model.cache == "none" else warm_tokens,
        warm_tokens=warm_tokens,
        budget=token_budget.budget if token_budget is not None else None,
        limit=token_budget.limit if token_budget is not None else None,
        model=model,
        token_counter=token_counter,
        literal=policy.literal,
        now=now,
        inputs=inputs,
        branch=memory,
        faults=FaultCounts(state.exposed, state.refetched, inputs.agent_faults, state.refetched_keys),
    )


def _is_cold(state: BranchState, model: Model, now: float) -> bool:
    """True if nothing was sent yet, or if the last prompt is older than the provider's cache lasts."""
    return state.sent_at is None or now - state.sent_at > model.ttl_s


def _count_cached_tokens(
    history: History,
    edited_history: EditedHistory,
    prefix_tokens: int,
    state: BranchState,
    model: Model,
    system_texts: Sequence[str],
) -> int:
    """Tokens at the front that the provider's cache should hold if it has not expired, for the prompt as the View has
    it.

    This is the longest common prefix with the last prompt, also for a model that caches nothing. After a restart the
    last prompt is unknown. Then all messages before the last answer count as cached: taking a warm cache for a cold one
    is the dearer mistake.
    """
    same = marked_tokens = prefix_tokens
    is_continued = not state.sent_marks
    if state.sent_marks:
        marks = tuple(edited_history.marks)
        if system_texts:  # our texts follow the system prompt, which no edit removes
            marks = (add_texts_to_mark(marks[0], system_texts), *marks[1:])
        count = count_common_marks(marks, state.sent_marks)
        is_continued = count == len(state.sent_marks) < len(marks)
        same += sum(edited_history.sizes[:count])
        if history.marked_indexes or state.breakpoints:
            marked_tokens = _count_marked_tokens(history, edited_history, prefix_tokens, count, state.breakpoints)
    else:
        last = history.assistant_indexes[-1] if history.assistant_indexes else 0
        same += sum(edited_history.tokens[:last])
    if model.cache == "breakpoint" and not is_continued:
        same = marked_tokens  # a shorter prefix is found again only where a breakpoint was set
    return same if same >= model.min else 0


def _count_marked_tokens(
    history: History, edited_history: EditedHistory, prefix_tokens: int, count: int, breakpoints: frozenset[int]
) -> int:
    """Tokens up to the last mark among the first `count` messages that go out: one of the client's or of the proxy."""
    marked_tokens = same = prefix_tokens
    out = 0
    for n, message in enumerate(history.messages):
        edit = None if message.is_system else edited_history.edits.get(history.keys[n])
        if edit is not None and edit.action == "gone":
            continue
        if out == count:
            break
        out += 1
        same += edited_history.tokens[n]
        if message.has_cache_mark or out - 1 in breakpoints:
            marked_tokens = same
    return marked_tokens
