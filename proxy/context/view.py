"""The conversation as it would go out now: old edits repeated, sizes known, the cache predicted.

The request and the memory of its branch are joined here. All later code only reads the View.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from proxy.chat import chain, group, json_spans
from proxy.chat.group import Group, is_observation
from proxy.chat.message import Message, Request
from proxy.chat.tokens import PER_MESSAGE, TokenCounter
from proxy.context.branch_state import BranchState
from proxy.context.inserts import make_system_texts
from proxy.context.models import Model
from proxy.context.plan import BranchMemory, Edit, EditedHistory, FaultCounts, History, RewriteInputs, View
from proxy.context.policy import Policy

_NO_EDITS: Mapping[bytes, Edit] = {}


def build_view(
    request: Request, state: BranchState, policy: Policy, model: Model, now: float, inputs: RewriteInputs
) -> View:
    """The View of a request. Literal policies begin from the client's own history, all others from their old edits."""
    keys = chain.compute_keys("", request.messages) if inputs.keys is None else inputs.keys
    token_counter = inputs.token_counter
    messages = request.messages
    history = build_history(request, keys, token_counter, policy.observation)
    edited_history = apply_edits(history, _NO_EDITS if policy.literal else state.edits)
    system_texts = make_system_texts(request, state, policy) if policy.state_place == "system" else []
    prefix_tokens = token_counter.count_tools(request.tools) if request.tools else 0
    token_budget = compute_token_budget(request, policy, model, state.learned_window)
    warm_tokens = _count_cached_tokens(history, edited_history, prefix_tokens, state, model, system_texts)
    return View(
        request=request,
        messages=messages,
        keys=keys,
        original_tokens=history.original_tokens,
        request_counts=history.request_counts,
        is_result=history.is_result,
        steps=history.steps,
        groups=history.groups,
        active_start=history.groups[-1].start if history.groups else 0,
        history=history,
        edits=edited_history.edits,
        tokens=edited_history.tokens,
        edited_history=edited_history,
        guarded_keys=inputs.guarded_keys,
        prefix_tokens=prefix_tokens,
        tool_tokens=inputs.tool_tokens,
        insert_tokens=0,
        cached_tokens=0 if _is_cold(state, model, now) else warm_tokens,
        warm_tokens=warm_tokens,
        budget=token_budget.budget if token_budget is not None else None,
        limit=token_budget.limit if token_budget is not None else None,
        model=model,
        token_counter=token_counter,
        literal=policy.literal,
        now=now,
        inputs=inputs,
        branch=BranchMemory(state.state, state.helper_answers, state.note_counts, state.pins, state.breakpoints),
        faults=FaultCounts(state.exposed, state.refetched, inputs.agent_faults, state.refetched_keys),
    )


def count_edited_tokens(seen: View, index: int, text: str) -> int:
    """Tokens of messages[index] with another text; its calls, reasoning and media stay.

    The tokens are counted once for a text, because literal policies make the same edits with every request.
    """
    message = seen.messages[index]
    size = PER_MESSAGE + count_text_tokens(seen, message, text)
    if message.calls or message.reasoning or message.media_count:
        size += seen.original_tokens[index] - PER_MESSAGE - count_text_tokens(seen, message, message.text)
    return size


def count_text_tokens(seen: View, message: Message, text: str) -> int:
    """Tokens of a text that goes into a message, remembered with the message."""
    return message.derive(lambda _: seen.token_counter.count_text(text), ("count", seen.token_counter, text))


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

    This is the longest common prefix with the last prompt, or nothing if the model caches nothing. After a restart the
    last prompt is unknown. Then all messages before the last answer count as cached: taking a warm cache for a cold one
    is the dearer mistake.
    """
    if model.cache == "none":
        return 0
    same = found = prefix_tokens
    whole = not state.sent_marks
    if state.sent_marks:
        marks = tuple(edited_history.marks)
        if system_texts:  # our texts stand behind the system prompt, which no edit removes
            marks = (add_texts_to_mark(marks[0], system_texts), *marks[1:])
        count = count_common_marks(marks, state.sent_marks)
        whole = count == len(state.sent_marks) < len(marks)
        same += sum(edited_history.sizes[:count])
        if history.marked_indexes or state.breakpoints:
            found = _count_marked_tokens(history, edited_history, prefix_tokens, count, state.breakpoints)
    else:
        last = history.assistant_indexes[-1] if history.assistant_indexes else 0
        same += sum(edited_history.tokens[:last])
    if model.cache == "breakpoint" and not whole:
        same = found  # a shorter prefix is found again only where a breakpoint was set
    return same if same >= model.min else 0


def _count_marked_tokens(
    history: History, edited_history: EditedHistory, prefix_tokens: int, count: int, breakpoints: frozenset[int]
) -> int:
    """Tokens up to the last mark among the first `count` messages that go out: one of the client's or of the proxy."""
    found = same = prefix_tokens
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
            found = same
    return found


# Tokens that a prompt may have: the model's window, less the room that the answer needs.
#
# A policy fills only a share of the window, which leaves room for an answer and for the error of our own count.
# That share is not enough if the window has to hold a long answer too. An upstream refuses a prompt that leaves no
# room for the answer.


MIN_PROMPT_DIVISOR = 4
"""Divisor of the window: a prompt is brought down to this part at most, however long an answer the client allows. A
client that allows an answer as long as the window hardly wants an empty prompt."""
USUAL_ANSWER_DIVISOR = 5
"""Divisor of a small window: a usual answer is taken to need this part at most. Policies leave this part free
anyway."""


def find_window(policy: Policy, model: Model, learned_window: int | None = None) -> int | None:
    """The model's window in tokens as a policy sees it, None if it is unknown.

    The policy's own figure for the model (`[models."NAME".POLICY]`) comes first, limited by `learned_window`. Next come
    `learned_window`, the model's window, and the policy's window for unknown models. learned_window: the window that
    the upstream has named; the upstream knows it better."""
    own = model.own.get(policy.name, {}).get("window")
    if isinstance(own, int) and own:
        return min(own, learned_window or own)
    return learned_window or model.window or policy.window or None


def find_limit(policy: Policy, model: Model, learned_window: int | None = None) -> int | None:
    """Tokens at which a prompt of a policy is full: the policy's own budget, or the window if that is less."""
    found = [tokens for tokens in (policy.own_budget, find_window(policy, model, learned_window)) if tokens]
    return min(found, default=None)


class TokenBudget(msgspec.Struct, frozen=True):
    """The room of a prompt."""

    budget: int
    """Tokens that a prompt is brought down to."""
    limit: int
    """Tokens that a prompt must not pass."""


def compute_token_budget(
    request: Request, policy: Policy, model: Model, learned_window: int | None = None
) -> TokenBudget | None:
    """The room for the prompt of this request, None if no window is known. learned_window: the window that the upstream
    has named."""
    window = find_window(policy, model, learned_window)
    if not window:
        return None
    limit = window - count_answer_tokens(request, model, window)
    return TokenBudget(min(int(window * policy.budget), max(limit, window // MIN_PROMPT_DIVISOR)), limit)


def count_answer_tokens(request: Request, model: Model, window: int) -> int:
    """Tokens of the window that the answer needs: as many as the client allows, else those of a usual answer."""
    if model.answer_apart:
        return 0
    if request.max_tokens is not None:
        return request.max_tokens
    return min(model.answer, model.max_output or model.answer, window // USUAL_ANSWER_DIVISOR)


# Facts about a conversation, kept from its last request and extended by the new messages of this one.
#
# An agent sends its whole history again, with two messages more. The work of a request must not grow with the
# history. So the facts of the last request are kept with it (`Request.memo_values`, which the next request of the
# history carries) and are extended. A value is copied before it is extended. So two requests that continue the same
# prefix do not disturb each other, even in two threads.


_HISTORY_MEMO = "history"


def build_history(
    request: Request, keys: Sequence[bytes], token_counter: TokenCounter, observation: re.Pattern[str] | None
) -> History:
    """The facts that the request's messages give by themselves. observation: see `Policy`."""
    messages, keys = request.messages, tuple(keys)
    known: History | None = request.memo_values.get(_HISTORY_MEMO)
    if known is None or not (
        known.token_counter is token_counter
        and known.observation is observation
        and messages[: len(known.messages)] == known.messages
        and keys[: len(known.keys)] == known.keys
    ):
        known = None
    elif len(messages) == len(known.messages):
        return known
    extended = request.memo_values[_HISTORY_MEMO] = _extend_history(request, keys, token_counter, observation, known)
    return extended


def _extend_history(
    request: Request,
    keys: tuple[bytes, ...],
    token_counter: TokenCounter,
    observation: re.Pattern[str] | None,
    known: History | None,
) -> History:
    messages = request.messages
    begin = len(known.messages) if known else 0
    new = messages[begin:]
    requests = [*known.request_counts] if known else []
    answers = [*known.assistant_indexes] if known else []
    marked = [*known.marked_indexes] if known else []
    prompt = known.last_user_index if known else -1
    count = len(answers)
    for n, message in enumerate(new, begin):
        if message.role == "assistant":
            count += 1
            answers.append(n)
        elif message.role == "user" and not group.is_beside_results(messages, n):
            prompt = n
        if message.has_cache_mark:
            marked.append(n)
        requests.append(count)
    results = [m.is_result or is_observation(messages, n, observation) for n, m in enumerate(new, begin)]
    return History(
        messages=messages,
        keys=keys,
        token_counter=token_counter,
        observation=observation,
        original_tokens=[*(known.original_tokens if known else ()), *token_counter.count_each(new)],
        request_counts=requests,
        is_result=[*(known.is_result if known else ()), *results],
        assistant_indexes=answers,
        marked_indexes=marked,
        last_user_index=prompt,
        steps=group.split_steps(messages, known.steps if known else ()),
        groups=_find_groups(request, keys, observation, known),
        memo_values=dict(known.memo_values) if known else {},
        edited_history=known.edited_history if known else None,
    )


def _find_groups(
    request: Request, keys: tuple[bytes, ...], observation: re.Pattern[str] | None, known: History | None
) -> list[Group]:
    """The groups of the client's request if no message was added or left out. The memo itself is not changed."""
    count, found = request.read_memo(group.GROUPS_MEMO, (keys[0], observation))
    if found is not None and count == len(request.messages):
        groups: list[Group] = found
        return groups
    return group.split_groups(request.messages, keys, observation, known.groups if known else ())


def apply_edits(history: History, edits: Mapping[bytes, Edit]) -> EditedHistory:
    """The messages with those of the branch's edits that concern them."""
    known = history.edited_history
    if known is not None and not (
        (known.branch_edits is edits or not (known.branch_edits or edits)) and known.branch_edit_count == len(edits)
    ):
        known = None
    if known is not None and known.message_count == len(history.messages):
        return known
    extended = history.edited_history = _extend_edited_history(history, edits, known)
    return extended


def with_edits(seen: View, edits: Mapping[bytes, Edit]) -> View:
    """The view with other edits in force, which has facts of its own about the messages with these edits."""
    if edits is seen.edits:
        return seen
    applied = _extend_edited_history(seen.history, edits, None)
    applied.edits = edits
    return replace(seen, edits=edits, tokens=applied.tokens, edited_history=applied)


def keep_edited_history(edited: View, branch_edits: Mapping[bytes, Edit]) -> None:
    """Keep the facts about a view with new edits for the next request. branch_edits: the edits that the branch will
    have then."""
    applied = edited.history.edited_history = edited.edited_history
    applied.branch_edits, applied.branch_edit_count = branch_edits, len(branch_edits)
    # In the order of the messages, as after a restart: the order of later edits follows from it.
    applied.edits = {key: edited.edits[key] for key in edited.keys if key in edited.edits}


def _extend_edited_history(history: History, given: Mapping[bytes, Edit], known: EditedHistory | None) -> EditedHistory:
    begin = known.message_count if known else 0
    tokens = [*known.tokens] if known else []
    marks = [*known.marks] if known else []
    sizes = [*known.sizes] if known else []
    new: dict[bytes, Edit] = {}
    messages, keys, whole = history.messages, history.keys, history.original_tokens
    for n in range(begin, len(messages)):
        message, size = messages[n], whole[n]
        edit = given.get(keys[n]) if given and not message.is_system else None
        if edit is not None:
            new[keys[n]] = edit
            size = edit.after
        tokens.append(size)
        if edit is None or edit.action != "gone":
            marks.append(compute_mark(message, edit))
            sizes.append(size)
    stages = known.stages if known else frozenset()
    return EditedHistory(
        message_count=len(messages),
        branch_edits=given,
        branch_edit_count=len(given),
        edits={**known.edits, **new} if known and new else known.edits if known else new,
        tokens=tokens,
        marks=marks,
        sizes=sizes,
        lossy_edit_count=(known.lossy_edit_count if known else 0) + sum(edit.is_lossy for edit in new.values()),
        is_complete=(not known or known.is_complete)
        and not any(e.action in ("gone", "text_only") for e in new.values()),
        stages=stages.union(edit.stage for edit in new.values()) if new else stages,
        memo_values=dict(known.memo_values) if known and not new else {},
    )


_CACHE_MARK = re.compile(
    rb',\s*"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:\{[^{}]*\}|null)'
    rb'|"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:\{[^{}]*\}|null)\s*,\s*'
)
"""A cache mark with one comma. Within a string its quotes would be escaped."""
_ONE_TEXT = re.compile(rb'\[\s*\{\s*"type"\s*:\s*"text"\s*,\s*"text"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*\}\s*\]')


def compute_unmarked_form(message: Message) -> bytes:
    """The form of a message without cache marks: providers cache a prompt without them, and clients move them.

    A client that moves a mark also turns a text into a list of one text and back, which is the same prompt.
    """
    if not message.has_cache_mark and message.part_count != 1:
        return message.form
    return message.derive(_hash_unmarked)


def _hash_unmarked(message: Message) -> bytes:
    raw = _CACHE_MARK.sub(b"", message.raw) if message.has_cache_mark else message.raw
    content = json_spans.read_value(raw, "content") if message.part_count == 1 else None
    text = _ONE_TEXT.fullmatch(content) if content is not None else None
    return chain.compute_form(json_spans.set_member(raw, "content", text[1]) if text else raw)


def compute_mark(message: Message, edit: Edit | None) -> bytes:
    """16 bytes that change whenever the message's outgoing bytes change, except for cache marks."""
    if edit is None:
        return compute_unmarked_form(message)
    return message.derive(
        lambda m: chain.compute_form(
            compute_unmarked_form(m) + edit.action.encode() + (edit.text or "").encode("utf-8", "surrogatepass")
        ),
        ("mark", edit),
    )


def add_texts_to_mark(mark: bytes, texts: Sequence[str]) -> bytes:
    """The mark of a message that has these texts behind it. The system prompt of literal policies has such texts."""
    for text in texts:
        mark = chain.compute_form(mark + text.encode("utf-8", "surrogatepass"))
    return mark


def count_common_marks(marks: tuple[bytes, ...], other_marks: tuple[bytes, ...]) -> int:
    """Number of marks at the front that are the same in both."""
    low, high = 0, min(len(marks), len(other_marks))
    if marks[:high] == other_marks[:high]:
        return high
    while high - low > 1:  # one[:low] is the same, one[:high] is not
        middle = (low + high) // 2
        if marks[low:middle] == other_marks[low:middle]:
            low = middle
        else:
            high = middle
    return low
