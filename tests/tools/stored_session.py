"""A tool context on a store that other sessions and tenants share, and messages to store there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proxy.chat import chain
from proxy.dialects.completions.request import read_message
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.store.base import BranchRow, EditRow, MessageRow, SessionRow
from proxy.store.in_memory import InMemoryStore
from proxy.store.reads import Store
from proxy.store.sqlite import SqliteStore
from proxy.tools.run_tool import run_tool_call
from proxy.tools.tool_context import ToolContext
from tests.stores import sqlite_store

CANARY = "canary-7f3a"
"""Stands in every message of others, and nowhere else."""


@dataclass(frozen=True)
class Call:
    """A call as a model made it."""

    name: str
    arguments: str


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def assistant_call(name: str, arguments: str, at: str = "c1", text: str | None = None) -> dict[str, Any]:
    call = {"id": at, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def result(text: str, at: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": at, "content": text}


def make_message_rows(
    messages: Sequence[dict[str, Any]], tenant: str = "t1", session: str = "s1", at: float = 1_700_000_000.0
) -> list[MessageRow]:
    """The messages as the proxy stores them."""
    raws = [json.dumps(message).encode() for message in messages]
    read = [read_message(raw) for raw in raws]
    keys = chain.compute_keys(tenant, read)
    made, group = [], 0
    for n, message in enumerate(read):
        group += message.role == "user"
        parent = keys[n - 1] if n else chain.derive_root_key(tenant)
        status = "tool_call" if message.calls else "completed"
        fields: tuple[Any, ...] = (
            *(tenant, session, keys[n], parent, n, "main", message.role, f"g{group}", raws[n], message.form),
            *(message.call_id, status, "openai", len(raws[n]) // 4, message.role == "assistant", True, at + n),
        )
        made.append(MessageRow(*fields))
    return made


def make_session_rows(tenant: str = "t1", session: str = "s1") -> list[SessionRow | BranchRow]:
    return [
        SessionRow(tenant, session, True, 1.0),
        BranchRow(tenant, session, "main", None, None, "main", b"system", 1.0),
    ]


def make_dropped_edit(row: MessageRow) -> EditRow:
    """The message is out of the prompt."""
    return EditRow(
        *(row.tenant, row.session, "main", row.key, 1, "close_window", "old", "gone", None, 10, 0, "x1", 2.0)
    )


async def store_messages(
    store: Store, messages: Sequence[dict[str, Any]], tenant: str = "t1", session: str = "s1"
) -> list[str]:
    """Stores them; gives their public ids."""
    rows = make_message_rows(messages, tenant, session)
    await store.put([*make_session_rows(tenant, session), *rows])
    return [chain.public_id(row.key) for row in rows]


def make_tool_context(store: Store, **changes: Any) -> ToolContext:
    """The tool context of session s1 of tenant t1. Settings are given as `tools={...}` and `memos={...}`."""
    tree = {name: changes.pop(name) for name in ("tools", "memos") if name in changes}
    made = ToolContext(
        "t1", "s1", "main", True, "", store, Settings.model_validate(tree), Metrics(), now=lambda: 1_700_000_000.0
    )
    return replace(made, **changes)


@asynccontextmanager
async def shared_file(folder: Path) -> AsyncIterator[SqliteStore]:
    """A store file in which another session and another tenant have said things that nobody else may read."""
    store = sqlite_store(folder / "store.sqlite3")
    await store.open()
    try:
        for tenant, session in (("t1", "s2"), ("t2", "s1"), ("t2", "s3")):
            await store_messages(
                store, [user(f"{CANARY} of {tenant} {session}"), assistant(f"{CANARY} answer")], tenant, session
            )
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def in_memory() -> AsyncIterator[InMemoryStore]:
    """A store that has the session."""
    store = InMemoryStore()
    await store.open()
    try:
        await store.put([SessionRow("t1", "s1", True, 1.0)])
        yield store
    finally:
        await store.close()


async def run_call(context: ToolContext, name: str, **arguments: Any) -> str:
    """Run a call; return the result that the model gets."""
    return await run_tool_call(Call(name, json.dumps(arguments)), context)


def read_error(text: str) -> str:
    """The error text of a result."""
    found = json.loads(text)
    assert list(found) == ["error"], found
    return str(found["error"])
