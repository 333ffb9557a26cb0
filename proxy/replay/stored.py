"""Recorded conversations from the proxy's own store: every branch is a conversation, as its client sent it.

A branch is its last request, built again as the client sent it, with the answer that followed. A fork shares the
beginning of another branch. The requests of that beginning are played, since policies must remember them, but counted
only in the branch that made them. Times are those at which messages were first stored, so an idle hour makes a cold
cache here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

from proxy.chat.chain import compute_keys
from proxy.chat.message import Request
from proxy.dialects.completions.request import read_request
from proxy.errors import ConfigError, NotManaged, StoreUnavailable
from proxy.exchange import rebuild_prompt
from proxy.replay.read import RecordedConversation
from proxy.store.base import BranchRow, ExchangeRecord
from proxy.store.reads import Store

PAGE_SIZE = 200
"""Exchanges read at once in the search for a branch's newest one."""

StoredSession = tuple[str, str]
"""(tenant, session)"""


async def find_sessions(store: Store, session_names: Collection[str]) -> list[StoredSession]:
    """Return the sessions of these names, or all without names. Raises ConfigError for an unknown one."""
    sessions: list[StoredSession] = []
    while page := await store.read_session_names(sessions[-1] if sessions else ("", "")):
        sessions += page
    names = {session for _, session in sessions}
    for name in session_names:
        if name not in names:
            raise ConfigError("SESSION", name, "a session in the store" + ("" if names else ", which is empty"))
    return [place for place in sessions if not session_names or place[1] in session_names]


async def read_branches(store: Store, session: StoredSession, source: str) -> AsyncIterator[RecordedConversation]:
    """Yield every branch of a session, oldest first. A branch with a part missing in the store is skipped."""
    record = await store.read_session(*session)
    newest = await _read_newest_exchanges(store, session)
    for branch in record.branches if record else ():
        last = newest.get(branch.branch)
        if last is None:
            continue
        try:
            yield await _read_conversation(store, branch, last, source)
        except (NotManaged, StoreUnavailable):
            continue  # a gap in what was stored: the others can still be played


async def _read_newest_exchanges(store: Store, place: StoredSession) -> dict[str, ExchangeRecord]:
    """Return the newest exchange of each branch."""
    newest: dict[str, ExchangeRecord] = {}
    before = None
    while True:
        page = await store.read_exchanges(*place, PAGE_SIZE, before)
        for exchange in page:
            newest.setdefault(exchange.branch, exchange)
        if len(page) < PAGE_SIZE:
            return newest
        before = page[-1].started_at


def _read(tenant: str, body: bytes) -> tuple[Request, Sequence[bytes]]:
    request = read_request(body)
    return request, compute_keys(tenant, request.messages)


async def _read_conversation(
    store: Store, branch: BranchRow, last: ExchangeRecord, source: str
) -> RecordedConversation:
    place = branch.tenant, branch.session
    built = await rebuild_prompt.rebuild_prompt(store, *place, last.exchange)
    if built is None:
        raise StoreUnavailable("an exchange has left the store")
    request, keys = await asyncio.to_thread(_read, branch.tenant, built.original_body)
    chain = await store.read_chain(*place, last.answer or last.tip)
    seen = {stored.key: stored.created_at for stored in chain}
    raws = [message.raw for message in request.messages]
    at = keys.index(branch.fork_key) + 1 if branch.fork_key in keys else 0
    known = await store.read_branch(*place, branch.branch)
    answers = known.helper_answers if known else {}
    times: list[float] = []
    for k in keys:  # a system message is not in the chain: it has the time of the message before it
        times.append(seen.get(k, times[-1] if times else branch.created_at))
    if last.answer and chain and chain[-1].key == last.answer:
        raws.append(chain[-1].body)
        times.append(chain[-1].created_at)
    return RecordedConversation(
        id=f"{branch.session}/{branch.branch}",
        source=source,
        messages=tuple(raws),
        tools=request.tools,
        times=tuple(times),
        shared_messages=at,
        tenant=branch.tenant,
        answers=tuple(answers.items()),
        model=last.model,
    )
