"""The time at which proposals become edits: always, over_budget, when_it_pays.

Every edit moves the cached prefix: the messages behind the edit have to be written to the provider's cache again. So
edits come in batches. `when_it_pays` makes a batch when the rent paid for carrying stale tokens has reached the price
of removing them. This is the rent-or-buy (ski rental) rule: it never pays more than twice the best cost in hindsight
(Karlin et al. 1988).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from proxy.context.plan import Proposal, View


def over_budget(view: View, proposals: Sequence[Proposal], high: int, low: int) -> list[Proposal]:
    """No proposals while the prompt has at most `high` tokens; else the oldest proposals that bring it down to `low`
    tokens."""
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


def _free(_: Proposal) -> float:
    return 0.0


def when_it_pays(
    view: View,
    proposals: Sequence[Proposal],
    rent: float = 1.0,
    payback: float = 0.0,
    fault_cost: Callable[[Proposal], float] = _free,
) -> list[Proposal]:
    """The batch of proposals that has paid for itself, from one proposal on to the end; or none.

    For a batch that begins at message j, the price is the extra cost of this request with the edits. A token that has
    to be written again costs `w`, and a token that is still served costs `r`. The rent of the batch counts each request
    since a proposal became possible: `r` for each token that it saves, less the loss. A batch qualifies if its rent,
    times `rent`, has reached its price. Of these batches, the one with the most rent left over is taken. A price of
    zero or less (a cold cache, or a prefix that the client moved) is always paid.

    payback: the time within which the savings have to repay the price, as a share of the requests so far; 0: no such
    test. Tool definitions that come with the first edit are part of its price, and so is the prefix that they move.
    Riders go along behind the first edit of a batch and do not count.

    fault_cost: the expected cost of page faults in one request after the edit. A proposal that saves no more than its
    loss is left out.

    On a cold cache, searches and command output are taken at once. Results that may be quoted word for word are taken
    only where a warm cache would also allow it. After a pause a person comes back to such a result.
    """
    offers = list(_worth(view, proposals, fault_cost))
    chosen = _batch(view, offers, rent, payback)
    if view.cached_tokens < view.warm_tokens and any(_is_quoted(proposal) for proposal in chosen):
        as_ever = {p.index for p in _batch(replace(view, cached_tokens=view.warm_tokens), offers, rent, payback)}
        chosen = [p for p in chosen if not _is_quoted(p) or p.index in as_ever]
    return chosen


def _is_quoted(proposal: Proposal) -> bool:
    return proposal.content in ("view", "unknown")


class _Offer(NamedTuple):
    """A proposal with its gain and its saving."""

    proposal: Proposal
    gain: int
    """Tokens by which the proposal shortens the prompt."""
    saving: float
    """Cost that the proposal saves in one request, in input tokens, less its page faults."""


def _worth(view: View, proposals: Sequence[Proposal], loss: Callable[[Proposal], float]) -> Iterator[_Offer]:
    """Yield the proposals that save more than the page faults that they cause, riders included."""
    for proposal in proposals:
        gain, lost = count_saved_tokens(view, proposal), loss(proposal)
        saving = view.model.r * gain - lost
        if saving > 0 or lost == 0:
            yield _Offer(proposal, gain, saving)


def _batch(view: View, offers: Sequence[_Offer], rent: float, payback: float) -> list[Proposal]:
    """The proposals of the batch with the most rent left over, or none."""
    if not offers:
        return []
    w, r = view.model.w, view.model.r
    total = view.total
    keep = w * (total - view.cached_tokens) + r * view.cached_tokens
    fronts = view.count_served_tokens()
    now = view.request_counts[-1]
    best, most = len(offers), -1.0
    gained = saving = paid = 0.0
    for n in range(len(offers) - 1, -1, -1):
        proposal = offers[n].proposal
        if proposal.rider:
            continue
        gained += offers[n].gain
        saving += offers[n].saving
        paid += offers[n].saving * (now - view.request_counts[proposal.since])
        cached = fronts[proposal.index]
        price = w * (total + view.tool_tokens - gained - cached) + r * cached - keep
        left = rent * paid - price
        if gained > 0 and left >= 0 and left > most and (payback == 0 or payback * now * saving >= price):
            best, most = n, left
    return [offer.proposal for offer in offers[best:]]


def count_saved_tokens(view: View, proposal: Proposal) -> int:
    """Tokens by which a proposal shortens the prompt as it would go out now."""
    return max(0, view.tokens[proposal.index] - proposal.after)
