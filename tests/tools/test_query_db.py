from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

from proxy.errors import ToolRefused
from proxy.tools.describe_db import SCHEMA_TEXT
from proxy.tools.query_db import HEADER_CHARS, QUERY_DB, format_result, strip_fence
from proxy.tools.sandbox import QueryResult
from tests.tools.stored_session import (
    CANARY,
    assistant,
    assistant_call,
    in_memory,
    make_dropped_edit,
    make_message_rows,
    make_tool_context,
    read_error,
    result,
    run_call,
    shared_file,
    store_messages,
    user,
)

LONG = "".join(f"{n}: what stands in line {n}\n" for n in range(3000))
TALK = [
    user("read it"),
    assistant_call("read", '{"path": "a.py"}'),
    result(LONG),
    assistant("The parser lives in a.py."),
    user("thanks"),
]


async def test_a_model_finds_what_was_said_by_words_and_reads_it_whole() -> None:
    async with in_memory() as store:
        names = await store_messages(store, TALK)
        tool_context = make_tool_context(store)
        found = await run_call(
            tool_context, "query_db", sql="SELECT id FROM messages_fts WHERE messages_fts MATCH 'parsers OR lives'"
        )
        assert found.endswith("\n" + names[3])
        sql = "SELECT seq, snippet(messages_fts, -1, '[', ']', '...', 9) FROM messages_fts('read')"
        assert (await run_call(tool_context, "query_db", sql=sql + " WHERE role = 'user'")).endswith(
            '\n[1, "[read] it"]'
        )
        rows = await run_call(tool_context, "query_db", sql="SELECT seq, role FROM messages ORDER BY seq DESC LIMIT 2")
        assert rows == '[2 rows; columns: seq, role]\n[5, "user"]\n[4, "assistant"]'
        assert await run_call(tool_context, "query_db", sql="SELECT 1 WHERE 0") == "[no rows]"


async def test_a_word_in_a_script_without_blanks_is_found_as_the_descriptions_say() -> None:
    """The index of words has a run of such a script as one word, and both tools say what finds it."""
    assert "Chinese, Japanese, Korean: content LIKE '%word%'" in QUERY_DB.description
    assert "Chinese, Japanese, Korean or Thai is one word" in SCHEMA_TEXT
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        await store_messages(store, [user("修复了数据库迁移的问题"), user("another thing")])
        by_words = "SELECT seq FROM messages_fts WHERE messages_fts MATCH '数据库'"
        assert "no rows" in await run_call(tool_context, "query_db", sql=by_words)
        found = await run_call(
            tool_context, "query_db", sql="SELECT seq FROM messages WHERE content LIKE '%数据库%' LIMIT 5"
        )
        assert found.splitlines()[1:] == ["[1]"]


async def test_a_long_text_is_read_in_pieces_as_the_result_itself_says() -> None:
    async with in_memory() as store:
        names = await store_messages(store, TALK)
        tool_context = make_tool_context(store)
        text, at = "", 1
        while at <= len(LONG):
            sql = f"SELECT substr(content, {at}, 7700) FROM messages WHERE id = '{names[2]}'"
            head, piece = (await run_call(tool_context, "query_db", sql=sql)).split("\n", 1)
            assert head == f"[1 row, {len(piece)} characters]"
            text, at = text + piece, at + len(piece)
        assert text == LONG
        # This is what `rolling` writes behind a shortened result.
        whole = await run_call(tool_context, "query_db", sql=f"SELECT content FROM messages WHERE id='{names[2]}'")
        head, piece = whole.split("\n", 1)
        assert head == (
            f"[1 row, the first 7700 of {len(LONG)} characters; for more select substr(content, 7701, 7700)]"
        )
        assert LONG.startswith(piece)
        assert len(whole) <= tool_context.settings.tools.result_chars


async def test_the_operators_limit_on_results_is_kept() -> None:
    async with in_memory() as store:
        await store_messages(store, TALK * 20)
        for limit in (500, 2000, 64_000):
            tool_context = make_tool_context(store, tools={"result_chars": limit})
            for sql in (
                "SELECT * FROM messages",
                "SELECT content FROM messages WHERE seq = 3",
                "SELECT id FROM messages",
            ):
                assert len(await run_call(tool_context, "query_db", sql=sql)) <= limit


async def test_query_db_finds_messages_that_left_the_prompt_but_not_withdrawn_ones() -> None:
    async with in_memory() as store:
        await store_messages(store, TALK)
        first, _, _, answer, _ = make_message_rows(TALK)
        taken = msgspec.structs.replace(make_dropped_edit(answer), branch="", stage="operator")
        await store.put([make_dropped_edit(first), taken])
        sql = "SELECT content FROM messages WHERE status != 'dropped' AND content LIKE '%{}%' ORDER BY seq DESC LIMIT 1"
        tool_context = make_tool_context(store)
        assert (await run_call(tool_context, "query_db", sql=sql.format("read it"))).endswith("\nread it")
        assert await run_call(tool_context, "query_db", sql=sql.format("parser lives")) == "[no rows]"
        found = await run_call(
            tool_context, "query_db", sql="SELECT seq, status FROM messages WHERE in_prompt = 0 ORDER BY seq"
        )
        assert found.endswith('\n[1, "completed"]\n[4, "dropped"]')


@pytest.mark.parametrize(
    "sql",
    [
        "```sql\nSELECT 1\n```",
        "```\nSELECT 1;\n```\n",
        "`SELECT 1`",
        "~~~sqlite\n-- how many\nSELECT 1\n~~~",
        "-- how many\n/* of\nthem */ SELECT 1 -- all",
        "/**/\n--\nWITH c AS (SELECT 1) SELECT * FROM c",
        "```sql\n\n  -- one\n  VALUES (1)",
    ],
)
async def test_code_fences_and_comments_in_front_are_taken_off(sql: str) -> None:
    async with in_memory() as store:
        found = await run_call(make_tool_context(store), "query_db", sql=sql)
        assert found.endswith("\n[1]"), found


@pytest.mark.parametrize(
    "sql", ["-- SELECT 1", "/* SELECT 1", "```sql\n```", "/**/ PRAGMA user_version", "```\nDROP x"]
)
async def test_the_statement_after_comments_is_checked_as_usual(sql: str) -> None:
    async with in_memory() as store:
        assert "begins with SELECT" in read_error(await run_call(make_tool_context(store), "query_db", sql=sql))


@pytest.mark.timed
def test_removing_code_fences_and_comments_takes_linear_time() -> None:
    for text in ("-- x\n" * 2000, "/*" * 5000, "`" + " " * 9000 + "x", " " * 10_000, "/* */" * 2000 + "x"):
        began = time.perf_counter()
        strip_fence(text)
        assert time.perf_counter() - began < 0.5


async def test_json_in_a_result_is_taken_apart() -> None:
    listed = json.dumps({"files": [{"name": "a.py", "size": 3}, {"name": "b.py", "size": 5}]})
    async with in_memory() as store:
        await store_messages(
            store, [user("list"), assistant_call("list", "{}"), result(listed), assistant("There are two.")]
        )
        tool_context = make_tool_context(store)
        rows = "FROM messages m, json_each(m.content, '$.files') f WHERE m.role = 'tool' AND json_valid(m.content)"
        found = await run_call(tool_context, "query_db", sql=f"SELECT f.value ->> '$.name', f.value ->> 'size' {rows}")
        assert found.endswith('\n["a.py", 3]\n["b.py", 5]')
        sql = "SELECT content -> '$.files[0]' FROM messages WHERE role = 'tool'"
        assert (await run_call(tool_context, "query_db", sql=sql)).endswith('\n{"name":"a.py","size":3}')
        sql = "SELECT count(*) FROM json_tree('[1,[2]]')"
        assert (await run_call(tool_context, "query_db", sql=sql)).endswith("[4]")


async def test_query_db_reads_no_other_session_of_the_same_file(tmp_path: Path) -> None:
    async with shared_file(tmp_path) as store:
        await store_messages(store, TALK)
        for tool_context, many in (
            (make_tool_context(store), 5),
            (make_tool_context(store, session="s9"), 0),
            (make_tool_context(store, tenant="t9"), 0),
        ):
            assert (
                await run_call(tool_context, "query_db", sql="SELECT count(*) FROM messages")
                == f"[1 row; columns: count(*)]\n[{many}]"
            )
            found = await run_call(
                tool_context, "query_db", sql=f"SELECT * FROM messages_fts WHERE messages_fts MATCH '\"{CANARY}\"'"
            )
            assert found == "[no rows]"


async def test_an_error_of_sqlite_is_reported_in_its_words() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        assert "no such column: contents" in read_error(
            await run_call(tool_context, "query_db", sql="SELECT contents FROM messages")
        )
        assert "syntax error" in read_error(await run_call(tool_context, "query_db", sql="SELECT FROM WHERE"))
        assert "begins with SELECT" in read_error(await run_call(tool_context, "query_db", sql="DELETE FROM messages"))


def test_rows_that_do_not_fit_are_cut_first_and_left_out_then() -> None:
    rows = [[n, "x" * 5000] for n in range(3)]
    text = format_result(QueryResult(["seq", "content"], rows), 8000)
    head, *lines = text.split("\n")
    assert head.startswith("[3 rows; long values end with [+N]")
    assert [json.loads(line) for line in lines] == [[n, "x" * 2000 + "[+3000]"] for n in range(3)]
    head, *lines = format_result(QueryResult(["seq", "content"], [[n, "x" * 5000] for n in range(100)]), 8000).split(
        "\n"
    )
    assert 20 < len(lines) < 40
    assert head.startswith(f"[rows 1 to {len(lines)}; more with OFFSET {len(lines)};")
    assert len(text) <= 8000


def test_a_row_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ToolRefused, match="select fewer columns"):
        format_result(QueryResult([str(n) for n in range(50)], [["x" * 500] * 50]), HEADER_CHARS + 1000)


def test_a_value_of_which_only_the_beginning_came_says_how_long_it_is() -> None:
    cell = {"cut": "x" * 10_000, "chars": 70_000}
    assert format_result(QueryResult(["content"], [[cell]]), 8000).startswith(
        "[1 row, the first 7700 of 70000 characters;"
    )
    line = format_result(QueryResult(["id", "content"], [["a", cell]]), 64_000).split("\n")[1]
    assert json.loads(line) == ["a", "x" * 10_000 + "[+60000]"]


def test_the_result_says_how_much_of_a_very_long_conversation_is_searched() -> None:
    note = "only the newest 7 messages are searched; "
    assert format_result(QueryResult(), 8000, note) == f"[{note}no rows]"
    assert format_result(QueryResult(["a"], [[1]]), 8000, note) == f"[{note}1 row; columns: a]\n[1]"
