"""Notes that a prompt is given beside its history: the session's scratchpad, and the memos that fit the user's message.

They are read from the store once for each prompt. They are read again when the model has called a tool of ours since,
or the session was written to. A store that is late or away delays nothing: then nothing is read, and it is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypedDict

from proxy.chat.message import Message
from proxy.context.policy import Policy
from proxy.errors import StoreUnavailable
from proxy.exchange import history_lookups
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.notes import memo_matching
from proxy.notes.memo_matching import Memo
from proxy.sessions.branch import LoadedNotes
from proxy.sessions.live import LiveSessions
from proxy.settings.load import Settings
from proxy.tools import stored_memos

MANY = 20
"""Memos from which they are compared with the message in a worker thread: the words of all have to be read."""


class PromptNotes(TypedDict):
    """The notes as arguments of `rewrite`."""

    scratchpad: str
    memos: tuple[Memo, ...]


def find_prompt_notes(turn: Turn) -> PromptNotes:
    """Return the notes that are known for the turn."""
    found = turn.located.thread.loaded_notes
    if found is None or not find_wanted_notes(turn.policy):
        return {"scratchpad": "", "memos": ()}
    return {"scratchpad": found.scratchpad, "memos": found.memos}


def find_wanted_notes(policy: Policy) -> frozenset[str]:
    """`scratchpad` and `memos`, where an injection of the policy gives them to the model."""
    if policy.mode != "rewrite":
        return frozenset()
    return frozenset(name for injection in policy.injections if (name := getattr(injection, "recollects", None)))


def find_project(settings: Settings, headers: Mapping[str, str]) -> str:
    """The namespace of memos that the client names; "": the tenant's own. headers: names in small letters."""
    return memo_matching.normalize_project(headers.get(settings.memos.project_header.lower(), ""))


def forget_notes(live_sessions: LiveSessions, tenant: str, session: str) -> None:
    """Drop the remembered notes of a session that was written to: its next requests read them again."""
    memory = live_sessions.find_session(tenant, session)
    for thread in memory.branches.values() if memory is not None else ():
        thread.loaded_notes = None


async def load_notes(services: Services, turn: Turn, project: str) -> None:
    """Load the notes of the turn's prompt into its thread, where they are not known yet. Side calls get none."""
    found, names = history_lookups.find_task(turn), find_wanted_notes(turn.policy)
    thread = turn.located.thread
    if found is None or not names or thread.kind == "side":
        return
    prompt, calls = (
        turn.keys[found[0]],
        len(turn.spliced.hidden_at),
    )  # after a call of ours the store may hold other notes
    known = thread.loaded_notes
    if known is not None and (known.prompt_key, known.hidden_count) == (prompt, calls):
        return
    pad, fitting = known.scratchpad if known is not None else "", known.memos if known is not None else ()
    fits = "memos" in names and memo_matching.may_use_memos(turn.located.explicit, services.settings.memos.scope)
    if fits or not turn.located.is_new:  # a session that has no name yet cannot have been written to
        try:
            async with asyncio.timeout(services.settings.limits.commit_wait_ms / 1000):
                if "scratchpad" in names:
                    row = await services.store.read_scratchpad(turn.tenant, thread.session)
                    pad = row.text if row is not None else ""
                if known is None or known.prompt_key != prompt:  # memos that fit a message are loaded when it comes
                    fitting = ()
                    fitting = await _load_fitting_memos(services, turn, found[1], project) if fits else ()
        except (TimeoutError, StoreUnavailable):
            services.metrics.internal_errors_total.labels(where="prompt_notes").inc()
    thread.loaded_notes = LoadedNotes(prompt, calls, pad, fitting)


async def _load_fitting_memos(services: Services, turn: Turn, about: Message, project: str) -> tuple[Memo, ...]:
    """Return the memos that fit the message."""
    limits = services.settings.memos
    if not limits.most:
        return ()
    kept = await stored_memos.load_project_memos(services.store, turn.tenant, project, limits.keep)
    if not kept:
        return ()
    most, chars = limits.most, limits.max_chars
    if len(kept) < MANY:
        return tuple(memo_matching.select_memos(kept, about.text, most, chars))
    return tuple(await asyncio.to_thread(memo_matching.select_memos, kept, about.text, most, chars))
