"""rewrite(): makes the plan to send from a request and the memory of its branch.

It repeats the old edits, lets the stages propose and the schedule decide, fits the budget, adds the inserts and checks
the rules. The same function serves the proxy, the replay command, a notebook and the tests: same input, same output.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from proxy.chat import chain
from proxy.chat.group import join_steps
from proxy.chat.message import Request
from proxy.chat.tokens import PER_MESSAGE
from proxy.context import (
    breakpoints,
    fit,
    inserts,
    operator_edits,
    page_faults,
    provider_clearing,
    render,
    schedule,
)
from proxy.context.branch_state import BranchState, count_losses
from proxy.context.build_view import build_view
from proxy.context.fit import add_gap_remarks
from proxy.context.models import Model, with_read_cap, without_cache
from proxy.context.plan import Ask, Edit, Insert, Note, Plan, Proposal, RewriteInputs
from proxy.context.policy import Policy, apply_model_settings
from proxy.context.render import Rendering, join_inserts
from proxy.context.stage import Stage
from proxy.context.summaries.references import find_dangling_edits, mark_broken_references
from proxy.context.view import View, compute_unmarked_form, keep_edited_history, with_edits
from proxy.dialects.base import NO_BREAKPOINTS
from proxy.errors import RuleBroken

MAX_FIT_PASSES = 3
"""Times that messages make room for inserts, which report removed messages and so may grow."""


def rewrite(
    request: Request, state: BranchState, policy: Policy, model: Model, now: float, inputs: RewriteInputs
) -> Plan:
    """Plan one request.

    now: seconds, on the clock of `state.sent_at`. Raises nothing on purpose: a plan that breaks a rule comes back as
    `refusal`, and the original goes out.
    """
    if inputs.keys is None or not inputs.strategies or not inputs.times:
        keys = chain.compute_keys("", request.messages) if inputs.keys is None else inputs.keys
        inputs = replace(
            inputs,
            keys=keys,
            strategies=inputs.strategies or [inputs.strategy] * len(keys),
            times=inputs.times or [now] * len(keys),
        )
    if model.own:
        policy = apply_model_settings(policy, model)
    if state.stopped is not None:
        state, policy = _limit_to_last_resort(state, policy)
    if state.cache_miss_streak and state.is_never_cached:
        model = without_cache(model)
    if state.decisions is not None:
        policy = operator_edits.apply_to_policy(policy, state.decisions)
    view = build_view(request, state, policy, model, now, inputs)
    withdrawn = _find_expired_edits(view, policy) | _find_edits_of_kept_messages(view)
    if policy.schedule != "append_only":  # there, what was sent stays as it was
        made_by = view.edited_history.stages if view.edits else ()
        for stage in policy.stages if made_by else ():
            if _find_stage_name(stage) in made_by:
                withdrawn.update(stage.find_ended_edits(view))
    if state.decisions is not None:
        withdrawn |= operator_edits.find_revoked_edits(view.edits, state.decisions)
    if withdrawn:
        state = replace(state, edits={k: e for k, e in state.edits.items() if k not in withdrawn})
        view = build_view(request, state, policy, model, now, inputs)
    force = state.decisions.forced_action if state.decisions is not None else ""
    if force == "prune":
        view = replace(view, budget=operator_edits.compute_prune_budget(view, policy))
    if state.stopped is not None and view.budget is not None:
        view = replace(view, budget=max(view.budget, view.limit or 0))
    if policy.schedule == "append_only":
        view = _guard_sent_messages(view, inputs.sent_count)
    view, refetched = _count_new_faults(view, state)
    return _rewrite_view(view, state, policy, refetched, frozen=inputs.frozen)


def _guard_sent_messages(view: View, sent_count: int) -> View:
    """The view for `append_only`: no message that was sent before is edited, not even to fit the budget.

    Reasoning of the model may be bound to these messages. An upstream refuses such reasoning after another prompt.
    """
    guarded_keys = view.inputs.guarded_keys | {*view.keys[:sent_count]}
    return replace(view, inputs=replace(view.inputs, guarded_keys=guarded_keys), budget=None)


def _count_new_faults(view: View, state: BranchState) -> tuple[View, list[Note]]:
    """Return the view with the cut results that this request fetches again, and a note of the new ones.

    Edits of a literal policy are not in the view, and no rate is counted of them: it cuts by its rules alone."""
    sent = with_edits(view, state.edits) if view.literal and state.edits else view
    faults = page_faults.find_new_faults(sent, state.counted_messages) if sent.edits else []
    if not faults:
        return view, []
    # After a restart all are counted again, and only those after the last answer are reported again.
    reported_until = state.counted_messages or (
        view.history.assistant_indexes[-1] if view.history.assistant_indexes else 0
    )
    kinds = Counter[str](fault.kind for fault, _ in faults if fault.index >= reported_until)
    notes = [Note("refetch", " ".join(sorted(kinds)), {**kinds})] if kinds else []
    keys = view.faults.refetched_keys | page_faults.list_refetched_keys(sent, faults)
    counts = view.faults.refetched if view.literal else page_faults.count_faults(view, faults)
    return replace(view, faults=replace(view.faults, refetched=counts, refetched_keys=keys)), notes


def _limit_to_last_resort(state: BranchState, policy: Policy) -> tuple[BranchState, Policy]:
    """The state and the policy of a branch that is not rewritten any more.

    Only the stages of last resort act, if the prompt would not fit the window. The upstream would refuse such a prompt
    in any case.
    """
    last = tuple(stage for stage in policy.stages if stage.when == "last")
    return replace(state, decisions=None), dataclasses.replace(policy, stages=last, injections=(), ask="never")


class _Draft(msgspec.Struct, frozen=True):
    """The decisions of a plan."""

    edits_without_inserts: Mapping[bytes, Edit]
    """The edits, without the inserts that stay where they are put."""
    edits: Mapping[bytes, Edit]
    edited: View
    """The view with `edits` in force."""
    inserts: Sequence[Insert]
    """All inserts of the plan, those without a place too."""
    inserts_by_index: Mapping[int, list[Insert]]
    """The inserts that are appended to a message, by its index."""
    own_inserts: Sequence[Insert]
    """The inserts that make a message of the proxy after all others."""
    asks_for_state: bool
    """True if one of the inserts asks the model for a STATE block."""
    tokens: int
    """Tokens of everything that would be sent."""
    insert_tokens: int
    """Tokens of the inserts among `tokens`."""


def _rewrite_view(view: View, state: BranchState, policy: Policy, notes: list[Note], *, frozen: bool) -> Plan:
    """The plan for the view. notes: the notes made so far."""
    received = view
    view, draft = _draft_fitting_plan(received, state, policy, frozen=frozen)
    if view.limit is not None and draft.tokens > view.limit and any(map(inserts.is_quote, draft.inserts)):
        # A text that has no room at the end: nothing else has to leave for it.
        view, draft = _draft_fitting_plan(received, state, policy, frozen=frozen, quotes=False)
        notes.append(Note("inserts_left_out", f"no room in the window for {inserts.QUOTE}"))
    if view.limit is not None and draft.tokens > view.limit and draft.insert_tokens:
        draft = _without_inserts(view, draft, view.limit, notes)
    try:
        # Edits of a literal policy are made again with every request, so that nothing is kept of them.
        shown = view if policy.literal else draft.edited
        rendering = render.render_prompt(shown, draft.edits, draft.inserts_by_index, draft.own_inserts)
    except RuleBroken as broken:
        return _make_refused_plan(view, state, policy, broken.rule, broken.message)
    except ValueError as problem:
        return _make_refused_plan(view, state, policy, "render", str(problem))
    return _make_plan(view, state, policy, draft, notes, rendering)


def _draft_fitting_plan(
    view: View, state: BranchState, policy: Policy, *, frozen: bool, quotes: bool = True
) -> tuple[View, _Draft]:
    """(the view, with the room that the inserts need; the draft that leaves this room)."""
    draft = _draft_plan(view, state, policy, frozen=frozen, quotes=quotes)
    for _ in range(MAX_FIT_PASSES):
        if view.budget is None or draft.tokens <= view.budget or draft.insert_tokens <= view.insert_tokens:
            break
        view = replace(view, insert_tokens=draft.insert_tokens)  # the messages have to make room for what is inserted
        draft = _draft_plan(view, state, policy, frozen=frozen, quotes=quotes)
    return view, draft


def _draft_plan(view: View, state: BranchState, policy: Policy, *, frozen: bool, quotes: bool) -> _Draft:
    """The draft of a plan: removed messages, shortened messages, and inserts."""
    edits = _decide_edits(view, state, policy, frozen=frozen)
    edited = view if edits is view.edits else with_edits(view, edits)
    wanted: list[Insert] = []
    asked = False
    if state.stopped is None:
        count = view.edited_history.lossy_edit_count if edits is view.edits else count_losses(edits)
        wanted, asked = inserts.make_inserts(view, state, policy, count)
        if quotes and edited.edits:
            wanted += inserts.quote_confirmed_results(edited)
        if policy.injections:
            wanted += [insert for injection in policy.injections for insert in injection(edited)]
            deferred = {insert.source for insert in state.deferred_inserts}  # an injection gives one note at a time
            wanted = [i for i in wanted if not (i.note_count and i.source in deferred)] + list(state.deferred_inserts)
    if policy.schedule == "append_only":  # a text that leaves again would change the prompt after which answers follow
        wanted, asked = [insert for insert in wanted if insert.persistent], False
    return _draft_with_inserts(view, edited, wanted, asked=asked)


def _draft_with_inserts(view: View, edited: View, wanted: Sequence[Insert], *, asked: bool) -> _Draft:
    """The draft with these inserts in their places. edited: the view with the edits of the draft."""
    before = edited.edits
    by_index, own_inserts, edits = _place_inserts(view, wanted, before)
    added = sum(view.token_counter.count_text(i.text) for placed in by_index.values() for i in placed)
    added += PER_MESSAGE + view.token_counter.count_text(join_inserts(own_inserts)) if own_inserts else 0
    without_inserts = fit.count_total_tokens(view, before) - view.insert_tokens
    tokens = added + (without_inserts if edits is before else fit.count_total_tokens(view, edits) - view.insert_tokens)
    insert_tokens = tokens - without_inserts
    if edits is not before:
        edited = with_edits(view, edits)
    return _Draft(before, edits, edited, wanted, by_index, own_inserts, asked, tokens, insert_tokens)


def _without_inserts(view: View, draft: _Draft, limit: int, notes: list[Note]) -> _Draft:
    """The draft with as many inserts as fit the window: the first ones, and the operator's notes."""
    kept, left_out = list(draft.inserts), []
    for insert in reversed(draft.inserts):
        if draft.tokens <= limit:
            break
        if insert.source != operator_edits.NAME:
            kept.remove(insert)
            left_out.append(insert.source)
            draft = _draft_with_inserts(
                view, with_edits(view, draft.edits_without_inserts), kept, asked=draft.asks_for_state
            )
    notes.append(Note("inserts_left_out", f"no room in the window for {', '.join(left_out)}"))
    return draft


def _decide_edits(view: View, state: BranchState, policy: Policy, *, frozen: bool) -> Mapping[bytes, Edit]:
    """The edits in force, with those of this request."""
    force = state.decisions.forced_action if state.decisions is not None else ""
    is_frozen = frozen and not policy.literal
    if is_frozen or policy.schedule == "provider":
        immediate = schedule.collect(view, _list_immediate_stages(policy))
        edits = schedule.apply(view, immediate, view.edits, literal=False)
        if not is_frozen and (state.may_edit or force):
            edits = provider_clearing.clear_results(view, policy, edits)
        return _update_references(view, edits)
    low = _find_low_mark(view, policy, force)
    chosen = _choose_proposals(view, policy, force, low, for_money=state.may_edit or bool(force))
    edits = schedule.apply(view, chosen, view.edits, literal=policy.literal)
    if edits is not view.edits:
        edits = add_gap_remarks(view, edits, view.edits, policy.remark)
    return _update_references(view, _fit_with_remarks(view, policy, edits, low))


def _update_references(view: View, edits: Mapping[bytes, Edit]) -> Mapping[bytes, Edit]:
    """The edits, with references updated if they point at messages that leave with this plan."""
    return edits if edits is view.edits else mark_broken_references(view, edits)


def _fit_with_remarks(view: View, policy: Policy, edits: Mapping[bytes, Edit], low: int) -> Mapping[bytes, Edit]:
    """The edits, with more that fit the prompt and the remarks of these edits to its budget."""
    fitted = _fit(view, policy, edits, low)
    if fitted is edits:
        return edits
    with_remarks = add_gap_remarks(view, fitted, view.edits, policy.remark)
    remark_tokens = fit.count_total_tokens(view, with_remarks) - fit.count_total_tokens(view, fitted)
    if remark_tokens and view.budget is not None and fit.count_total_tokens(view, with_remarks) > view.budget:
        narrow = replace(view, insert_tokens=view.insert_tokens + remark_tokens)
        with_remarks = add_gap_remarks(view, _fit(narrow, policy, edits, low), view.edits, policy.remark)
    return with_remarks


def _fit(view: View, policy: Policy, edits: Mapping[bytes, Edit], low: int) -> Mapping[bytes, Edit]:
    """The edits with those that fit the prompt to its budget.

    A new result may refer to a message that leaves for the budget. Such a result is sent as received, and is fitted
    with the others."""
    fitted = fit.fit(view, policy, edits, low)
    while fitted is not edits and (lost := find_dangling_edits(view, edits, fitted)):
        edits = {k: e for k, e in edits.items() if k not in lost}
        fitted = fit.fit(view, policy, edits, low)
    return fitted


def _list_immediate_stages(policy: Policy) -> list[Stage]:
    """The stages that correctness needs: they act whatever the schedule says."""
    return [stage for stage in policy.stages if stage.when == "always"]


def _find_expired_edits(view: View, policy: Policy) -> set[bytes]:
    """Keys of edits that only an immediate stage made, and whose reason has ended.

    For example, content that was withheld from another upstream comes back to the upstream that it was made for. All
    other edits stay for ever.
    """
    if not view.edits:
        return set()
    stages = _list_immediate_stages(policy)
    names = {_find_stage_name(stage) for stage in stages}
    if names.isdisjoint(view.edited_history.stages):
        return set()
    immediate = {k for k, e in view.edits.items() if e.stage in names and not operator_edits.is_note(e)}
    without = replace(view, edits={k: e for k, e in view.edits.items() if k not in immediate})
    return immediate - {view.keys[p.index] for p in schedule.collect(without, stages)}


def _find_edits_of_kept_messages(view: View) -> set[bytes]:
    """Keys of edits that take the newest step or the last user message, which every plan keeps.

    Such an edit was made when the message was an older one: the client has gone back to it, or asks again.
    """
    if not view.edits:
        return set()
    newest, last_prompt = len(view.messages) - 1, view.history.last_user_index
    kept = [
        n for n in (newest, last_prompt) if n >= 0 and (edit := view.find_edit(n)) is not None and edit.action == "gone"
    ]
    if newest in kept:
        step = join_steps(view.request, view.steps)[-1]
        kept += range(step.start, step.end)
    return {view.keys[n] for n in kept if view.keys[n] in view.edits}


def _find_stage_name(stage: Stage) -> str:
    """The name that the edits of a stage carry: that of its module, except for the stage of the operator's window."""
    module = type(stage).__module__
    return operator_edits.NAME if module == operator_edits.__name__ else module.rpartition(".")[2]


def _find_low_mark(view: View, policy: Policy, force: operator_edits.ForcedAction) -> int:
    """Tokens down to which a prompt that is over its budget is brought.

    The number is below the budget, so the next edits come when that room is used up, and not with the next request.
    Each time, the edits cost the price of the whole prompt.
    """
    if policy.literal or force == "prune" or not view.budget:
        return view.budget or 0  # edits that do not last move the prefix anyway; a pruned prompt is at the low mark
    return int(view.budget * min(1.0, policy.low / policy.budget))  # a share, so that it follows the window


def _choose_proposals(
    view: View, policy: Policy, force: operator_edits.ForcedAction, low: int, *, for_money: bool
) -> list[Proposal]:
    """The proposals of the stages that the schedule takes, oldest first.

    for_money: True if edits may be made because they pay, and not for the budget alone.
    """
    immediate = schedule.collect(view, _list_immediate_stages(policy))
    scheduled = schedule.collect(view, [stage for stage in policy.stages if stage.when == "schedule"])
    if not immediate and not scheduled:  # as with most requests
        return []
    taken = {p.index for p in immediate}
    scheduled = [p for p in scheduled if p.index not in taken]
    if policy.schedule == "always" or force == "compress":
        return sorted(immediate + scheduled, key=lambda p: p.index)
    if immediate and policy.schedule == "when_it_pays":
        view = _apply_immediate_edits(view, immediate)
    high = view.budget
    if policy.schedule == "over_budget" or not for_money:
        chosen = schedule.over_budget(view, scheduled, high, low) if high else []
    elif not scheduled:
        chosen = []
    else:
        if policy.read_cap and view.model.r > policy.read_cap * view.model.w:
            view = _cap_read_price(view, policy.read_cap)
        chosen = schedule.when_it_pays(
            view, scheduled, policy.rent, policy.payback, page_faults.make_fault_cost(view), eager=policy.eager,
            predicted_rent=policy.predicted_rent,
            loss_limit=page_faults.compute_loss_limit(view, policy.max_loss) if policy.max_loss else None,
        )  # fmt: skip
        if high and view.total > high and sum(schedule.count_saved_tokens(view, p) for p in chosen) < view.total - high:
            chosen = schedule.over_budget(view, scheduled, high, low)
    return sorted(immediate + _add_dependencies(chosen, scheduled), key=lambda p: p.index)


def _cap_read_price(view: View, share: float) -> View:
    """The view with the price of a cached token cut to `share` of that of a written one.

    A batch is then as late as at the prices at which its page faults were counted. Without a cache it would be made at
    once, so that the prompt counts as cached there."""
    cached_tokens = view.warm_tokens if view.model.cache == "none" else view.cached_tokens
    return replace(view, model=with_read_cap(view.model, share), cached_tokens=cached_tokens)


def _apply_immediate_edits(view: View, immediate: Sequence[Proposal]) -> View:
    """The view after the edits that are made at once.

    After the first of these edits nothing is served from the cache, so other edits there cost nothing.
    """
    first = immediate[0].index
    tokens = list(view.tokens)
    for proposal in immediate:
        tokens[proposal.index] -= schedule.count_saved_tokens(view, proposal)
    return replace(view, tokens=tokens, cached_tokens=min(view.cached_tokens, view.prefix_tokens + sum(tokens[:first])))


def _add_dependencies(chosen: list[Proposal], scheduled: Sequence[Proposal]) -> list[Proposal]:
    """Add the proposals that the chosen ones depend on, and the rest of each joint batch."""
    if not chosen:
        return []
    chosen_indexes = {p.index for p in chosen}
    joint = {p.stage for p in chosen if p.joint}
    chosen = chosen + [p for p in scheduled if p.joint and p.stage in joint and p.index not in chosen_indexes]
    missing = {p.needs_index for p in chosen} - {p.index for p in chosen}
    return chosen + [p for p in scheduled if p.index in missing]


def _place_inserts(
    view: View, wanted: Sequence[Insert], edits: Mapping[bytes, Edit]
) -> tuple[dict[int, list[Insert]], list[Insert], Mapping[bytes, Edit]]:
    """Find the place of each insert: appended to a message, in a message of the proxy, or, if it is kept, as an edit.

    Return (inserts by index of the message, inserts for a message of the proxy, edits).
    """
    by_index: dict[int, list[Insert]] = {}
    own_inserts: list[Insert] = []
    if not wanted:
        return by_index, own_inserts, edits
    system = inserts.find_system_target(view)
    tail, needs_own_message = inserts.find_tail_target(view)
    for insert in wanted:
        place = system if insert.place == "system" else None
        if place is not None:
            by_index.setdefault(place, []).append(insert)
        elif tail is not None and insert.persistent:
            edits = {**edits, view.keys[tail]: _append_insert(view, tail, insert, edits.get(view.keys[tail]))}
        elif view.model.cache == "breakpoint" and not view.literal:
            continue  # the breakpoint at the prompt's end would not be found again after a text that leaves
        elif tail is not None:
            by_index.setdefault(tail, []).append(replace(insert, place="tail"))
        elif needs_own_message or (insert.may_stand_alone and inserts.may_add_user_message(view)):
            own_inserts.append(insert)
    return by_index, own_inserts, edits


def _append_insert(view: View, index: int, insert: Insert, old: Edit | None) -> Edit:
    size = view.token_counter.count_text(insert.text)
    if old is None or old.text is None:
        before = view.original_tokens[index]
        return Edit(view.keys[index], "append", insert.text, insert.source, "kept at the tail", before, before + size)
    return replace(old, text=old.text + insert.text, after=old.after + size)


def _make_plan(
    view: View, state: BranchState, policy: Policy, draft: _Draft, notes: list[Note], rendering: Rendering
) -> Plan:
    old = state.edits
    edits = schedule.keep_first_reasons(draft.edits, old) if policy.literal else draft.edits
    placed = [(n, insert) for n, appended in sorted(draft.inserts_by_index.items()) for insert in appended]
    placed += [(-1, insert) for insert in draft.own_inserts]
    same = edits is view.edits and not policy.literal  # then all of them are the branch's
    new = () if same else tuple(e for k, e in edits.items() if (o := old.get(k)) is not e and o != e)
    if draft.inserts:
        notes += inserts.make_quote_notes(draft.inserts, placed, edits)
    asks: list[Ask] = []
    for stage in policy.reporting_stages:
        notes += stage.notes(view, edits, new)
        asks += stage.asks(view)
    limit = fit.find_budget_limit(view, policy)
    notes += fit.make_over_budget_notes(limit, draft.tokens)
    in_force = old if same else edits if policy.literal else {**old, **edits}
    boundary = state.boundary if not policy.literal else b""
    if new and not policy.literal:
        boundary = breakpoints.find_boundary(view, state, new)
        keep_edited_history(draft.edited, in_force)
    chosen_breakpoints, positions = NO_BREAKPOINTS, frozenset[int]()
    if view.model.cache == "breakpoint":
        chosen_breakpoints = breakpoints.choose_breakpoints(view, state, rendering, new, boundary, draft.tokens)
        positions = breakpoints.find_positions(rendering, chosen_breakpoints)
    return Plan(
        messages=tuple(rendering.raws) if edits or placed else None,
        new_edits=new,
        edits=in_force,
        placed_inserts=tuple(placed),
        asks=tuple(ask for ask in asks if ask.id not in state.helper_answers) if asks else (),
        notes=tuple(notes),
        marks=tuple(rendering.marks),
        sizes=tuple(rendering.sizes),
        sources=tuple(rendering.places),
        keys=view.keys,
        before=view.prefix_tokens + sum(view.original_tokens),
        after=draft.tokens,
        predicted=render.predict_cached_tokens(
            view, state, rendering, tools_added=bool(view.tool_tokens and count_losses(edits))
        ),
        asks_for_state=draft.asks_for_state and any(i.source == "ask" for _, i in placed),
        deferred_inserts=_find_deferred_inserts(draft.inserts, placed),
        literal=policy.literal,
        limit=limit,
        refetched=view.faults.refetched,
        refetched_keys=view.faults.refetched_keys,
        exposed=page_faults.count_exposed_results(view) if edits else view.faults.exposed,
        request_count=view.request_counts[-1] + 1,
        breakpoints=chosen_breakpoints,
        breakpoint_positions=positions,
        boundary=boundary,
    )


def _find_deferred_inserts(wanted: Sequence[Insert], placed: Sequence[tuple[int, Insert]]) -> tuple[Insert, ...]:
    """Notes that are given once and have found no place."""
    given = {insert.note_count for _, insert in placed}
    return tuple(insert for insert in wanted if insert.note_count and insert.note_count not in given)


def _make_refused_plan(view: View, state: BranchState, policy: Policy, rule: str, why: str) -> Plan:
    """The plan by which the original goes out; old edits stay remembered."""
    return Plan(
        messages=None,
        new_edits=(),
        edits=state.edits,
        placed_inserts=(),
        asks=(),
        notes=(Note("refused", why),),
        marks=tuple(map(compute_unmarked_form, view.messages)),
        sizes=tuple(view.original_tokens),
        keys=view.keys,
        before=view.prefix_tokens + sum(view.original_tokens),
        after=view.prefix_tokens + sum(view.original_tokens),
        predicted=0,
        asks_for_state=False,
        refusal=rule,
        literal=view.literal,
        limit=fit.find_budget_limit(view, policy),
        refetched=view.faults.refetched,
        refetched_keys=view.faults.refetched_keys,
        exposed=view.faults.exposed,
        request_count=view.request_counts[-1] + 1,
    )
