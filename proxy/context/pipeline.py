"""rewrite(): makes the plan to send from a request and the memory of its thread.

It repeats the old edits, lets the stages propose and the schedule decide, fits the budget, adds the inserts and checks
the rules. The same function serves the proxy, the replay command, a notebook and the tests: same input, same output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from proxy.chat import key
from proxy.chat.message import Request
from proxy.chat.tokens import PER_MESSAGE, Weigh
from proxy.context import fit, inserts, noting, operator, outgoing, page_faults, proposals, schedule, view
from proxy.context.plan import Ask, Edit, Found, Insert, Note, Plan, Proposal, View
from proxy.context.policy import Policy, for_model
from proxy.context.prices import Model, without_cache
from proxy.context.remark import remarked
from proxy.context.render import Rendering, joined
from proxy.context.session import Session, cuts, losses
from proxy.context.stage import Stage
from proxy.context.stages.refer_repeats import dangling, mark_left
from proxy.context.view import Beside
from proxy.errors import RuleBroken
from proxy.memory.memos import Memo

ROUNDS = 3
"""Times that messages make room for inserts. Inserts report removed messages, so they may grow when more messages
leave."""


def rewrite(
    request: Request,
    session: Session,
    policy: Policy,
    model: Model,
    now: float,
    *,
    weigh: Weigh,
    keys: Sequence[bytes] | None = None,
    strategy: str = "openai",
    strategies: Sequence[str] | None = None,
    times: Sequence[float] | None = None,
    found: Sequence[Found] = (),
    relevance: Mapping[bytes, float] | None = None,
    frozen: bool = False,
    options: Mapping[str, str] | None = None,
    offered: frozenset[str] = frozenset(),
    guarded: frozenset[bytes] = frozenset(),
    toll: int = 0,
    scratchpad: str = "",
    memos: Sequence[Memo] = (),
    elsewhere: Mapping[str, tuple[int, int]] | None = None,
) -> Plan:
    """Plan one request.

    now: seconds, on the clock of `session.sent_at`. keys: the messages' chain keys, if the caller has them. strategy:
    the wire format of the upstream that the request goes to. strategies: the wire format that each message was made
    for. times: when each message was first seen. options: the values of the request's x-context-* headers. found:
    results of a search of the store. relevance: of messages to the task, by form. frozen: make no new edits (the store
    cannot take them). offered: names of the proxy's tools that the model has, or will have if the plan makes a first
    edit. toll: tokens of these tools that come in front of the messages then. guarded: chain keys of messages that stay
    as they are. scratchpad: the session's. memos: those that fit the last user message. elsewhere: page faults of the
    tenant's other sessions (`View.elsewhere`). Raises nothing on purpose: a plan that breaks a rule comes back as
    `refused`, and the original goes out.
    """
    keys = key.chain("", request.messages) if keys is None else keys
    policy = for_model(policy, model)
    if session.stopped is not None:
        session, policy = _for_stopped(session, policy)
    if session.uncached:
        model = without_cache(model)
    policy = operator.applied(policy, session.steering)
    strategies, times = strategies or [strategy] * len(keys), times or [now] * len(keys)
    more = (policy, model, now, weigh, strategy, strategies)
    beside: Beside = {
        "times": times, "found": found, "relevance": relevance or {}, "options": options or {}, "offered": offered,
        "guarded": guarded, "toll": toll, "scratchpad": scratchpad, "memos": memos, "elsewhere": elsewhere or {},
    }  # fmt: skip
    seen = view.build(request, keys, session, *more, **beside)
    if over := _over(seen, policy) | operator.over(seen.edits, session.steering):
        session = replace(session, edits={k: e for k, e in session.edits.items() if k not in over})
        seen = view.build(request, keys, session, *more, **beside)
    force = session.steering.force if session.steering is not None else ""
    if force == "prune":
        seen = replace(seen, budget=operator.pruned(seen, policy))
    if session.stopped is not None and seen.budget is not None:
        seen = replace(seen, budget=max(seen.budget, seen.limit or 0))
    seen, refetched = _with_faults(seen, session)
    return _rewritten(seen, session, policy, model, now, refetched, frozen=frozen)


def _with_faults(seen: View, session: Session) -> tuple[View, list[Note]]:
    """Return the view with the cut results that this request fetches again, and a note of the new ones."""
    found = page_faults.new_faults(seen, session.looked) if seen.edits else []
    if not found:
        return seen, []
    counts = Counter(session.refetched)
    counts.update(sort for _, sort in found)
    # After a restart all are counted again, and only those behind the last answer are reported again.
    told = session.looked or (seen.ground.answers[-1] if seen.ground.answers else 0)
    kinds = Counter[str](one.kind for one, _ in found if one.index >= told)
    notes = [Note("refetch", " ".join(sorted(kinds)), {**kinds})] if kinds else []
    return replace(seen, refetched=dict(counts)), notes


def _for_stopped(session: Session, policy: Policy) -> tuple[Session, Policy]:
    """The session and the policy of a thread that is not rewritten any more.

    Only the stages of last resort act, if the prompt would not fit the window. The upstream would refuse such a prompt
    in any case.
    """
    last = tuple(stage for stage in policy.stages if stage.when == "last")
    return replace(session, steering=None), replace(policy, stages=last, voices=(), ask="never")


@dataclass(frozen=True, slots=True)
class _Draft:
    """The decisions of a plan."""

    before: Mapping[bytes, Edit]
    """The edits without inserts that stay where they are put."""
    edits: Mapping[bytes, Edit]
    wanted: Sequence[Insert]
    by_index: Mapping[int, list[Insert]]
    after: Sequence[Insert]
    asked: bool
    tokens: int
    """Tokens of everything that would be sent."""
    extra: int
    """Tokens of the inserts among `tokens`."""


def _rewritten(
    seen: View, session: Session, policy: Policy, model: Model, now: float, notes: list[Note], *, frozen: bool
) -> Plan:
    """The plan for the view. notes: the notes made so far."""
    drawn = _draft(seen, session, policy, frozen=frozen)
    for _ in range(ROUNDS):
        if seen.budget is None or drawn.tokens <= seen.budget or drawn.extra <= seen.extra:
            break
        seen = replace(seen, extra=drawn.extra)  # the messages have to make room for what is inserted
        drawn = _draft(seen, session, policy, frozen=frozen)
    if seen.limit is not None and drawn.tokens > seen.limit and drawn.extra:
        drawn = _without_inserts(seen, drawn, seen.limit, notes)
    try:
        made = outgoing.rendered(seen, drawn.edits, drawn.by_index, drawn.after, model)
    except RuleBroken as broken:
        return _refused(seen, session, policy, broken.rule, broken.message)
    except ValueError as problem:
        return _refused(seen, session, policy, "render", str(problem))
    return _plan(seen, session, policy, drawn, notes, made, now)


def _draft(seen: View, session: Session, policy: Policy, *, frozen: bool) -> _Draft:
    """The draft of a plan: removed messages, shortened messages, and inserts."""
    edits = _edits(seen, session, policy, frozen=frozen)
    wanted: list[Insert] = []
    asked = False
    if session.stopped is None:
        count = seen.applied.losses if edits is seen.edits else losses(edits)
        wanted, asked = inserts.inserts(seen, session, policy, count)
        if policy.voices:
            told = seen if edits is seen.edits else replace(seen, edits=edits, tokens=proposals.sizes_of(seen, edits))
            wanted += [insert for voice in policy.voices for insert in voice(told)]
            owed = {insert.source for insert in session.owed}  # a voice gives one note at a time
            wanted = [i for i in wanted if not (i.said and i.source in owed)] + list(session.owed)
    return _placed(seen, edits, wanted, asked=asked)


def _placed(seen: View, edits: Mapping[bytes, Edit], wanted: Sequence[Insert], *, asked: bool) -> _Draft:
    """The draft with these inserts in their places."""
    before = edits
    by_index, after, edits = _place(seen, wanted, edits)
    added = sum(seen.weigh.count(i.text) for found in by_index.values() for i in found)
    added += PER_MESSAGE + seen.weigh.count(joined(after)) if after else 0
    tokens = fit.total_with(seen, edits) - seen.extra + added
    extra = tokens - (fit.total_with(seen, before) - seen.extra)
    return _Draft(before, edits, wanted, by_index, after, asked, tokens, extra)


def _without_inserts(seen: View, drawn: _Draft, limit: int, notes: list[Note]) -> _Draft:
    """The draft with as many inserts as fit the window: the first ones, and the operator's notes."""
    stay, out = list(drawn.wanted), []
    for insert in reversed(drawn.wanted):
        if drawn.tokens <= limit:
            break
        if insert.source != operator.NAME:
            stay.remove(insert)
            out.append(insert.source)
            drawn = _placed(seen, drawn.before, stay, asked=drawn.asked)
    notes.append(Note("inserts_left_out", f"no room in the window for {', '.join(out)}"))
    return drawn


def _edits(seen: View, session: Session, policy: Policy, *, frozen: bool) -> Mapping[bytes, Edit]:
    """The edits in force, with those of this request."""
    force = session.steering.force if session.steering is not None else ""
    if frozen and not policy.literal:
        return _settled(
            seen, proposals.take(seen, proposals.collect(seen, _at_once(policy)), seen.edits, literal=False)
        )
    low = _low(seen, policy, force)
    chosen = _choose(seen, policy, force, low, for_money=session.may_edit or bool(force))
    edits = proposals.take(seen, chosen, seen.edits, literal=policy.literal)
    return _settled(seen, _fitted(seen, policy, remarked(seen, edits, seen.edits, policy.remark), low))


def _settled(seen: View, edits: Mapping[bytes, Edit]) -> Mapping[bytes, Edit]:
    """The edits, with references updated if they point at messages that leave with this plan."""
    return edits if edits is seen.edits else mark_left(seen, edits)


def _fitted(seen: View, policy: Policy, edits: Mapping[bytes, Edit], low: int) -> Mapping[bytes, Edit]:
    """The edits with those that fit the prompt to its budget. The remarks that these edits need are within the budget
    too."""
    fitted = _fit(seen, policy, edits, low)
    if fitted is edits:
        return edits
    made = remarked(seen, fitted, seen.edits, policy.remark)
    more = fit.total_with(seen, made) - fit.total_with(seen, fitted)
    if more and seen.budget is not None and fit.total_with(seen, made) > seen.budget:
        narrow = replace(seen, extra=seen.extra + more)
        made = remarked(seen, _fit(narrow, policy, edits, low), seen.edits, policy.remark)
    return made


def _fit(seen: View, policy: Policy, edits: Mapping[bytes, Edit], low: int) -> Mapping[bytes, Edit]:
    """The edits with those that fit the prompt to its budget.

    A new result may refer to a message that leaves for the budget. Such a result is sent as it came, and is fitted with
    the others.
    """
    fitted = fit.fit(seen, policy, edits, low)
    while fitted is not edits and (lost := dangling(seen, edits, fitted)):
        edits = {k: e for k, e in edits.items() if k not in lost}
        fitted = fit.fit(seen, policy, edits, low)
    return fitted


def _at_once(policy: Policy) -> list[Stage]:
    """The stages that are a matter of correctness: they act whatever the schedule says."""
    return [stage for stage in policy.stages if stage.when == "always"]


def _over(seen: View, policy: Policy) -> set[bytes]:
    """Keys of edits that only a stage of correctness made, and whose reason has ended.

    For example, content that was withheld from another upstream comes back to the upstream that it was made for. All
    other edits stay for ever.
    """
    if not seen.edits:
        return set()
    made = {type(stage).__module__.rpartition(".")[2] for stage in _at_once(policy)}  # a stage's name is its module's
    if made.isdisjoint(seen.applied.stages):
        return set()
    held = {k for k, e in seen.edits.items() if e.stage in made}
    plain = replace(seen, edits={k: e for k, e in seen.edits.items() if k not in held})
    return held - {seen.keys[p.index] for p in proposals.collect(plain, _at_once(policy))}


def _low(seen: View, policy: Policy, force: operator.Force) -> int:
    """Tokens down to which a prompt that is over its budget is brought.

    The number is below the budget, so the next edits come when that room is used up, and not with the next request.
    Each time, the edits cost the price of the whole prompt.
    """
    if policy.literal or force == "prune" or not seen.budget:
        return seen.budget or 0  # edits that do not last move the prefix anyway; a pruned prompt is at the low mark
    return int(seen.budget * min(1.0, policy.low / policy.budget))  # a share, so that it follows the window


def _choose(seen: View, policy: Policy, force: operator.Force, low: int, *, for_money: bool) -> list[Proposal]:
    """The proposals of the stages that the schedule takes, oldest first.

    for_money: True if edits may be made because they pay, and not for the budget alone.
    """
    at_once = proposals.collect(seen, _at_once(policy))
    open_ = proposals.collect(seen, (stage for stage in policy.stages if stage.when == "schedule"))
    taken = {p.index for p in at_once}
    open_ = [p for p in open_ if p.index not in taken]
    if policy.schedule == "always" or force == "compress":
        return sorted(at_once + open_, key=lambda p: p.index)
    if at_once and policy.schedule == "when_it_pays":
        seen = _broken(seen, at_once)
    high = seen.budget
    if policy.schedule == "over_budget" or not for_money:
        chosen = schedule.over_budget(seen, open_, high, low) if high else []
    else:
        chosen = schedule.when_it_pays(seen, open_, policy.rent, policy.payback, page_faults.losses(seen))
        if high and seen.total > high and sum(schedule.saved(seen, p) for p in chosen) < seen.total - high:
            chosen = schedule.over_budget(seen, open_, high, low)
    return sorted(at_once + _completed(chosen, open_), key=lambda p: p.index)


def _broken(seen: View, at_once: Sequence[Proposal]) -> View:
    """The view after the edits that are made at once.

    Behind the first of these edits nothing is served from the cache, so other edits there cost nothing.
    """
    first = at_once[0].index
    tokens = list(seen.tokens)
    for proposal in at_once:
        tokens[proposal.index] -= schedule.saved(seen, proposal)
    return replace(seen, tokens=tokens, cached=min(seen.cached, seen.head + sum(tokens[:first])))


def _completed(chosen: list[Proposal], open_: Sequence[Proposal]) -> list[Proposal]:
    """Add the proposals that the chosen ones depend on, and the rest of each joint batch."""
    have = {p.index for p in chosen}
    joint = {p.stage for p in chosen if p.joint}
    chosen = chosen + [p for p in open_ if p.joint and p.stage in joint and p.index not in have]
    missing = {p.needs for p in chosen} - {p.index for p in chosen}
    return chosen + [p for p in open_ if p.index in missing]


def _place(
    seen: View, wanted: Sequence[Insert], edits: Mapping[bytes, Edit]
) -> tuple[dict[int, list[Insert]], list[Insert], Mapping[bytes, Edit]]:
    """Find the place of each insert: appended to a message, in a message of ours, or, if it is kept, as an edit.

    Return (inserts by index of the message, inserts for a message of ours, edits).
    """
    by_index: dict[int, list[Insert]] = {}
    after: list[Insert] = []
    if not wanted:
        return by_index, after, edits
    system = inserts.system_target(seen)
    tail, own = inserts.tail_target(seen)
    for insert in wanted:
        place = system if insert.place == "system" else None
        if place is not None:
            by_index.setdefault(place, []).append(insert)
        elif tail is not None and insert.kept:
            edits = {**edits, seen.keys[tail]: _kept(seen, tail, insert, edits.get(seen.keys[tail]))}
        elif seen.model.cache == "breakpoint" and not seen.literal:
            continue  # the breakpoint at the prompt's end would not be found again behind a text that leaves
        elif tail is not None:
            by_index.setdefault(tail, []).append(replace(insert, place="tail"))
        elif own or (insert.alone and inserts.may_answer(seen)):
            after.append(insert)
    return by_index, after, edits


def _kept(seen: View, index: int, insert: Insert, old: Edit | None) -> Edit:
    size = seen.weigh.count(insert.text)
    if old is None or old.text is None:
        whole = seen.whole[index]
        return Edit(seen.keys[index], "append", insert.text, insert.source, "kept at the tail", whole, whole + size)
    return replace(old, text=old.text + insert.text, after=old.after + size)


def _plan(
    seen: View, session: Session, policy: Policy, drawn: _Draft, notes: list[Note], made: Rendering, now: float
) -> Plan:
    old = session.edits
    edits = proposals.for_the_first_reason(drawn.edits, old) if policy.literal else drawn.edits
    placed = [(n, i) for n, found in sorted(drawn.by_index.items()) for i in found] + [(-1, i) for i in drawn.after]
    same = edits is seen.edits and not policy.literal  # then all of them are the session's
    new = () if same else tuple(e for k, e in edits.items() if (o := old.get(k)) is not e and o != e)
    notes += noting.of_quotes(drawn.wanted, placed, edits)
    notes += noting.of_stages(policy.stages, seen, edits, new)
    limit = fit.promised(seen, policy)
    notes += fit.over_budget(limit, drawn.tokens)
    return Plan(
        messages=tuple(made.raws) if edits or placed else None,
        new=new,
        edits=old if same else edits if policy.literal else {**old, **edits},
        placed=tuple(placed),
        asks=tuple(ask for stage in policy.stages for ask in _asks(stage, seen) if ask.id not in session.answers),
        notes=tuple(notes),
        marks=tuple(made.marks),
        sizes=tuple(made.sizes),
        keys=seen.keys,
        before=seen.head + sum(seen.whole),
        after=drawn.tokens,
        predicted=outgoing.predicted(seen, session, made, now, moved=bool(seen.toll and cuts(edits))),
        asked=drawn.asked and any(i.source == "ask" for _, i in placed),
        owed=_owed(drawn.wanted, placed),
        literal=policy.literal,
        limit=limit,
        refetched=seen.refetched,
        exposed=page_faults.more_exposed(seen),
    )


def _owed(wanted: Sequence[Insert], placed: Sequence[tuple[int, Insert]]) -> tuple[Insert, ...]:
    """Notes that are given once and have found no place."""
    told = {insert.said for _, insert in placed}
    return tuple(insert for insert in wanted if insert.said and insert.said not in told)


def _asks(stage: object, seen: View) -> Iterable[Ask]:
    """The questions of a stage for a helper model. Stages that ask have a method `asks`."""
    asks = getattr(stage, "asks", None)
    return asks(seen) if asks is not None else ()


def _refused(seen: View, session: Session, policy: Policy, rule: str, why: str) -> Plan:
    """The plan by which the original goes out; old edits stay remembered."""
    return Plan(
        messages=None,
        new=(),
        edits=session.edits,
        placed=(),
        asks=(),
        notes=(Note("refused", why),),
        marks=tuple(m.form for m in seen.messages),
        sizes=tuple(seen.whole),
        keys=seen.keys,
        before=seen.head + sum(seen.whole),
        after=seen.head + sum(seen.whole),
        predicted=0,
        asked=False,
        refused=rule,
        literal=seen.literal,
        limit=fit.promised(seen, policy),
        refetched=seen.refetched,
        exposed=seen.exposed,
    )
