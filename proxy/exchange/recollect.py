"""What a prompt is told beside its history: the session's scratchpad, and the memos that the user's message is about.

Read from the store once a prompt, and again when the model has called a tool of ours since, or somebody has written to
the session. A store that is late or away delays nothing: then nothing is recollected, and it is counted.
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
    """As `rewrite` takes it."""

    scratchpad: str
    memos: tuple[Memo, ...]


def told(turn: Turn) -> Told:
    """What is known for the turn."""
    found = turn.place.thread.recollected
    if found is None or not wanted(turn.policy):
        return {"scratchpad": "", "memos": ()}
    return {"scratchpad": found.scratchpad, "memos": found.memos}


def wanted(policy: Policy) -> frozenset[str]:
    """`scratchpad` and `memos`, where a voice of the policy tells them."""
    if policy.mode != "rewrite":
        return frozenset()
    return frozenset(name for voice in policy.voices if (name := getattr(voice, "recollects", None)))


def project_of(settings: Settings, headers: Mapping[str, str]) -> str:
    """The namespace of memos that the client names; "": the tenant's own. headers: names in small letters."""
    return memos.tidy_project(headers.get(settings.memos.project_header.lower(), ""))


def forget(threads: Threads, tenant: str, session: str) -> None:
    """Somebody has written to the session: its next requests read it anew."""
    memory = threads.session(tenant, session)
    for thread in memory.threads.values() if memory is not None else ():
        thread.recollected = None


async def recollect(parts: Parts, turn: Turn, project: str) -> None:
    """Have the thread know what its prompt is told, where that is not known yet. Side calls are told nothing."""
    found, names = background.task(turn), wanted(turn.policy)
    thread = turn.place.thread
    if found is None or not names or thread.kind == "side":
        return
    prompt, calls = turn.keys[found[0]], len(turn.woven.hidden)  # after a call of ours, the store may say other things
    known = thread.recollected
    if known is not None and (known.prompt, known.calls) == (prompt, calls):
        return
    pad, fitting = known.scratchpad if known is not None else "", known.memos if known is not None else ()
    fits = "memos" in names and memos.reachable(turn.place.explicit, parts.settings.memos.scope)
    if fits or not turn.place.is_new:  # of a session that has no name yet, nobody can have written anything
        try:
            async with asyncio.timeout(parts.settings.limits.commit_wait_ms / 1000):
                if "scratchpad" in names:
                    row = await parts.store.scratchpad(turn.tenant, thread.session)
                    pad = row.text if row is not None else ""
                if known is None or known.prompt != prompt:  # what fits a message is told when it comes
                    fitting = ()
                    fitting = await _fitting(parts, turn, found[1], project) if fits else ()
        except (TimeoutError, StoreUnavailable):
            parts.metrics.swallowed_total.labels(where="recollect").inc()
    thread.recollected = Recollected(prompt, calls, pad, fitting)


async def _fitting(parts: Parts, turn: Turn, about: Message, project: str) -> tuple[Memo, ...]:
    """The memos that the message is about."""
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
