"""WHEN proposals become edits: always, over_budget, when_it_pays.

Every edit moves the cached prefix: what stands behind it has to be written to the provider's cache again. So
edits come in batches, and `when_it_pays` makes one when the rent paid for carrying stale tokens has reached the price
of getting rid of them: the rent-or-buy (ski rental) rule, which never pays more than twice what
hindsight would have paid (Karlin et al. 1988).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from proxy.context.plan import Proposal, View


def over_budget(view: View, proposals: Sequence[Proposal], high: int, low: int) -> list[Proposal]:
    """None while the prompt is at most `high` tokens; else the oldest, down to `low`."""
    total = view.total
    if total <= high:
        return []
    taken = []
    for proposal in proposals:
        if total <= low:
            break
        taken.append(proposal)
        total -= saved(view, proposal)
    return taken


def _free(_: Proposal) -> float:
    return 0.0


def when_it_pays(
    view: View,
    proposals: Sequence[Proposal],
    rent: float = 1.0,
    payback: float = 0.0,
    loss: Callable[[Proposal], float] = _free,
) -> list[Proposal]:
    """The batch of proposals that has paid for itself, from one of them on to the end; or none.

    For a batch that begins at message j: its price is what this request costs more with the edits than without,
    `w` for each token that has to be written again and `r` for each that is still served; its rent is `r` for each
    token that it saves, less the loss, and each request since it could have been saved. Of the batches whose rent,
    times `rent`, has reached their price, the one with the most left over is taken. A price of nothing or less (a cold
    cache, a prefix that the client moved) is always paid. payback: how long the savings may take to bring the price in
    again, as a share of the requests so far; 0: not asked. Tool definitions that come with the first edit are part of
    its price, and so is the head that they move. Riders go along behind the first edit of a batch and count for
    nothing.

    loss: what page faults are expected to cost a request once a proposal is made. One that saves no more than that is
    left out.

    On a cold cache, searches and command output are taken at once. Results that may be quoted word for word are
    taken only where it would be taken on a warm one: after a pause a person comes back to it.
    """
    offers = list(_worth(view, proposals, loss))
    chosen = _batch(view, offers, rent, payback)
    if view.cached < view.warm and any(_is_quoted(proposal) for proposal in chosen):
        as_ever = {p.index for p in _batch(replace(view, cached=view.warm), offers, rent, payback)}
        chosen = [p for p in chosen if not _is_quoted(p) or p.index in as_ever]
    return chosen


def _is_quoted(proposal: Proposal) -> bool:
    return proposal.content in ("view", "unknown")


class _Offer(NamedTuple):
    """A proposal. gain: tokens that it takes off the prompt. saving: what a request costs less with it, in input
    tokens, page faults counted in."""

    proposal: Proposal
    gain: int
    saving: float


def _worth(view: View, proposals: Sequence[Proposal], loss: Callable[[Proposal], float]) -> Iterator[_Offer]:
    """The proposals that save more than the page faults that they cause, riders included."""
    for proposal in proposals:
        gain, lost = saved(view, proposal), loss(proposal)
        saving = view.model.r * gain - lost
        if saving > 0 or lost == 0:
            yield _Offer(proposal, gain, saving)


def _batch(view: View, offers: Sequence[_Offer], rent: float, payback: float) -> list[Proposal]:
    """Those from the one on whose batch has the most left over of its rent; or none."""
    if not offers:
        return []
    w, r = view.model.w, view.model.r
    total = view.total
    keep = w * (total - view.cached) + r * view.cached
    fronts = view.served()
    now = view.requests[-1]
    best, most = len(offers), -1.0
    gained = saving = paid = 0.0
    for n in range(len(offers) - 1, -1, -1):
        proposal = offers[n].proposal
        if proposal.rider:
            continue
        gained += offers[n].gain
        saving += offers[n].saving
        paid += offers[n].saving * (now - view.requests[proposal.since])
        cached = fronts[proposal.index]
        price = w * (total + view.toll - gained - cached) + r * cached - keep
        left = rent * paid - price
        if gained > 0 and left >= 0 and left > most and (payback == 0 or payback * now * saving >= price):
            best, most = n, left
    return [offer.proposal for offer in offers[best:]]


def saved(view: View, proposal: Proposal) -> int:
    """Tokens that a proposal takes off the prompt as it would go out now."""
    return max(0, view.tokens[proposal.index] - proposal.after)
