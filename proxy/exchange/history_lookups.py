"""Facts that a policy may use beside the request and its edits.

They are: when each message was first seen, the user's pins, the results of a store search, and how near messages are to
the task.

None of these facts is needed for an answer. A search that fails or is late finds nothing. Vectors are made in a task of
their own, for the requests that follow.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace

from proxy.chat import chain
from proxy.chat.group import is_observation
from proxy.chat.message import Message, Request
from proxy.context.analysis import bm25, identifiers
from proxy.context.plan import Plan, RetrievedText
from proxy.errors import StoreUnavailable
from proxy.exchange import embeddings, exchange_rows
from proxy.exchange.services import Headers, Services
from proxy.exchange.turn import Turn
from proxy.metrics import Metrics

MAX_HITS = 8
"""Limit on the messages and summaries that a search returns: more than any policy quotes."""
_YES = ("1", "true", "yes", "on")


def find_origins(turn: Turn) -> tuple[list[float], list[str]]:
    """Return, for each message, when it was first stored (in seconds) and the wire format that it was made for.

    A new message gets the present time and the turn's format. A hidden message gets the format of the message before
    it.
    """
    memory, hidden, keys = turn.located.thread.live_session, turn.spliced.hidden_at, turn.spliced.keys

    def look(begin: int, known: tuple[list[float], list[str]] | None) -> tuple[list[float], list[str]]:
        times, strategies = (list(known[0]), list(known[1])) if known else ([], [])
        for k in keys[begin:]:
            node = memory.nodes.get(k)
            if node is not None:
                times.append(node.seen_at)
                strategies.append(node.strategy)
            else:
                times.append(hidden.get(k, turn.started_at))
                strategies.append(strategies[-1] if k in hidden else turn.strategy)
        return times, strategies

    if hidden or keys[-1] not in memory.nodes:
        return look(0, None)
    times, strategies = turn.request.memo("origins", look, memory.serial)
    spoken = chain.find_chained_indices(turn.request)
    lead = spoken[0] if spoken else 0
    # The messages before the chain were made for this request, however often they came before.
    return [turn.started_at] * lead + times[lead:], [turn.strategy] * lead + strategies[lead:]


def find_task(turn: Turn) -> tuple[int, Message] | None:
    """The last user message that is no tool output, as (index, message)."""
    observed = turn.policy.observation
    if turn.task_cache is None or turn.task_cache[0] is not observed:
        turn.task_cache = observed, _find_task(turn.request, observed)
    return turn.task_cache[1]


def _find_task(request: Request, observed: re.Pattern[str] | None) -> tuple[int, Message] | None:
    messages = request.messages

    def look(begin: int, known: int | None) -> int:
        for n in range(len(messages) - 1, begin - 1, -1):
            if messages[n].role == "user" and not is_observation(messages, n, observed):
                return n
        return -1 if known is None else known

    found = request.memo("task", look, observed)
    return (found, messages[found]) if found >= 0 else None


def pin_task(turn: Turn) -> None:
    """`x-context-pin: true` pins the last user message: no policy edits it from now on (FEATURES.md E7)."""
    found = find_task(turn) if turn.options.get("pin", "").lower() in _YES else None
    if found is None:
        return
    thread, chain_key = turn.located.thread, turn.keys[found[0]]
    if chain_key not in thread.state.pins:
        exchange_rows.add_pin_row(turn, chain_key, turn.weigh(found[1]), turn.started_at)
        thread.state = replace(thread.state, pins=thread.state.pins | {chain_key})


async def search_store(services: Services, turn: Turn) -> None:
    """Search the store for the subject of a new prompt, once for each prompt, where the policy uses the results.

    The search runs only in sessions that the client has named: without a name only the content of the request may be
    used.
    """
    found = find_task(turn)
    if found is None or not turn.located.explicit or turn.policy.mode != "rewrite":
        return
    if not any(getattr(injection, "searches", False) for injection in turn.policy.injections):
        return
    thread, chain_key = turn.located.thread, turn.keys[found[0]]
    if thread.search_hits is not None and thread.search_hits[0] == chain_key:
        return
    words = " ".join(sorted(bm25.count_message_terms(found[1]).counts))
    try:
        async with asyncio.timeout(services.settings.limits.commit_wait_ms / 1000):
            matches = await services.store.search(turn.tenant, thread.session, words, MAX_HITS)
    except (TimeoutError, StoreUnavailable):
        services.metrics.internal_errors_total.labels(where="search").inc()
        matches = []
    hits = (RetrievedText(m.key, "summary" if m.kind == "summary" else "message", m.role, m.text) for m in matches)
    thread.search_hits = chain_key, tuple(hits)


def find_relevance(services: Services, turn: Turn, headers: Headers) -> Mapping[bytes, float]:
    """The nearness of messages to the task, by form, for the vectors that are there. Other vectors are requested in the
    background, for later requests. Empty where embeddings are off: then words decide."""
    found = find_task(turn)
    if found is None or not services.settings.embeddings.enabled or turn.policy.mode != "rewrite":
        return {}
    if not any(getattr(stage, "ranks", False) for stage in turn.policy.stages):
        return {}
    thread = turn.located.thread
    if thread.relevance is None or thread.relevance[0] != found[1].form:
        thread.relevance = found[1].form, {}
    known = thread.relevance[1]
    missing = {
        m.form: identifiers.read_all_text(m)
        for m in turn.request.messages
        if not m.is_system and m.form not in known and (m.text or m.calls)
    }
    if missing and (thread.relevance_task is None or thread.relevance_task.done()):
        thread.relevance_task = asyncio.create_task(_compare(services, turn, found[1], missing, headers))
        services.background_tasks.add(thread.relevance_task)
        thread.relevance_task.add_done_callback(services.background_tasks.discard)
    return known


async def _compare(services: Services, turn: Turn, asked: Message, missing: dict[bytes, str], headers: Headers) -> None:
    thread = turn.located.thread
    texts = {asked.form: identifiers.read_all_text(asked), **missing}
    vectors = await embeddings.load_vectors(services, turn.tenant, thread.session, texts, headers)
    wanted = vectors.get(asked.form)
    if wanted is None or thread.relevance is None or thread.relevance[0] != asked.form:
        return
    # Off the loop: a thousand vectors of 1,536 numbers are some 100 ms of work.
    near = await asyncio.to_thread(
        lambda: {f: bm25.cosine_similarity(v, wanted) for f, v in vectors.items() if f in missing}
    )
    thread.relevance[1].update(near)


def record_plan_metrics(metrics: Metrics, plan: Plan) -> None:
    """Record the figures of the plan's notes in the metrics (FEATURES.md E9)."""
    for note in plan.notes:
        if note.kind == "levels":
            for level, tokens in note.figures.items():
                metrics.level_tokens.labels(level=metrics.limit_label("level", level)).observe(tokens)
        elif note.kind == "compressed":
            metrics.compressed_tokens_total.labels(kind="before").inc(note.figures["before"])
            metrics.compressed_tokens_total.labels(kind="after").inc(note.figures["after"])
            metrics.compression_ratio.observe(note.figures["ratio"])
        elif note.kind == "over_level":
            metrics.over_budget_total.labels(kind="level").inc()
        elif note.kind == "refetch":
            for kind, count in note.figures.items():
                metrics.refetch_total.labels(kind=kind).inc(count)
        elif note.kind == "low_ratio":
            metrics.low_ratio_total.inc()
        elif note.kind == "retrieve":
            metrics.retrieved_items_total.inc(note.figures["items"])
