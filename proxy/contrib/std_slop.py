"""Reader of std::slop's SQLite file: conversations with their state, scratchpad, window and memos.

The tables are messages, sessions (`context_size`, `scratchpad`), session_state (`state_blob`) and llm_memos. A row of
messages is one message, in one session and one group, with the strategy that it was written for. Older and newer files
lack columns and tables; missing data is not imported. The file is read by a connection that cannot write.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proxy.errors import ConfigError

MAGIC: Final = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class SlopSession:
    """A session of std::slop."""

    session: str
    messages: list[dict[str, Any]]
    """The messages in order, in the format of chat completions."""
    dropped: list[int]
    """The positions of messages that std::slop left out of its prompts."""
    state: str = ""
    scratchpad: str = ""
    window: int | None = None
    """Groups that stay in the prompt, None if the file does not say."""


@dataclass(frozen=True, slots=True)
class SlopMemo:
    """A memo of any session."""

    content: str
    tags: list[str]


def is_sqlite(file: Path) -> bool:
    """True if a file is a SQLite file. Raises ConfigError if it cannot be read."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ConfigError("FILE", str(file), f"a file that can be read ({error.strerror})") from None


def read_database(file: Path) -> tuple[list[SlopSession], list[SlopMemo]]:
    """Return all conversations and memos of the file. Raises ConfigError if the file is not std::slop's."""
    try:
        with closing(sqlite3.connect(file.absolute().as_uri() + "?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"messages", "sessions"} <= tables or "session_id" not in _list_columns(database, "messages"):
                raise ConfigError("FILE", str(file), "std::slop's database, or JSONL with a conversation a line")
            return _read_sessions(database, tables), _read_memos(database, tables)
    except sqlite3.DatabaseError as error:
        raise ConfigError("FILE", str(file), f"a SQLite file that can be read ({error})") from None


def _list_columns(database: sqlite3.Connection, name: str) -> set[str]:
    return {row["name"] for row in database.execute(f"PRAGMA table_info({name})")}


def _read_sessions(database: sqlite3.Connection, tables: set[str]) -> list[SlopSession]:
    settings = {row["id"]: dict(row) for row in database.execute("SELECT * FROM sessions")}
    states = _read_by_session(database, "session_state", "state_blob", tables)
    pads = _read_by_session(database, "scratchpads", "content", tables)
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in database.execute("SELECT * FROM messages ORDER BY id"):
        rows.setdefault(row["session_id"] or "std-slop", []).append(dict(row))
    talks = []
    for session, messages in rows.items():
        known = settings.get(session, {})
        window = known.get("context_size")
        talks.append(
            SlopSession(
                session,
                [_message(row, messages[:place]) for place, row in enumerate(messages)],
                [place for place, row in enumerate(messages) if row.get("status") == "dropped"],
                states.get(session, ""),
                pads.get(session) or known.get("scratchpad") or "",
                window if isinstance(window, int) and window >= 0 else None,
            )
        )
    return talks


def _read_by_session(database: sqlite3.Connection, name: str, column: str, tables: set[str]) -> dict[str, str]:
    if name not in tables or column not in _list_columns(database, name):
        return {}
    return {row["session_id"]: row[column] or "" for row in database.execute(f"SELECT * FROM {name}")}  # noqa: S608  # ours


def _read_memos(database: sqlite3.Connection, tables: set[str]) -> list[SlopMemo]:
    if "llm_memos" not in tables:
        return []
    return [
        SlopMemo(row["content"], _read_tags(row["semantic_tags"]))
        for row in database.execute("SELECT * FROM llm_memos ORDER BY id")
    ]


def _read_tags(text: str | None) -> list[str]:
    """Return tags from a JSON list, or from words separated by commas."""
    try:
        decoded = json.loads(text or "[]")
    except ValueError:
        decoded = None
    if isinstance(decoded, list):
        return [str(tag) for tag in decoded]
    return [tag.strip() for tag in (text or "").split(",") if tag.strip()]


def _message(row: dict[str, Any], before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row as a chat message. A result answers the call with its id: Gemini's is the tool's name."""
    content, call_id = row.get("content") or "", row.get("tool_call_id") or ""
    if row["role"] == "tool":
        # Some versions write `id|name`.
        return {
            "role": "tool",
            "tool_call_id": _find_call_id(call_id.partition("|")[0], row, before),
            "content": content,
        }
    if row["role"] == "assistant" and (row.get("status") == "tool_call" or _read_calls(row)):
        body = _parse_object(content)
        text = body.get("content") if isinstance(body.get("content"), str) else _join_gemini_text(body)
        return {"role": "assistant", "content": text or None, "tool_calls": _read_calls(row)} if _read_calls(row) else {
            "role": "assistant", "content": text or content,
        }  # fmt: skip
    return {"role": row["role"], "content": content}


def _read_calls(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a row, in OpenAI's or Gemini's format, in OpenAI's format."""
    if row.get("status") not in ("tool_call", "dropped"):
        return []
    body = _parse_object(row.get("content") or "")
    calls = []
    for number, call in enumerate(body.get("tool_calls") or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            calls.append(
                _make_call(
                    call.get("id") or f"call_{row['id']}_{number}", function.get("name"), function.get("arguments")
                )
            )
    for number, part in enumerate(_list_gemini_parts(body)):
        function = part.get("functionCall") if isinstance(part, dict) else None
        if isinstance(function, dict):
            calls.append(_make_call(f"call_{row['id']}_{number}", function.get("name"), function.get("args")))
    return calls


def _make_call(name: str, tool: object, given: object) -> dict[str, Any]:
    text = given if isinstance(given, str) else json.dumps(given if given is not None else {})
    return {"id": name, "type": "function", "function": {"name": str(tool or "unknown"), "arguments": text}}


def _find_call_id(call_id: str, row: dict[str, Any], before: list[dict[str, Any]]) -> str:
    """Return the id of the call that a result answers. For Gemini it is the newest call with the tool's name."""
    for one in reversed(before):
        if one.get("group_id") != row.get("group_id"):
            break
        for call in _read_calls(one):
            if call_id in (call["id"], call["function"]["name"]):
                return str(call["id"])
    return call_id or f"call_{row['id']}"


def _list_gemini_parts(turn: dict[str, Any]) -> list[Any]:
    parts = turn.get("parts")
    return parts if isinstance(parts, list) else [turn] if "functionCall" in turn else []


def _join_gemini_text(turn: dict[str, Any]) -> str:
    return "".join(
        p["text"] for p in _list_gemini_parts(turn) if isinstance(p, dict) and isinstance(p.get("text"), str)
    )


def _parse_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
