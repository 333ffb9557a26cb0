"""Lookups for a request: what its plan may use in addition to the request and its edits.

The policy and the model of the request are looked up here, and the time at which each message was first seen. Further
lookups are the user's pins, a search of the store, the nearness of messages to the task, the scratchpad and the memos.

None of these is needed for an answer. A search that fails or is late finds nothing. Vectors are made in a task of
their own, for the requests that follow.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict, get_args

import msgspec

from proxy.chat.group import is_prompt
from proxy.chat.message import Message
from proxy.context import operator_edits
from proxy.context.analysis import bm25, identifiers
from proxy.context.models import Model, find_model
from proxy.context.plan import RetrievedText
from proxy.context.policy import Policy, ScheduleName
from proxy.errors import StoreUnavailable
from proxy.exchange import embeddings, exchange_rows
from proxy.exchange.dialect import COMPLETIONS, Dialect
from proxy.exchange.header_warnings import YES
from proxy.exchange.services import MAX_MODEL_CHARS, Headers, Services
from proxy.exchange.turn import Turn
from proxy.helper.helper_client import lend_credential
from proxy.notes import memo_matching
from proxy.notes.memo_matching import Memo
from proxy.sessions.branch import Branch, LoadedNotes, Relevance, SearchHits
from proxy.sessions.live import LiveSessions
from proxy.sessions.operator_decisions import StoredDecisions
from proxy.settings.load import Settings
from proxy.store.branch_positions import BranchFork
from proxy.store.expected_reads import ExpectedNotes
from proxy.store.full_text_search import SearchMatch
from proxy.store.reads import Store
from proxy.tools import stored_memos
from proxy.upstream.client import Target

MAX_HITS = 8
"""Limit on the messages and summaries that a search returns: more than any policy quotes."""
SEARCHED_HITS = 24
"""Limit on those among which the ones on the way to the present branch are found."""
WHOLE_LINE = math.inf
"""The last position of a branch that is on that way with all its messages."""
MAX_NAMES = 1000
"""Model names whose entry is remembered."""


def find_policy(
    services: Services, headers: Mapping[str, str], target: Target, dialect: Dialect = COMPLETIONS
) -> Policy:
    """The policy that the request names, else that of its route or its upstream, else the one of the settings."""
    wanted = headers.get("x-context-policy", "")
    own = services.settings.compress.policy if dialect.returns_rows else ""
    return services.policies.get(wanted) or services.policies[own or target.policy or services.settings.policy]


def choose_policy(services: Services, policy: Policy, decisions: StoredDecisions, requested: str = "") -> Policy:
    """Return the session's policy, with its settings and decisions. policy: used where the session names none.
    requested: the request's policy, which has priority over the session's."""
    if decisions.is_empty:
        return policy
    if requested not in services.policies:
        policy = services.policies.get(decisions.settings.policy, policy)
    schedules: dict[str, ScheduleName] = {name: name for name in get_args(ScheduleName)}
    wanted = schedules.get(decisions.settings.schedule)
    if wanted is not None and policy.mode == "rewrite":
        policy = replace(policy, schedule=wanted)
    return operator_edits.allow_rewrite(policy, decisions.planning_decisions)


def look_up_model(services: Services, name: str) -> Model:
    """The entry of the model. Patterns are tried once a name, and 1,000 names are remembered."""
    if len(name) > MAX_MODEL_CHARS:
        return find_model(services.models, name)
    model = services.models_by_name.get(name)
    if model is None:
        if len(services.models_by_name) >= MAX_NAMES:
            services.models_by_name.clear()
        model = services.models_by_name[name] = find_model(services.models, name)
    return model


def find_origins(turn: Turn) -> tuple[list[float], list[str]]:
    """Return, for each message, when it was first stored (in seconds) and the wire format that it was made for.

    A new message gets the present time and the turn's format. A hidden message gets the format of the message before
    it.
    """
    live_session, spliced = turn.located.branch.live_session, turn.enriched.spliced
    hidden, keys = spliced.hidden_at, spliced.keys

    def extend(begin: int, known: tuple[list[float], list[str]] | None) -> tuple[list[float], list[str]]:
        times, strategies = (list(known[0]), list(known[1])) if known else ([], [])
        for k in keys[begin:]:
            node = live_session.nodes.get(k)
            if node is not None:
                times.append(node.seen_at)
                strategies.append(node.strategy)
            else:
                times.append(hidden.get(k, turn.started_at))
                strategies.append(strategies[-1] if k in hidden else turn.strategy)
        return times, strategies

    if hidden or keys[-1] not in live_session.nodes:
        return extend(0, None)
    times, strategies = turn.request.memo("origins", extend, live_session.serial)
    lead = next((n for n, message in enumerate(turn.request.messages) if not message.is_system), 0)
    # The messages before the chain were made for this request, however often they came before.
    return [turn.started_at] * lead + times[lead:], [turn.strategy] * lead + strategies[lead:]


Task = tuple[int, Message]
"""The last user message that is no tool output, with its index."""


def find_task(turn: Turn) -> Task | None:
    """The task of a turn; None if no user has said anything."""
    messages, observed = turn.request.messages, turn.enriched.policy.observation

    def extend(begin: int, known: int | None) -> int:
        for n in range(len(messages) - 1, begin - 1, -1):
            if is_prompt(messages, n, observed):
                return n
        return -1 if known is None else known

    found = turn.request.memo("task", extend, observed)
    return (found, messages[found]) if found >= 0 else None


def pin_task(turn: Turn, task: Task | None) -> None:
    """`x-context-pin: true` pins the last user message: no policy edits it from now on."""
    if task is None or turn.options.get("pin", "").lower() not in YES:
        return
    branch, chain_key = turn.located.branch, turn.keys[task[0]]
    if chain_key not in branch.state.pins:
        exchange_rows.add_pin_row(turn, chain_key, turn.token_counter(task[1]), turn.started_at)
        branch.state = msgspec.structs.replace(branch.state, pins=branch.state.pins | {chain_key})


async def search_store(services: Services, turn: Turn, task: Task | None) -> None:
    """Search the store for the subject of a new prompt, once for each prompt, where the policy uses the results.

    The search runs only in sessions that the client has named: without a name only the content of the request may be
    used. Messages that the client has gone back behind are left out: it has put others in their place.
    """
    if task is None or not turn.located.explicit or turn.enriched.policy.mode != "rewrite":
        return
    if not any(injection.searches for injection in turn.enriched.policy.injections):
        return
    branch, chain_key = turn.located.branch, turn.keys[task[0]]
    known = branch.lookups.search_hits
    if known is not None and known.prompt_key == chain_key:
        return
    words = " ".join(sorted(bm25.count_message_terms(task[1]).counts))
    try:
        async with asyncio.timeout(services.settings.limits.commit_wait_ms / 1000):
            matches = await _search_line(services.store, branch, words)
    except (TimeoutError, StoreUnavailable):
        services.metrics.internal_errors_total.labels(where="search").inc()
        matches = []
    hits = (
        RetrievedText(m.key, "summary" if m.kind == "summary" else "message", m.role, m.text)
        for m in matches
        if m.has_text
    )
    branch.lookups = msgspec.structs.replace(branch.lookups, search_hits=SearchHits(chain_key, tuple(hits)))


async def _search_line(store: Store, branch: Branch, words: str) -> list[SearchMatch]:
    """Return the matches that lie on the lines of a session (`find_lines`), best first. StoreUnavailable passes."""
    matches = await store.search(branch.tenant, branch.session, words, SEARCHED_HITS)
    forks = await store.read_branch_forks(branch.tenant, branch.session) if matches else []
    if len({fork.branch for fork in forks} | {branch.name}) < 2:
        return matches[:MAX_HITS]
    parent, fork_key = branch.fork_point
    keys = [match.key for match in matches] + ([fork_key] if fork_key is not None else [])
    places = {hit.key: hit for hit in await store.find_chain_hits(branch.tenant, keys, branch.session)}
    fork = places.get(fork_key) if fork_key is not None else None
    known = {one.branch for one in forks}
    lines = find_lines([BranchFork(branch.name, parent, fork.position if fork is not None else None), *forks])

    def is_on_line(match: SearchMatch) -> bool:
        if match.branch:  # a summary speaks of messages after its own, which a fork may not have
            return lines.get(match.branch) == WHOLE_LINE or match.branch not in known
        place = places.get(match.key)
        return place is None or place.branch not in known or place.position <= lines.get(place.branch, -1)

    return [match for match in matches if is_on_line(match)][:MAX_HITS]


def find_lines(forks: Sequence[BranchFork]) -> dict[str, float]:
    """Return the branches on the way to the present of a session, each with its last position on that way. forks: of
    its branches; the present branch comes first, then the one that was used last.

    A branch that leaves another one takes its place: the rest of the other one is no longer said. A client may also
    begin anew, without its old messages. What it said before is then the branch of that beginning that was used last.
    """
    by_name = {fork.branch: fork for fork in reversed(forks)}
    lines: dict[str, float] = {}
    seen: set[str] = set()
    for fork in forks:
        way: dict[str, float] = {}
        at, last = by_name.get(fork.branch), WHOLE_LINE
        while at is not None and at.branch not in seen:
            seen.add(at.branch)
            way[at.branch] = last
            last = min(last, WHOLE_LINE if at.position is None else at.position)
            at = by_name.get(at.parent or "")
        if at is None:  # else it meets a line that was used later
            lines |= way
    return lines


def find_relevance(services: Services, turn: Turn, task: Task | None, headers: Headers) -> Mapping[bytes, float] | None:
    """The nearness of messages to the task, by form, for the vectors that are there. Other vectors are requested in the
    background, for later requests. None where embeddings are off: then words decide."""
    if task is None or not services.settings.embeddings.enabled or turn.enriched.policy.mode != "rewrite":
        return None
    if not any(stage.ranks for stage in turn.enriched.policy.stages):
        return None
    branch = turn.located.branch
    relevance = branch.lookups.relevance
    if relevance is None or relevance.task_form != task[1].form:
        relevance = Relevance(task[1].form, {})
        branch.lookups = msgspec.structs.replace(branch.lookups, relevance=relevance)
    known, running = relevance.nearness, branch.lookups.relevance_task
    missing = {
        m.form: identifiers.read_all_text(m)
        for m in turn.request.messages
        if not m.is_system and m.form not in known and (m.text or m.calls)
    }
    if missing and (running is None or running.done()):
        running = asyncio.create_task(_find_nearness(services, turn, task[1], missing, headers))
        branch.lookups = msgspec.structs.replace(branch.lookups, relevance_task=running)
        services.background_tasks.add(running)
        running.add_done_callback(services.background_tasks.discard)
    return known


async def _find_nearness(
    services: Services, turn: Turn, task: Message, missing: dict[bytes, str], headers: Headers
) -> None:
    branch = turn.located.branch
    texts = {task.form: identifiers.read_all_text(task), **missing}
    headers = lend_credential(services.client, turn.upstream, services.settings.embeddings.upstream, headers)
    vectors = await embeddings.load_vectors(services, turn.tenant, branch.session, texts, headers)
    task_vector = vectors.get(task.form)
    relevance = branch.lookups.relevance
    if task_vector is None or relevance is None or relevance.task_form != task.form:
        return
    # Off the loop: a thousand vectors of 1,536 numbers are some 100 ms of work.
    near = await asyncio.to_thread(
        lambda: {f: bm25.cosine_similarity(v, task_vector) for f, v in vectors.items() if f in missing}
    )
    relevance.nearness.update(near)


# Notes that a prompt gets in addition to its history: the session's scratchpad, and the memos that fit the user's
# message. They are read from the store once for each prompt. They are read again when the model has called a tool of
# the proxy since, or the session was written to. A store that is late or away delays nothing: then nothing is read, and
# it is counted.


MAX_LOOP_MEMOS = 20
"""Memos that are compared with the message on the event loop: the words of all have to be read."""


class PromptNotes(TypedDict):
    """The notes as arguments of `rewrite`."""

    scratchpad: str
    memos: tuple[Memo, ...]


def find_prompt_notes(turn: Turn) -> PromptNotes:
    """Return the notes that are known for the turn."""
    notes = turn.located.branch.lookups.notes
    if notes is None or not find_wanted_notes(turn.enriched.policy):
        return {"scratchpad": "", "memos": ()}
    return {"scratchpad": notes.scratchpad if turn.located.has_scratchpad else "", "memos": notes.memos}


def find_wanted_notes(policy: Policy) -> frozenset[str]:
    """`scratchpad` and `memos`, where an injection of the policy gives them to the model."""
    if policy.mode != "rewrite":
        return frozenset()
    return frozenset(one.recollects for one in policy.injections if one.recollects)


def expect_notes(services: Services, policy: Policy, headers: Mapping[str, str], *, is_named: bool) -> ExpectedNotes:
    """The notes that the next prompt of a session will get, as far as that is known before the session is found."""
    names, memos = find_wanted_notes(policy), services.settings.memos
    has_memos = "memos" in names and memos.most and (is_named or memos.scope == "tenant")
    count = min(stored_memos.PAGE_SIZE, memos.keep) if has_memos else 0
    return ExpectedNotes("scratchpad" in names, find_project(services.settings, headers), count)


def find_project(settings: Settings, headers: Mapping[str, str]) -> str:
    """The namespace of memos that the client names; "": the tenant's own. headers: names in small letters."""
    named = headers.get(settings.memos.project_header.lower(), "")
    return memo_matching.normalize_project(named) if named else ""


def forget_notes(live_sessions: LiveSessions, tenant: str, session: str) -> None:
    """Drop the remembered notes of a session that was written to: its next requests read them again."""
    live_session = live_sessions.find_session(tenant, session)
    for branch in live_session.branches.values() if live_session is not None else ():
        branch.lookups = msgspec.structs.replace(branch.lookups, notes=None)


async def load_notes(services: Services, turn: Turn, task: Task | None, project: str) -> None:
    """Load the notes of the turn's prompt into its branch, where they are not known yet. Side calls get none."""
    names, branch = find_wanted_notes(turn.enriched.policy), turn.located.branch
    if task is None or not names or branch.kind == "side":
        return
    # After a call of the proxy's own tools the store may hold other notes.
    prompt, calls = turn.keys[task[0]], len(turn.enriched.spliced.hidden_at)
    known = branch.lookups.notes
    if known is not None and (known.prompt_key, known.hidden_count) == (prompt, calls):
        return
    pad, fitting = known.scratchpad if known is not None else "", known.memos if known is not None else ()
    has_memos = turn.located.explicit or services.settings.memos.scope == "tenant"  # as `may_use_memos`
    fits = "memos" in names and has_memos
    if fits or not turn.located.is_new:  # a session that has no name yet cannot have been written to
        try:
            async with asyncio.timeout(services.settings.limits.commit_wait_ms / 1000):
                if "scratchpad" in names and turn.located.has_scratchpad:
                    row = await services.store.read_scratchpad(turn.tenant, branch.session)
                    pad = row.text if row is not None else ""
                if known is None or known.prompt_key != prompt:  # memos that fit a message are loaded when it comes
                    fitting = ()
                    fitting = await _load_fitting_memos(services, turn, task[1], project) if fits else ()
        except (TimeoutError, StoreUnavailable):
            services.metrics.internal_errors_total.labels(where="prompt_notes").inc()
    branch.lookups = msgspec.structs.replace(branch.lookups, notes=LoadedNotes(prompt, calls, pad, fitting))


async def _load_fitting_memos(services: Services, turn: Turn, message: Message, project: str) -> tuple[Memo, ...]:
    """Return the memos that fit the message."""
    limits = services.settings.memos
    if not limits.most:
        return ()
    kept = await stored_memos.load_project_memos(services.store, turn.tenant, project, limits.keep)
    if not kept:
        return ()
    most, chars = limits.most, limits.max_chars
    if len(kept) < MAX_LOOP_MEMOS:
        return tuple(memo_matching.select_memos(kept, message.text, most, chars))
    return tuple(await asyncio.to_thread(memo_matching.select_memos, kept, message.text, most, chars))
