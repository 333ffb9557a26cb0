"""The tables, as numbered migrations, each with its reason.

A store is brought up to date by the migrations above its own number, all in one transaction. So a kill in the middle
leaves the old schema whole, and the next start runs them again. A released migration is never changed; a change is a
new migration at the end. One text serves SQLite and PostgreSQL. The types are those to which SQLite gives the right
affinity, and only BLOB has another name in PostgreSQL (BYTEA).

Every primary key starts with (tenant, session), so a read without them cannot use it. PostgreSQL can be sharded by them
without a change of schema.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from proxy.store import bindings, full_text_search, journal, response_names, session_lists, session_notes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. `number` is the store's version afterwards."""

    number: int
    reason: str
    statements: tuple[str, ...]


_SESSIONS = """
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    explicit BOOLEAN NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    settings TEXT NOT NULL,
    PRIMARY KEY (tenant, session)
)"""

_THREADS = """
CREATE TABLE threads (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    thread TEXT NOT NULL,
    parent TEXT,
    fork_key BLOB,
    kind TEXT NOT NULL,
    system BLOB NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    head BLOB NOT NULL,
    answer BLOB,
    last_at DOUBLE PRECISION NOT NULL,
    stopped TEXT,
    PRIMARY KEY (tenant, session, thread)
)"""

_MESSAGES = """
CREATE TABLE messages (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    key BLOB NOT NULL,
    parent BLOB NOT NULL,
    position BIGINT NOT NULL,
    thread TEXT NOT NULL,
    role TEXT NOT NULL,
    group_id TEXT NOT NULL,
    body BLOB NOT NULL,
    form BLOB NOT NULL,
    call_id TEXT,
    status TEXT NOT NULL,
    strategy TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    answer BOOLEAN NOT NULL,
    reached BOOLEAN NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (tenant, session, key)
)"""

_FORMS = """
CREATE TABLE forms (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    form BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, session, form)
)"""

_EDITS = """
CREATE TABLE edits (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    thread TEXT NOT NULL,
    key BLOB NOT NULL,
    version BIGINT NOT NULL,
    stage TEXT NOT NULL,
    reason TEXT NOT NULL,
    action TEXT NOT NULL,
    text BLOB,
    before BIGINT NOT NULL,
    after BIGINT NOT NULL,
    exchange TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (tenant, session, thread, key, version)
)"""

_STATES = """
CREATE TABLE states (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    thread TEXT NOT NULL,
    key BLOB NOT NULL,
    text BLOB NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (tenant, session, thread, key)
)"""

_EXCHANGES = """
CREATE TABLE exchanges (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    exchange TEXT NOT NULL,
    thread TEXT NOT NULL,
    head BLOB NOT NULL,
    messages BIGINT NOT NULL,
    envelope BLOB NOT NULL,
    forms BLOB NOT NULL,
    edits BIGINT NOT NULL,
    inserts BLOB NOT NULL,
    policy TEXT NOT NULL,
    schedule TEXT NOT NULL,
    model TEXT NOT NULL,
    upstream TEXT NOT NULL,
    strategy TEXT NOT NULL,
    tokens_before BIGINT NOT NULL,
    tokens_after BIGINT NOT NULL,
    predicted BIGINT,
    started_at DOUBLE PRECISION NOT NULL,
    status TEXT NOT NULL,
    http_status BIGINT,
    finish TEXT,
    prompt_tokens BIGINT,
    completion_tokens BIGINT,
    cached_tokens BIGINT,
    answer BLOB,
    fallback TEXT,
    first_byte_ms DOUBLE PRECISION,
    ended_at DOUBLE PRECISION,
    note TEXT,
    PRIMARY KEY (tenant, session, exchange)
)"""

_GAPS = """
CREATE TABLE gaps (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    exchange TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    reason TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    items BIGINT NOT NULL,
    PRIMARY KEY (tenant, session, exchange, reason)
)"""

_ANSWERS = """
CREATE TABLE answers (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    ask TEXT NOT NULL,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    dollars DOUBLE PRECISION NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    text BLOB NOT NULL,
    PRIMARY KEY (tenant, session, ask)
)"""

_EMBEDDINGS = """
CREATE TABLE embeddings (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    model TEXT NOT NULL,
    form BLOB NOT NULL,
    vector BLOB NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, model, form)
)"""

_SPENDING = """
CREATE TABLE spending (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    day BIGINT NOT NULL,
    kind TEXT NOT NULL,
    asked BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    dollars DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, day, kind)
)"""

_ITERATIONS = """
CREATE TABLE iterations (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    thread TEXT NOT NULL,
    key BLOB NOT NULL,
    number BIGINT NOT NULL,
    ask TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, session, thread, key)
)"""

_WINDOWS = """
CREATE TABLE windows (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    upstream TEXT NOT NULL,
    model TEXT NOT NULL,
    tokens BIGINT NOT NULL,
    seen_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, upstream, model)
)"""

BRANCH_MIGRATION: tuple[str, ...] = (
    "ALTER TABLE threads RENAME TO branches",
    *(
        f"ALTER TABLE {table} RENAME COLUMN thread TO branch"
        for table in ("branches", "messages", "edits", "states", "exchanges", "iterations", "notes", "indexed")
    ),
    "DROP INDEX threads_by_time",
    "CREATE INDEX branches_by_time ON branches (last_at)",
)

WORDS_MIGRATION: tuple[str, ...] = (
    *(f"ALTER TABLE {table} RENAME COLUMN head TO tip" for table in ("branches", "exchanges", "rounds")),
    "ALTER TABLE rounds RENAME TO hidden_rounds",
    "ALTER TABLE answers RENAME TO helper_answers",
    "ALTER TABLE windows RENAME TO context_windows",
    # SQLite cannot rename an index. These two are of small tables.
    "DROP INDEX rounds_by_head",
    "CREATE INDEX hidden_rounds_by_tip ON hidden_rounds (tenant, session, tip)",
    "DROP INDEX answers_by_time",
    "CREATE INDEX helper_answers_by_time ON helper_answers (tenant, session, created_at)",
)

PARTITION_MIGRATION = 16
"""The number of the migration that has statements in PostgreSQL alone (`postgres_partitions`)."""

MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        1,
        "The first schema: sessions, threads, messages once each, forms by hash, edits, states, exchanges, gaps.",
        (
            _SESSIONS,
            _THREADS,
            _MESSAGES,
            # The order in which a session's messages came: for lists, and for the next number.
            "CREATE UNIQUE INDEX messages_by_seq ON messages (tenant, session, seq)",
            # The search by hash chain over all sessions of a tenant. With the time, because a first message that
            # thousands of sessions share ("run the daily check") must not cost a look at each of them.
            "CREATE INDEX messages_by_key ON messages (tenant, key, created_at)",
            _FORMS,
            _EDITS,
            "CREATE UNIQUE INDEX edits_by_number ON edits (tenant, session, thread, number)",
            _STATES,
            "CREATE UNIQUE INDEX states_by_number ON states (tenant, session, thread, number)",
            _EXCHANGES,
            "CREATE INDEX exchanges_by_start ON exchanges (tenant, session, started_at)",
            _GAPS,
        ),
    ),
    Migration(
        2,
        "What helper models have answered, vectors of texts, and what both cost: nothing is asked or paid for twice.",
        (
            _ANSWERS,
            # A thread is read back with the newest answers of its session.
            "CREATE INDEX answers_by_time ON answers (tenant, session, created_at)",
            _EMBEDDINGS,
            _SPENDING,
        ),
    ),
    Migration(
        3,
        "The keyword index over messages and summaries, empty until a session is searched for the first time.",
        full_text_search.MIGRATION,
    ),
    Migration(
        4,
        "Records of iterations: what each tool call was, brought and cost. What was reflected on them is an answer.",
        (_ITERATIONS,),
    ),
    Migration(
        5,
        "What our tools, the model through them and operators write; sessions by their last use.",
        (*session_notes.MIGRATION, *session_lists.MIGRATION),
    ),
    Migration(
        6,
        "Conversations are recognised by our answers in them: an index of those alone, since one of all messages is"
        " written at as many places as a request has messages.",
        (
            "DROP INDEX messages_by_key",
            "CREATE INDEX answers_by_key ON messages (tenant, key, created_at) WHERE answer",
        ),
    ),
    Migration(
        7,
        "What each exchange is billed by, so that the API says the same dollars as the metrics: every round's usage,"
        " the cache that the client's own prompt would have found, and the prompt that was only planned.",
        ("ALTER TABLE exchanges ADD COLUMN meter TEXT",),
    ),
    Migration(
        8,
        "Context windows that upstreams have named: after a restart they need not be learnt from a refusal again.",
        (_WINDOWS,),
    ),
    Migration(
        9,
        "Chinese, Japanese, Korean and Thai are indexed by pairs of characters: a run of them was one word, and no word"
        " in it was found. A session is indexed anew when it is searched next.",
        full_text_search.PAIRS_MIGRATION,
    ),
    Migration(
        10,
        "Whether the model was asked for its state since the last edits, and has answered without one: another process"
        " that goes on with the thread does not ask it again.",
        ("ALTER TABLE threads ADD COLUMN asked TEXT",),
    ),
    Migration(
        11,
        "Small transactions are one record in a journal, a page each, and are written to the tables in batches.",
        journal.MIGRATION,
    ),
    Migration(
        12,
        "A line of a conversation is called a branch everywhere: a thread is one of the operating system's.",
        BRANCH_MIGRATION,
    ),
    Migration(
        13,
        "Tables and columns are called as in the code: the last message of a request is its tip, and the names of"
        " tables say whose rounds, answers and windows these are.",
        WORDS_MIGRATION,
    ),
    Migration(
        14,
        "The provider's names of answers: a request that names one goes on with its history, also on another replica.",
        response_names.MIGRATION,
    ),
    Migration(
        15,
        "The prompts that reasoning is bound to: a prompt that an upstream would refuse is known before it is sent.",
        (bindings.TABLE,),
    ),
    Migration(
        PARTITION_MIGRATION,
        "In PostgreSQL, tables that grow with time are partitioned by time: what is past its time leaves as a whole"
        " partition. SQLite has no partitions.",
        (),
    ),
)

LATEST_VERSION = MIGRATIONS[-1].number


def log_migration(store: str, version: int, latest: int) -> None:
    """Log that a store of an older version is migrated; nothing is served meanwhile. store: its name for people."""
    log.info("%s has schema %d and is brought to %d; a large store takes minutes", store, version, latest)
