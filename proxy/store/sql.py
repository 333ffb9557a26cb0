"""All SQL statements, each once, as constants with $1 placeholders: the same text for SQLite and PostgreSQL.

The statements use only SQL that both understand: ON CONFLICT, recursive WITH, scalar subqueries. The placeholders of a
statement come in order, each once. So SQLite's text is made by writing `?` for each (numbered ones draw a
DeprecationWarning from some releases of Python 3.12); a value needed twice is passed twice.

A join marked `each` is a look-up by primary key for each row on its left. `for_postgres` tells PostgreSQL so. Otherwise
its planner takes a session for one row, as it does with tables without statistics, and reads all of it each time.

ON CONFLICT names its columns. So a clash on a running number is not ignored but raised, and the transaction is tried
again. Such a clash comes from two replicas that write to one session at once.
"""

from __future__ import annotations

import functools
import re

from proxy.store.row_reader import expand_per_chunk

MAX_HITS = 32
"""Maximum number of hits of `find_chain_hits`: identity is decided among the deepest few."""


INSERT_SESSION = """
INSERT INTO sessions (tenant, session, explicit, created_at, settings, last_at, policy)
VALUES ($1, $2, $3, $4, $5, $6, '')
ON CONFLICT (tenant, session) DO NOTHING"""

INSERT_BRANCH = """
INSERT INTO branches (tenant, session, branch, parent, fork_key, kind, system, created_at, tip, last_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (tenant, session, branch) DO NOTHING"""

UPDATE_BRANCH_TIP = """
UPDATE branches SET tip = $1, answer = $2, last_at = $3, stopped = $4, asked = $5
WHERE tenant = $6 AND session = $7 AND branch = $8"""

TOUCH_SESSION = """
UPDATE sessions SET last_at = $1 WHERE tenant = $2 AND session = $3 AND last_at < $4"""
"""Updates a session's last use, for the list of sessions."""

SESSION_POLICY = """
UPDATE sessions SET policy = $1 WHERE tenant = $2 AND session = $3 AND policy <> $4"""

INSERT_MESSAGE = """
INSERT INTO messages (tenant, session, key, parent, position, branch, role, group_id, body, form, call_id, status,
    strategy, tokens, answer, reached, created_at, seq)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
    (SELECT coalesce(max(m.seq), 0) + 1 FROM messages m WHERE m.tenant = $18 AND m.session = $19))
ON CONFLICT (tenant, session, key) DO NOTHING"""

INSERT_FORM = """
INSERT INTO forms (tenant, session, form, body) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, session, form) DO NOTHING"""

INSERT_EDIT = """
INSERT INTO edits (tenant, session, branch, key, version, stage, reason, action, text, before, after, exchange,
    created_at, number)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
    (SELECT coalesce(max(e.number), 0) + 1 FROM edits e WHERE e.tenant = $14 AND e.session = $15 AND e.branch = $16))
ON CONFLICT (tenant, session, branch, key, version) DO NOTHING"""

INSERT_STATE = """
INSERT INTO states (tenant, session, branch, key, text, created_at, number)
VALUES ($1, $2, $3, $4, $5, $6,
    (SELECT coalesce(max(s.number), 0) + 1 FROM states s WHERE s.tenant = $7 AND s.session = $8 AND s.branch = $9))
ON CONFLICT (tenant, session, branch, key) DO NOTHING"""

INSERT_EXCHANGE = """
INSERT INTO exchanges (tenant, session, exchange, branch, tip, messages, envelope, forms, edits, inserts, policy,
    schedule, model, upstream, strategy, tokens_before, tokens_after, predicted, started_at, status)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, 'open')
ON CONFLICT (tenant, session, exchange) DO NOTHING"""

UPDATE_OUTCOME = """
UPDATE exchanges SET status = $1, http_status = $2, finish = $3, prompt_tokens = $4, completion_tokens = $5,
    cached_tokens = $6, answer = $7, fallback = $8, first_byte_ms = $9, ended_at = $10, note = $11, meter = $12
WHERE tenant = $13 AND session = $14 AND exchange = $15"""

ADD_GAP = """
INSERT INTO gaps (tenant, session, exchange, bytes, reason, created_at, items) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, session, exchange, reason) DO UPDATE SET
    bytes = gaps.bytes + excluded.bytes, items = gaps.items + excluded.items, created_at = excluded.created_at"""

INSERT_HELPER_ANSWER = """
INSERT INTO helper_answers (tenant, session, ask, kind, model, prompt_tokens, completion_tokens, dollars, created_at,
    text)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (tenant, session, ask) DO NOTHING"""

INSERT_ITERATION = """
INSERT INTO iterations (tenant, session, branch, key, number, ask, created_at, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (tenant, session, branch, key)
DO UPDATE SET ask = CASE WHEN excluded.ask = '' THEN iterations.ask ELSE excluded.ask END"""

INSERT_VECTOR = """
INSERT INTO embeddings (tenant, session, model, form, vector, created_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, session, model, form) DO NOTHING"""

ADD_SPENDING = """
INSERT INTO spending (tenant, session, day, kind, asked, prompt_tokens, completion_tokens, dollars)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (tenant, session, day, kind) DO UPDATE SET
    asked = spending.asked + excluded.asked, prompt_tokens = spending.prompt_tokens + excluded.prompt_tokens,
    completion_tokens = spending.completion_tokens + excluded.completion_tokens,
    dollars = spending.dollars + excluded.dollars"""

PUT_CONTEXT_WINDOW = """
INSERT INTO context_windows (tenant, session, upstream, model, tokens, seen_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, session, upstream, model) DO UPDATE SET tokens = excluded.tokens, seen_at = excluded.seen_at"""

_HIT = """
SELECT m.session, m.branch, m.key, m.position, m.reached, m.answer, coalesce(t.last_at, m.created_at), t.system
FROM messages m
LEFT JOIN branches t ON /* each */ (t.tenant = m.tenant AND t.session = m.session AND t.branch = m.branch)
"""

FIND_IN_SESSION = expand_per_chunk(_HIT + "WHERE m.tenant = ? AND m.session = ? AND m.key IN ({keys})")

FIND = expand_per_chunk(_HIT + "WHERE m.tenant = ? AND m.key IN ({keys}) AND m.answer LIMIT ?")

FIND_NEWEST = _HIT + "WHERE m.tenant = $1 AND m.key = $2 AND m.answer ORDER BY m.created_at DESC LIMIT $3"
"""Used for a key that more sessions share than `FIND` may return."""

KNOWN = expand_per_chunk("""
SELECT m.key, m.form, m.branch, m.reached, m.strategy, m.created_at FROM messages m
WHERE m.tenant = ? AND m.session = ? AND m.key IN ({keys})""")

BRANCH = """
SELECT tenant, session, branch, parent, fork_key, kind, system, created_at, tip, answer, last_at, stopped, offer,
    asked
FROM branches WHERE tenant = $1 AND session = $2 AND branch = $3"""

BRANCHES = """
SELECT tenant, session, branch, parent, fork_key, kind, system, created_at
FROM branches WHERE tenant = $1 AND session = $2 ORDER BY created_at, branch"""

STATES = """
SELECT tenant, session, branch, key, text, created_at
FROM states WHERE tenant = $1 AND session = $2 AND branch = $3 ORDER BY number"""

NEWEST_STATES = """
SELECT s.tenant, s.session, s.branch, s.key, s.text, s.created_at
FROM states s
JOIN branches t ON /* each */ (t.tenant = s.tenant AND t.session = s.session AND t.branch = s.branch)
WHERE s.tenant = $1 AND s.session = $2 AND t.kind <> 'side' AND t.system = $3
ORDER BY s.created_at DESC, s.number DESC LIMIT $4"""

_NEWEST_EDITS = """
    SELECT e.tenant, e.session, e.branch, e.key, e.version, e.stage, e.reason, e.action, e.text, e.before, e.after,
        e.exchange, e.created_at, e.number, row_number() OVER (PARTITION BY {what} ORDER BY e.version DESC) AS newer
    FROM edits e WHERE e.tenant = $1 AND e.session = $2 AND e.branch = $3 AND e.number <= $4
"""
"""A window function, because a look for newer versions from each edit can become quadratic. This happens in SQLite if
it looks up by number, in PostgreSQL if it has no statistics."""

EDITS = f"""
SELECT tenant, session, branch, key, version, stage, reason, action, text, before, after, exchange, created_at, number
FROM ({_NEWEST_EDITS.format(what="e.key, e.action IN ('pin', 'unpin')")}) newest
WHERE newer = 1 ORDER BY number"""  # noqa: S608  put together from constants

IS_LITERAL = """
SELECT 1 FROM exchanges WHERE tenant = $1 AND session = $2 AND exchange = $3 AND schedule = 'always'"""
"""Finds out if that exchange ran under a literal policy: its edits hold only for requests under literal policies."""

_LASTING_EDITS = f"""{_NEWEST_EDITS.rstrip()} AND NOT EXISTS (
        SELECT 1 FROM exchanges x WHERE x.tenant = e.tenant AND x.session = e.session AND x.exchange = e.exchange
        AND x.schedule = 'always')
"""  # noqa: S608  put together from constants
NONLITERAL_EDITS = f"""
SELECT tenant, session, branch, key, version, stage, reason, action, text, before, after, exchange, created_at, number
FROM ({_LASTING_EDITS.format(what="e.key, e.action IN ('pin', 'unpin')")}) newest
WHERE newer = 1 ORDER BY number"""  # noqa: S608  put together from constants

DECISIONS = f"""
SELECT 'edit', branch, key, version, stage, reason, action, text, before, after, exchange, created_at, number
FROM ({_NEWEST_EDITS.format(what="e.key, e.action IN ('pin', 'unpin')")}) newest
WHERE newer = 1
UNION ALL
SELECT 'note', n.note, NULL, 0, n.kind, '', '', n.text, 0, 0, '', n.created_at, 0
FROM notes n WHERE n.tenant = $5 AND n.session = $6 AND n.branch = $7 AND length(n.text) > 0
UNION ALL
SELECT 'settings', s.settings, NULL, 0, '', '', '', NULL, 0, 0, '', 0.0, 0
FROM sessions s WHERE s.tenant = $8 AND s.session = $9"""  # noqa: S608  put together from constants
"""The newest edits, the notes and the settings in one round trip. The edits come first: PostgreSQL takes the columns'
types from them."""

LEFT_OUT = f"""
SELECT m.key, m.seq, newest.stage, newest.reason, newest.exchange, newest.created_at
FROM ({_NEWEST_EDITS.format(what="e.key")}) newest
JOIN messages m ON /* each */ (m.tenant = newest.tenant AND m.session = newest.session AND m.key = newest.key)
WHERE newest.newer = 1 AND newest.action = 'gone' ORDER BY m.seq"""  # noqa: S608  put together from constants

SESSION = """
SELECT tenant, session, explicit, created_at, settings, last_at, policy
FROM sessions WHERE tenant = $1 AND session = $2"""

SESSIONS = """
SELECT tenant, session FROM sessions WHERE (tenant, session) > ($1, $2) ORDER BY tenant, session LIMIT $3"""
"""Sessions in pages in the order of the primary key, so that no report reads a whole table at once."""

SESSIONS_USED_SINCE = """
SELECT tenant, session FROM sessions WHERE (tenant, session) > ($1, $2) AND last_at >= $3
ORDER BY tenant, session LIMIT $4"""

COUNTED_TABLES = (
    *("messages", "forms", "edits", "states", "exchanges", "gaps", "helper_answers", "embeddings", "iterations"),
    *("hidden_rounds", "scratchpads", "notes"),
)
"""The columns of SESSION_COUNTS."""

_COUNT_OF = "(SELECT count(*) FROM {} WHERE tenant = ${} AND session = ${})"

SESSION_COUNTS = "SELECT " + ", ".join(_COUNT_OF.format(t, 2 * n + 1, 2 * n + 2) for n, t in enumerate(COUNTED_TABLES))

_MESSAGE = """
SELECT m.tenant, m.session, m.key, m.parent, m.position, m.branch, m.role, m.group_id, m.body, m.form, m.call_id,
    m.status, m.strategy, m.tokens, m.answer, m.reached, m.created_at, m.seq
"""

CHAIN = f"""
WITH RECURSIVE up (key, parent, depth) AS (
    SELECT m.key, m.parent, 0 FROM messages m WHERE m.tenant = $1 AND m.session = $2 AND m.key = $3
    UNION ALL
    SELECT m.key, m.parent, up.depth + 1 FROM up
    JOIN messages m ON /* each */ (m.tenant = $4 AND m.session = $5 AND m.key = up.parent)
    WHERE m.key <> up.key AND up.depth < 100000
){_MESSAGE}
FROM up JOIN messages m ON /* each */ (m.tenant = $6 AND m.session = $7 AND m.key = up.key)
ORDER BY up.depth DESC"""  # noqa: S608  put together from constants, as all below
"""The limit of the depth ends the walk if a fault makes a circle in the hash chain."""

MESSAGES_BETWEEN = (
    _MESSAGE + "FROM messages m WHERE m.tenant = $1 AND m.session = $2 AND m.key >= $3 AND m.key < $4 LIMIT 2"
)
"""Messages with keys in a range, for example all keys of one public id."""

RETURNED_BETWEEN = (
    _MESSAGE
    + """FROM messages m WHERE m.tenant = $1 AND m.key >= $2 AND m.key < $3 AND m.answer AND m.status <> 'removed'
    ORDER BY m.created_at DESC LIMIT 1"""
)
"""The newest answer of a tenant with a key in a range, whatever its session."""

_SIZE = "SELECT m.tenant, m.session, m.key, m.seq, length(m.body) AS size"


def _make_page(sizes: str, most: str) -> str:
    """The statement for a page of messages: as many of those that `sizes` finds, in their order, as `most` bytes of
    bodies hold, and the one that goes over it."""
    return f"""{_MESSAGE}FROM (
    SELECT sized.tenant, sized.session, sized.key, sized.seq,
        sum(sized.size) OVER (ORDER BY sized.seq) - sized.size AS bytes_before
    FROM ({sizes}) sized
) page JOIN messages m ON /* each */ (m.tenant = page.tenant AND m.session = page.session AND m.key = page.key)
WHERE page.bytes_before < {most} ORDER BY page.seq"""  # noqa: S608  put together from constants


def _make_newest(page: str) -> str:
    """The same page, newest first."""
    return (
        page.replace("m.seq >", "m.seq <")
        .replace("ORDER BY m.seq", "ORDER BY m.seq DESC")
        .replace("ORDER BY sized.seq", "ORDER BY sized.seq DESC")
        .replace("ORDER BY page.seq", "ORDER BY page.seq DESC")
    )


MESSAGES = _make_page(
    _SIZE
    + """ FROM messages m WHERE m.tenant = $1 AND m.session = $2 AND m.seq > $3
    AND ($4 = '' OR m.role = $5) AND ($6 = '' OR m.group_id = $7) ORDER BY m.seq LIMIT $8""",
    "$9",
)

NEWEST_MESSAGES = _make_newest(MESSAGES)

_LINE = """
WITH RECURSIVE up (key, parent, depth) AS (
    SELECT m.key, m.parent, 0
    FROM branches t JOIN messages m ON m.tenant = t.tenant AND m.session = t.session
        AND m.key = coalesce(t.answer, t.tip)
    WHERE t.tenant = $1 AND t.session = $2 AND t.branch = $3
    UNION ALL
    SELECT m.key, m.parent, up.depth + 1 FROM up
    JOIN messages m ON /* each */ (m.tenant = $4 AND m.session = $5 AND m.key = up.parent)
    WHERE m.key <> up.key AND up.depth < 100000
)"""

BRANCH_MESSAGES = _LINE + _make_page(
    _SIZE
    + """ FROM up JOIN messages m ON /* each */ (m.tenant = $6 AND m.session = $7 AND m.key = up.key) WHERE m.seq > $8
    AND ($9 = '' OR m.role = $10) AND ($11 = '' OR m.group_id = $12) ORDER BY m.seq LIMIT $13""",
    "$14",
)
"""Messages of a branch's whole line, including those that it shares with the branch that it forked from."""

NEWEST_BRANCH_MESSAGES = _make_newest(BRANCH_MESSAGES)

_EXCHANGE = """
SELECT tenant, session, exchange, branch, tip, messages, envelope, forms, edits, inserts, policy, schedule, model,
    upstream, strategy, tokens_before, tokens_after, predicted, started_at, status, http_status, finish,
    prompt_tokens, completion_tokens, cached_tokens, answer, fallback, first_byte_ms, ended_at, note, meter
FROM exchanges
"""

EXCHANGE = _EXCHANGE + "WHERE tenant = $1 AND session = $2 AND exchange = $3"

EXCHANGES = (
    _EXCHANGE
    + "WHERE tenant = $1 AND session = $2 AND started_at < $3 ORDER BY started_at DESC, exchange DESC LIMIT $4"
)

EXCHANGES_AFTER = (
    _EXCHANGE + "WHERE tenant = $1 AND session = $2 AND (started_at, exchange) > ($3, $4) AND started_at < $5"
    " ORDER BY started_at, exchange LIMIT $6"
)
"""Exchanges in pages, oldest first, for exports."""

FORM = "SELECT body FROM forms WHERE tenant = $1 AND session = $2 AND form = $3"

HELPER_ANSWER = "SELECT text FROM helper_answers WHERE tenant = $1 AND session = $2 AND ask = $3"

HELPER_ANSWERS = (
    "SELECT ask, text FROM helper_answers WHERE tenant = $1 AND session = $2 ORDER BY created_at DESC LIMIT $3"
)

MAX_HELPER_ANSWERS = 1000
"""Maximum number of a session's answers that are read back; prompts of that length ask for no earlier ones."""

ITERATIONS = """
SELECT i.tenant, i.session, i.branch, i.key, i.number, i.ask, i.created_at, i.body, a.text
FROM iterations i
LEFT JOIN helper_answers a ON /* each */ (a.tenant = i.tenant AND a.session = i.session AND a.ask = i.ask)
WHERE i.tenant = $1 AND i.session = $2 AND i.branch = $3 ORDER BY i.created_at, i.number"""

VECTORS = expand_per_chunk(
    "SELECT form, vector FROM embeddings WHERE tenant = ? AND session = ? AND model = ? AND form IN ({keys})"
)

CONTEXT_WINDOWS = """
SELECT tenant, session, upstream, model, tokens, seen_at
FROM context_windows WHERE seen_at > $1 ORDER BY seen_at DESC LIMIT 1000"""

SUM_SPENDING = "SELECT coalesce(sum(dollars), 0.0) FROM spending WHERE tenant = $1 AND session = $2 AND day = $3"

_PLACEHOLDER = re.compile(r"\$(\d+)")


@functools.cache
def for_sqlite(text: str) -> str:
    """The statement with `?` for placeholders. Raises ValueError if they are not in order, each once."""
    numbers = [int(number) for number in _PLACEHOLDER.findall(text)]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ValueError(f"placeholders must come in order, each once: {numbers} in {text.strip()[:60]!r}")
    return _PLACEHOLDER.sub("?", text)


_EACH = re.compile(r"JOIN (\w+) (\w+) ON /\* each \*/ \(([^()]*)\)")


@functools.cache
def for_postgres(text: str) -> str:
    """The statement with lateral look-ups for joins marked `each`; OFFSET 0 keeps the planner from undoing that."""
    return _EACH.sub(r"JOIN LATERAL (SELECT * FROM \1 \2 WHERE \3 OFFSET 0) \2 ON true", text)
