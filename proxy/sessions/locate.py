"""Find the session and branch of a request, and the messages in it that are new.

The tenant is the holder of the credential. The session is named by the path, a header or a body field. Without a name
it is found by the hash chain. The match is the newest stored branch whose chain, up to and including an answer of the
proxy, is a prefix of the request. Without a name only such a node may be used, so a wrong match costs quality, never
privacy (docs/concepts/identity.md). Inside a session the same chain tells branches apart.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final, Literal

import msgspec

from proxy.chat import chain, json_spans
from proxy.chat.message import Message, Request
from proxy.chat.unicode_text import normalize
from proxy.sessions import load_sessions
from proxy.sessions.branch import Beginning, Branch, LiveSession, UnstoredValues, find_givers
from proxy.sessions.live import CALLER_FIELDS, NO_TRAITS, LiveSessions, RequestTraits
from proxy.sessions.operator_decisions import NO_DECISIONS
from proxy.sessions.packing import Node
from proxy.sessions.side_calls import MAX_SIDE_CALL_MESSAGES, classify_branch, read_branch_traits
from proxy.settings.model import IdentitySettings
from proxy.store.base import ID_DIGITS, ID_TIME_BITS
from proxy.store.branch_positions import BranchKind
from proxy.store.expected_reads import NO_NOTES, ExpectedNotes, ExpectedReads

Relation = Literal["main", "continuation", "fork", "retry", "twin", "side"]
"""The relation of a request to the branch that holds its beginning.

main: it begins a branch. continuation: it goes on after the branch's last answer. fork: it leaves the branch at an
earlier message. retry: it comes again, since the last attempt had no answer. twin: it comes again though there is an
answer, so both go on side by side. side: it is a side call (`side_calls`).
"""
_MADE_NAME = re.compile(f"[{ID_DIGITS}]{{16}}")
"""A name of `make_id`."""
MAX_NAME_BYTES = 256
"""Limit in bytes on a session's name as the client gives it; a longer name is hashed."""
MAX_NORMALIZED_CHARS = 16 * 1024
"""Characters of a name that is normalized first. A name may be as long as a body."""


class Located(msgspec.Struct, frozen=True):
    """The place of a request."""

    branch: Branch
    relation: Relation
    known_until: int
    """The index of the last message that was known before, -1 for none."""
    explicit: bool
    """True if the client has named the session."""
    traits: RequestTraits = NO_TRAITS

    @property
    def is_new(self) -> bool:
        """True if the session has just got its name from us, so that nothing of it can be stored yet."""
        return self.known_until < 0 and not self.explicit

    @property
    def has_scratchpad(self) -> bool:
        """True if the session's scratchpad is of this conversation. Without a name, a fork may be another conversation
        that begins alike, and so may any request that was found in a session that a client has named."""
        return self.explicit or owns_session(self.branch.session, self.branch.kind)


def owns_session(session: str, kind: BranchKind) -> bool:
    """True if an unnamed session's own data is of the conversation that has a branch of this kind."""
    return _MADE_NAME.fullmatch(session) is not None and kind == "main"


def derive_tenant(headers: Mapping[str, str], salt: str) -> str:
    """Return one tenant for each credential, as an HMAC of it: the credential itself is never kept."""
    names = ("authorization", "api-key", "x-api-key", "x-goog-api-key")
    credential = next(filter(None, map(headers.get, names)), "")
    made = hmac.digest(b"context-proxy:" + salt.encode(), credential.encode("utf-8", "surrogateescape"), "sha256")
    return made.hex()[:32]


def find_tenant(headers: Mapping[str, str], key_tenant: str | None, settings: IdentitySettings) -> str:
    """Return the tenant of a request: its verified key's, else its credential's. key_tenant: None without keys."""
    return key_tenant or derive_tenant(headers, settings.salt.get_secret_value())


def decode_headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request by their lower-case names."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def find_session_name(
    path: str | None, headers: Mapping[str, str], body: Request | None, settings: IdentitySettings
) -> str | None:
    """Return the session that the client names: by path, x-context-session, the headers that agents send, or a body
    field.

    A sub-agent of Codex goes on from the prompt of the thread that has spawned it, to share its cache. The edits of
    that prompt are known in that thread's session alone, so a sub-agent's own thread does not name a session.
    """
    sent = [headers[name] for name in map(str.lower, settings.headers) if name in headers]
    if _CODEX_PARENT_HEADER in headers and (shared := headers.get("session-id")):
        sent.insert(0, shared)
    if settings.generic_header:
        pattern = re.compile(settings.generic_header)  # the module's own cache finds it again
        sent += [value for name, value in headers.items() if pattern.search(name)]
    own = [value.removeprefix("title-") if value.startswith(_KILO_TITLE_PREFIX) else value for value in sent]
    for value in (path, headers.get("x-context-session"), *own):
        if value and (name := clean_session_name(value)):
            return name
    if body is not None:
        for field in settings.body_fields:
            if (value := _read_body_field(body, field)) and (name := clean_session_name(value)):
                return name
    return None


def is_chosen_name(path: str | None, headers: Mapping[str, str]) -> bool:
    """True if the session's name was chosen for this proxy: by the path, or x-context-session. Other names are those of
    an agent, which gives its conversation a new one where the user forks it."""
    return bool(path) or bool(headers.get("x-context-session"))


def _read_body_field(request: Request, path: str) -> str | None:
    top, _, inner = path.partition(".")
    span = request.spans.get(top)
    if span is None:
        return None
    raw: bytes | None = request.body[span[0] : span[1]]
    if inner:
        raw = json_spans.read_value(raw or b"", inner)
    return json_spans.decode_string(raw) if raw else None


def clean_session_name(value: str) -> str:
    """Return a name that can be shown and stored: trimmed. A name that is too long or unprintable becomes its hash."""
    value = value.strip()
    if len(value) <= MAX_NORMALIZED_CHARS:
        value = normalize("NFC", value)
    if not value or value.lower() in ("null", "none", "undefined"):
        return ""
    if len(value.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES or not value.isprintable():
        return "h-" + hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return value


def find_owner(
    raw_headers: Sequence[tuple[bytes, bytes]], tenant: str | None, session: str | None, settings: IdentitySettings
) -> tuple[str, str]:
    """Return (tenant, the session's name or "") of a request whose body is not read. tenant: of a verified key, None
    without one. session: the session that the path names."""
    headers = decode_headers(raw_headers)
    name = find_session_name(session, headers, None, settings)
    return find_tenant(headers, tenant, settings), name or ""


_CODEX_PARENT_HEADER: Final = "x-codex-parent-thread-id"
"""Header of Codex's sub-agents. Their `session-id` is that of the first thread, which is named like its session."""
_KILO_TITLE_PREFIX: Final = "title-ses_"
"""Beginning of the name under which Kilo asks for the title of a session."""
_DIGIT_PAIRS = [one + other for one in ID_DIGITS for other in ID_DIGITS]


def make_id() -> str:
    """Return a name for a session, branch or exchange of the proxy: 40 bits of the time and 40 random bits, in base32.

    The time comes first, in milliseconds. Rows with names of one hour then lie side by side in the store's indexes, and
    writing them costs few pages.
    """
    bits = (time.time_ns() // 1_000_000 & (1 << ID_TIME_BITS) - 1) << 40 | secrets.randbits(40)
    return "".join([_DIGIT_PAIRS[bits >> shift & 1023] for shift in range(70, -1, -10)])


class SessionQuery(msgspec.Struct, frozen=True, eq=False):
    """The parts of a request by which its session is found."""

    tenant: str
    named_session: str | None
    """The session that the client names; None where it names none."""
    request: Request
    keys: Sequence[bytes]
    """The chain key of each message."""
    may_be_fork: bool = False
    """True if the conversation may have begun under another name (`is_chosen_name`)."""


async def locate_request(
    live_sessions: LiveSessions,
    query: SessionQuery,
    *,
    retry: bool,
    known_session: str | None = None,
    notes: ExpectedNotes = NO_NOTES,
) -> Located:
    """Return the branch of this request, new or old. StoreUnavailable passes through.

    retry: the client says that it sends the same request again. known_session: the session of a response that the
    request names, which counts where the client names no session. notes: the notes that its prompt will get.
    """
    named_session, request, keys = query.named_session, query.request, query.keys
    messages, chained = request.messages, request.find_chained_indices()
    instructions = request.find_indices("system", attrgetter("is_system"))
    system = chain.digest_system_messages([messages[n] for n in instructions])
    traits = RequestTraits(messages, system, _read_caller(request))
    search = _SessionSearch(live_sessions, query.tenant, messages, keys, chained, traits, notes, query.may_be_fork)
    live_session, at, branch = await search.find_deepest(named_session, known_session)
    if (
        live_session is not None
        and branch is None
        and (at >= 0 or await load_sessions.is_gone(live_sessions, live_session))
    ):
        # The remembered session has been deleted since, here or by another process: look once more, in the store.
        live_sessions.forget_session(live_session)
        live_session, at, branch = await search.find_deepest(named_session, known_session)
    if live_session is None:
        return await _begin_session(live_sessions, query, traits)
    is_named = live_session.session == named_session
    if branch is None:
        branch = await _begin_branch(live_sessions, live_session, request, len(chained))
        return Located(branch, "side" if branch.kind == "side" else "main", -1, is_named, traits)
    last = branch.last_request
    if last.failed is None and last.tip_key == keys[at] != last.answer_key:
        await load_sessions.read_last_failure(live_sessions, branch, keys[at])
    relation = search.find_relation(branch, at, retry=retry, is_named=is_named)
    if relation == "fork" or relation == "twin":
        undated_system = chain.digest_undated_system(messages)
        branch = _fork_branch(live_sessions, branch, relation, undated_system, keys[: at + 1], len(messages))
    if named_session is None and branch.state.states:
        live_sessions.drop_shared_notes(branch, traits, keys, at, search.back(at))
    return Located(branch, relation, at, is_named, traits)


def _read_caller(request: Request) -> tuple[bytes, ...]:
    """`RequestTraits.caller` of a request."""
    spans = [request.spans[name] for name in CALLER_FIELDS if name in request.spans]
    return tuple([request.body[start:end] for start, end in spans]) if spans else ()


async def _begin_session(live_sessions: LiveSessions, query: SessionQuery, traits: RequestTraits) -> Located:
    """Return the first branch of a new session, or of one that this same request has begun without an answer."""
    is_named, tools_hash = query.named_session is not None, hash(query.request.tools)
    if not is_named and (chained := query.request.find_chained_indices()):
        key = query.keys[chained[-1]]
        resent = await load_sessions.resume_unanswered(live_sessions, query.tenant, key, traits, tools_hash)
        if resent is not None:
            return Located(resent, "retry", chained[-1], False, traits)
    live_session = live_sessions.open_session(query.tenant, query.named_session or make_id(), explicit=is_named)
    if not is_named:
        # Nobody can have decided anything for a name that is not known yet.
        live_session.stored_decisions = NO_DECISIONS
    branch = _make_branch(live_sessions, live_session, "main", chain.digest_undated_system(query.request.messages))
    branch.unstored = UnstoredValues(beginning=Beginning(traits.system_digest, tools_hash, 0.0, traits.caller))
    return Located(branch, "main", -1, is_named, traits)


async def _begin_branch(
    live_sessions: LiveSessions, live_session: LiveSession, request: Request, chained_count: int
) -> Branch:
    """Return a new branch of a session, which may be a side call. chained_count: the messages in its chain."""
    undated_system, short = chain.digest_undated_system(request.messages), chained_count <= MAX_SIDE_CALL_MESSAGES
    others = await read_branch_traits(live_sessions.store, live_session) if short else []
    kind, may_become_side_call = classify_branch(undated_system, others, short=short, tools=bool(request.tool_names))
    branch = _make_branch(live_sessions, live_session, kind, undated_system)
    branch.may_become_side_call = may_become_side_call
    return branch


def find_live_session(live_sessions: LiveSessions, query: SessionQuery) -> LiveSession | None:
    """Return the session that holds the most of a request, as far as this process knows without the store."""
    if query.named_session is not None:
        return live_sessions.find_session(query.tenant, query.named_session)
    messages, chained = query.request.messages, query.request.find_chained_indices()
    traits = RequestTraits(messages, caller=_read_caller(query.request))
    search = _SessionSearch(live_sessions, query.tenant, messages, query.keys, chained, traits)
    found = search.find_in_memory()
    return found[0] if found is not None else None


async def find_session_and_branch(
    live_sessions: LiveSessions,
    tenant: str,
    named_session: str | None,
    messages: Sequence[Message],
    keys: Sequence[bytes],
) -> tuple[str, str | None] | None:
    """(session, branch) of a history that is only looked up, or None for either. StoreUnavailable passes through."""
    chained = [n for n, m in enumerate(messages) if not m.is_system]
    search = _SessionSearch(live_sessions, tenant, messages, keys, chained, RequestTraits(messages))
    live_session, at = await search.find_session(named_session)
    if live_session is None:
        return None
    if (turn := search.find_turn(live_session)) is not None:
        return live_session.session, turn[0].name
    return live_session.session, live_session.nodes[keys[at]].branch if at >= 0 else None


class _SessionSearch(msgspec.Struct, frozen=True, eq=False):
    """The search for the session of a history, and for the deepest message of the history that the session holds."""

    live_sessions: LiveSessions
    tenant: str
    messages: Sequence[Message]
    keys: Sequence[bytes]
    """The chain key of each message."""
    chained: Sequence[int]
    """The indices of the messages that are in the chain, which are all but system messages."""
    traits: RequestTraits
    """By these, conversations that begin alike are told apart."""
    notes: ExpectedNotes = NO_NOTES
    """The notes that will be read with the session."""
    may_be_fork: bool = False
    """True if the conversation may have begun in another session than the one that the client names."""

    async def find_deepest(self, named: str | None, known: str | None) -> tuple[LiveSession | None, int, Branch | None]:
        """(the session, the index of the deepest message that it holds, the branch that stored it first). For a new
        session or branch the index is -1 and the branch None."""
        live_session, at = await self.find_session(named, known)
        if live_session is None:
            return None, -1, None
        turn = self.find_turn(live_session)
        if turn is not None and (branch := await self._refresh_turn(turn[0])) is not None:
            return live_session, turn[1], branch
        reads_store = live_session.partial and self._has_answer_after(at)
        if reads_store:  # the store may know an answer that is not in memory
            at = await self._load_nodes(live_session)
        branch = await self._find_branch(live_session, at)
        if live_session.partial and not reads_store and not self._is_continued(branch, at):
            deeper = await self._load_nodes(live_session)
            if deeper != at:
                at, branch = deeper, await self._find_branch(live_session, deeper)
        return live_session, at, branch

    async def find_session(self, named: str | None, known: str | None = None) -> tuple[LiveSession | None, int]:
        """(the session, the index of the deepest message that it holds), (None, -1) where there is none. named: the
        session that the client names. known: that of the response that its request names."""
        session = named or known
        if session is not None:
            return await self._find_by_name(session, is_named=named is not None)
        if not self._has_answer_after(-1):
            # No message here can be an answer of the proxy: two first requests that are alike are two sessions.
            return None, -1
        return await self._find_by_chain()

    async def _find_by_name(self, session: str, *, is_named: bool) -> tuple[LiveSession, int]:
        """(the session of this name, or the one in which the history began, the index of the deepest message that it
        holds). is_named: the client named it; else it is that of the response that its request names."""
        may_be_fork = is_named and self.may_be_fork
        live_session = self.live_sessions.find_session(self.tenant, session)
        is_cold = live_session is None
        if live_session is None:
            if may_be_fork and (origin := await self._find_live_origin(session)) is not None:
                return origin
            live_session = self.live_sessions.open_session(self.tenant, session, explicit=is_named)
        self._announce_reads(live_session)
        if is_cold:
            await self._load_nodes(live_session)
        at = self._find_deepest_index(live_session)
        if not may_be_fork or not self._lacks_answers(live_session, at):
            return live_session, at
        origin = await self._find_origin()
        if origin is None:
            return live_session, at
        if not live_session.branches:  # it is unknown, and nothing would ever make it leave memory
            self.live_sessions.forget_session(live_session)
        return origin

    async def _find_by_chain(self) -> tuple[LiveSession | None, int]:
        """(the session with the deepest message of a history with answers, its index), (None, -1) without one."""
        in_memory = self.find_in_memory()
        if in_memory is not None and not (self.live_sessions.store.shared and self._has_answer_after(in_memory[1])):
            if any(map(self.traits.are_of, in_memory[0].branches.values())):
                self._announce_reads(in_memory[0])
                if self._may_be_shared(*in_memory):
                    await self.live_sessions.note_shared_answer(in_memory[0], self.keys[self.back(in_memory[1])])
                return in_memory
            # Another session may have the same answer, and these traits.
            found, at = await self._search_store([self.back(in_memory[1])])
            return in_memory if at < 0 or found is in_memory[0] else (found, at)
        found, at = await self._search_store(list(filter(self._is_answer, self.chained)))
        return in_memory if in_memory is not None and at < in_memory[1] else (found, at)

    async def _find_live_origin(self, named: str) -> tuple[LiveSession, int] | None:
        """As `_find_origin`, for a session in memory that knows every answer of the history, the newest ones included.
        None if the named session, which is not in memory, has stored the newest one itself."""
        found = self.find_in_memory()
        if found is None or self._has_answer_after(found[1]) or not self._has_calls_until(found[1]):
            return None
        if await self.live_sessions.store.find_chain_hits(self.tenant, [self.keys[self.back(found[1])]], named):
            return None
        self._announce_reads(found[0])
        return found

    async def _find_origin(self) -> tuple[LiveSession, int] | None:
        """Find the session in which a history began of which the named session knows no answer: (the session, the index
        of the deepest message that it holds). None if no other knows an answer with calls either: answers to a greeting
        may be alike in conversations that have nothing else in common.

        An agent names a conversation anew where its user forks it. The edits of the history, and the prompts after
        which its reasoning was made, are known in the first session alone: the cache would be missed without them.
        """
        found, at = await self._find_by_chain()
        return (found, at) if found is not None and self._has_calls_until(at) else None

    def find_in_memory(self) -> tuple[LiveSession, int] | None:
        """(the live session that the history continues, the index of the deepest message that it holds). None too where
        several sessions begin alike and none has the traits of the request."""
        if (turn := self.find_turn(None)) is not None and self.live_sessions.find_session(self.tenant, turn[0].session):
            return turn[0].live_session, turn[1]
        n, sessions = self.live_sessions.find_deepest_sessions(self.tenant, self.keys, self.chained)
        if not sessions:
            return None
        others, found = (self.live_sessions.list_branches_at(self.tenant, self.keys[k]) for k in (self.back(n), n))
        newest = self.traits.select_newest(found, others)
        if newest is None and found:
            return None
        live_session = self.live_sessions.find_session(self.tenant, newest.session if newest else sessions[-1])
        return (live_session, n) if live_session is not None else None

    def find_turn(self, session: LiveSession | None) -> tuple[Branch, int] | None:
        """As `LiveSessions.find_turn`."""
        return self.live_sessions.find_turn(self.tenant, self.traits, self.keys, self.chained, session)

    async def _search_store(self, answers: Sequence[int]) -> tuple[LiveSession | None, int]:
        """Search the store, for sessions that this process has forgotten or another process has stored. (None, the
        index of the message) if several hold the same message, and none has the history's system prompt. answers: the
        indices of those that are searched for."""
        hits = await self.live_sessions.store.find_chain_hits(self.tenant, [self.keys[n] for n in answers], None)
        if not hits:
            return self.live_sessions.find_reworded(self.tenant, self.traits, self.keys, self.chained)
        key, hits = hits[0].key, [hit for hit in hits if hit.key == hits[0].key]
        if is_shared := len({hit.session for hit in hits}) > 1:
            hits = [hit for hit in hits if self.live_sessions.may_be_of(self.tenant, hit, self.traits)]
        if not hits:
            return None, self.keys.index(key)
        live_session = self.live_sessions.open_session(self.tenant, hits[0].session, explicit=False)
        if is_shared:
            live_session.knows_shared = True
            live_session.shared_answers.update(self.keys[: self.keys.index(key) + 1])
        self._announce_reads(live_session)
        at = await self._load_nodes(live_session)
        return (live_session, at) if at >= 0 else (None, -1)

    def _announce_reads(self, live_session: LiveSession) -> None:
        """Announce what this request will read, to a store behind a network."""
        if not self.live_sessions.store.shared:
            return
        messages, keys, chained, notes = self.messages, self.keys, self.chained, self.notes
        known = live_session.nodes
        at = self._find_deepest_index(live_session)
        branch = live_session.branches.get(known[keys[at]].branch) if at >= 0 else None
        new = chained[bisect_right(chained, at) :]
        is_moved = branch is None or any(messages[n].role == "assistant" for n in new)
        rounds = []
        if branch is None or branch.offers_tools:
            tips = [keys[n - 1] for n in chained if n and messages[n].role == "assistant"]
            rounds = [key for key in tips if is_moved or key not in live_session.hidden_rounds]
        is_prompted = branch is None or any(messages[n].role == "user" for n in new)
        self.live_sessions.store.expect_reads(
            ExpectedReads(
                live_session.tenant,
                live_session.session,
                [keys[n] for n in (chained if is_moved else new) if keys[n] not in known],
                rounds,
                branch=branch.name if branch is not None else "",
                moves=[move[2] for move in branch.store_position.moves] if branch is not None else [],
                edits=branch.store_position.edit_number if branch is not None else 0,
                states=len(branch.state.states) if branch is not None else 0,
                is_moved=is_moved,
                is_new=branch is None,
                system=chain.digest_undated_system(messages) if branch is None else b"",
                scratchpad=notes.scratchpad and is_prompted,
                project=notes.project,
                memos=notes.memos if is_prompted else 0,
            )
        )

    async def _load_nodes(self, live_session: LiveSession) -> int:
        """Fill a session's memory with the present messages that the store holds. Return the index of the deepest
        message that is known then, -1 for none."""
        live_session.partial = True
        missing = [self.keys[n] for n in self.chained if self.keys[n] not in live_session.nodes]
        found = await self.live_sessions.store.find_known_messages(self.tenant, live_session.session, missing)
        for n in self.chained:
            row = found.get(self.keys[n])
            if row is not None:
                node = Node(row.form, row.branch, row.reached, row.strategy, row.seen)
                self.live_sessions.add_node(live_session, self.keys[n], node)
                live_session.stored = True
        return self._find_deepest_index(live_session)

    def _find_deepest_index(self, live_session: LiveSession) -> int:
        """The index of the deepest message that the session holds in memory, -1 for none."""
        return next((n for n in reversed(self.chained) if self.keys[n] in live_session.nodes), -1)

    async def _find_branch(self, live_session: LiveSession, at: int) -> Branch | None:
        """Return the branch that stored the message at this index first; None for -1."""
        if at < 0:
            return None
        name = live_session.nodes[self.keys[at]].branch
        found = self.live_sessions.find_branch(live_session, name)
        return found or await load_sessions.refresh_branch(self.live_sessions, live_session, name)

    async def _refresh_turn(self, branch: Branch) -> Branch | None:
        """Return the branch as it is now; None if it is not where it was known to be."""
        last = branch.last_request
        found = self.live_sessions.find_branch(branch.live_session, branch.name)
        found = found or await load_sessions.refresh_branch(self.live_sessions, branch.live_session, branch.name)
        now = found.last_request if found is not None else last
        return found if (now.tip_key, now.answer_key) == (last.tip_key, last.answer_key) else None

    def _may_be_shared(self, live_session: LiveSession, at: int) -> bool:
        """True if other sessions in the store may have the last answer up to this index, and there are states of it to
        leave out. It is the first one, they have that before it, or the request leaves its branch."""
        if not any(branch.state.states for branch in live_session.branches.values()):
            return False  # a read of the store would tell nothing
        before, key = self.back(self.back(at) - 1), self.keys[at]
        if not live_session.knows_shared or not self._is_answer(before):
            return True
        if self.keys[before] in live_session.shared_answers:
            return True
        last = [branch.last_request for branch in live_session.branches.values()]
        return not any(key == one.answer_key or key == one.tip_key for one in last)

    def _is_answer(self, n: int) -> bool:
        return self.messages[n].role == "assistant"

    def back(self, at: int) -> int:
        """The index of the last answer up to this index; the index itself where there is none."""
        return next((n for n in reversed(self.chained) if n <= at and self._is_answer(n)), at)

    def _has_answer_after(self, at: int) -> bool:
        """True if there is an answer after the message at this index."""
        return any(map(self._is_answer, self.chained[bisect_right(self.chained, at) :]))

    def _lacks_answers(self, live_session: LiveSession, at: int) -> bool:
        """True if the history has answers, and the session has given none of them. at: the index of the deepest message
        that it holds."""
        if at >= 0 and any(b.last_request.tip_key == self.keys[at] for b in live_session.branches.values()):
            return False
        return next(filter(self._is_answer, self.chained), -1) > at

    def _has_calls_until(self, at: int) -> bool:
        """True if the message at this index or one before it calls tools."""
        return any(self.messages[n].calls for n in self.chained if n <= at)

    def _is_continued(self, branch: Branch | None, at: int) -> bool:
        """True if the request plainly continues this branch. If False, and the session was read back for another
        branch, the branch that the request continues may be in the store alone."""
        if branch is None:
            return False
        last = branch.last_request
        return not self._has_answer_after(at) and self.keys[at] in (last.answer_key, last.tip_key)

    def find_relation(self, branch: Branch, at: int, *, retry: bool, is_named: bool) -> Relation:
        """Return the relation of the request to the branch that stored its deepest known message first. is_named: the
        client has named the session."""
        key, last = self.keys[at], branch.last_request
        # Without a tip, the process was killed while it stored the first request.
        if key in (last.answer_key, last.untailed_answer_key) or last.tip_key is None:
            return "continuation"
        new = self.chained[bisect_right(self.chained, at) :]
        if not last.has_tip(key) or (not new and key != last.tip_key):
            return "fork"
        if not new:
            return "retry" if retry or last.failed else "twin"
        if last.failed:
            return "continuation"
        if not self._is_answer(new[0]):
            return "fork"
        # The answer came back in other words than ours. Its position is trusted where no other branch has it too.
        branches = self.live_sessions.list_branches_at(self.tenant, key, branch.live_session if is_named else None)
        if branch in find_givers(branches, self.messages, new[0], key):
            return "continuation"
        is_alone = not any(b is not branch and b.last_request.tip_key == key for b in branches)
        return "continuation" if is_alone and branch.may_have_given(self.messages[new[0]]) else "fork"


def _make_branch(live_sessions: LiveSessions, live_session: LiveSession, kind: BranchKind, system: bytes) -> Branch:
    return live_sessions.add_branch(
        Branch(live_session.tenant, live_session.session, make_id(), kind, system, live_session)
    )


def _fork_branch(
    live_sessions: LiveSessions, branch: Branch, kind: BranchKind, system: bytes, shared: Sequence[bytes], length: int
) -> Branch:
    """Make a branch that branches off another: it inherits the edits on the messages that both share. length: messages
    of the request that begins it."""
    fork = _make_branch(live_sessions, branch.live_session, kind, system)
    fork.inherit(branch, shared, length)
    return fork
