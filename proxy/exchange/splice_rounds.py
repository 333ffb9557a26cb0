"""Splicing of a turn's request before it is planned: the hidden rounds of its answers are put back, and our tools
are added.

A branch that offers no tools has no hidden rounds either, and pays for neither. `sessions.hidden_rounds` explains the
terms.
"""

from __future__ import annotations

import logging
from itertools import filterfalse

from proxy.context.branch_state import count_losses
from proxy.context.plan import Plan
from proxy.errors import NotManaged, StoreUnavailable
from proxy.exchange import exchange_rows, lookups
from proxy.exchange.dialect import is_bound
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.sessions import tool_offer as offers
from proxy.sessions.hidden_rounds import (
    HiddenRound,
    RoundsByTip,
    add_tools,
    decode_round,
    splice_hidden_rounds,
)

log = logging.getLogger(__name__)

MAX_CONVERSATION_KINDS = 1000
"""Limit on the kinds of conversations that are known to come to edits."""


async def add_rounds_and_tools(services: Services, turn: Turn, *, first: bool) -> Turn:
    """Return the turn with hidden rounds and tools in its request. first: it is its branch's first request, so that no
    cache has any part of it yet."""
    branch = turn.located.branch
    if turn.enriched.policy.mode != "rewrite" or branch.state.stopped is not None or branch.kind == "side":
        return turn
    if turn.dialect.returns_rows:
        return turn
    if branch.tool_offer is None:
        turn = _decide_offer(services, turn, first=first)
    if branch.tool_offer is None or not branch.tool_offer.names:
        return turn
    offer = offers.select_present_tools(branch.tool_offer, turn.request)
    try:
        rounds = await _load_rounds(services, turn)
        spliced = splice_hidden_rounds(
            turn.request, turn.keys, rounds, offer.definitions, services.message_cache.get_message,
            is_plain=turn.wire_request is None,
        )  # fmt: skip
    except (NotManaged, StoreUnavailable, ValueError):
        # The client's own history is whole without the rounds: its calls and their results are all there.
        services.metrics.internal_errors_total.labels(where="rounds").inc()
        log.exception("hidden rounds cannot be put back")
        spliced = splice_hidden_rounds(turn.request, turn.keys, {}, offer.definitions)
    return turn.with_lookups(tool_offer=offer, spliced=spliced)


def _decide_offer(services: Services, turn: Turn, *, first: bool) -> Turn:
    """Decide on the branch's tools, if possible by now, for good: a later change moves the whole prompt."""
    when = offers.find_offer_time(services.settings, turn.enriched.policy)
    if when == "when_needed":
        when = (
            "first_request"
            if first
            and turn.model.cache != "none"  # else late tools move no cached prefix, and until then cost nothing
            and _find_conversation_kind(turn) in services.conversations_with_edits
            else "first_edit"
        )
    tool_offer = offers.choose_tools(
        services.settings, turn.enriched.policy, turn.request, explicit=turn.located.explicit
    )
    if when != "never" and turn.is_kept_by_provider:
        # A client that continues from the stored answer sends no history. Its request is passed on, and would lose
        # these tools again.
        exchange_rows.add_offer_row(turn, offers.NO_TOOLS)
    elif when == "first_request":
        is_elsewhere = bool(turn.request.find_indices("bound", is_bound))  # reasoning of a prompt without these tools
        exchange_rows.add_offer_row(turn, tool_offer if first and not is_elsewhere else offers.NO_TOOLS)
    elif when == "first_edit" and (_is_bound_by_answers(turn) or count_losses(turn.located.branch.state.edits)):
        exchange_rows.add_offer_row(turn, offers.NO_TOOLS)  # too late: an edited or bound prompt keeps its tools
    elif when == "first_edit":
        return turn.with_lookups(first_edit_offer=tool_offer)
    return turn


def _is_bound_by_answers(turn: Turn) -> bool:
    """True if the prompt is bound and has an answer. Before the first one nobody knows whether the reasoning that the
    request asks for will have a token."""
    return turn.is_bound and any(message.role == "assistant" for message in turn.request.messages)


async def _load_rounds(services: Services, turn: Turn) -> RoundsByTip:
    """Return the rounds of the answers in this request, read from the store where they are not known."""
    live_session = turn.located.branch.live_session
    missing = dict.fromkeys(filterfalse(live_session.hidden_rounds.__contains__, _list_answered_tips(turn)))
    if turn.located.known_until == len(turn.keys) - 1 and turn.tip_key not in live_session.hidden_rounds:
        missing[turn.tip_key] = None  # a new answer to a known request must not hide the earlier ones
    if missing:
        rows = await services.store.read_hidden_rounds(turn.tenant, live_session.session, [*missing])
        rounds_by_tip: dict[bytes, tuple[HiddenRound, ...]] = dict.fromkeys(missing, ())
        for row in rows:
            if row.tip in rounds_by_tip:
                rounds_by_tip[row.tip] += (decode_round(row.key, row.tip, row.body, row.created_at),)
        for tip, known in rounds_by_tip.items():
            if tip not in live_session.hidden_rounds:  # nobody else has read it meanwhile
                live_session.put_rounds(tip, known)
    return live_session.hidden_rounds


def _list_answered_tips(turn: Turn) -> list[bytes]:
    """Return the key of the message before each answer."""

    def extend(begin: int, known: list[bytes] | None) -> list[bytes]:
        messages = turn.request.messages
        new = (turn.keys[n - 1] for n in range(max(begin, 1), len(messages)) if messages[n].role == "assistant")
        return [*(known or ()), *new]

    return turn.request.memo("answered tips", extend, turn.tenant)


def _find_conversation_kind(turn: Turn) -> tuple[str, int]:
    """Key of one kind of conversations: the tenant, and a hash of the names of the client's tools."""
    return turn.tenant, hash(frozenset(turn.request.tool_names))


def offer_with_first_edit(services: Services, turn: Turn, plan: Plan) -> Turn:
    """Add the tools that come with the first edit, once an edit takes out something that is nowhere else in the
    prompt; the branch keeps them."""
    if plan.refusal or not any(edit.is_lossy for edit in plan.edits.values()):
        return turn
    services.conversations_with_edits[_find_conversation_kind(turn)] = None
    if len(services.conversations_with_edits) > MAX_CONVERSATION_KINDS:
        del services.conversations_with_edits[next(iter(services.conversations_with_edits))]
    offer = turn.enriched.first_edit_offer
    if offer is None:
        return turn
    if turn.located.branch.tool_offer is None:
        exchange_rows.add_offer_row(turn, offer)
    spliced = (
        turn.enriched.spliced
        if turn.enriched.spliced.added_tools
        else add_tools(turn.enriched.spliced, offer.definitions)
    )
    return turn.with_lookups(tool_offer=offer, first_edit_offer=None, spliced=spliced)


def find_guarded_results(turn: Turn) -> frozenset[bytes]:
    """Keys of our tools' results since the last prompt: if shortened, they would be fetched again."""
    task = lookups.find_task(turn)
    since = turn.enriched.spliced.keys.index(turn.keys[task[0]]) if task is not None else 0
    messages, hidden = turn.enriched.spliced.request.messages, turn.enriched.spliced.hidden_at
    return frozenset(
        k for n, k in enumerate(turn.enriched.spliced.keys) if n > since and messages[n].is_result and k in hidden
    )
