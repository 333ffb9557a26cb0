"""Find the session and thread of a request, and the messages in it that are new.

The tenant is the holder of the credential. The session is named by the path, a header or a body field. Without a name
it is found by the hash chain. The match is the newest stored thread whose chain, up to and including an answer of ours,
is a prefix of the request. Without a name only such a node may be used, so a wrong match costs quality, never privacy
(DESIGN.md 4, WIRE.md 2). Inside a session the same chain tells threads apart: continuation, fork, retry, twin, side
call.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from proxy.chat import key, slices
from proxy.chat.message import Message, Request
from proxy.exchange import side_calls
from proxy.exchange.steering.inforce import InForce
from proxy.exchange.thread import Node, SessionMemory, Thread
from proxy.exchange.threads import Threads
from proxy.settings import Identity
from proxy.store.standing import Kind

Relation = Literal["main", "continuation", "fork", "retry", "twin", "side"]
LONGEST = 256
"""Limit in bytes on a session's name as the client gives it; a longer name is hashed."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a request. kind: main, continuation, fork, retry, twin or side. at: the index of the last message
    that was known before, -1 for none. system: a digest of its system messages."""

    thread: Thread
    kind: Relation
    at: int
    explicit: bool
    system: bytes = b""

    @property
    def is_new(self) -> bool:
        """True if the session has just got its name from us, so that nothing of it can be stored yet."""
        return self.at < 0 and not self.explicit


def tenant_of(headers: Mapping[str, str], salt: str) -> str:
    """Return one tenant for each credential, as an HMAC of it: the credential itself is never kept."""
    credential = headers.get("authorization") or headers.get("api-key") or headers.get("x-api-key") or ""
    made = hmac.digest(b"context-proxy:" + salt.encode(), credential.encode("utf-8", "surrogateescape"), "sha256")
    return made.hex()[:32]


def session_name(path: str | None, headers: Mapping[str, str], body: Request | None, settings: Identity) -> str | None:
    """Return the session that the client names: by path, x-context-session, the headers that agents send, or a body
    field."""
    named = [path, headers.get("x-context-session")]
    named += [headers.get(name.lower()) for name in settings.headers]
    if settings.generic_header:
        pattern = re.compile(settings.generic_header)  # the module's own cache finds it again
        named += [value for name, value in headers.items() if pattern.search(name)]
    for value in named:
        if value and (name := _clean(value)):
            return name
    for field in settings.body_fields if body is not None else ():
        value = _body_field(body, field) if body is not None else None
        if value and (name := _clean(value)):
            return name
    return None


def _body_field(request: Request, path: str) -> str | None:
    top, _, rest = path.partition(".")
    span = request.spans.get(top)
    if span is None:
        return None
    raw: bytes | None = request.body[span[0] : span[1]]
    if rest:
        raw = slices.value(raw or b"", rest)
    return slices.string(raw) if raw else None


def _clean(value: str) -> str:
    """Return a name that can be shown and stored: trimmed. A name that is too long or unprintable becomes its hash."""
    value = unicodedata.normalize("NFC", value.strip())
    if not value or value.lower() in ("null", "none", "undefined"):
        return ""
    if len(value.encode("utf-8", "surrogatepass")) > LONGEST or not value.isprintable():
        return "h-" + hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return value


def owner(
    came: Sequence[tuple[bytes, bytes]], tenant: str | None, session: str | None, settings: Identity
) -> tuple[str, str]:
    """Return (tenant, the session's name or "") of a request whose body is not read. tenant: of a verified key, None
    without one. session: the one that the path names."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in came}
    name = session_name(session, headers, None, settings)
    return tenant or tenant_of(headers, settings.salt.get_secret_value()), name or ""


def new_id() -> str:
    """Return a name for a session, thread or exchange of ours: 80 random bits, in base32."""
    bits = secrets.randbits(80)
    return "".join([key.PAIRS[bits >> shift & 1023] for shift in range(0, 80, 10)])


async def identify(
    threads: Threads, tenant: str, named: str | None, request: Request, keys: Sequence[bytes], *, retry: bool
) -> Place:
    """Return the thread of this request, new or old. StoreUnavailable passes through.

    retry: the client says that it sends the same request again.
    """
    messages, nodes = request.messages, key.in_chain(request)
    memory, at, thread = await _known(threads, tenant, named, messages, keys, nodes)
    if memory is not None and thread is None and (at >= 0 or await threads.is_gone(memory)):
        # The remembered session has been deleted since, here or by another process: look once more, in the store.
        threads.forget(memory)
        memory, at, thread = await _known(threads, tenant, named, messages, keys, nodes)
    system = key.system_digest([messages[n] for n in request.which("system", lambda m: m.is_system)])
    if memory is None:
        memory = threads.open_session(tenant, named or new_id(), named is not None)
        if named is None:
            memory.steered = InForce()  # nobody can have decided anything for a name that is not known yet
        made = _new(threads, memory, "main", key.system_likeness(messages))
        return Place(made, "main", -1, named is not None, system)
    if thread is None:
        like, short = key.system_likeness(messages), len(nodes) <= side_calls.SHORT
        others = await side_calls.signs(threads.store, memory) if short else []
        kind, ends = side_calls.begins_as(like, others, short=short, tools=bool(request.tool_names))
        made = _new(threads, memory, kind, like)
        made.ends_beside = ends
        return Place(made, "side" if kind == "side" else "main", -1, named is not None, system)
    if thread.read_back and not thread.failed and thread.head == keys[at] != thread.answer:
        status = await threads.store.last_status(*thread.id, keys[at])
        thread.failed, thread.read_back = status not in ("complete", "deferred", "open", ""), False
    relation = _relation(thread, messages, keys, nodes, at, retry)
    if relation in ("fork", "twin"):
        like = key.system_likeness(messages)
        thread = _fork(threads, thread, "fork" if relation == "fork" else "twin", like, keys[: at + 1], len(messages))
    return Place(thread, relation, at, named is not None, system)


async def _known(
    threads: Threads,
    tenant: str,
    named: str | None,
    messages: Sequence[Message],
    keys: Sequence[bytes],
    nodes: Sequence[int],
) -> tuple[SessionMemory | None, int, Thread | None]:
    """(the session, the index of the deepest message that it holds, the thread that brought that message). The index is
    -1 and the thread None for new ones."""
    memory, at = await _find(threads, tenant, named, messages, keys, nodes)
    if memory is None:
        return None, -1, None
    asked = memory.partial and _answered(messages, nodes, at)
    if asked:  # the store may know an answer that is not in memory
        at = await _recall(threads, memory, tenant, memory.session, keys, nodes)
    thread = await threads.current(memory, memory.nodes[keys[at]].thread) if at >= 0 else None
    if memory.partial and not asked and not _goes_on(thread, messages, keys, nodes, at):
        deeper = await _recall(threads, memory, tenant, memory.session, keys, nodes)
        if deeper != at:
            at = deeper
            thread = await threads.current(memory, memory.nodes[keys[at]].thread) if at >= 0 else None
    return memory, at, thread


def remembered(
    threads: Threads, tenant: str, named: str | None, request: Request, keys: Sequence[bytes]
) -> SessionMemory | None:
    """Return the session that holds the most of a request, as far as this process knows without the store."""
    if named is not None:
        return threads.session(tenant, named)
    found = _in_memory(threads, tenant, keys, key.in_chain(request))
    return found[0] if found is not None else None


async def whose(
    threads: Threads, tenant: str, named: str | None, messages: Sequence[Message], keys: Sequence[bytes]
) -> tuple[str, str | None] | None:
    """(session, thread) of a history that is only looked up, None for either where there is none yet. StoreUnavailable
    passes through."""
    nodes = [n for n, m in enumerate(messages) if not m.is_system]
    memory, at = await _find(threads, tenant, named, messages, keys, nodes)
    if memory is None:
        return None
    return memory.session, memory.nodes[keys[at]].thread if at >= 0 else None


async def _find(
    threads: Threads,
    tenant: str,
    named: str | None,
    messages: Sequence[Message],
    keys: Sequence[bytes],
    nodes: Sequence[int],
) -> tuple[SessionMemory | None, int]:
    """(the session, the index of the deepest message that it holds), (None, -1) where there is none."""
    if named is not None:
        memory = threads.session(tenant, named)
        if memory is None:
            memory = threads.open_session(tenant, named, True)
            await _recall(threads, memory, tenant, named, keys, nodes)
        at = next((n for n in reversed(nodes) if keys[n] in memory.nodes), -1)
        return memory, at
    if not any(messages[n].role == "assistant" for n in nodes):
        return None, -1  # no message here can be an answer of ours: two first requests that are alike are two sessions
    here = _in_memory(threads, tenant, keys, nodes)
    if here is not None and not (threads.store.shared and _answered(messages, nodes, here[1])):
        return here
    found, at = await _search(threads, tenant, messages, keys, nodes)
    return here if here is not None and at < here[1] else (found, at)


def _in_memory(
    threads: Threads, tenant: str, keys: Sequence[bytes], nodes: Sequence[int]
) -> tuple[SessionMemory, int] | None:
    for n in reversed(nodes):
        for session in reversed(threads.sessions_at(tenant, keys[n])):
            memory = threads.session(tenant, session)
            if memory is not None:
                return memory, n
    return None


async def _search(
    threads: Threads, tenant: str, messages: Sequence[Message], keys: Sequence[bytes], nodes: Sequence[int]
) -> tuple[SessionMemory | None, int]:
    """Search the store, for sessions that this process has forgotten or another process has stored."""
    answers = [keys[n] for n in nodes if messages[n].role == "assistant"]
    hits = await threads.store.find(tenant, answers, None)
    if hits:
        best = hits[0]
        memory = threads.session(tenant, best.session) or threads.open_session(tenant, best.session, False)
        at = await _recall(threads, memory, tenant, best.session, keys, nodes)
        return (memory, at) if at >= 0 else (None, -1)
    return _rewritten(threads, tenant, messages, keys, nodes)


def _rewritten(
    threads: Threads, tenant: str, messages: Sequence[Message], keys: Sequence[bytes], nodes: Sequence[int]
) -> tuple[SessionMemory | None, int]:
    """Find a thread whose first answer the client has reworded, by the ids of the answer's calls."""
    for at, n in enumerate(nodes[:-1]):
        after = messages[nodes[at + 1]]
        ids = frozenset(call.id for call in after.calls if len(call.id) >= 9)
        if not ids:
            continue
        for thread in threads.answering(tenant, keys[n]):
            if ids <= thread.calls:
                return thread.memory, n
    return None, -1


async def _recall(
    threads: Threads, memory: SessionMemory, tenant: str, session: str, keys: Sequence[bytes], nodes: Sequence[int]
) -> int:
    """Fill a session's memory with the present messages that the store holds. Return the index of the deepest message
    that is known then, -1 for none."""
    memory.partial = True
    missing = [keys[n] for n in nodes if keys[n] not in memory.nodes]
    found = await threads.store.known(tenant, session, missing)
    for n in nodes:
        row = found.get(keys[n])
        if row is not None:
            threads.note(memory, keys[n], Node(row.form, row.thread, row.reached, row.strategy, row.seen))
            memory.stored = True
    return next((n for n in reversed(nodes) if keys[n] in memory.nodes), -1)


def _answered(messages: Sequence[Message], nodes: Sequence[int], at: int) -> bool:
    """True if there is an answer behind the message at this index."""
    return any(messages[n].role == "assistant" for n in nodes[bisect_right(nodes, at) :])


def _goes_on(
    thread: Thread | None, messages: Sequence[Message], keys: Sequence[bytes], nodes: Sequence[int], at: int
) -> bool:
    """True if the request plainly continues this thread. If False, and the session was read back for another branch,
    the branch that the request continues may be in the store alone."""
    if thread is None:
        return False
    return not _answered(messages, nodes, at) and keys[at] in (thread.answer, thread.head)


def _relation(
    thread: Thread, messages: Sequence[Message], keys: Sequence[bytes], nodes: Sequence[int], at: int, retry: bool
) -> Relation:
    """Return the relation of the request to the thread that brought its deepest known message."""
    here = keys[at]
    if here == thread.answer or thread.head is None:  # no head: the process was killed while it stored the first
        return "continuation"
    new = nodes[bisect_right(nodes, at) :]
    if here != thread.head:
        return "fork"
    if not new:
        return "retry" if retry or thread.failed else "twin"
    # The answer came back in other words than ours: its position is trusted (WIRE.md 2.2, step 2).
    if messages[new[0]].role == "assistant" or thread.failed:
        return "continuation"
    return "fork"


def _new(threads: Threads, memory: SessionMemory, kind: Kind, system: bytes) -> Thread:
    return threads.add(Thread(memory.tenant, memory.session, new_id(), kind, system, memory))


def _fork(threads: Threads, thread: Thread, kind: Kind, system: bytes, shared: Sequence[bytes], length: int) -> Thread:
    """Make a thread that branches off another: it inherits the edits on the messages that both share. length: messages
    of the request that begins it."""
    made = _new(threads, thread.memory, kind, system)
    nodes = thread.memory.nodes
    made.state = thread.state.forked(shared, nodes)
    made.rehearsal = thread.rehearsal.forked(shared, nodes) if thread.rehearsal is not None else None
    if length < len(thread.state.sent) or not thread.state.sent:
        # The client seems to have compacted its history: the upstream may accept a prompt now that it refused before.
        made.state = replace(made.state, stopped=None)
    made.parent = thread.name
    made.fork_key = shared[-1]
    made.offer = thread.offer
    kept = {*made.state.edits, *(made.state.lasting or ())}
    made.versions = {k: v for k, v in thread.versions.items() if k in kept}
    return made
