"""Lists for people: sessions by their last activity, and filters of messages. Every list is paged by a cursor, so
that no read grows with the store.

The number of messages in a session's line is read from the end of an index, not counted.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from msgspec import DecodeError, Struct
from msgspec.json import decode

from proxy.store.row_reader import RowReader, expand_per_chunk, split_into_chunks

SessionCursor = tuple[float, str, str]
"""(last_at, tenant, session) of the last line of a page."""


class SessionItem(Struct, frozen=True, gc=False):
    """A line in the list of sessions."""

    tenant: str
    session: str
    explicit: bool
    created_at: float
    last_at: float
    policy: str
    """The policy of the newest request, "" before there is one."""
    settings: str
    messages: int
    """Messages stored so far, those removed by retention included."""
    exchanges: int
    """Requests. An imported conversation is none."""
    branches: int

    @property
    def cursor(self) -> SessionCursor:
        """The cursor of the next page."""
        return (self.last_at, self.tenant, self.session)


class MessageFilter(Struct, frozen=True, gc=False):
    """Filter of a list of messages; all pass by default."""

    role: str = ""
    group: str = ""
    branch: str = ""
    """Messages of this branch's whole line, including those that it shares with the branch that it forked from."""
    text: str = ""
    """A part of the message's text, in any case."""


class SessionFilter(Struct, frozen=True, gc=False):
    """Filter of a list of sessions; all pass by default."""

    text: str = ""
    """A part of the session's name, in any case."""
    since: float = 0.0
    """Unix time: sessions used at this time or later."""
    explicit: bool | None = None
    policy: str = ""


MIGRATION: tuple[str, ...] = (
    "ALTER TABLE sessions ADD COLUMN last_at DOUBLE PRECISION NOT NULL DEFAULT 0",
    "ALTER TABLE sessions ADD COLUMN policy TEXT NOT NULL DEFAULT ''",
    """
UPDATE sessions SET
    last_at = coalesce((SELECT max(t.last_at) FROM threads t
        WHERE t.tenant = sessions.tenant AND t.session = sessions.session), created_at),
    policy = coalesce((SELECT e.policy FROM exchanges e
        WHERE e.tenant = sessions.tenant AND e.session = sessions.session
        ORDER BY e.started_at DESC LIMIT 1), '')""",
    # The indexes contain all columns that a list is filtered by. So a filter that few sessions pass reads the index
    # alone.
    "CREATE INDEX sessions_by_use ON sessions (tenant, last_at, session, explicit, policy)",
    "CREATE INDEX sessions_by_time ON sessions (last_at, tenant, session, explicit, policy)",
    # For retention: branches past their time.
    "CREATE INDEX threads_by_time ON threads (last_at)",
    "CREATE INDEX sessions_by_name ON sessions (session, tenant)",
)

IMPORTED_NOTE = "imported"
"""The note of an exchange that stands for an imported conversation: no request came."""
REPLANNED_NOTE = "the prompt was too long; planned once more"
"""The note of a prompt that the upstream refused, while the client got the answer of another exchange."""

_SESSION = f"""
SELECT s.tenant, s.session, s.explicit, s.created_at, s.last_at, s.policy, s.settings,
    (SELECT coalesce(max(m.seq), 0) FROM messages m WHERE m.tenant = s.tenant AND m.session = s.session),
    (SELECT count(*) FROM exchanges e WHERE e.tenant = s.tenant AND e.session = s.session)
        - CASE WHEN (SELECT e.note FROM exchanges e WHERE e.tenant = s.tenant AND e.session = s.session
            ORDER BY e.started_at LIMIT 1) = '{IMPORTED_NOTE}' THEN 1 ELSE 0 END,
    (SELECT count(*) FROM branches t WHERE t.tenant = s.tenant AND t.session = s.session)
FROM sessions s
"""  # noqa: S608  put together from constants
"""An import is the first exchange of its session, and no request."""

_PASSES = """ AND s.last_at >= $4 AND ($5 = '' OR s.explicit = ($6 = 'yes'))
    AND ($7 = '' OR s.policy = $8) AND ($9 = '' OR lower(s.session) LIKE $10 ESCAPE '!')
"""

TENANT_SESSIONS = (
    _SESSION
    + "WHERE s.tenant = $1 AND (s.last_at, s.session) < ($2, $3)"
    + _PASSES
    + "ORDER BY s.last_at DESC, s.session DESC LIMIT $11"
)

ALL_SESSIONS = (
    _SESSION
    + "WHERE (s.last_at, s.tenant, s.session) < ($1, $2, $3)"
    + _PASSES
    + "ORDER BY s.last_at DESC, s.tenant DESC, s.session DESC LIMIT $11"
)

FIRST_PROMPTS = """
SELECT CASE WHEN length(m.body) <= 16384 THEN m.body ELSE substr(m.body, 1, 16384) END FROM messages m
WHERE m.tenant = $1 AND m.session = $2 AND m.seq <= 50 AND m.role = 'user' ORDER BY m.seq LIMIT 4"""
"""A long message is cut: only its beginning is shown."""

SESSION_TENANTS = "SELECT DISTINCT tenant FROM sessions WHERE session = $1 ORDER BY tenant LIMIT $2"
"""Used only by callers that see every tenant."""

_BEHIND_ALL = (1e300, "", "")


TOKEN_SNAPSHOTS = expand_per_chunk("""
WITH RECURSIVE up (start, key, parent, role) AS (
    SELECT m.key, m.key, m.parent, m.role FROM messages m WHERE m.tenant = ? AND m.session = ? AND m.key IN ({keys})
    UNION ALL
    SELECT up.start, m.key, m.parent, m.role FROM up
    JOIN messages m ON /* each */ (m.tenant = ? AND m.session = ? AND m.key = up.parent)
    WHERE up.role IN ('tool', 'function') AND m.key <> up.key
)
SELECT up.start, e.prompt_tokens + coalesce(e.completion_tokens, 0) FROM up
JOIN exchanges e ON /* each */ (e.tenant = ? AND e.session = ? AND e.answer = up.key)
WHERE up.role = 'assistant' AND e.prompt_tokens IS NOT NULL ORDER BY e.started_at""")
"""Finds the answer with the call, from a result upwards, and the usage reported for that answer."""


_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""The same mapping as `lower` of both databases, which leave other letters unchanged."""


def _make_like_pattern(text: str) -> str:
    for special in "!%_":
        text = text.replace(special, "!" + special)
    return f"%{text.translate(_LOWER)}%"


def contains_text(body: bytes, text: str) -> bool:
    """True if any text in a message contains `text`, in any case."""
    try:
        value = decode(body)
    except (DecodeError, RecursionError):
        return text.casefold() in body.decode("utf-8", "replace").casefold()
    return _contains(value, text.casefold())


def _contains(value: object, text: str) -> bool:
    if isinstance(value, str):
        return text in value.casefold()
    if isinstance(value, dict):
        return any(_contains(one, text) for one in value.values())
    return isinstance(value, list) and any(_contains(one, text) for one in value)


class SessionListReads(RowReader):
    """The reads of a store that list sessions."""

    async def read_token_snapshots(self, tenant: str, session: str, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Tokens of the prompt and of the answer together, as the provider reported them. The keys are those of the
        proxy's answers and of the results of their calls."""
        snapshots: dict[bytes, int] = {}
        for chunk in split_into_chunks(keys):
            args = (tenant, session, *chunk, tenant, session, tenant, session)
            snapshots.update(await self._fetch(TOKEN_SNAPSHOTS[len(chunk)], args))
        return snapshots

    async def list_sessions(
        self, tenant: str | None, after: SessionCursor | None = None, limit: int = 50, only: SessionFilter | None = None
    ) -> list[SessionItem]:
        """Sessions, last used first, of one tenant or of all (None). `after`: the `place` of the last session seen."""
        passes = only or SessionFilter()
        asked = "" if passes.explicit is None else "yes" if passes.explicit else "no"
        place = after or _BEHIND_ALL
        args = (
            *(passes.since, asked, asked, passes.policy, passes.policy, passes.text),
            *(_make_like_pattern(passes.text), limit),
        )
        if tenant is None:
            rows = await self._fetch(ALL_SESSIONS, (*place, *args))
        else:
            rows = await self._fetch(TENANT_SESSIONS, (tenant, place[0], place[2], *args))
        return [SessionItem(row[0], row[1], bool(row[2]), *row[3:]) for row in rows]

    async def read_first_prompts(self, tenant: str, session: str) -> list[bytes]:
        """The JSON of the session's first messages of the user; of a long one only the beginning."""
        return [bytes(row[0]) for row in await self._fetch(FIRST_PROMPTS, (tenant, session))]

    async def read_session_tenants(self, session: str, limit: int = 2) -> list[str]:
        """The tenants that have a session of this name, in order."""
        return [row[0] for row in await self._fetch(SESSION_TENANTS, (session, limit))]
