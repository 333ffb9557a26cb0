"""The token budget of a prompt, and the measures that bring a prompt down to it, whatever a policy leaves in.

The budget is the model's window, less the room that the answer needs. A policy fills only a share of the window, which
leaves room for an answer and for the error of our own count. That share is not enough for a long answer, and an
upstream refuses a prompt that leaves no room for it.

Each measure acts only while the prompt is still over its budget. First the policy's stages of last resort remove whole
groups, then old steps. Then the largest results are cut to their beginning and end. Then all steps but the newest
leave. Then results are cut again and shorter. Last, the texts of older messages are cut. System messages, the last user
message and pinned messages stay as they are.

A remark says where messages have left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from proxy.chat.chain import public_id
from proxy.chat.message import Request
from proxy.context import schedule
from proxy.context.branch_state import count_losses
from proxy.context.injections.activity_record import find_newest_record
from proxy.context.models import Model
from proxy.context.pins import has_pin_mark, is_pinned
from proxy.context.plan import SILENT_STAGES, Edit, Note, Proposal
from proxy.context.policy import Policy
from proxy.context.stage import Stage, apply_settings
from proxy.context.summaries.truncate import make_mark_renderer, truncate_text
from proxy.context.view import View, count_edited_tokens

NAME = "fit_budget"
"""The stage under which cuts are recorded: the stage of last resort."""
MIN_RESULT_TOKENS = 200
"""Tokens that a result keeps at least while steps can still leave instead."""
MIN_TEXT_TOKENS = 60
"""Tokens that a text keeps at least. Below that, hardly more than the mark is left."""
MIN_PROMPT_DIVISOR = 4
"""Divisor of the window: a prompt is brought down to this part at most, however long an answer the client allows. A
client that allows an answer as long as the window hardly wants an empty prompt."""
USUAL_ANSWER_DIVISOR = 5
"""Divisor of a small window: a usual answer takes this part at most, which policies leave free."""


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
    """The room for this prompt, None if no window is known. learned_window: the one that the upstream named."""
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


def count_total_tokens(view: View, edits: Mapping[bytes, Edit]) -> int:
    """Tokens of everything that is sent with these edits: tools, messages, and the inserts of `View.insert_tokens`."""
    tool_tokens = view.tool_tokens if view.tool_tokens and count_losses(edits) else 0
    sizes = view.tokens if edits is view.edits else schedule.count_message_tokens(view, edits)
    return view.prefix_tokens + tool_tokens + view.insert_tokens + sum(sizes)


def fit(view: View, policy: Policy, edits: Mapping[bytes, Edit], low: int) -> Mapping[bytes, Edit]:
    """The edits, with further edits that bring a prompt over its budget down to `low` tokens.

    A policy without a stage of last resort has asked for no budget, and gets none.
    """
    last = [stage for stage in policy.stages if stage.when == "last"]
    if not last or view.budget is None or count_total_tokens(view, edits) <= view.budget:
        return edits
    newest = [apply_settings(stage, {"keep_steps": 1}, NAME) for stage in last]
    steps: tuple[Callable[[Mapping[bytes, Edit]], Mapping[bytes, Edit]], ...] = (
        lambda known: _remove_units(view, last, known, low),
        lambda known: _cut_to_common_size(
            view, policy, known, list(_list_cuttable_results(view, guarded=False)), low, MIN_RESULT_TOKENS
        ),
        lambda known: _remove_units(view, newest, known, low),
        lambda known: _cut_to_common_size(
            view, policy, known, list(_list_cuttable_results(view, guarded=True)), low, MIN_TEXT_TOKENS
        ),
        lambda known: _cut_to_common_size(view, policy, known, list(_list_cuttable_texts(view)), low, MIN_TEXT_TOKENS),
    )
    for step in steps:
        edits = step(edits)
        if count_total_tokens(view, edits) <= view.budget:
            break
    return edits


def find_budget_limit(view: View, policy: Policy) -> int | None:
    """Tokens above which the prompt is over its budget: the least of the view's budget, the view's limit and the
    policy's own budget. None if there is none of these."""
    found = [tokens for tokens in (view.budget, view.limit, policy.own_budget) if tokens is not None]
    return min(found, default=None)


def make_over_budget_notes(limit: int | None, tokens: int) -> list[Note]:
    """The note that a prompt of `tokens` tokens is over its budget; an empty list if it is not."""
    over = tokens - limit if limit is not None else 0
    if over <= 0:
        return []
    text = f"{over} tokens over the budget of {limit} with everything out that may go"
    return [Note("over_budget", text, {"tokens": float(over)})]


def _remove_units(view: View, stages: Sequence[Stage], edits: Mapping[bytes, Edit], low: int) -> Mapping[bytes, Edit]:
    """The edits with the removals that these stages propose, until the prompt is down to `low` tokens.

    Removals are taken oldest first, in whole groups or steps.
    """
    over = count_total_tokens(view, edits) - low
    now = replace(view, edits=edits, tokens=schedule.count_message_tokens(view, edits))
    ends = [unit.end for unit in schedule.list_units(now) for _ in range(unit.start, unit.end)]
    chosen: list[Proposal] = []
    end = 0
    for proposal in schedule.collect(now, stages):
        if over <= 0 and proposal.index >= end:
            break
        end = end if proposal.index < end else ends[proposal.index]
        chosen.append(proposal)
        over -= schedule.count_saved_tokens(now, proposal)
    return schedule.apply(now, chosen, edits, literal=False)


def _list_cuttable_results(view: View, *, guarded: bool) -> Iterator[int]:
    """Yield the indexes of results that may be cut. guarded: also those that the model has just asked for."""
    for n, is_result in enumerate(view.is_result):
        if is_result and _may_cut(view, n) and (guarded or view.keys[n] not in view.inputs.guarded_keys):
            yield n


def _list_cuttable_texts(view: View) -> Iterator[int]:
    """Yield the indexes of all other texts that may be cut: older prompts, and answers of the model's without calls."""
    for n, message in enumerate(view.messages[:-1]):
        if not view.is_result[n] and not message.is_system and not message.calls and _may_cut(view, n):
            yield n


def _may_cut(view: View, n: int) -> bool:
    message = view.messages[n]
    if n == view.history.last_user_index or message.media_count or message.shape not in ("string", "parts"):
        return False
    return view.keys[n] not in view.branch.pins and (view.is_result[n] or not has_pin_mark(view.messages, n))


def _cut_to_common_size(
    view: View, policy: Policy, edits: Mapping[bytes, Edit], places: Sequence[int], goal: int, least: int
) -> Mapping[bytes, Edit]:
    """The edits with the largest of these messages cut to one common size.

    The prompt comes down to `goal` tokens, or each message to `least` tokens.
    """
    over = count_total_tokens(view, edits) - goal
    sizes = schedule.count_message_tokens(view, edits)
    large = [n for n in places if sizes[n] > least and not _is_gone(view, n, edits)]
    if not large:
        return edits
    level = _find_common_size([sizes[n] for n in large], over, least)
    cut_edits = dict(edits)
    for n in large:
        if sizes[n] > level:
            edit = _make_cut(view, policy, n, edits.get(view.keys[n]), level)
            if edit.after < sizes[n]:
                cut_edits[edit.key] = edit
    return cut_edits


def _is_gone(view: View, n: int, edits: Mapping[bytes, Edit]) -> bool:
    edit = edits.get(view.keys[n])
    return edit is not None and edit.action in ("gone", "text_only")


def _find_common_size(sizes: Sequence[int], over: int, least: int) -> int:
    """The size to which the largest messages come down so that all lose `over` tokens; at least `least`."""
    falling = sorted(sizes, reverse=True)
    for count in range(1, len(falling) + 1):
        level = (sum(falling[:count]) - over) // count
        if count == len(falling) or level >= falling[count]:
            return max(least, level)
    return least


def _read_own_notes(view: View, policy: Policy, key: bytes, edit: Edit) -> str:
    """The notes of the proxy with which the edit's text ends: a record of work, the remark that messages have left."""
    text = edit.text or ""
    _, record = find_newest_record({key: edit}, view) or (key, "")
    for note in (policy.remark, record, policy.remark):
        text = text.removesuffix(note)
    return (edit.text or "")[len(text) :]


def _make_cut(view: View, policy: Policy, n: int, old: Edit | None, level: int) -> Edit:
    """The edit that cuts the message to about `level` tokens. A text of the proxy at the end of the message stays."""
    message, key = view.messages[n], view.keys[n]
    text, added, is_original = message.text, "", True
    if old is not None and old.action == "append":
        added = old.text or ""
    elif old is not None and old.text is not None:
        added = _read_own_notes(view, policy, key, old)
        is_original = old.stage == NAME
        text = text if is_original else old.text.removesuffix(added)
    fixed = count_edited_tokens(view, n, added)
    mark_of = make_mark_renderer(public_id(key), len(text) if is_original else None, view.inputs.offered_tools)
    short = truncate_text(text, max(0, level - fixed), view.token_counter.count_text, mark_of) + added
    after = count_edited_tokens(view, n, short)
    reason = f"over the budget: {len(message.text)} characters cut to {len(short)}"
    return Edit(key, "text", short, NAME, reason, view.original_tokens[n], after)


# One short remark at each gap in a prompt, so that the two sides of the gap do not read as consecutive messages.
#
# The remark is appended to the message before the gap: a user message or a tool result. It stays there byte for
# byte. It has no number, so a larger gap does not change it. No answer of the model's is changed, and no message of
# ours is added. Where an answer stands right before the gap, the remark precedes that answer, and is also
# true there. Messages that are reported elsewhere (by a summary, or a line at the tail) get no remark.


REMARK_NAME = "remark"
"""The stage name of edits that hold a remark alone."""


def add_gap_remarks(
    view: View, edits: Mapping[bytes, Edit], old: Mapping[bytes, Edit], text: str
) -> Mapping[bytes, Edit]:
    """The edits with a remark for each gap that is new or has grown.

    old: the edits that were in force before. text: the remark; no remark is made if it is empty.
    """
    if edits is old or not text:
        return edits
    with_remarks = dict(edits)
    for bearer, is_new in _find_gaps(view, edits, old):
        k = view.keys[bearer]
        edit = with_remarks.get(k)
        if edit is not None and text in (edit.text or ""):
            continue
        before = old.get(k)
        if is_new or (before is not None and text in (before.text or "")):
            with_remarks[k] = _add_remark(view, bearer, edit, text)
    return with_remarks


def _find_gaps(view: View, edits: Mapping[bytes, Edit], old: Mapping[bytes, Edit]) -> Iterator[tuple[int, bool]]:
    """Yield (index of the message that bears the remark, True if it is new with this request) for each gap."""
    bearer, removed, is_new = -1, False, False
    for n, message in enumerate(view.messages):
        if message.is_system:
            continue
        edit = edits.get(view.keys[n])
        if edit is not None and edit.action == "gone":
            if edit.stage in SILENT_STAGES:
                removed = True
                is_new = is_new or old.get(view.keys[n]) != edit
            continue
        if removed and bearer >= 0:
            yield bearer, is_new
        removed = is_new = False
        if _may_bear_remark(view, n, edit):
            bearer = n
    if removed and bearer >= 0:
        yield bearer, is_new


def _may_bear_remark(view: View, n: int, edit: Edit | None) -> bool:
    message = view.messages[n]
    if message.role == "assistant" or message.shape == "none" or is_pinned(view, n):
        return False
    return edit is None or edit.text is not None


def _add_remark(view: View, n: int, edit: Edit | None, text: str) -> Edit:
    size = view.token_counter.count_text(text)
    if edit is None:
        whole = view.original_tokens[n]
        return Edit(
            view.keys[n], "append", text, REMARK_NAME, "says that messages behind it have left", whole, whole + size
        )
    return replace(edit, text=(edit.text or "") + text, after=edit.after + size)
