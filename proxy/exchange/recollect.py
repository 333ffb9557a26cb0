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
from proxy.exchange import background
from proxy.exchange.parts import Parts
from proxy.exchange.thread import Recollected
from proxy.exchange.threads import Threads
from proxy.exchange.turn import Turn
from proxy.memory import memos
from proxy.memory.memos import Memo
from proxy.settings import Settings
from proxy.tools import notebook

MANY = 20
"""Memos from which they are compared with the message in a worker thread: the words of all have to be read."""


class Told(TypedDict):
    """The notes as arguments of `rewrite`."""

    scratchpad: str
    memos: tuple[Memo, ...]


def told(turn: Turn) -> Told:
    """Return the notes that are known for the turn."""
    found = turn.place.thread.recollected
    if found is None or not wanted(turn.policy):
        return {"scratchpad": "", "memos": ()}
    return {"scratchpad": found.scratchpad, "memos": found.memos}


def wanted(policy: Policy) -> frozenset[str]:
    """`scratchpad` and `memos`, where a voice of the policy gives them to the model."""
    if policy.mode != "rewrite":
        return frozenset()
    return frozenset(name for voice in policy.voices if (name := getattr(voice, "recollects", None)))


def project_of(settings: Settings, headers: Mapping[str, str]) -> str:
    """The namespace of memos that the client names; "": the tenant's own. headers: names in small letters."""
    return memos.tidy_project(headers.get(settings.memos.project_header.lower(), ""))


def forget(threads: Threads, tenant: str, session: str) -> None:
    """Drop the remembered notes of a session that was written to: its next requests read them again."""
    memory = threads.session(tenant, session)
    for thread in memory.threads.values() if memory is not None else ():
        thread.recollected = None


async def recollect(parts: Parts, turn: Turn, project: str) -> None:
    """Load the notes of the turn's prompt into its thread, where they are not known yet. Side calls get none."""
    found, names = background.task(turn), wanted(turn.policy)
    thread = turn.place.thread
    if found is None or not names or thread.kind == "side":
        return
    prompt, calls = turn.keys[found[0]], len(turn.woven.hidden)  # after a call of ours the store may hold other notes
    known = thread.recollected
    if known is not None and (known.prompt, known.calls) == (prompt, calls):
        return
    pad, fitting = known.scratchpad if known is not None else "", known.memos if known is not None else ()
    fits = "memos" in names and memos.reachable(turn.place.explicit, parts.settings.memos.scope)
    if fits or not turn.place.is_new:  # a session that has no name yet cannot have been written to
        try:
            async with asyncio.timeout(parts.settings.limits.commit_wait_ms / 1000):
                if "scratchpad" in names:
                    row = await parts.store.scratchpad(turn.tenant, thread.session)
                    pad = row.text if row is not None else ""
                if known is None or known.prompt != prompt:  # memos that fit a message are loaded when it comes
                    fitting = ()
                    fitting = await _fitting(parts, turn, found[1], project) if fits else ()
        except (TimeoutError, StoreUnavailable):
            parts.metrics.swallowed_total.labels(where="recollect").inc()
    thread.recollected = Recollected(prompt, calls, pad, fitting)


async def _fitting(parts: Parts, turn: Turn, about: Message, project: str) -> tuple[Memo, ...]:
    """Return the memos that fit the message."""
    limits = parts.settings.memos
    if not limits.most:
        return ()
    kept = await notebook.all_of(parts.store, turn.tenant, project, limits.keep)
    if not kept:
        return ()
    most, chars = limits.most, limits.max_chars
    if len(kept) < MANY:
        return tuple(memos.fits(kept, about.text, most, chars))
    return tuple(await asyncio.to_thread(memos.fits, kept, about.text, most, chars))
