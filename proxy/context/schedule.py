"""Proposals of stages, and the time at which proposals become edits: always, over_budget, when_it_pays.

Every edit moves the cached prefix: the messages behind the edit have to be written to the provider's cache again. So
edits come in batches. `when_it_pays` makes a batch when the rent paid for carrying stale tokens has reached the price
of removing them. This is the rent-or-buy (ski rental) rule: it never pays more than twice the best cost in hindsight
(Karlin et al. 1988). Where the lengths of earlier conversations say that a batch will pay back, a part of that rent is
enough (Purohit, Svitkina and Kumar 2018: ski rental with a prediction).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from proxy.chat.group import Group, Step
from proxy.chat.message import checkpoint
from proxy.context import repair
from proxy.context.injections.activity_record import find_newest_record
from proxy.context.pins import is_pinned
from proxy.context.plan import ACTION_STRENGTH, Edit, LossLimit, Proposal
from proxy.context.stage import Stage
from proxy.context.view import View, count_edited_tokens, count_text_tokens

MIN_LONGER: Final = 3
"""Conversations that have to have been longer, for an estimate of the requests left."""


def over_budget(view: View, proposals: Sequence[Proposal], high: int, low: int) -> list[Proposal]:
    """No proposals up to `high` tokens; else the oldest ones that bring the prompt down to `low` tokens."""
    total = view.total
    if total <= high:
        return []
    taken = []
    for proposal in proposals:
        if total <= low:
            break
        taken.append(proposal)
        total -= count_saved_tokens(view, proposal)
    return taken


def _cost_nothing(_: Proposal) -> float:
    return 0.0


def when_it_pays(
    view: View,
    proposals: Sequence[Proposal],
    rent: float = 1.0,
    payback: float = 0.0,
    fault_cost: Callable[[Proposal], float] = _cost_nothing,
    *,
    eager: bool = False,
    predicted_rent: float = 0.0,
    loss_limit: LossLimit | None = None,
) -> list[Proposal]:
    """The batch of proposals that has paid for itself, from one proposal on to the end; or none.

    For a batch that begins at message j, the price is the extra cost of this request with the edits. A token that has
    to be written again costs `w`, and a token that is still served costs `r`. The rent of the batch counts each request
    since a proposal became possible: `r` for each token that it saves, less its fault cost. A batch qualifies if its
    rent, times `rent`, has reached its price. Of these batches, the one with the most rent left over is taken. A price
    of zero or less (a cold cache, or a prefix that the client moved) is always paid.

    payback: the time within which the savings have to repay the price, as a share of the requests so far; 0: no such
    test. Tool definitions that come with the first edit are part of its price, and so is the prefix that they move.
    Where that is too dear, references to file views alone are looked at, without the tools, since no tool has to bring
    those lines back. Riders go along behind the first edit of a batch and do not count.

    fault_cost: the expected cost of page faults in one request after the edit. A proposal that saves no more than its
    fault cost is left out.

    eager: a result that was sent once has nothing behind it in the cache yet, and its edit will never be cheaper. So a
    batch that begins with such a result does not wait for its rent. The savings within the payback time count instead.
    Proposals with `waits_for_rent` wait nevertheless.

    predicted_rent: takes the place of `rent` where `estimate_requests_left` has an estimate, and the estimate that of
    the payback time. The rent of proposals with `waits_for_rent` counts as usual. References to repeated text only go
    along: an agent that reads something again wants it there. 0: estimates are not used.

    loss_limit: what a batch may lose, if the conversation ends with this request, or comes back to what was cut.

    On a cold cache, searches and command output are taken at once. Results that may be quoted word for word are taken
    only where a warm cache would also allow it. After a pause a person comes back to such a result.
    """
    offers = list(_find_profitable(view, proposals, fault_cost))
    now = view.request_counts[-1]
    horizon = payback * now if payback else math.inf
    requests_left = estimate_requests_left(view.inputs.conversation_lengths, now) if predicted_rent else None
    if requests_left is not None:
        terms = _Terms(predicted_rent, rent, requests_left, eager, loss_limit, counts_references=False)
        if chosen := _choose_on_terms(view, offers, terms):
            return chosen
        horizon = min(horizon, requests_left)
    return _choose_on_terms(view, offers, _Terms(rent, rent, horizon, eager, loss_limit))


def _choose_on_terms(view: View, offers: Sequence[_Offer], terms: _Terms) -> list[Proposal]:
    """The batch of `when_it_pays` on these terms, or none."""
    chosen = _choose_batch(view, offers, terms)
    if not chosen and view.tool_tokens:
        view = replace(view, tool_tokens=0)
        offers = [one for one in offers if one.proposal.refers_to_view]
        chosen = _choose_batch(view, offers, terms)
    if (
        view.cached_tokens < view.warm_tokens
        and view.model.cache != "none"
        and any(_is_quoted(proposal) for proposal in chosen)
    ):
        warm = replace(view, cached_tokens=view.warm_tokens)
        chosen_warm = {p.index for p in _choose_batch(warm, offers, terms)}
        chosen = [p for p in chosen if not _is_quoted(p) or p.index in chosen_warm]
    return chosen


def estimate_requests_left(lengths: Iterable[int], now: int) -> int | None:
    """The requests that a conversation is expected to have left after `now` requests, or None if too few conversations
    of its agent came further.

    lengths: requests of conversations of the same agent. Of those that came further, three quarters went on for longer
    than the estimate. A conversation that still goes on counts as if it ended here, so that the estimate is too low
    rather than too high.
    """
    left = sorted(length - now for length in lengths if length > now)
    return left[len(left) // 4] if len(left) >= MIN_LONGER else None


def _is_quoted(proposal: Proposal) -> bool:
    return proposal.content in ("view", "unknown")


class _Offer(NamedTuple):
    """A proposal with its gain and its saving."""

    proposal: Proposal
    gain: int
    """Tokens by which the proposal shortens the prompt."""
    saving: float
    """Cost that the proposal saves in one request, in input tokens, less its page faults."""


def _find_profitable(
    view: View, proposals: Sequence[Proposal], fault_cost: Callable[[Proposal], float]
) -> Iterator[_Offer]:
    """Yield the proposals that save more than the page faults that they cause, riders included."""
    for proposal in proposals:
        gain, expected_loss = count_saved_tokens(view, proposal), fault_cost(proposal)
        saving = view.model.r * gain - expected_loss
        if saving > 0 or expected_loss == 0:
            yield _Offer(proposal, gain, saving)


class _Terms(NamedTuple):
    """The terms on which a batch is made."""

    rent: float
    """Number by which paid rent is multiplied."""
    waiting_rent: float
    """The same number for proposals with `waits_for_rent`."""
    horizon: float
    """Requests within which a batch has to pay back; infinite: no such test."""
    eager: bool
    loss_limit: LossLimit | None
    counts_references: bool = True
    """False if references to repeated text are like riders."""


def _choose_batch(view: View, offers: Sequence[_Offer], terms: _Terms) -> list[Proposal]:
    """The proposals of the batch with the most rent left over, or none."""
    if not offers:
        return []
    w, r = view.model.w, view.model.r
    total = view.total
    unedited_price = w * (total - view.cached_tokens) + r * view.cached_tokens
    served_tokens = view.count_served_tokens()
    now = view.request_counts[-1]
    best_start, best_left = len(offers), -1.0
    gained = saved_cost = paid_rent = 0.0
    cut_tokens = 0
    for n in range(len(offers) - 1, -1, -1):
        proposal = offers[n].proposal
        cut_tokens += view.tokens[proposal.index] if proposal.content else 0
        if proposal.rider or not (proposal.content or terms.counts_references):
            continue
        gained += offers[n].gain
        saved_cost += offers[n].saving
        rent = terms.waiting_rent if proposal.waits_for_rent else terms.rent
        paid_rent += rent * offers[n].saving * (now - view.request_counts[proposal.since])
        cached = served_tokens[proposal.index]
        after = total + view.tool_tokens - gained
        price = w * (after - cached) + r * cached - unedited_price + _price_lost_cache(view, after)
        if terms.loss_limit is not None and _loses_more(terms.loss_limit, price, w * cut_tokens):
            continue
        repaid = terms.horizon * saved_cost if terms.horizon < math.inf else math.inf
        due = paid_rent
        if terms.eager and not proposal.waits_for_rent and repaid < math.inf and _was_sent_once(view, proposal):
            due = max(due, repaid)
        left = due - price
        if gained > 0 and left >= 0 and left > best_left and repaid >= price:
            best_start, best_left = n, left
    return [offered.proposal for offered in offers[best_start:]]


def _price_lost_cache(view: View, after: float) -> float:
    """The price of a prompt of `after` tokens that is too short to be cached, if it could be cached as it is.

    It is paid with each request until the prompt has grown again. It grows as it has grown so far.
    """
    model = view.model
    if model.cache == "none" or not after < model.min <= view.total:
        return 0.0
    growth = view.total / max(1, view.request_counts[-1])
    return (model.w - model.r) * after * math.ceil((model.min - after) / growth)


def _loses_more(limit: LossLimit, price: float, fetching: float) -> bool:
    """True if a batch of this price may lose more than the limit. fetching: the cost of fetching all again."""
    return max(0.0, price) + limit.chance * fetching > limit.most


def _was_sent_once(view: View, proposal: Proposal) -> bool:
    """True if the message was sent at most once: no part of the cache is behind it."""
    return view.request_counts[-1] - view.request_counts[proposal.index] <= 1


def is_batch_paid(
    view: View,
    proposals: Sequence[Proposal],
    rent: float = 1.0,
    payback: float = 0.0,
    fault_cost: Callable[[Proposal], float] = _cost_nothing,
) -> bool:
    """True if the rent of these proposals, one at least and in order, has reached their price together."""
    w, r = view.model.w, view.model.r
    now, cached = view.request_counts[-1], view.count_served_tokens()[proposals[0].index]
    saved_tokens = saved_cost = paid_rent = 0.0
    for proposal in proposals:
        gain = count_saved_tokens(view, proposal)
        proposal_saving = r * gain - fault_cost(proposal)
        saved_tokens += gain
        saved_cost += proposal_saving
        paid_rent += proposal_saving * (now - view.request_counts[proposal.since])
    price = w * (view.tool_tokens + view.cached_tokens - saved_tokens - cached) + r * (cached - view.cached_tokens)
    if saved_tokens <= 0 or saved_cost <= 0 or rent * paid_rent < price:
        return False
    return payback == 0 or payback * now * saved_cost >= price


def count_saved_tokens(view: View, proposal: Proposal) -> int:
    """Tokens by which a proposal shortens the prompt as it would go out now."""
    return max(0, view.tokens[proposal.index] - proposal.after)


# Edits from the proposals of stages: the strongest one for each message, and for each step all its messages or
# none.


def collect(view: View, stages: Iterable[Stage]) -> list[Proposal]:
    """The strongest proposal for each message that may change, if stronger than the edit in force."""
    best: dict[int, Proposal] = {}
    last, last_user = len(view.messages) - 1, view.history.last_user_index
    held = _find_held_indexes(view)
    for stage in stages:
        checkpoint()
        for proposal in stage(view):
            checkpoint()
            index = proposal.index
            if view.messages[index].is_system or (index == last and proposal.action == "gone"):
                continue
            if proposal.action != "append" and (index == last_user or is_pinned(view, index)):
                continue  # no policy edits a pinned message or the current prompt
            if proposal.action == "gone" and index in held and stage.when != "always":
                continue
            old = best.get(index)
            if old is None or (ACTION_STRENGTH[proposal.action], -proposal.after) > (
                ACTION_STRENGTH[old.action],
                -old.after,
            ):
                best[index] = proposal
    return [best[n] for n in sorted(best) if _supersedes(best[n], view.find_edit(n))]


def _find_held_indexes(view: View) -> frozenset[int]:
    """The indexes of messages that stay because of the client's own cache marks.

    A message with a mark stays, and with it its step, or its group if that is over. No part of these can leave alone.
    """
    marked = [n for n in view.history.marked_indexes if not view.messages[n].is_system]
    if not marked:
        return frozenset()
    found = [u for u in list_units(view) if any(u.start <= n < u.end for n in marked)]
    return frozenset(n for unit in found for n in range(unit.start, unit.end))


def _supersedes(proposal: Proposal, edit: Edit | None) -> bool:
    if edit is None:
        return True
    stronger = ACTION_STRENGTH[proposal.action] > ACTION_STRENGTH[edit.action]
    if proposal.action == edit.action == "append":
        return True  # the stage continues the appended text
    is_same = proposal.action == edit.action and proposal.action in ("text", "arguments")
    return stronger or (is_same and proposal.after < edit.after)


def apply(view: View, chosen: Sequence[Proposal], old: Mapping[bytes, Edit], *, literal: bool) -> Mapping[bytes, Edit]:
    """The edits in force after these proposals are made. Either all messages of a step leave, or none of them."""
    if (
        not chosen
        and old is view.edits
        and (view.edited_history.is_complete or view.memo_edited("whole steps", partial(repair.are_steps_whole, view)))
    ):
        return old  # no edit in force is withdrawn to keep turns in order
    edits = dict(old)
    gone = frozenset(p.index for p in chosen if not p.lossless)
    bearer, record = (chosen and find_newest_record(view.edits, view)) or (b"", "")
    for proposal in reversed(chosen):  # newest first: of two copies of a text the older one may go
        checkpoint()
        message = view.messages[proposal.index]
        text = proposal.write_text(gone) if proposal.write_text else proposal.text
        if proposal.write_text and text is None:
            continue
        if proposal.action == "text" and text is not None and view.keys[proposal.index] == bearer:
            text += record
        after = proposal.after
        if proposal.action == "gone":
            after = 0
        elif proposal.action == "append":
            after = view.original_tokens[proposal.index] + count_text_tokens(view, message, text or "")
        elif proposal.action == "text" and text is not None:
            after = count_edited_tokens(view, proposal.index, text)
            if after >= view.tokens[proposal.index] and not literal:
                continue  # the stub is no shorter than the replaced text
        k = view.keys[proposal.index]
        edits[k] = Edit(
            k, proposal.action, text, proposal.stage, proposal.reason, view.original_tokens[proposal.index], after
        )
    for proposal in chosen:
        if proposal.needs_index is not None and not _keeps_message(edits.get(view.keys[proposal.needs_index])):
            k = view.keys[proposal.index]  # the edit that it needs was not written
            edits.pop(k, None)
            edits.update({k: old[k]} if k in old else {})
    return repair.repair_order(view, repair.restore_whole_steps(view, edits, old), old)


def keep_first_reasons(edits: Mapping[bytes, Edit], old: Mapping[bytes, Edit]) -> Mapping[bytes, Edit]:
    """These edits, but with the old reason where nothing else has changed.

    An edit that is made again with every request is stored once, with its first reason. It is not stored again whenever
    a score in its reason moves.
    """
    known = ((k, edit, old[k]) for k, edit in edits.items() if k in old)
    kept = {k: was for k, edit, was in known if was.reason != edit.reason and was == replace(edit, reason=was.reason)}
    return {**edits, **kept} if kept else edits


def _keeps_message(edit: Edit | None) -> bool:
    return edit is not None and edit.action in ("text", "append")


def list_units(view: View) -> list[Group | Step]:
    """The parts that leave together, covering every message once: finished groups, then steps."""
    return [*view.groups[:-1], *(step for step in view.steps if step.start >= view.active_start)]


def count_message_tokens(view: View, edits: Mapping[bytes, Edit]) -> Sequence[int]:
    """Tokens of each message with these edits."""
    if edits is view.edits:
        return view.tokens
    sizes = list(view.original_tokens)
    for n, (k, message) in enumerate(zip(view.keys, view.messages, strict=True)):
        edit = edits.get(k)
        if edit is not None and not message.is_system:
            sizes[n] = edit.after
    return sizes
