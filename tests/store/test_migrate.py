from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import astuple, replace

from proxy.errors import StoreRefused, StoreUnavailable
from proxy.exchange.rebuild_prompt import rebuild_prompt
from proxy.store import sqlite_files
from proxy.store.full_text_search import make_scope_word
from proxy.store.journal import MAX_SLOTS
from proxy.store.migrate import APPLICATION_ID, DamagedDatabase, migrate
from proxy.store.schema import LATEST_VERSION, MIGRATIONS, Migration
from tests.exchange.hidden_calls import TOOLS
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.store.conftest import RowFactory, digest
from tests.stores import TABLES, count_rows, sqlite_store

make = RowFactory()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "store.sqlite3"
    sqlite_files.prepare_files(made)
    return made


def ask(path: Path, text: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        rows: list[tuple[object, ...]] = connection.execute(text).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


async def test_an_empty_file_gets_the_whole_schema(path: Path) -> None:
    assert await migrate(path) == len(MIGRATIONS)
    assert ask(path, "PRAGMA user_version") == [(LATEST_VERSION,)]
    assert ask(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]
    assert ask(path, "PRAGMA auto_vacuum") == [(2,)]
    names = {str(row[0]) for row in ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in names if not name.startswith("keywords")} == {*TABLES, "journal"}
    assert "keywords" in names  # and the tables that FTS5 makes for itself


async def test_a_second_start_has_nothing_to_do(path: Path) -> None:
    await migrate(path)
    assert await migrate(path) == 0


async def test_a_migration_is_logged_beforehand_only_for_a_store_of_an_older_version(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await migrate(path, MIGRATIONS[:9])
    assert not caplog.messages
    await migrate(path)
    assert caplog.messages == [f"{path} has schema 9 and is brought to {LATEST_VERSION}; a large store takes minutes"]
    await migrate(path)
    assert len(caplog.messages) == 1


async def test_a_store_of_version_1_is_brought_up_to_date_with_its_rows(path: Path) -> None:
    await migrate(path, MIGRATIONS[:1])
    ask(path, "INSERT INTO sessions VALUES ('t', 's', 1, 2.0, '{}')")
    later = Migration(LATEST_VERSION + 1, "a test", ("ALTER TABLE sessions ADD COLUMN title TEXT",))
    assert await migrate(path, [*MIGRATIONS, later]) == len(MIGRATIONS)
    assert ask(path, "SELECT tenant, title FROM sessions") == [("t", None)]
    assert ask(path, "PRAGMA user_version") == [(LATEST_VERSION + 1,)]


async def test_exchanges_of_a_store_of_version_6_have_no_meter_and_new_ones_do(path: Path) -> None:
    await migrate(path, MIGRATIONS[:6])
    columns = "tenant, session, exchange, thread, head, messages, envelope, forms, edits, inserts, policy, schedule"
    columns += ", model, upstream, strategy, tokens_before, tokens_after, started_at, status"
    values = "'t1', 's1', 'old', 'main', x'', 1, x'', x'', 0, x'', '', '', '', '', '', 1, 1, 1.0, 'open'"
    ask(path, f"INSERT INTO exchanges ({columns}) VALUES ({values})")
    store = sqlite_store(path)
    await store.open()
    await store.put([*make.begin(), make.exchange("new"), replace(make.outcome("new"), meter="{}")])
    found = {row.exchange: row.meter for row in await store.read_exchanges("t1", "s1")}
    await store.close()
    assert found == {"old": None, "new": "{}"}


async def test_answers_of_a_store_of_version_5_are_found_by_their_index(path: Path) -> None:
    await migrate(path, MIGRATIONS[:5])
    store = sqlite_store(path)
    rows = make.line(4)
    columns = "tenant, session, key, parent, position, thread, role, group_id, body, form, call_id, status, strategy"
    with sqlite3.connect(path) as old:
        text = f"INSERT INTO messages ({columns}, tokens, answer, reached, created_at, seq) VALUES ({'?, ' * 17}?)"
        old.executemany(text, [(*astuple(row), number) for number, row in enumerate(rows, 1)])
    old.close()
    await store.open()
    found = await store.find_chain_hits("t1", [row.key for row in rows], None)
    await store.close()
    assert [hit.position for hit in found] == [3, 1]
    assert ask(path, "SELECT name FROM sqlite_master WHERE name LIKE '%_by_key'") == [("answers_by_key",)]


def write_as_version_8(path: Path, sessions: int, each: int, text: str) -> None:
    """Fill the file as the code of schema 8 did: messages, and what was indexed of them by its triggers."""
    columns = "tenant, session, key, parent, position, thread, role, group_id, body, form, call_id, status, strategy"
    insert = f"INSERT INTO messages ({columns}, tokens, answer, reached, created_at, seq) VALUES ({'?, ' * 17}?)"
    doc = 0
    with sqlite3.connect(path) as old:
        for number in range(sessions):
            beside = RowFactory("t1", f"s{number}")
            for seq in range(1, each + 1):
                doc += 1
                body = json.dumps({"role": "user", "content": f"{text} {seq}"}).encode()
                row = beside.message(digest("m", seq), digest("m", seq - 1), seq, body=body)
                old.execute(insert, (*astuple(row), seq))
                named = ("t1", beside.session, "message", "", seq, row.key, doc, make_scope_word("t1", beside.session))
                old.execute("INSERT INTO indexed VALUES (?, ?, ?, ?, ?, ?, ?, ?)", named)
    old.close()


async def test_a_store_of_version_8_is_reindexed_session_by_session_when_it_is_searched(path: Path) -> None:
    await migrate(path, MIGRATIONS[:8])
    write_as_version_8(path, 3, 5, "修复了数据库迁移 parser")
    store = sqlite_store(path)
    await store.open()
    forms = "SELECT session, form, count(*) FROM indexed GROUP BY 1, 2 ORDER BY 1"
    assert ask(path, forms) == [("s0", 1, 5), ("s1", 1, 5), ("s2", 1, 5)]
    assert len(await store.search("t1", "s1", "迁移")) == 5
    assert len(await store.search("t1", "s1", "parser")) == 5
    assert ask(path, forms) == [("s0", 1, 5), ("s1", 2, 5), ("s2", 1, 5)]
    # What was indexed as it stood leaves the index as it stood, and what is in pairs leaves it in pairs.
    await store.delete_session("t1", "s0")
    await store.delete_session("t1", "s1")
    assert len(await store.search("t1", "s2", "数据库")) == 5
    await store.delete_session("t1", "s2")
    await store.close()
    ask(path, "INSERT INTO keywords (keywords) VALUES ('integrity-check')")
    ask(path, "CREATE VIRTUAL TABLE left_words USING fts5vocab('keywords', 'row')")
    assert ask(path, "SELECT term FROM left_words") == ask(path, "SELECT doc FROM indexed") == []


async def test_a_store_of_version_8_is_searched_as_it_is_where_it_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(path, MIGRATIONS[:8])
    write_as_version_8(path, 1, 3, "the parser")
    store = sqlite_store(path)
    await store.open()

    async def refused() -> None:
        raise StoreUnavailable("full")

    monkeypatch.setattr(store, "put", lambda _rows: refused())
    assert len(await store.search("t1", "s0", "parser")) == 3
    await store.close()


async def test_a_store_that_1a07500_wrote_is_migrated_and_served(tmp_path: Path) -> None:
    """The proxy of that commit wrote the file: an agent with a fork beside it, edits, a search, notes, a memo."""
    file, model = tmp_path / "old.sqlite3", ScriptedModel("The tests pass.")
    file.write_bytes(gzip.decompress((Path(__file__).parent / "written_by_1a07500.sqlite3.gz").read_bytes()))
    assert ask(file, "PRAGMA user_version") == [(6,)]
    before = {table: ask(file, f"SELECT count(*) FROM {table}")[0][0] for table in ("threads", "messages", "exchanges")}
    texts = {str(text) for (text,) in ask(file, "SELECT CAST(text AS TEXT) FROM edits")}
    assert len(texts) == 2
    place = "/api/sessions/fix-the-build"
    async with run_upstream(model) as upstream, run_proxy(upstream.port, db=str(file), policy="thrifty") as proxy:
        counted = await count_rows(proxy.app.store)
        assert (counted["branches"], counted["messages"], counted["exchanges"]) == tuple(before.values())
        exported = [json.loads(line) for line in (await proxy.get(f"{place}/export")).body.splitlines()]
        longest = max(exported, key=lambda one: len(one["messages"]))["messages"]
        assert [message["role"] for message in longest] == ["system", "user", *["assistant", "tool"] * 3, "assistant"]
        assert len((await proxy.get(f"{place}/branches")).json()["items"]) == 2
        assert len((await proxy.get(f"{place}/search?q=listing")).json()) == 3
        assert (await proxy.get(f"{place}/scratchpad")).json()["text"] == "Look at the linker."
        assert [one["text"] for one in (await proxy.get(f"{place}/notes")).json()] == ["Use the old compiler."]
        assert "linker" in (await proxy.get("/api/memos")).json()["items"][0]["content"]
        sent = {"model": "gpt-4o", "messages": [*longest, {"role": "user", "content": "And the tests?"}]}
        answer = await proxy.post(sent)
        assert (answer.session, answer.header("x-context-fallback")) == ("fix-the-build", None)
        assert texts < set(model.texts()), "the edits of then are repeated"
        assert any("Use the old compiler." in (text or "") for text in model.texts())
        for name in ("hidden_rounds", "helper_answers", "context_windows"):
            assert (await count_rows(proxy.app.store))[name] == 0
        assert await proxy.rows("SELECT count(*) FROM branches WHERE length(tip) = 16") == [(before["threads"],)]
        assert (await count_rows(proxy.app.store))["branches"] == before["threads"]
        ((tenant,),) = await proxy.rows("SELECT DISTINCT tenant FROM messages WHERE session = 'fix-the-build'")
        await proxy.app.store.delete_session(tenant, "fix-the-build")
        assert await proxy.rows("SELECT count(*) FROM indexed") == [(0,)]
        assert await proxy.rows("SELECT count(*) FROM messages WHERE session = 'fix-the-build'") == [(0,)]


async def test_a_store_that_a5ad36d_wrote_is_migrated_and_served(tmp_path: Path) -> None:
    """The proxy of that commit wrote the file and was killed: hidden rounds, a fork, edits, a scratchpad, a memo, a
    helper's answer, a context window; the last exchange and a note are in the journal alone."""
    file, model = tmp_path / "old.sqlite3", ScriptedModel("All is green.")
    file.write_bytes(gzip.decompress((Path(__file__).parent / "written_by_a5ad36d.sqlite3.gz").read_bytes()))
    assert ask(file, "PRAGMA user_version") == [(12,)]
    old = {
        "hidden_rounds": ask(file, "SELECT * FROM rounds ORDER BY key"),
        "helper_answers": ask(file, "SELECT * FROM answers"),
        "context_windows": ask(file, "SELECT * FROM windows"),
        "exchanges": ask(file, "SELECT exchange, head FROM exchanges ORDER BY exchange"),
    }
    assert [len(rows) for rows in old.values()] == [2, 1, 1, 6]
    assert ask(
        file, "SELECT count(*) FROM journal WHERE slot > 0 AND batch > (SELECT batch FROM journal WHERE slot = 0)"
    )[0] == (2,)
    await migrate(file)
    assert {
        "hidden_rounds": ask(file, "SELECT * FROM hidden_rounds ORDER BY key"),
        "helper_answers": ask(file, "SELECT * FROM helper_answers"),
        "context_windows": ask(file, "SELECT * FROM context_windows"),
        "exchanges": ask(file, "SELECT exchange, tip FROM exchanges ORDER BY exchange"),
    } == old
    texts = {str(text) for (text,) in ask(file, "SELECT CAST(text AS TEXT) FROM edits WHERE action = 'text'")}
    assert len(texts) == 1, "both branches have the same edit"
    place = "/api/sessions/fix-the-build"
    tools = {"enabled": ["recall", "manage_scratchpad", "save_memo"], "offer": "first_request"}
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, db=str(file), policy="thrifty", tools=tools) as proxy,
    ):
        assert (await count_rows(proxy.app.store))["exchanges"] == 7, "with that of the journal"
        branches = (await proxy.get(f"{place}/branches")).json()["items"]
        assert len(branches) == 2
        exported = [json.loads(line) for line in (await proxy.get(f"{place}/export")).body.splitlines()]
        longest = max(exported, key=lambda one: len(one["messages"]))["messages"]
        assert (longest[-2]["content"], longest[-1]["content"]) == ("Is it green?", "And so it is.")
        assert len((await proxy.get(f"{place}/search?q=listing")).json()) >= 2
        assert (await proxy.get(f"{place}/scratchpad")).json()["text"] == "Look at the linker."
        assert "The linker failed." in [one["text"] for one in (await proxy.get(f"{place}/summaries")).json()["items"]]
        assert "linker" in (await proxy.get("/api/memos")).json()["items"][0]["content"]
        assert [one.tokens for one in await proxy.app.store.read_context_windows(0.0)] == [64000]
        exchanges = await proxy.rows("SELECT tenant, session, exchange FROM exchanges ORDER BY started_at")
        for tenant, session, exchange in exchanges:
            assert await rebuild_prompt(proxy.app.store, tenant, session, exchange) is not None
        sent = {
            "model": "gpt-4o",
            "tools": TOOLS,
            "messages": [*longest, {"role": "user", "content": "And the tests?"}],
        }
        answer = await proxy.post(sent, b"x-context-session: fix-the-build")
        assert (answer.session, answer.header("x-context-fallback")) == ("fix-the-build", None)
        assert texts <= {text for text in model.texts() if text}, "the edits of then are repeated"
        calls = [call["function"]["name"] for m in model.last["messages"] for call in m.get("tool_calls") or ()]
        assert calls == ["look", "manage_scratchpad", "look", "save_memo"], "the hidden rounds are put back"
        await proxy.app.store.delete_session(exchanges[0][0], "fix-the-build")
        for table in ("hidden_rounds", "helper_answers", "exchanges", "messages"):
            assert await proxy.rows(f"SELECT count(*) FROM {table} WHERE session = 'fix-the-build'") == [(0,)]


async def test_a_migration_touches_no_row_of_a_large_index(path: Path) -> None:
    """Rows are rewritten when their session is searched; the file that is opened gets a few pages of schema."""
    await migrate(path, MIGRATIONS[:8])
    write_as_version_8(path, 20, 100, "数据库迁移 " * 20)
    log = sqlite_files.list_wal_files(path)[0]
    holder = sqlite3.connect(path)  # while it is open, the log stays
    holder.execute("PRAGMA wal_autocheckpoint = 0")
    holder.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await migrate(path, MIGRATIONS[:10])
    assert 0 < log.stat().st_size < 100_000 < path.stat().st_size / 5
    await migrate(path)
    of_schema = log.stat().st_size - MAX_SLOTS * 4200  # without the slots of the journal, which are there once
    assert of_schema < 150_000 < path.stat().st_size / 5, "each later migration adds a few pages"
    holder.close()


async def test_a_migration_that_breaks_off_leaves_the_old_schema_and_can_be_run_again(path: Path) -> None:
    await migrate(path)
    broken = Migration(LATEST_VERSION + 1, "a test", ("CREATE TABLE more (a TEXT)", "CREATE TABLE more (a TEXT)"))
    with pytest.raises(StoreRefused):
        await migrate(path, [*MIGRATIONS, broken])
    assert ask(path, "PRAGMA user_version") == [(LATEST_VERSION,)]
    assert ask(path, "SELECT name FROM sqlite_master WHERE name = 'more'") == []
    assert await migrate(path, [*MIGRATIONS, Migration(LATEST_VERSION + 1, "a test", broken.statements[:1])]) == 1


async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    await migrate(path)
    ask(path, f"PRAGMA user_version = {LATEST_VERSION + 5}")
    with pytest.raises(
        StoreRefused, match=f"schema {LATEST_VERSION + 5}, and this version knows schemas up to {LATEST_VERSION}"
    ):
        await migrate(path)
    assert ask(path, "PRAGMA user_version") == [(LATEST_VERSION + 5,)]


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    ask(path, "CREATE TABLE theirs (a TEXT)")
    with pytest.raises(StoreRefused, match="another program"):
        await migrate(path)
    assert ask(path, "SELECT name FROM sqlite_master") == [("theirs",)]


async def test_a_file_that_is_not_a_database_is_reported_as_such(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to have a header" * 100)
    with pytest.raises(DamagedDatabase, match="is no SQLite database") as caught:
        await migrate(path)
    assert "--db" in caught.value.hint


async def test_a_truncated_database_is_damaged(path: Path) -> None:
    await migrate(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DamagedDatabase):
        await migrate(path)


async def test_a_flipped_page_is_damaged(path: Path) -> None:
    await migrate(path)
    data = bytearray(path.read_bytes())
    data[4096 * 4 : 4096 * 4 + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(DamagedDatabase):
        await migrate(path)


async def test_a_database_that_another_process_holds_is_refused(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreRefused, match="locked"):
        await migrate(path)
    other.close()
