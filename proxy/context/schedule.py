"""WHEN proposals become edits: always, over_budget, when_it_pays.

Every edit moves the cached prefix: what stands behind it has to be written to the provider's cache again. So
edits come in batches, and `when_it_pays` makes one when the rent paid for carrying stale tokens has reached the price
of getting rid of them: the rent-or-buy (ski rental) rule, which never pays more than twice what
hindsight would have paid (Karlin et al. 1988).
"""

from __future__ import annotations

from collections.abc import Sequence

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


def when_it_pays(view: View, proposals: Sequence[Proposal], rent: float = 1.0, payback: float = 0.0) -> list[Proposal]:
    """The batch of proposals that has paid for itself, from one of them on to the end; or none.

    For a batch that begins at message j: its price is what this request costs more with the edits than without,
    `w` for each token that has to be written again and `r` for each that is still served; its rent is `r` for each
    token that it saves and each request since it could have been saved. Of the batches whose rent, times `rent`, has
    reached their price, the one with the most left over is taken. A price of nothing or less (a cold cache, a prefix
    that the client moved) is always paid. payback: how long the savings may take to bring the price in again, as a
    share of the requests so far; 0: not asked. Tool definitions that come with the first edit are part of its price,
    and so is the head that they move. Riders go along behind the first edit of a batch and count for nothing.
    """
    if not proposals:
        return []
    w, r = view.model.w, view.model.r
    total = view.total
    keep = w * (total - view.cached) + r * view.cached
    fronts = view.served()
    now = view.requests[-1]
    best, most = len(proposals), -1.0
    saving = paid = 0.0
    for n in range(len(proposals) - 1, -1, -1):
        proposal = proposals[n]
        if proposal.rider:
            continue
        gain = saved(view, proposal)
        saving += gain
        paid += r * gain * (now - view.requests[proposal.since])
        cached = fronts[proposal.index]
        price = w * (total + view.toll - saving - cached) + r * cached - keep
        left = rent * paid - price
        if saving > 0 and left >= 0 and left > most and (payback == 0 or payback * now * r * saving >= price):
            best, most = n, left
    return list(proposals[best:])


def saved(view: View, proposal: Proposal) -> int:
    """Tokens that a proposal takes off the prompt as it would go out now."""
    return max(0, view.tokens[proposal.index] - proposal.after)
