"""rewrite(): from a request and what is remembered of its thread to what is sent.

Repeat the old edits, let the stages propose, let the schedule decide, fit the budget, add the inserts, check the
rules. The same function serves the proxy, the replay command, a notebook and the tests: same input, same output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from proxy.chat import key
from proxy.chat.group import Group, Step
from proxy.chat.message import Request
from proxy.chat.tokens import Weigh
from proxy.context import inserts, noting, operator, outgoing, schedule, turns, view
from proxy.context.pins import pinned
from proxy.context.plan import STRENGTH, Ask, Edit, Found, Insert, Note, Plan, Proposal, View
from proxy.context.policy import Policy, for_model
from proxy.context.prices import Model
from proxy.context.render import Rendering
from proxy.context.session import Session, cuts
from proxy.context.stage import Stage
from proxy.context.view import Beside
from proxy.errors import RuleBroken
from proxy.memory.memos import Memo


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
) -> Plan:
    """Plan one request.

    now: seconds, on the clock of `session.sent_at`. keys: the messages' chain keys where the caller has them.
    strategy: the wire format of the upstream that it goes to; strategies: the one that each message was made for.
    times: when each was first seen. options: what the request asks for by x-context-* headers. found: what a search of
    the store has brought up. relevance: of messages to the task, by form.
    frozen: make no new edits (the store cannot take them). offered: names of the proxy's tools that the model has, or
    will have where the plan makes a first edit; that costs `toll` tokens in the head then. guarded: chain keys of
    messages that stay as they are. scratchpad: the session's. memos: those that fit the last user message.
    Raises nothing on purpose: a plan that breaks a rule comes back as `refused`, and the original goes out.
    """
    keys = key.chain("", request.messages) if keys is None else keys
    policy = operator.applied(for_model(policy, model), session.steering)
    strategies, times = strategies or [strategy] * len(keys), times or [now] * len(keys)
    more = (policy, model, now, weigh, strategy, strategies)
    beside: Beside = {
        "times": times, "found": found, "relevance": relevance or {}, "options": options or {}, "offered": offered,
        "guarded": guarded, "toll": toll, "scratchpad": scratchpad, "memos": memos,
    }  # fmt: skip
    seen = view.build(request, keys, session, *more, **beside)
    if over := _over(seen, policy) | operator.over(seen.edits, session.steering):
        session = replace(session, edits={k: e for k, e in session.edits.items() if k not in over})
        seen = view.build(request, keys, session, *more, **beside)
    return _rewritten(seen, session, policy, model, now, frozen=frozen)


def _rewritten(seen: View, session: Session, policy: Policy, model: Model, now: float, *, frozen: bool) -> Plan:
    """The plan for what is seen."""
    edits = seen.edits
    notes: list[Note] = []
    force = session.steering.force if session.steering is not None and session.stopped is None else ""
    if force == "prune":
        seen = replace(seen, budget=operator.pruned(seen, policy))
    if policy.literal or ((session.may_edit or force) and not frozen):
        low = _low(seen, policy, force)
        chosen = _choose(seen, policy, force, low)
        edits = _taken(seen, chosen, edits, literal=policy.literal)
        edits = _fit(seen, policy, edits, notes, low)
    elif session.stopped is None:
        edits = _taken(seen, _proposals(seen, _at_once(policy)), edits, literal=False)
    wanted: list[Insert] = []
    asked = False
    if session.stopped is None:
        wanted, asked = inserts.inserts(
            seen, session, policy, seen.applied.cuts if edits is seen.edits else cuts(edits)
        )
        if policy.voices:
            told = seen if edits is seen.edits else replace(seen, edits=edits, tokens=_sizes(seen, edits))
            wanted += [insert for voice in policy.voices for insert in voice(told)]
    by_index, after, edits = _place(seen, wanted, edits)
    try:
        made = outgoing.rendered(seen, edits, by_index, after, model)
    except RuleBroken as broken:
        return _refused(seen, session, broken.rule, broken.message)
    except ValueError as problem:
        return _refused(seen, session, "render", str(problem))
    placed = [(n, i) for n, found in sorted(by_index.items()) for i in found] + [(-1, i) for i in after]
    notes += noting.of_quotes(wanted, placed, edits)
    return _plan(seen, session, policy, edits, placed, notes, made, now, asked)


def _at_once(policy: Policy) -> list[Stage]:
    """The stages that are a matter of correctness: they act whatever the schedule says."""
    return [stage for stage in policy.stages if stage.when == "always"]


def _over(seen: View, policy: Policy) -> set[bytes]:
    """Keys of edits that only such a stage made, for a reason that is over: what was kept from another upstream comes
    back to the one that it was made for. All other edits stay for ever."""
    if not seen.edits:
        return set()
    made = {type(stage).__module__.rpartition(".")[2] for stage in _at_once(policy)}  # a stage's name is its module's
    if made.isdisjoint(seen.applied.stages):
        return set()
    held = {k for k, e in seen.edits.items() if e.stage in made}
    plain = replace(seen, edits={k: e for k, e in seen.edits.items() if k not in held})
    return held - {seen.keys[p.index] for p in _proposals(plain, _at_once(policy))}


def _low(seen: View, policy: Policy, force: operator.Force) -> int:
    """Tokens down to which a prompt that is over its budget is brought: below the budget, so that the next edits come
    when that room is used up and not with the next request, each time at the price of the whole prompt."""
    if policy.literal or force == "prune" or not seen.budget:
        return seen.budget or 0  # edits that do not last move the prefix anyway; what is pruned is at the low mark
    return int(seen.budget * min(1.0, policy.low / policy.budget))  # a share, so that it follows the window


def _choose(seen: View, policy: Policy, force: operator.Force, low: int) -> list[Proposal]:
    """What the stages propose and the schedule takes, oldest first."""
    at_once = _proposals(seen, _at_once(policy))
    open_ = _proposals(seen, (stage for stage in policy.stages if stage.when == "schedule"))
    taken = {p.index for p in at_once}
    open_ = [p for p in open_ if p.index not in taken]
    if policy.schedule == "always" or force == "compress":
        return sorted(at_once + open_, key=lambda p: p.index)
    if at_once and policy.schedule == "when_it_pays":
        seen = _broken(seen, at_once)
    high = seen.budget
    if policy.schedule == "over_budget":
        chosen = schedule.over_budget(seen, open_, high, low) if high else []
    else:
        chosen = schedule.when_it_pays(seen, open_, policy.rent, policy.payback)
        if high and seen.total > high and sum(schedule.saved(seen, p) for p in chosen) < seen.total - high:
            chosen = schedule.over_budget(seen, open_, high, low)
    return sorted(at_once + _completed(chosen, open_), key=lambda p: p.index)


def _broken(seen: View, at_once: Sequence[Proposal]) -> View:
    """The view with what is made at once taken into account: behind the first of it nothing is served from the cache,
    so that other edits there cost nothing."""
    first = at_once[0].index
    tokens = list(seen.tokens)
    for proposal in at_once:
        tokens[proposal.index] -= schedule.saved(seen, proposal)
    return replace(seen, tokens=tokens, cached=min(seen.cached, seen.head + sum(tokens[:first])))


def _completed(chosen: list[Proposal], open_: Sequence[Proposal]) -> list[Proposal]:
    """With what those that were taken need, and with what was chosen together with them."""
    have = {p.index for p in chosen}
    joint = {p.stage for p in chosen if p.joint}
    chosen = chosen + [p for p in open_ if p.joint and p.stage in joint and p.index not in have]
    missing = {p.needs for p in chosen} - {p.index for p in chosen}
    return chosen + [p for p in open_ if p.index in missing]


def _proposals(seen: View, stages: Iterable[Stage]) -> list[Proposal]:
    """One proposal a message, the strongest; none for what must stay, none weaker than the edit in force."""
    best: dict[int, Proposal] = {}
    last, last_user = len(seen.messages) - 1, seen.ground.prompt
    held = _held(seen)
    for stage in stages:
        for proposal in stage(seen):
            index = proposal.index
            if seen.messages[index].is_system or (index == last and proposal.action == "gone"):
                continue
            if proposal.action != "append" and (index == last_user or pinned(seen, index)):
                continue  # FEATURES.md E7: no policy edits it
            if proposal.action == "gone" and index in held and stage.when != "always":
                continue
            old = best.get(index)
            if old is None or (STRENGTH[proposal.action], -proposal.after) > (STRENGTH[old.action], -old.after):
                best[index] = proposal
    return [best[n] for n in sorted(best) if _supersedes(best[n], seen.edit(n))]


def _held(seen: View) -> frozenset[int]:
    """What stays because of the client's own cache marks: the message that bears one, and with it its step, or its
    group where that is over, since of neither a part can leave."""
    marked = [n for n in seen.ground.marked if not seen.messages[n].is_system]
    if not marked:
        return frozenset()
    found = [u for u in _units(seen) if any(u.start <= n < u.end for n in marked)]
    return frozenset(n for unit in found for n in range(unit.start, unit.end))


def _supersedes(proposal: Proposal, edit: Edit | None) -> bool:
    if edit is None:
        return True
    stronger = STRENGTH[proposal.action] > STRENGTH[edit.action]
    if proposal.action == edit.action == "append":
        return True  # the stage writes on behind what is there
    return stronger or (proposal.action == edit.action == "text" and proposal.after < edit.after)


def _taken(seen: View, chosen: Sequence[Proposal], old: Mapping[bytes, Edit], *, literal: bool) -> Mapping[bytes, Edit]:
    """The edits in force once these proposals are made. Whole steps leave or none of their messages does."""
    if (
        not chosen
        and old is seen.edits
        and (seen.applied.whole or seen.settled("whole steps", partial(turns.are_whole, seen)))
    ):
        return old  # nothing that is in force is withdrawn to keep turns in order
    edits = dict(old)
    gone = frozenset(p.index for p in chosen)
    for proposal in reversed(chosen):  # newest first: of two copies of a thing the older one may go
        message = seen.messages[proposal.index]
        text = proposal.write(gone) if proposal.write else proposal.text
        after = proposal.after
        if proposal.action == "gone":
            after = 0
        elif proposal.action == "append":
            after = seen.whole[proposal.index] + view.counted(seen, message, text or "")
        elif text is not None:
            after = view.edited_size(seen, proposal.index, text)
            if after >= seen.tokens[proposal.index] and not literal:
                continue  # the stub is no shorter than what it replaces
        k = seen.keys[proposal.index]
        edits[k] = Edit(k, proposal.action, text, proposal.stage, proposal.reason, seen.whole[proposal.index], after)
    for proposal in chosen:
        if proposal.needs is not None and not _stands(edits.get(seen.keys[proposal.needs])):
            k = seen.keys[proposal.index]  # what would say what it takes away was not written
            edits.pop(k, None)
            edits.update({k: old[k]} if k in old else {})
    return turns.mended(seen, turns.whole_steps(seen, edits, old), old)


def _stands(edit: Edit | None) -> bool:
    return edit is not None and edit.action in ("text", "append")


def _fit(seen: View, policy: Policy, edits: Mapping[bytes, Edit], notes: list[Note], low: int) -> Mapping[bytes, Edit]:
    """Where the prompt is over its budget: the stages of last resort, oldest first, until it is down to `low`."""
    last = [stage for stage in policy.stages if stage.when == "last"]
    if not last or seen.budget is None:
        return edits
    tokens = _sizes(seen, edits)
    total = seen.head + sum(tokens)
    if total <= seen.budget:
        return edits
    over = total - low
    now = replace(seen, edits=edits, tokens=tokens)
    ends = [unit.end for unit in _units(now) for _ in range(unit.start, unit.end)]
    chosen: list[Proposal] = []
    end = 0
    for proposal in _proposals(now, last):
        if over <= 0 and proposal.index >= end:
            break
        end = end if proposal.index < end else ends[proposal.index]
        chosen.append(proposal)
        over -= schedule.saved(now, proposal)
    over -= seen.budget - low
    if over > 0:
        notes.append(
            Note("over_budget", f"{over} tokens over the budget of {seen.budget} with everything out that may go")
        )
    return _taken(now, chosen, edits, literal=False)


def _units(seen: View) -> list[Group | Step]:
    """What leaves together, covering every message once: groups that are over (FEATURES.md A14), and then steps."""
    return [*seen.groups[:-1], *(step for step in seen.steps if step.start >= seen.active)]


def _sizes(seen: View, edits: Mapping[bytes, Edit]) -> Sequence[int]:
    """Tokens of each message with these edits."""
    if edits is seen.edits:
        return seen.tokens
    sizes = list(seen.whole)
    for n, (k, message) in enumerate(zip(seen.keys, seen.messages, strict=True)):
        edit = edits.get(k)
        if edit is not None and not message.is_system:
            sizes[n] = edit.after
    return sizes


def _place(
    seen: View, wanted: Sequence[Insert], edits: Mapping[bytes, Edit]
) -> tuple[dict[int, list[Insert]], list[Insert], Mapping[bytes, Edit]]:
    """Where each insert goes: appended to a message, in a message of ours, or - kept - as an edit."""
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
        elif own:
            after.append(insert)
    return by_index, after, edits


def _kept(seen: View, index: int, insert: Insert, old: Edit | None) -> Edit:
    size = seen.weigh.count(insert.text)
    if old is None or old.text is None:
        whole = seen.whole[index]
        return Edit(seen.keys[index], "append", insert.text, insert.source, "kept at the tail", whole, whole + size)
    return replace(old, text=old.text + insert.text, after=old.after + size)


def _plan(
    seen: View,
    session: Session,
    policy: Policy,
    edits: Mapping[bytes, Edit],
    placed: Sequence[tuple[int, Insert]],
    notes: list[Note],
    made: Rendering,
    now: float,
    asked: bool,
) -> Plan:
    old = session.edits
    same = edits is seen.edits and not policy.literal  # then all of them are among those of the session
    new = () if same else tuple(e for k, e in edits.items() if (o := old.get(k)) is not e and o != e)
    notes += noting.of_stages(policy.stages, seen, edits, new)
    added = sum(seen.weigh.count(i.text) for _, i in placed)
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
        after=seen.head + sum(made.sizes) + added,
        predicted=outgoing.predicted(seen, session, made, now, moved=bool(seen.toll and cuts(edits))),
        asked=asked and any(i.source == "ask" for _, i in placed),
        literal=policy.literal,
    )


def _asks(stage: object, seen: View) -> Iterable[Ask]:
    """What a stage would like to know of a helper model: stages that ask have a method `asks`."""
    asks = getattr(stage, "asks", None)
    return asks(seen) if asks is not None else ()


def _refused(seen: View, session: Session, rule: str, why: str) -> Plan:
    """The original goes out; old edits stay remembered."""
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
    )
