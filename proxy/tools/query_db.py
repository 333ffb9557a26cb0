"""`query_db`: the model's own SQL over its own session's messages, in the sandbox."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec

from proxy.errors import ToolRefused
from proxy.tools import stored_history
from proxy.tools.sandbox import QueryResult
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

HEADER_CHARS = 300
"""Characters of a result reserved for its description."""
CELL_CHARS = (100_000, 2000, 600, 200)
"""Characters at which values are cut, tried in turn until all rows fit."""
_LANGUAGES = ("sqlite3", "sqlite", "sql")
_COMMENTS = re.compile(r"(?:\s|--[^\n]*|/\*.*?\*/)*+", re.DOTALL)
_SEARCH = re.compile(r"\bmessages_fts\b", re.IGNORECASE)


class QueryDbArguments(msgspec.Struct, frozen=True):
    """sql: one SELECT in SQLite's dialect."""

    sql: str


async def query_messages(arguments: QueryDbArguments, context: ToolContext) -> str:
    """Return the rows that fit, under a line on how to get the rest. Raises ToolRefused in SQLite's words."""
    note = ""

    async def load_rows() -> list[bytes]:
        nonlocal note
        records, is_all = await stored_history.load_newest(context)
        note = "" if is_all else f"only the newest {len(records)} messages are searched; "
        rounds, has_all_rounds = await stored_history.load_rounds(context)
        if not has_all_rounds:
            note += f"only {len(rounds)} of this proxy's tool calls and results are searched; "
        membership = await stored_history.load_prompt_membership(context)
        return await asyncio.to_thread(stored_history.make_table_rows, records, rounds, membership)

    sql = strip_fence(arguments.sql)
    result = await context.sandbox.query(load_rows, sql, search=_SEARCH.search(sql) is not None, tenant=context.tenant)
    if result.error is not None:
        raise ToolRefused(result.error)
    return format_result(result, context.settings.tools.result_chars, note)


def strip_fence(sql: str) -> str:
    """Return the statement without the code fence around it and the comments before it, as models write them."""
    text = sql.strip()
    if text[:1] in ("`", "~"):
        text = text.strip(text[0]).strip()
        named = next((name for name in _LANGUAGES if text.lower().startswith(name)), "")
        text = text if text[len(named) : len(named) + 1].isalnum() else text[len(named) :]
    begin = _COMMENTS.match(text)
    return text[begin.end() :] if begin else text


def format_result(result: QueryResult, max_chars: int, note: str = "") -> str:
    """Return a result as the model reads it. A single text stands as it is, any other result as a row a line, as JSON.
    Raises ToolRefused if one row is too long."""
    if not result.rows:
        return f"[{note}no rows]"
    if len(result.rows) == 1 and len(result.rows[0]) == 1 and isinstance(result.rows[0][0], str | dict):
        return _render_single_value(result.columns[0], result.rows[0][0], max_chars, note)
    cell, lines = CELL_CHARS[0], _render_lines(result, CELL_CHARS[0])
    for smaller in CELL_CHARS[1:]:
        if sum(map(len, lines)) + len(lines) > max_chars - HEADER_CHARS:
            cell, lines = smaller, _render_lines(result, smaller)
    kept, size = [], 0
    for line in lines:
        size += len(line) + 1
        if size > max_chars - HEADER_CHARS:
            break
        kept.append(line)
    if not kept:
        raise ToolRefused(
            "one row is too long to show; select fewer columns, or substr(content, 1, 500).", limited=True
        )
    has_more = result.more or len(kept) < len(result.rows)
    what = f"rows 1 to {len(kept)}" if has_more else f"{len(kept)} row{'s' * (len(kept) > 1)}"
    next_page = f"; more with OFFSET {len(kept)}" if has_more else ""
    cut = "; long values end with [+N]: N more characters, by substr or recall" if _is_cut(result, cell) else ""
    columns = ", ".join(result.columns)[: HEADER_CHARS // 2]
    return "\n".join((f"[{note}{what}{next_page}{cut}; columns: {columns}]", *kept))


def _render_lines(result: QueryResult, cell: int) -> list[str]:
    return [json.dumps([_shorten_cell(value, cell) for value in row], ensure_ascii=False) for row in result.rows]


def _render_single_value(column: str, value: str | dict[str, Any], max_chars: int, note: str) -> str:
    text, chars = (value, len(value)) if isinstance(value, str) else (str(value["cut"]), int(value["chars"]))
    kept = text[: max_chars - HEADER_CHARS]
    if len(kept) == chars:
        return f"[{note}1 row, {chars} characters]\n{kept}"
    rest = f"for more select substr({column[:60]}, {len(kept) + 1}, {max_chars - HEADER_CHARS})"
    return f"[{note}1 row, the first {len(kept)} of {chars} characters; {rest}]\n{kept}"


def _shorten_cell(value: Any, max_chars: int) -> Any:
    """Return a cell as it is shown: at most `max_chars` characters, and the number of missing ones."""
    text, chars = (str(value["cut"]), int(value["chars"])) if isinstance(value, dict) else (value, 0)
    if not isinstance(text, str) or (len(text) <= max_chars and chars <= len(text)):
        return text
    return f"{text[:max_chars]}[+{max(chars, len(text)) - min(max_chars, len(text))}]"


def _is_cut(result: QueryResult, max_chars: int) -> bool:
    return any(isinstance(v, dict) or (isinstance(v, str) and len(v) > max_chars) for row in result.rows for v in row)


QUERY_DB = Tool(
    name="query_db",
    description=(
        "Search this conversation's own messages, those that have left the prompt too, with one SQLite SELECT over"
        " messages(seq, id, group_id, role, content, tool_call_id, status, parsing_strategy, tokens, created_at,"
        " in_prompt). Newest first (ORDER BY seq DESC), always with LIMIT, substr(content, 1, 300) rather than all of"
        " it. in_prompt = 0: it has left your prompt. Rows with status 'dropped' were taken back: ignore them. By"
        " words: SELECT id, snippet(messages_fts, -1, '', '', '...', 40) FROM messages_fts WHERE messages_fts MATCH"
        " 'one OR two' AND role = 'user' ORDER BY rank LIMIT 20, with all words that may stand there (Chinese,"
        " Japanese, Korean: content LIKE '%word%' instead); then recall(id), or content by id."
    ),
    parameters={"sql": {"type": "string"}},
    required=("sql",),
    arguments_type=QueryDbArguments,
    handler=query_messages,
)
