"""Page faults: results that were cut from the prompt and fetched again, and the expected cost of the next one.

A cut result that the agent needs again costs a turn. The prompt is read once more, the call is written again, and the
result comes back as new text. `when_it_pays` compares two costs of one request: the chance of such a turn times its
cost, and the saving of a proposal. The chance is a rate for each sort of result, that is for each tool: page faults of
one cut result in one request. The rate starts with a prior, continues with the counts of the tenant's other sessions,
and ends with the counts of this session. For an unknown tool, the prior is the rate at which the conversation comes
back to the subject of its old results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from proxy.chat.checkpoint import checkpoint
from proxy.chat.message import Call
from proxy.context.evidence import facts
from proxy.context.evidence.refetch import Refetch, paired, refetches, source_of
from proxy.context.plan import Content, Edit, Proposal, View

LIMIT = 0.02
"""Share of the requests that may fetch a sort of result again. Above it, no more results of that sort are cut."""
AGE = 4
"""Requests after which a return to a result counts as needing it again. Results go stale at that age."""
OVERLAP = 0.5
"""Share of a new result's lines that the earlier result had, from which the same text was fetched again."""
KEY = 60
"""Characters above which an argument is a text and not a lookup key."""
PRIOR: Mapping[Content, float] = {"view": 1 / 1_000, "other": 1 / 10_000}
"""Page faults of a cut result in one request, by its content, before any were counted. In every second recorded coding
session there were 9 in 10,600 for file views, and none in 10,400 for searches and command output."""
WEIGHT = 1_000
"""Requests of a cut result that this prior is worth. The first page fault of a session more than doubles the prior."""
UNKNOWN = 1 / 20
"""Returns to an old result of an unknown tool in one request, before any were counted. It is the rate of recorded
customer service (6 in 119), where the agent looks up records. Other work has fewer returns, and its counts soon lower
the rate."""
UNKNOWN_WEIGHT = 20
"""Requests of an old result that `UNKNOWN` is worth: one return."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The source of a result."""

    sort: str
    """The tool, and the action of the call if it is known."""
    calling: int
    """The index of the message with the call."""
    whole: str
    """The call in canonical form."""
    keys: frozenset[str]
    """The short texts in the arguments of the call."""


@dataclass(slots=True)
class Lookups:
    """The lookups of a conversation."""

    found: dict[int, Lookup] = field(default_factory=dict)
    """The lookup of each result, by the index of the result."""
    uses: Counter[str] = field(default_factory=Counter)
    """Returns of the conversation to results of a sort after `AGE` requests."""
    by_key: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Indexes of the results, by each key of their lookups."""

    def copy(self) -> Lookups:
        """A copy with the same content, to be continued."""
        return Lookups({**self.found}, Counter(self.uses), {**self.by_key})


@dataclass(frozen=True, slots=True)
class Experience:
    """Counts of one sort of result: how many results were cut, and how many of these were fetched again."""

    cut: int = 0
    refetched: int = 0


def lookups(view: View) -> Lookups:
    """The lookups of the whole conversation."""

    def more(begin: int, known: Lookups | None) -> Lookups:
        found = known.copy() if known else Lookups()
        calls = dict(paired(view.messages, begin))
        calling = next((n for n in range(begin - 1, -1, -1) if view.messages[n].calls), -1) if calls else -1
        for n in range(begin, len(view.messages)):
            checkpoint()
            message = view.messages[n]
            if n in calls:
                _note(found, n, calls[n], calling)
                continue
            if message.calls:
                calling = n
            _use(found, view, n)
        return found

    return view.grown("lookups", more)


def _note(found: Lookups, n: int, call: Call, calling: int) -> None:
    source = source_of(call)
    sort = call.name if source.action in ("other", "recalls") else f"{call.name} {source.action}"
    keys = call_keys(call)
    found.found[n] = Lookup(sort, calling, source.call, keys)
    for key in keys:
        found.by_key[key] = (*found.by_key.get(key, ()), n)


def call_keys(call: Call) -> frozenset[str]:
    """The short texts in a call's arguments: the keys of the lookup."""
    texts = (text.strip() for text in facts.written(call.arguments).split("\n"))
    return frozenset(text for text in texts if 4 <= len(text) <= KEY)


def _use(found: Lookups, view: View, n: int) -> None:
    """Count the old results that the user or the model comes back to in this message."""
    message = view.messages[n]
    if message.role == "user":
        words = {word.strip(".,;:!?()'\"`") for word in message.text.split()}
    else:
        words = {key for call in message.calls for key in call_keys(call)}
    used = set()
    for word in words:
        held = found.by_key.get(word, ())
        if len({found.found[k].whole for k in held}) == 1:  # a key that different calls share names none of them
            used.add(held[-1])
    found.uses.update(found.found[k].sort for k in used if view.requests[n] - view.requests[k] >= AGE)


def is_cut(edit: Edit | None) -> bool:
    """True if an edit takes something out of the message."""
    return edit is not None and edit.action != "append"


def new_faults(view: View, since: int) -> list[tuple[Refetch, str]]:
    """Return (the refetch, its sort) of each result in messages[since:] that was fetched again while the earlier one
    stood there cut."""
    found = []
    known = lookups(view).found
    for n, one in refetches(view).items():
        if n >= since and is_cut(view.edit(one.of)) and _same_text(view, one):
            found.append((one, known[one.of].sort if one.of in known else ""))
    return found


def _same_text(view: View, one: Refetch) -> bool:
    """True if the second result has the same text as the first one.

    A file that was changed is read again for its new text, and so is a search that finds other things now.
    """
    if one.kind == "recall":
        return True
    new, old = ({line.strip() for line in view.messages[n].text.splitlines()} for n in (one.index, one.of))
    return len(new & old) >= OVERLAP * len(new)


def cut_by_sort(view: View) -> Mapping[str, int]:
    """Cut results of each sort in this view."""

    def more(begin: int, known: Mapping[str, int] | None) -> Mapping[str, int]:
        counts = Counter(known or {})
        for n, one in lookups(view).found.items():
            if n >= begin and is_cut(view.edit(n)):
                counts[one.sort] += 1
        return counts

    return view.settled("cut by sort", more)


def more_exposed(view: View) -> Mapping[str, int]:
    """`View.exposed` after this request has gone out."""
    cut = cut_by_sort(view) if view.edits else {}
    return {**view.exposed, **{sort: view.exposed.get(sort, 0) + count for sort, count in cut.items()}}


def stopped(view: View) -> frozenset[str]:
    """The sorts of which no more results are cut: more than `LIMIT` of the session's requests fetched one of them
    again."""
    most = max(1, LIMIT * view.requests[-1])  # a single refetch is no rate
    return frozenset(sort for sort, count in view.refetched.items() if count > most)


def losses(view: View) -> Callable[[Proposal], float]:
    """Return a function that gives the expected cost of page faults in one request after a proposal, in input tokens.

    The cost is infinite if the sort of the result is stopped.
    """
    known = lookups(view)
    ended = stopped(view)
    rates: dict[tuple[str, Content], float] = {}
    total, model = view.total, view.model

    def loss(proposal: Proposal) -> float:
        one = known.found.get(proposal.index)
        if one is None or proposal.content is None:
            return 0.0
        if one.sort in ended:
            return float("inf")
        kind = (one.sort, proposal.content)
        rate = rates.get(kind)
        if rate is None:
            rate = rates[kind] = _rate(view, known, *kind)
        call = view.whole[one.calling] if one.calling >= 0 else 0
        return rate * (model.r * total + model.output_ratio * call + model.w * (call + view.whole[proposal.index]))

    return loss


def _rate(view: View, known: Lookups, sort: str, content: Content) -> float:
    """Page faults of a cut result of this sort in one request.

    The rate begins with the prior, and is adjusted by the tenant's other sessions, then by this session.
    """
    rate, weight = PRIOR.get(content), WEIGHT
    if rate is None:
        rate, weight = _rate_of_use(view, known, sort), UNKNOWN_WEIGHT
    exposed, refetched = view.elsewhere.get(sort, (0, 0))
    rate = (weight * rate + refetched) / (weight + exposed)
    return (weight * rate + view.refetched.get(sort, 0)) / (weight + view.exposed.get(sort, 0))


def _rate_of_use(view: View, known: Lookups, sort: str) -> float:
    """Returns of the conversation to an old result of a sort in one request."""
    now = view.requests[-1]
    old = sum(max(0, now - view.requests[n] - AGE) for n, one in known.found.items() if one.sort == sort)
    return (UNKNOWN * UNKNOWN_WEIGHT + known.uses[sort]) / (UNKNOWN_WEIGHT + old)
