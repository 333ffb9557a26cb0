"""The keyword index over messages and summaries: the indexed rows of a session, and the text of a search.

The writer's thread fills the index when a session is searched, with the session's new rows since the last search. A
session that is never searched costs neither time nor space. On SQLite the index is an FTS5 table without content of its
own. Its texts are those of the messages and edits, read through a view. On PostgreSQL a tsvector column takes its
place.

A script without blanks between its words is indexed and searched by pairs of characters (`notes.topic_words`). The
words of a text in such a script are stored as they were indexed. A row must be removed from the index with the same
words with which it was added.

One index holds all sessions. So every text in it begins with a word that names its tenant and session, and every search
asks for that word. The results are compared with the tenant and session once more.
"""

from __future__ import annotations

import hashlib
import sqlite3

from msgspec import Struct

from proxy.notes.topic_words import find_search_words, prepare_index_text
from proxy.store.row_reader import MAX_PAGE_BYTES

MAX_QUERY_WORDS = 32
"""Maximum number of words of a query that are searched for."""

MAX_INDEXED_BYTES = 256 << 10
"""Bytes of a text that are indexed. FTS5 reads them again to rank a match, within a read's time."""


class IndexRow(Struct, frozen=True, gc=False):
    """Brings a session's index up to date. No data is lost if the row cannot be written."""

    tenant: str
    session: str


class SearchMatch(Struct, frozen=True, gc=False):
    """A message or summary that a search has found. key: the message's, or that of the summary's message."""

    kind: str
    key: bytes
    role: str
    text: str
    rank: float
    """BM25 as SQLite computes it: lower is better."""
    has_text: bool = True
    """False if `text` is not read, and empty: the better matches have MAX_PAGE_BYTES already."""
    branch: str = ""
    """The branch that a summary is of; "" for a message."""


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
# version: a message's seq, or an edit's number. The highest version is the last one that is indexed.

_JSON = "CAST(m.body AS TEXT)"
_SUMMARY = "coalesce(CAST(e.text AS TEXT), '')"
_SAID = f"""
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
    END"""  # noqa: S608  put together from constants
_EITHER = f"""CASE
        WHEN i.kind <> 'message' THEN {_SUMMARY}{_SAID}"""
_FROM = """
FROM indexed i
LEFT JOIN messages m ON i.kind = 'message' AND m.tenant = i.tenant AND m.session = i.session AND m.key = i.key
LEFT JOIN edits e ON i.kind <> 'message' AND e.tenant = i.tenant AND e.session = i.session AND e.thread = i.thread
    AND e.number = i.version
"""
_TEXTS = f"""
CREATE VIEW index_texts AS
SELECT i.doc AS doc, i.scope AS scope, coalesce(m.role, '') AS role,
    {_EITHER} AS text{_FROM}"""

MIGRATION: tuple[str, ...] = (
    _INDEXED,
    _TEXTS,
    # Without positions of words, which no query uses, the index takes a third of the space.
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
    # The words of a text are removed while the text is still there to derive them from.
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

PAIRS_MIGRATION: tuple[str, ...] = (
    "ALTER TABLE indexed ADD COLUMN form BIGINT NOT NULL DEFAULT 1",
    # The words as indexed; NULL if they are the unchanged text.
    "ALTER TABLE indexed ADD COLUMN words TEXT",
    "DROP VIEW index_texts",
    # text: the text given to FTS5, which FTS5 reads again to rank.
    f"""
CREATE VIEW index_texts AS
SELECT i.doc AS doc, i.scope AS scope, coalesce(m.role, '') AS role,
    coalesce(i.words, {_EITHER}) AS text,
    {_EITHER} AS said{_FROM}""",
)
"""Migration to the index with scripts without blanks in pairs. It changes no row, however many."""

INDEX_FORM = 2
"""The current form of indexed texts. A session with rows of an earlier form is indexed again when it is searched."""

DROP_OLD_FORM = f"""
DELETE FROM indexed WHERE tenant = $1 AND session = $2 AND form < {INDEX_FORM} AND EXISTS (
    SELECT 1 FROM (
        SELECT f.form FROM indexed f WHERE f.tenant = $3 AND f.session = $4 ORDER BY f.kind, f.branch, f.version LIMIT 1
    ) oldest WHERE oldest.form < {INDEX_FORM})"""  # noqa: S608  put together from constants
# Rows of the earlier form are removed all at once, before the first row of the new form. So the oldest row shows if
# there are any.

NEW_MESSAGES = """
    SELECT sized.tenant, sized.session, sized.key,
        sum(sized.size) OVER (ORDER BY sized.seq) - sized.size AS bytes_before
    FROM (
        SELECT m.tenant, m.session, m.key, m.seq, length(m.body) AS size FROM messages m
        WHERE m.tenant = $2 AND m.session = $3 AND m.seq > (
            SELECT coalesce(max(i.version), 0) FROM indexed i
            WHERE i.tenant = $4 AND i.session = $5 AND i.kind = 'message' AND i.branch = '')
        ORDER BY m.seq LIMIT 1000) sized
"""
"""The messages that are indexed next. One step takes some MAX_PAGE_BYTES of them. It holds them in memory, and the
writer does nothing else meanwhile."""

HAS_NEW_MESSAGES = """
SELECT 1 FROM messages m
WHERE m.tenant = $1 AND m.session = $2 AND m.seq > (
    SELECT coalesce(max(i.version), 0) FROM indexed i
    WHERE i.tenant = $3 AND i.session = $4 AND i.kind = 'message' AND i.branch = '') LIMIT 1"""

INDEX_SESSION = f"""
INSERT INTO indexed (tenant, session, kind, branch, version, key, doc, scope, form, words)
SELECT n.tenant, n.session, n.kind, n.branch, n.version, n.key,
    (SELECT coalesce(max(d.doc), 0) FROM indexed d) + row_number() OVER (ORDER BY n.kind, n.branch, n.version), $1,
    {INDEX_FORM}, in_pairs(CAST(n.text AS BLOB))
FROM (
    SELECT m.tenant, m.session, 'message' AS kind, '' AS branch, m.seq AS version, m.key, CASE{_SAID} AS text
    FROM ({NEW_MESSAGES}) page
    JOIN messages m ON m.tenant = page.tenant AND m.session = page.session AND m.key = page.key
    WHERE page.bytes_before < {MAX_PAGE_BYTES}
    UNION ALL
    SELECT e.tenant, e.session, 'summary', e.branch, e.number, e.key, {_SUMMARY} FROM edits e
    WHERE e.tenant = $6 AND e.session = $7 AND e.stage IN ('compress_levels', 'summarize_old')
        AND e.action IN ('text', 'append') AND e.number > (
            SELECT coalesce(max(i.version), 0) FROM indexed i
            WHERE i.tenant = e.tenant AND i.session = e.session AND i.kind = 'summary' AND i.branch = e.branch)
) n WHERE true
ON CONFLICT (tenant, session, kind, branch, version) DO NOTHING"""  # noqa: S608  put together from constants

SEARCH = """
SELECT i.kind, i.key, t.role, CASE WHEN page.bytes_before < $1 THEN CAST(t.said AS BLOB) END, page.score, i.branch
FROM (
    SELECT sized.doc, sized.score,
        sum(sized.size) OVER (ORDER BY sized.score, sized.doc DESC) - sized.size AS bytes_before
    FROM (
        SELECT found.doc, found.score, coalesce(
            (SELECT length(m.body) FROM messages m
                WHERE i.kind = 'message' AND m.tenant = i.tenant AND m.session = i.session AND m.key = i.key),
            (SELECT length(e.text) FROM edits e
                WHERE i.kind <> 'message' AND e.tenant = i.tenant AND e.session = i.session AND e.branch = i.branch
                    AND e.number = i.version), 0) AS size
        FROM (
            SELECT rowid AS doc, bm25(keywords) AS score FROM keywords WHERE keywords MATCH $2 ORDER BY rank LIMIT $3
        ) found
        JOIN indexed i ON i.doc = found.doc
        WHERE i.tenant = $4 AND i.session = $5
    ) sized
) page
JOIN indexed i ON i.doc = page.doc
JOIN index_texts t ON t.doc = page.doc
ORDER BY page.score, page.doc DESC"""


MERGE_INDEX = "INSERT INTO keywords (keywords, rank) VALUES ('merge', ?)"
MERGE_PAGES = 64
"""Pages of the index that one step of a merge writes."""


def make_scope_word(tenant: str, session: str) -> str:
    """The word that names a tenant's session in the index."""
    name = f"{len(tenant)}:{tenant}{session}".encode("utf-8", "surrogatepass")
    return "s" + hashlib.blake2b(name, digest_size=16).hexdigest()


def register_functions(connection: sqlite3.Connection) -> None:
    """Register the function that INDEX_SESSION calls on a connection that writes."""
    connection.create_function("in_pairs", 1, split_into_pairs, deterministic=True)


def merge_index(connection: sqlite3.Connection, *, begins: bool) -> bool:
    """Merge some pages of the index. Return False once all of it is merged. begins: True for the first step.

    FTS5 only marks the words of a removed row. They stay in the file, readable, until a merge leaves them out. (FTS5's
    own option for that, from SQLite 3.42 on, makes files that earlier versions cannot read.)
    """
    before = connection.total_changes
    connection.execute(MERGE_INDEX, (-MERGE_PAGES if begins else MERGE_PAGES,))
    return connection.total_changes - before >= 2  # so SQLite's documentation of `merge` has it


def split_into_pairs(text: bytes | None) -> str | None:
    """The text, or its beginning, with its scripts without blanks in pairs; None if the text is indexed unchanged. The
    argument is bytes, because a text with a lone surrogate cannot be passed as text."""
    if text is None or (text.isascii() and len(text) <= MAX_INDEXED_BYTES):
        return None
    read = text[:MAX_INDEXED_BYTES].decode("utf-8", "replace")
    made = prepare_index_text(read)
    return None if made == read and len(text) <= MAX_INDEXED_BYTES else made


def build_old_form_args(row: IndexRow) -> tuple[str, ...]:
    """The arguments of DROP_OLD_FORM."""
    return (row.tenant, row.session, row.tenant, row.session)


def build_index_args(row: IndexRow) -> tuple[str, ...]:
    """The arguments of INDEX_SESSION."""
    place = (row.tenant, row.session)
    return (make_scope_word(*place), *place, *place, *place)


def build_query(tenant: str, session: str, text: str) -> str:
    """The FTS5 query: any word of the text, in this session; "" if the text has no word. Words are quoted, so that no
    word is taken for an operator."""
    words = find_search_words(text)[:MAX_QUERY_WORDS]
    if not words:
        return ""
    return (
        f'scope : "{make_scope_word(tenant, session)}" AND text : (' + " OR ".join(f'"{word}"' for word in words) + ")"
    )
