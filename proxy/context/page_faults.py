"""Page faults: results that were cut from the prompt and fetched again, and the expected cost of the next one.

A cut result that the agent needs again costs a turn. The prompt is read once more, the call is written again, and the
result comes back as new text. `when_it_pays` compares two costs of one request: the chance of such a turn times its
cost, and the saving of a proposal. The chance is a rate for each sort of result, that is for each tool: page faults of
one cut result in one request. The rate starts with a prior, continues with the counts of the agent's other sessions,
and ends with the counts of this session. For an unknown tool, the prior is the rate at which the conversation comes
back to the subject of its old results.

An agent may also fetch a part of a cut result by another call. Such an excerpt is known by its text. It has a rate of
its own, without a prior.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from proxy.chat.media import find_images
from proxy.chat.message import Call, Message, checkpoint
from proxy.context.analysis import identifiers
from proxy.context.analysis.refetch import (
    Refetch,
    ResultSource,
    find_refetches,
    find_sources,
    has_same_file,
    is_unchanged_note,
    pair_results,
)
from proxy.context.plan import REFERENCE_STAGES, THINNED, WHOLE_TEXT_ACTIONS, ContentKind, Edit, LossLimit, Proposal
from proxy.context.view import View

MAX_REFETCH_RATE = 0.02
"""Share of the requests that may fetch a sort of result again. Above it, no more results of that sort are cut."""
RETURN_AGE = 4
"""Requests after which a return to a result counts as needing it again. Results go stale at that age."""
SAME_TEXT_OVERLAP = 0.5
"""Share of a new result's lines that the earlier result had, from which the same text was fetched again."""
MAX_TASK_CHARS = 600
"""Characters up to which a result may be a task that names old results, as a message of the user does."""
MAX_SAMPLES = 8
"""Names or lines of a new result that are searched for in cut results."""
MAX_EXCERPT_SOURCES = 100
"""Limit on the cut results, the newest, in which they are searched for."""
MAX_NEW_MESSAGES = 40
"""Limit on the messages, the last, whose results may be excerpts. After a restart the whole history is new."""
MAX_SORT_CHARS = 128
"""Characters of a tool's name by which its results are counted. Providers allow 64 or 128, a client may send more."""
MAX_KEY_CHARS = 60
"""Characters above which an argument is a text and not a lookup key."""
PRIOR_RATES: Mapping[ContentKind, float] = {"view": 1 / 1_000, "other": 1 / 10_000}
"""Page faults of a cut result in one request, by its content, before any were counted. In every second recorded coding
session there were 9 in 10,600 for file views, and none in 10,400 for searches and command output. Agents that work on
no files begin with `UNKNOWN_TOOL_RATE`."""
PRIOR_WEIGHT = 1_000
"""Requests of a cut result that this prior is worth. The first page fault of a session more than doubles the prior."""
UNKNOWN_TOOL_RATE = 1 / 20
"""Returns to an old result of an unknown tool in one request, before any were counted. It is the rate of recorded
customer service (6 in 119), where the agent looks up records. Other work has fewer returns, and its counts soon lower
the rate."""
UNKNOWN_TOOL_WEIGHT = 20
"""Requests of an old result that `UNKNOWN_TOOL_RATE` is worth: one return."""
FILE_LOSS_CHANCE = 0.4
"""Share of the cut text that an agent is taken to fetch again, if it works on files. Any other agent is taken to fetch
all of it again, until its cuts have saved as much."""

IN_PART = " in part"
"""Suffix of a second key for each sort. Under this key `refetched` counts the cut results of which a part was fetched
again, and `exposed` the tokens of all cut ones. The more text a result has, the more often a part of it is wanted. A
part is short, so it costs a turn alone."""
TIME_FACTOR = 3
"""Weight of a turn that fetches a part: it is cheap, but takes as long as any other."""
REFERENCE_SORT = "reference"
"""The sort of results whose text was replaced by references to an earlier message."""

SHARED = -1
"""In place of an index: different calls have a key in common, so that the key names none of them."""


class ResultLookup(msgspec.Struct, frozen=True):
    """The source of a result."""

    result_kind: str
    """The tool, and the action of the call if it is known."""
    call_index: int
    """The index of the message with the call."""
    canonical_call: str
    """The call in canonical form."""


@dataclass(slots=True)
class ResultLookups:
    """The lookups of a conversation."""

    by_result: dict[int, ResultLookup] = field(default_factory=dict)
    """The lookup of each result, by the index of the result."""
    return_counts: Counter[str] = field(default_factory=Counter)
    """Returns of the conversation to results of a sort after `RETURN_AGE` requests."""
    by_key: dict[str, int] = field(default_factory=dict)
    """Index of the newest result, by each key of the lookups; `SHARED` for a key of different calls."""

    def copy(self) -> ResultLookups:
        """A copy with the same content, to be continued."""
        return ResultLookups({**self.by_result}, Counter(self.return_counts), {**self.by_key})


def find_result_lookups(view: View) -> ResultLookups:
    """The lookups of the whole conversation."""

    def extend(begin: int, known: ResultLookups | None) -> ResultLookups:
        lookups = known.copy() if known else ResultLookups()
        calls, sources = dict(pair_results(view.messages, begin)), find_sources(view)
        refetches = find_refetches(view)
        calling = next((n for n in range(begin - 1, -1, -1) if view.messages[n].calls), -1) if calls else -1
        for n in range(begin, len(view.messages)):
            checkpoint()
            message = view.messages[n]
            if n in calls:
                if len(message.text) <= MAX_TASK_CHARS:
                    _count_uses(lookups, view, n, find_call_keys(calls[n]))
                _add_lookup(lookups, n, calls[n], sources[n], calling)
                if sources[n].action == "recalls" and n in refetches:
                    _give_recalled_kind(lookups, n, refetches[n].earlier_index)
                continue
            if message.calls:
                calling = n
            _count_uses(lookups, view, n)
        return lookups

    return view.memo("lookups", extend)


def _add_lookup(lookups: ResultLookups, n: int, call: Call, source: ResultSource, calling: int) -> None:
    name = call.name[:MAX_SORT_CHARS]
    sort = name if source.action in ("other", "recalls") else f"{name} {source.action}"
    keys = find_call_keys(call)
    lookups.by_result[n] = ResultLookup(sort, calling, source.canonical_call)
    for key in keys:
        old = lookups.by_key.get(key)
        is_shared = old is not None and (
            old == SHARED or lookups.by_result[old].canonical_call != source.canonical_call
        )
        lookups.by_key[key] = SHARED if is_shared else n


def _give_recalled_kind(lookups: ResultLookups, n: int, earlier: int) -> None:
    """Count a recalled text as a result of the sort that it was recalled from. If that sort is cut no more, a text that
    the model has asked for again is not cut either."""
    if earlier in lookups.by_result:
        lookups.by_result[n] = replace(lookups.by_result[n], result_kind=lookups.by_result[earlier].result_kind)


def find_call_keys(call: Call) -> frozenset[str]:
    """The short texts in a call's arguments: the keys of the lookup."""
    return call.derive(_find_call_keys)


def _find_call_keys(call: Call) -> frozenset[str]:
    texts = (text.strip() for text in identifiers.read_argument_texts(call.arguments).split("\n"))
    return frozenset(text for text in texts if 4 <= len(text) <= MAX_KEY_CHARS)


def _count_uses(lookups: ResultLookups, view: View, n: int, own_keys: frozenset[str] = frozenset()) -> None:
    """Count the old results that the user, the model or a short result comes back to in this message."""
    message = view.messages[n]
    if message.role == "assistant":
        words = {key for call in message.calls for key in find_call_keys(call)}
    else:
        words = {word.strip(".,;:!?()'\"`") for word in message.text.split()} - own_keys
    used = {lookups.by_key.get(word, SHARED) for word in words} - {SHARED}
    lookups.return_counts.update(
        lookups.by_result[k].result_kind for k in used if view.request_counts[n] - view.request_counts[k] >= RETURN_AGE
    )


def is_cut(edit: Edit | None) -> bool:
    """True if an edit takes something out of the message."""
    return edit is not None and edit.action != "append"


def is_reference(edit: Edit | None) -> bool:
    """True if an edit refers to the same text in an earlier message."""
    return is_cut(edit) and edit is not None and edit.stage in REFERENCE_STAGES and edit.reason != THINNED


def are_references_followed(view: View) -> bool:
    """False if the agent fetches most of the texts again to which it was referred, in this session or in its others.
    One text that was fetched again is no habit."""
    made, refetched = _count_all(view, REFERENCE_SORT)
    return refetched < 2 or 2 * refetched <= made


def _count_all(view: View, sort: str) -> tuple[int, int]:
    """(`exposed`, `refetched`) of a sort in this session and in the agent's other sessions together."""
    exposed, refetched = view.faults.of_agent.get(sort, (0, 0))
    return exposed + view.faults.exposed.get(sort, 0), refetched + view.faults.refetched.get(sort, 0)


def find_new_faults(view: View, since: int) -> list[tuple[Refetch, str]]:
    """Return (the refetch, its sort) of each result in messages[since:] that was fetched again while the earlier one
    stood there cut. It was fetched again as a whole, or in part by another call. An agent that comes back to a text at
    its usual pace would have done so without the edit."""
    faults = []
    known, refetches = find_result_lookups(view).by_result, find_refetches(view)
    for n, call in pair_results(view.messages, since):
        fault = refetches.get(n)
        if fault is None or not (is_cut(view.find_edit(fault.earlier_index)) and _has_same_text(view, fault)):
            fault = _find_excerpt(view, n, call) if n >= len(view.messages) - MAX_NEW_MESSAGES else None
        if fault is not None and not _is_usual(view, fault):
            faults.append((fault, known[fault.earlier_index].result_kind if fault.earlier_index in known else ""))
    return faults


def _find_excerpt(view: View, n: int, call: Call) -> Refetch | None:
    """Return the newest cut result whose missing part has most of this new result, if no other message has that.
    Examples are `grep` after `cat`, and one row after a table."""
    sources = find_sources(view)
    new = sources[n]
    if new.action == "writes":
        return None
    # A run after a change is no second sight of an older result.
    changed = (
        [k for k, source in sources.items() if k < n and source.action == "writes"] if new.action == "runs" else ()
    )
    oldest = max(changed, default=-1)
    arguments = identifiers.read_argument_texts(call.arguments)
    samples = _sample_result(view.messages[n], arguments)
    for k in sorted(_find_cut_results(view), reverse=True)[:MAX_EXCERPT_SOURCES]:
        if not oldest < k < n or not _can_show_same(sources[k], new):
            continue
        text, stub = view.messages[k].text, _read_sent_text(view, k)
        again = [sample for sample in samples if sample in text and sample not in stub]
        if 2 * len(again) > len(samples):
            missing = [sample for sample in again if not any(sample in _read_sent_text(view, m) for m in range(n))]
            steps = view.request_counts[n] - view.request_counts[k]
            return Refetch("excerpt", n, k, steps, 0) if 2 * len(missing) > len(samples) else None
    return None


def _can_show_same(old: ResultSource, new: ResultSource) -> bool:
    """False if a new result cannot be a second sight of an old one: it shows another file, or a written one."""
    if old.action == "writes" or old.canonical_call == new.canonical_call:
        return False
    return not (old.action == new.action == "shows") or has_same_file(old, new)


def _sample_result(message: Message, arguments: str) -> list[str]:
    """Return at most `MAX_SAMPLES` names from all parts of a result, and lines if it has less than two names. Paths are
    no content, and the texts of the call's own arguments are nothing new."""
    lines = [line for line in message.text.splitlines() if len(line) >= identifiers.MIN_LINE_CHARS]
    bare = [identifiers.strip_line_number(line) for line in lines[:: 1 + len(lines) // MAX_SAMPLES]]
    parts = (name.rpartition(":")[2] for name in identifiers.find_names("\n".join(bare)))
    names = sorted({part for part in parts if len(part) >= 4 and "/" not in part and part not in arguments})
    if len(names) < 2:
        names += [line for line in bare if line not in arguments]
    return names[:: 1 + len(names) // MAX_SAMPLES]


def _read_sent_text(view: View, n: int) -> str:
    """The text of a message as it is sent."""
    edit = view.find_edit(n)
    whole = edit is None or edit.action == "arguments" or edit.action in WHOLE_TEXT_ACTIONS
    return view.messages[n].text if whole or edit is None else edit.text or ""


def list_refetched_keys(view: View, faults: Sequence[tuple[Refetch, str]]) -> frozenset[bytes]:
    """Return the keys of the results of these page faults, and of messages whose calls fetched nothing else."""
    again, known = {fault.index for fault, _ in faults}, find_result_lookups(view).by_result
    calling = {known[n].call_index for n in again if n in known} - {-1}
    whole = (n for n in calling if again.issuperset(range(n + 1, n + 1 + len(view.messages[n].calls))))
    return frozenset(view.keys[n] for n in (*again, *whole))


def count_faults(view: View, new_faults: Sequence[tuple[Refetch, str]]) -> Mapping[str, int]:
    """`FaultCounts.refetched` with these page faults. Those of references count for references too."""
    counts = Counter(view.faults.refetched)
    counts.update(sort + IN_PART if fault.kind == "excerpt" else sort for fault, sort in new_faults)
    counts.update(REFERENCE_SORT for fault, _ in new_faults if is_reference(view.find_edit(fault.earlier_index)))
    return dict(counts)


def _is_usual(view: View, fault: Refetch) -> bool:
    """True if an agent fetches a text again that it has fetched again before while it was whole in the prompt, and no
    sooner than then. It reads a file, or repeats a command, every few steps in any case."""
    before = find_refetches(view).get(fault.earlier_index)
    if fault.kind in ("recall", "excerpt") or before is None:
        return False
    if view.keys[fault.earlier_index] in view.faults.refetched_keys:
        return False  # an edit had caused that one
    steps = view.request_counts
    last = steps[fault.earlier_index]
    return steps[fault.index] - last >= last - steps[before.earlier_index]


def _has_same_text(view: View, fault: Refetch) -> bool:
    """True if the second result has the same text as the first one.

    A file that was changed is read again for its new text, and so is a search that finds other things now.
    """
    if fault.kind == "recall" or is_unchanged_note(find_sources(view)[fault.index], view.messages[fault.index]):
        return True
    messages = [view.messages[n] for n in (fault.index, fault.earlier_index)]
    if find_images(messages[0]) != find_images(messages[1]):
        return False  # the screen shows something else now
    new, old = (message.derive(_strip_lines) for message in messages)
    return len(new & old) >= SAME_TEXT_OVERLAP * len(new)


def _strip_lines(message: Message) -> frozenset[str]:
    return frozenset(line.strip() for line in message.text.splitlines())


def count_cut_results(view: View) -> Mapping[str, int]:
    """Cut results of each sort in this view, without those that were fetched again: nobody misses them any more. Under
    the sort with `IN_PART` their tokens."""
    cut, again = _find_cut_results(view), _find_fetched_again(view)

    def extend(begin: int, known: Mapping[str, int] | None) -> Mapping[str, int]:
        counts = Counter(known)
        for n in range(begin, len(view.messages)):
            if n in cut and n not in again:
                counts[cut[n]] += 1
                counts[cut[n] + IN_PART] += view.original_tokens[n]
        return counts

    return view.memo_edited("cut results", extend, again)


def _find_cut_results(view: View) -> Mapping[int, str]:
    """The sort of each cut result, by its index."""

    def extend(begin: int, known: Mapping[int, str] | None) -> Mapping[int, str]:
        lookups = find_result_lookups(view).by_result
        places = (n for n in range(begin, len(view.messages)) if n in lookups and is_cut(view.find_edit(n)))
        return {**(known or {}), **{n: lookups[n].result_kind for n in places}}

    return view.memo_edited("cut by sort", extend)


def _find_fetched_again(view: View) -> frozenset[int]:
    """The indexes of cut results whose text a later result has again."""

    def extend(begin: int, known: frozenset[int] | None) -> frozenset[int]:
        found = find_refetches(view)
        new = (found[n] for n in range(begin, len(view.messages)) if n in found)
        again = (one for one in new if is_cut(view.find_edit(one.earlier_index)) and _has_same_text(view, one))
        added = frozenset(one.earlier_index for one in again)
        return known if known is not None and not added else added.union(known or ())

    return view.memo_edited("fetched again", extend)


def count_exposed_results(view: View) -> Mapping[str, int]:
    """`FaultCounts.exposed` after this request has gone out. As a reference each counts once: an agent that does not
    follow it fetches the text again at once."""
    cut = count_cut_results(view) if view.edits else {}
    before = view.faults.exposed
    exposed = {**before, **{sort: before.get(sort, 0) + count for sort, count in cut.items()}}
    made = _count_references(view) if view.edits else 0
    return {**exposed, REFERENCE_SORT: max(made, before.get(REFERENCE_SORT, 0))} if made else exposed


def _count_references(view: View) -> int:
    def count(_: int, known: int | None) -> int:
        return sum(map(is_reference, view.edits.values())) if known is None else known  # it depends on the edits alone

    return view.memo_edited("references", count)


def find_stopped_kinds(view: View) -> frozenset[str]:
    """The sorts that are cut no more: over `MAX_REFETCH_RATE` of the requests fetched one of them again."""
    most = max(1, MAX_REFETCH_RATE * view.request_counts[-1])  # a single refetch is no rate
    return frozenset(sort for sort, count in view.faults.refetched.items() if count > most)


def make_fault_cost(view: View) -> Callable[[Proposal], float]:
    """Return a function that gives the expected cost of page faults in one request after a proposal, in input tokens.

    The cost is infinite if the sort of the result is stopped.
    """
    known = find_result_lookups(view)
    ended = find_stopped_kinds(view)
    rates: dict[tuple[str, ContentKind], tuple[float, float]] = {}
    total, model, output_ratio = view.total, view.model, view.model.output_ratio

    def loss(proposal: Proposal) -> float:
        lookup = known.by_result.get(proposal.index)
        if lookup is None or proposal.content is None:
            return 0.0
        if lookup.result_kind in ended:
            return float("inf")
        kind = (lookup.result_kind, proposal.content)
        if kind not in rates:
            rates[kind] = _rate(view, known, *kind), _rate_of_excerpts(view, lookup.result_kind)
        rate, rate_of_excerpts = rates[kind]
        call = view.original_tokens[lookup.call_index] if lookup.call_index >= 0 else 0
        turn = model.r * total + output_ratio * call + model.w * call
        whole = view.original_tokens[proposal.index]
        excerpts = TIME_FACTOR * whole * rate_of_excerpts
        return (rate + excerpts) * turn + rate * model.w * whole

    return loss


def _rate(view: View, known: ResultLookups, sort: str, content: ContentKind) -> float:
    """Page faults of a cut result of this sort in one request.

    The rate begins with the prior, and is adjusted by the agent's other sessions, then by this session.
    """
    rate, weight = PRIOR_RATES.get(content), PRIOR_WEIGHT
    if rate is None or not _works_on_files(view):
        rate, weight = _rate_of_use(view, known, sort), UNKNOWN_TOOL_WEIGHT
    exposed, refetched = view.faults.of_agent.get(sort, (0, 0))
    rate = (weight * rate + refetched) / (weight + exposed)
    rate = (weight * rate + view.faults.refetched.get(sort, 0)) / (weight + view.faults.exposed.get(sort, 0))
    exposed, refetched = _count_all(view, sort)
    return max(rate, (refetched - 1) / max(1, exposed))  # no more cuts until these have paid for all faults but one


def _works_on_files(view: View) -> bool:
    """True if a call names a file or runs something: `PRIOR_RATES` were counted in such sessions."""
    return any(one.path or one.by_shell or one.action == "runs" for one in find_sources(view).values())


def _rate_of_excerpts(view: View, sort: str) -> float:
    """Parts of cut results of this sort that were fetched again after the first, by token and request."""
    exposed, refetched = _count_all(view, sort + IN_PART)
    return max(0, refetched - 1) / max(1, exposed)


def _rate_of_use(view: View, known: ResultLookups, sort: str) -> float:
    """Returns of the conversation to an old result of a sort in one request."""
    now = view.request_counts[-1]
    old = sum(
        max(0, now - view.request_counts[n] - RETURN_AGE)
        for n, one in known.by_result.items()
        if one.result_kind == sort
    )
    return (UNKNOWN_TOOL_RATE * UNKNOWN_TOOL_WEIGHT + known.return_counts[sort]) / (UNKNOWN_TOOL_WEIGHT + old)


class _Carried(NamedTuple):
    """The tokens that a conversation has sent so far, without edits."""

    tokens: int
    tokens_by_request: int
    """The tokens of each message, times the number of the request that sent it first."""
    answered: int
    """Tokens of the answers."""


def compute_loss_limit(view: View, share: float) -> LossLimit:
    """The cost that a batch of edits may lose now: a share of what the conversation has cost, and what the agent's cuts
    have saved. What was cut before, and what was fetched again, has used up a part of it."""
    w, r = view.model.w, view.model.r
    chance = FILE_LOSS_CHANCE if _works_on_files(view) else 1.0
    sorts = {sort.removesuffix(IN_PART) for sort in {**view.faults.of_agent, **view.faults.exposed}} - {REFERENCE_SORT}
    saved = 0.0
    for sort in sorts:
        exposed, refetched = _count_all(view, sort)
        token_requests, excerpts = _count_all(view, sort + IN_PART)
        fetching = refetched * w * token_requests / max(1, exposed)
        saved += r * token_requests - fetching - (refetched + excerpts) * r * view.total
    cut = sum(count for sort, count in count_cut_results(view).items() if sort.endswith(IN_PART)) if view.edits else 0
    return LossLimit(share * _compute_spending(view) + saved - chance * w * cut, chance)


def _compute_spending(view: View) -> float:
    """The cost of the conversation so far, if no prompt had been edited and every prefix served from the cache."""

    def extend(begin: int, known: _Carried | None) -> _Carried:
        tokens, by_request, answered = known or (0, 0, 0)
        for n in range(begin, len(view.messages)):
            size = view.original_tokens[n]
            tokens += size
            by_request += size * view.request_counts[n]
            answered += size if view.messages[n].role == "assistant" else 0
        return _Carried(tokens, by_request, answered)

    sent = view.memo("carried", extend)
    now, model = view.request_counts[-1], view.model
    carried = (view.prefix_tokens + sent.tokens) * now - sent.tokens_by_request
    return model.w * (view.prefix_tokens + sent.tokens) + model.r * carried + model.output_ratio * sent.answered
