"""The keyword index over messages and summaries: what makes a session searchable, and what a search asks (FEATURES E6).

It is filled when a session is searched, by the thread that writes, with what the session has got since the last time:
whoever never searches pays nothing for it, neither time nor space. On SQLite it is an FTS5 table without content of
its own: the texts are those of the messages and edits, read through a view. On PostgreSQL a tsvector column takes its
place.

One index holds all sessions, so every text in it begins with a word that names its tenant and session, every search
asks for that word, and what comes out is compared with the tenant and session once more.
"""

from __future__ import annotations

import hashlib
import re

from msgspec import Struct

WORDS = 32
"""Words of a query that are searched for."""

_WORD = re.compile(r"[^\W_]{2,40}")


class IndexRow(Struct, frozen=True, gc=False):
    """Brings a session's index up to date; nothing is lost where it cannot be written."""

    tenant: str
    session: str


class Match(Struct, frozen=True, gc=False):
    """A message or summary that a search has found. key: of the message, or of the one that the summary stands in."""

    kind: str
    key: bytes
    role: str
    text: str
    rank: float
    """BM25 as SQLite has it: the lower the better."""


_INDEXED = """
CREATE TABLE indexed (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    kind TEXT NOT NULL,
    thread TEXT NOT NULL,
    version BIGINT NOT NULL,
    key BLOB NOT NULL,
    doc BIGINT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    PRIMARY KEY (tenant, session, kind, thread, version)
)"""
# version: a message's seq, or an edit's number; the highest one says how far the index has come.

_JSON = "CAST(m.body AS TEXT)"
_TEXTS = f"""
CREATE VIEW index_texts AS
SELECT i.doc AS doc, i.scope AS scope, coalesce(m.role, '') AS role,
    CASE
        WHEN i.kind <> 'message' THEN coalesce(CAST(e.text AS TEXT), '')
        WHEN m.body IS NULL THEN ''
        WHEN json_valid({_JSON}) THEN
            CASE json_type({_JSON}, '$.content')
                WHEN 'text' THEN json_extract({_JSON}, '$.content')
                WHEN 'array' THEN coalesce((
                    SELECT group_concat(CASE p.type WHEN 'object' THEN json_extract(p.value, '$.text') END, ' ')
                    FROM json_each({_JSON}, '$.content') p), '')
                ELSE ''
            END || ' ' || coalesce((
                SELECT group_concat(CASE c.type WHEN 'object' THEN
                    coalesce(json_extract(c.value, '$.function.name'), '') || ' ' ||
                    replace(coalesce(json_extract(c.value, '$.function.arguments'), ''), '\n', ' ') END, ' ')
                FROM json_each({_JSON}, '$.tool_calls') c), '')
        ELSE {_JSON}
    END AS text
FROM indexed i
LEFT JOIN messages m ON i.kind = 'message' AND m.tenant = i.tenant AND m.session = i.session AND m.key = i.key
LEFT JOIN edits e ON i.kind <> 'message' AND e.tenant = i.tenant AND e.session = i.session AND e.thread = i.thread
    AND e.number = i.version
"""  # noqa: S608  put together from constants

MIGRATION: tuple[str, ...] = (
    _INDEXED,
    _TEXTS,
    # Without positions of words, which nothing asks for, it takes a third of the space.
    """
CREATE VIRTUAL TABLE keywords USING fts5 (
    scope, text, content = 'index_texts', content_rowid = 'doc', detail = 'column',
    tokenize = 'unicode61 remove_diacritics 2'
)""",
    """
CREATE TRIGGER indexed_in AFTER INSERT ON indexed BEGIN
    INSERT INTO keywords (rowid, scope, text) SELECT doc, scope, text FROM index_texts WHERE doc = new.doc;
END""",
    """
CREATE TRIGGER indexed_out BEFORE DELETE ON indexed BEGIN
    INSERT INTO keywords (keywords, rowid, scope, text)
    SELECT 'delete', doc, scope, text FROM index_texts WHERE doc = old.doc;
END""",
    # The words of a text leave while the text is still there to tell which they are.
    """
CREATE TRIGGER messages_out BEFORE DELETE ON messages BEGIN
    DELETE FROM indexed WHERE tenant = old.tenant AND session = old.session AND kind = 'message' AND thread = ''
        AND version = old.seq;
END""",
    """
CREATE TRIGGER edits_out BEFORE DELETE ON edits BEGIN
    DELETE FROM indexed WHERE tenant = old.tenant AND session = old.session AND kind = 'summary'
        AND thread = old.thread AND version = old.number;
END""",
)

INDEX_SESSION = """
INSERT INTO indexed (tenant, session, kind, thread, version, key, doc, scope)
SELECT n.tenant, n.session, n.kind, n.thread, n.version, n.key,
    (SELECT coalesce(max(d.doc), 0) FROM indexed d) + row_number() OVER (ORDER BY n.kind, n.thread, n.version), $1
FROM (
    SELECT m.tenant, m.session, 'message' AS kind, '' AS thread, m.seq AS version, m.key FROM messages m
    WHERE m.tenant = $2 AND m.session = $3 AND m.seq > (
        SELECT coalesce(max(i.version), 0) FROM indexed i
        WHERE i.tenant = $4 AND i.session = $5 AND i.kind = 'message' AND i.thread = '')
    UNION ALL
    SELECT e.tenant, e.session, 'summary', e.thread, e.number, e.key FROM edits e
    WHERE e.tenant = $6 AND e.session = $7 AND e.stage IN ('compress_levels', 'summarize_old')
        AND e.action IN ('text', 'append') AND e.number > (
            SELECT coalesce(max(i.version), 0) FROM indexed i
            WHERE i.tenant = e.tenant AND i.session = e.session AND i.kind = 'summary' AND i.thread = e.thread)
) n WHERE true
ON CONFLICT (tenant, session, kind, thread, version) DO NOTHING"""

SEARCH = """
SELECT i.kind, i.key, t.role, CAST(t.text AS BLOB), f.score
FROM (SELECT rowid AS doc, bm25(keywords) AS score FROM keywords WHERE keywords MATCH $1 ORDER BY rank LIMIT $2) f
JOIN indexed i ON i.doc = f.doc
JOIN index_texts t ON t.doc = f.doc
WHERE i.tenant = $3 AND i.session = $4
ORDER BY f.score, f.doc DESC"""


def scope(tenant: str, session: str) -> str:
    """The word that names a session of a tenant in the index."""
    name = f"{len(tenant)}:{tenant}{session}".encode("utf-8", "surrogatepass")
    return "s" + hashlib.blake2b(name, digest_size=16).hexdigest()


def index_args(row: IndexRow) -> tuple[str, ...]:
    """The arguments of INDEX_SESSION."""
    place = (row.tenant, row.session)
    return (scope(*place), *place, *place, *place)


def query(tenant: str, session: str, text: str) -> str:
    """What FTS5 is asked: any word of the text, in this session; "" where the text has no word. Words are quoted, so
    that nothing in them is taken for an operator."""
    words = list(dict.fromkeys(_WORD.findall(text.lower())))[:WORDS]
    if not words:
        return ""
    return f'scope : "{scope(tenant, session)}" AND text : (' + " OR ".join(f'"{word}"' for word in words) + ")"
