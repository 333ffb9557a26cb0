"""The keyword index on PostgreSQL: one tsvector per message or summary, filled when its session is searched.

The words are taken from the texts here, as `full_text_search` takes them for SQLite's index. PostgreSQL's own JSON
refuses strings that clients may send (a lone surrogate, NUL). A search reads the vectors of its own session by the
primary key: no index over all sessions has to be kept.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import DecodeError
from msgspec.json import decode

from proxy.chat.unicode_text import normalize
from proxy.notes.topic_words import find_search_words, prepare_index_text
from proxy.store.full_text_search import INDEX_FORM, MAX_INDEXED_BYTES, MAX_QUERY_WORDS, SearchMatch
from proxy.store.row_reader import MAX_PAGE_BYTES
from proxy.store.texts import to_text

_WORD = re.compile(r"[^\W_]{1,40}")
MAX_INDEXED_WORDS = 20_000
"""Maximum number of indexed words of one text: a tsvector may have a megabyte, and positions up to 16,383."""

MIGRATION: tuple[str, ...] = (
    """
CREATE TABLE indexed (
    tenant TEXT COLLATE "C" NOT NULL,
    session TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    thread TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    key BYTEA NOT NULL,
    words TSVECTOR NOT NULL,
    PRIMARY KEY (tenant, session, kind, thread, version)
)""",
    # The index row of a message or an edit is removed with it.
    """
CREATE FUNCTION context_proxy_messages_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM indexed WHERE tenant = old.tenant AND session = old.session AND kind = 'message' AND thread = ''
        AND version = old.seq;
    RETURN NULL;
END $$""",
    """
CREATE FUNCTION context_proxy_edits_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM indexed WHERE tenant = old.tenant AND session = old.session AND kind = 'summary'
        AND thread = old.thread AND version = old.number;
    RETURN NULL;
END $$""",
    "CREATE TRIGGER messages_out AFTER DELETE ON messages FOR EACH ROW EXECUTE FUNCTION context_proxy_messages_out()",
    "CREATE TRIGGER edits_out AFTER DELETE ON edits FOR EACH ROW EXECUTE FUNCTION context_proxy_edits_out()",
)

PAIRS_MIGRATION: tuple[str, ...] = ("ALTER TABLE indexed ADD COLUMN form BIGINT NOT NULL DEFAULT 1",)

BRANCH_MIGRATION: tuple[str, ...] = (
    """
CREATE OR REPLACE FUNCTION context_proxy_messages_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM indexed WHERE tenant = old.tenant AND session = old.session AND kind = 'message' AND branch = ''
        AND version = old.seq;
    RETURN NULL;
END $$""",
    """
CREATE OR REPLACE FUNCTION context_proxy_edits_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM indexed WHERE tenant = old.tenant AND session = old.session AND kind = 'summary'
        AND branch = old.branch AND version = old.number;
    RETURN NULL;
END $$""",
)
"""The functions again, after the column that they name has another name. SQLite changes its triggers itself."""

_DROP_EARLIER = "DELETE FROM indexed WHERE tenant = $1 AND session = $2 AND form < $3"

_NEW = f"""
SELECT 'message', '', m.seq, m.key, m.body FROM (
    SELECT sized.seq, sum(sized.size) OVER (ORDER BY sized.seq) - sized.size AS bytes_before FROM (
        SELECT n.seq, length(n.body) AS size FROM messages n
        WHERE n.tenant = $1 AND n.session = $2 AND n.seq > (
            SELECT coalesce(max(i.version), 0) FROM indexed i
            WHERE i.tenant = $1 AND i.session = $2 AND i.kind = 'message' AND i.branch = '')
        ORDER BY n.seq LIMIT $3) sized
) page JOIN messages m ON m.tenant = $1 AND m.session = $2 AND m.seq = page.seq
WHERE page.bytes_before < {MAX_PAGE_BYTES}
UNION ALL
SELECT 'summary', e.branch, e.number, e.key, coalesce(e.text, '') FROM edits e
WHERE e.tenant = $1 AND e.session = $2 AND e.stage IN ('compress_levels', 'summarize_old')
    AND e.action IN ('text', 'append') AND e.number > (
        SELECT coalesce(max(i.version), 0) FROM indexed i
        WHERE i.tenant = $1 AND i.session = $2 AND i.kind = 'summary' AND i.branch = e.branch)
ORDER BY 1, 2, 3"""  # noqa: S608  put together from constants
# In order, because the highest indexed number shows how far the index has come.

_PAGE = 500
"""Messages that one step indexes at most. It holds the writer, and its texts are in memory."""

_INSERT = """
INSERT INTO indexed (tenant, session, kind, branch, version, key, form, words)
VALUES ($1, $2, $3, $4, $5, $6, $7, to_tsvector('simple', $8))
ON CONFLICT (tenant, session, kind, branch, version) DO NOTHING"""

SEARCH = """
SELECT page.kind, page.key, coalesce(m.role, ''), coalesce(m.body, e.text), page.rank, page.branch
FROM (
    SELECT sized.*, sum(sized.size) OVER (
        ORDER BY sized.rank, sized.kind DESC, sized.version DESC ROWS UNBOUNDED PRECEDING) - sized.size < $1 AS is_read
    FROM (
        SELECT i.*, coalesce(
            (SELECT length(s.body) FROM messages s
                WHERE i.kind = 'message' AND s.tenant = i.tenant AND s.session = i.session AND s.key = i.key),
            (SELECT length(s.text) FROM edits s
                WHERE i.kind <> 'message' AND s.tenant = i.tenant AND s.session = i.session AND s.branch = i.branch
                    AND s.number = i.version), 0) AS size
        FROM (
            SELECT n.tenant, n.session, n.kind, n.branch, n.version, n.key, -ts_rank(n.words, q, 1) AS rank
            FROM to_tsquery('simple', $2) q, indexed n
            WHERE n.tenant = $3 AND n.session = $4 AND n.words @@ q
            ORDER BY 7, n.kind DESC, n.version DESC LIMIT $5
        ) i
    ) sized
) page
LEFT JOIN LATERAL (
    SELECT s.role, CASE WHEN page.is_read THEN s.body END AS body FROM messages s
    WHERE page.kind = 'message' AND s.tenant = page.tenant AND s.session = page.session AND s.key = page.key
    OFFSET 0) m ON true
LEFT JOIN LATERAL (
    SELECT s.text FROM edits s
    WHERE page.kind <> 'message' AND page.is_read AND s.tenant = page.tenant AND s.session = page.session
        AND s.branch = page.branch AND s.number = page.version OFFSET 0) e ON true
ORDER BY page.rank, page.kind DESC, page.version DESC"""


async def update_index(connection: Any, tenant: str, session: str) -> None:
    """Index some of the session's new rows. connection: asyncpg's, in a transaction that holds the session's lock."""
    await connection.execute(_DROP_EARLIER, tenant, session, INDEX_FORM)
    rows = await connection.fetch(_NEW, tenant, session, _PAGE)
    index_rows = await asyncio.to_thread(_list_words, rows)  # some 50 ms for a long message
    await connection.executemany(_INSERT, [(tenant, session, *row, INDEX_FORM, words) for *row, words in index_rows])


def _list_words(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(*row[:4], " ".join(extract_words(extract_text(row[0], row[4])[:MAX_INDEXED_BYTES]))) for row in rows]


def build_query(text: str) -> str:
    """The query for `to_tsquery`: any word of letters and digits; "" if the text has none."""
    wanted = list(dict.fromkeys(extract_words(" ".join(find_search_words(text)))))[:MAX_QUERY_WORDS]
    return " | ".join(f"'{word}'" for word in wanted)


def read_match(row: Sequence[Any]) -> SearchMatch:
    has_text = row[3] is not None
    return SearchMatch(
        row[0], bytes(row[1]), row[2], extract_text(row[0], row[3]) if has_text else "", row[4], has_text, row[5]
    )


def extract_words(text: str) -> list[str]:
    """The words of a text in lower case and without diacritics, as SQLite's index has them."""
    bare = "".join(c for c in normalize("NFD", prepare_index_text(text.lower())) if not unicodedata.combining(c))
    return _WORD.findall(bare)[:MAX_INDEXED_WORDS]


def extract_text(kind: str, body: bytes) -> str:
    """The text of a message and of its calls, or a summary's text."""
    if kind != "message":
        return to_text(body).encode("utf-8", "replace").decode()
    try:
        message = decode(body)
    except (DecodeError, RecursionError):
        return body.decode("utf-8", "replace")
    return " ".join(_extract_texts(message)) if isinstance(message, dict) else ""


def _extract_texts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        yield " ".join(text for text in texts if isinstance(text, str))
    else:
        yield ""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = str(function.get("arguments") or "").replace("\\n", " ")
            yield f"{function.get('name') or ''} {arguments}"
