"""Check that the model's tools can read again all that a policy takes out of prompts.

What is missing is found by comparing what the agent sent with what the upstream got, not by what the proxy remembers.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proxy.chat import chain
from proxy.dialects.completions.request import read_message
from proxy.tools import stored_history
from proxy.tools.tool_context import ToolContext
from tests.proxy_server import RunningProxy, run_proxy
from tests.recorded.play import Conversation, Model, model_on_a_socket, turns
from tests.recorded.policies import window
from tests.recorded.strict import text_of
from tests.tools.stored_session import run_call

Json = dict[str, Any]

_MORE = re.compile(r"for more select substr\(content, \d+, (\d+)\)")
_NEXT = re.compile(r'next: recall\(id="\w+", page=(\d+)\)')
WINDOW = 8_000
"""Tokens that the model is known to have: few, so that policies which act on a full window act."""
SHORTENED = 10
"""One in so many messages is asked for as by a client that has shortened its history itself: all is looked up in the
store."""


@dataclass
class Recovered:
    """lost: messages that were missing, whole or in part, from a request. recalled, queried: of them, those read again
    by `recall`, and by a query of their own. edits: decisions that the proxy has stored. wrong: what did not come back
    as the client sent it."""

    lost: int = 0
    recalled: int = 0
    queried: int = 0
    edits: int = 0
    wrong: list[str] = field(default_factory=list)


@asynccontextmanager
async def run_proxy_with_model(folder: Path, policy: str, **tree: Any) -> AsyncIterator[tuple[RunningProxy, Model]]:
    async with (
        model_on_a_socket() as (model, upstream),
        run_proxy(upstream.port, policy=policy, models_file=window(folder, WINDOW), **tree) as proxy,
    ):
        yield proxy, model


async def check(
    proxy: RunningProxy, model: Model, conversation: Conversation, *, steps: int, queries: int
) -> Recovered:
    """Play it and read again what was lost: all by `recall` and in the rows that a query works on, and so many at most,
    from all over, by `query_db`, which starts a process each time. steps: requests that are made of it at most."""
    name = f"again-{conversation['id']}"[:100]
    lost = await _lost(proxy, model, conversation, name, steps)
    found = Recovered(lost=len(lost))
    ((tenant, session),) = await proxy.rows("SELECT tenant, session FROM sessions WHERE session = ?", name)
    # Those that the proxy has stored as left out or shortened are among them, whatever became of the bytes.
    rows = await proxy.rows(
        "SELECT key, count(*) FROM edits WHERE session = ? AND action <> 'append' GROUP BY key", name
    )
    raws = [json.dumps(message).encode() for message in conversation["messages"]]
    messages = [read_message(raw) for raw in raws]
    keys = chain.compute_keys(tenant, messages)
    places = {k: n for n, k in enumerate(keys) if conversation["messages"][n]["role"] not in ("system", "developer")}
    found.edits = sum(count for _, count in rows)
    for k, _ in rows:
        if k in places:
            lost.add(places[k])
        else:
            found.wrong.append(f"{name}: an edit of a message that nobody sent")
    context = open_tool_context(proxy, tenant, session)
    whole = replace(context, prompt=messages, prompt_keys=keys)  # as in a request: where a message is from stands there
    table = await contents(context)
    every = max(1, -(-len(lost) // queries))
    for count, n in enumerate(sorted(lost)):
        message, public = conversation["messages"][n], chain.public_id(keys[n])
        asked = context if count % SHORTENED == 0 else whole
        if same(message, table.get(public, "")) and same(message, await recalled(asked, public)):
            found.recalled += 1
        else:
            found.wrong.append(f"{name}: recall of {n}, {public}")
        if count % every == 0:
            if same(message, await queried(context, public)):
                found.queried += 1
            else:
                found.wrong.append(f"{name}: query_db of {n}, {public}")
    found.lost = len(lost)
    return found


async def _lost(proxy: RunningProxy, model: Model, conversation: Conversation, name: str, steps: int) -> set[int]:
    """The places of messages that the upstream did not get whole."""
    lost: set[int] = set()
    played = list(turns(conversation))
    every = max(1, -(-len(played) // steps))
    for history, recorded in [*played[:-1][::every], played[-1]]:
        model.answer = recorded
        model.bodies.clear()
        body: Json = {"model": "replay", "messages": history}
        if conversation.get("tools"):
            body["tools"] = conversation["tools"]
        heard = await proxy.post(body, f"x-session-id: {name}".encode(), seconds=60)
        assert heard.status == 200, heard.body
        lost |= missing(history, json.loads(model.bodies[-1])["messages"])
    return lost


def missing(history: Sequence[Json], sent: Sequence[Json]) -> set[int]:
    """The places in the history of messages that the prompt does not have, in their order, with all they say."""
    lost: set[int] = set()
    at = 0
    for n, message in enumerate(history):
        if message["role"] in ("system", "developer"):
            continue
        place = next((m for m in range(at, len(sent)) if _has(sent[m], message)), None)
        if place is None:
            lost.add(n)
        else:
            at = place + 1
    return lost


def _has(sent: Json, message: Json) -> bool:
    return (
        sent["role"] == message["role"]
        and sent.get("tool_call_id") == message.get("tool_call_id")
        and (sent.get("tool_calls") or []) == (message.get("tool_calls") or [])
        and text_of(sent.get("content")).startswith(text_of(message.get("content")))
    )


def same(message: Json, text: str) -> bool:
    """True if a text is the whole message: the client's text as it was, followed by all its calls.

    The parts of a tool's result begin on lines of their own."""
    content = message.get("content")
    if message["role"] == "tool" and isinstance(content, list):
        texts: list[str] = [part["text"] for part in content]
        return re.sub(r"(?<!\n)\0(?!\n)", "\n", "\0".join(filter(None, texts))).replace("\0", "") == text
    own = text_of(content)
    if not message.get("tool_calls") and not message.get("reasoning_content"):
        return text == own
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return text.startswith(own) and all(
        call["name"] in text[len(own) :] and call["arguments"] in text[len(own) :] for call in calls
    )


def open_tool_context(proxy: RunningProxy, tenant: str, session: str) -> ToolContext:
    """The context in which the model's calls are run in this session."""
    parts = proxy.app.services
    return ToolContext(
        tenant, session, "main", True, "", parts.store, parts.settings, parts.metrics, sandbox=parts.sandbox
    )


async def contents(context: ToolContext) -> dict[str, str]:
    """The content of each message by its id, as the table has it that `query_db` works on."""
    records, is_all = await stored_history.load_newest(context)
    assert is_all
    rounds, has_all_rounds = await stored_history.load_rounds(context)
    assert has_all_rounds
    rows = stored_history.make_table_rows(records, rounds)
    cells = [dict(zip(stored_history.COLUMNS, json.loads(row), strict=True)) for row in rows]
    return {row["id"]: row["content"] for row in cells}


async def recalled(context: ToolContext, public: str) -> str:
    """All pages of a message, the next one as each page says."""
    text, page = "", 1
    while True:
        head, _, part = (await run_call(context, "recall", id=public, page=page)).partition("\n")
        text += part
        more = _NEXT.search(head)
        if more is None:
            return text
        page = int(more[1])


async def queried(context: ToolContext, public: str) -> str:
    """A message's content by SQL, in pieces where the result says so."""
    step = 0
    text, sql = "", f"SELECT content FROM messages WHERE id = '{public}'"
    while True:
        head, _, part = (await run_call(context, "query_db", sql=sql)).partition("\n")
        text += part
        more = _MORE.search(head)
        if more is not None:
            step = int(more[1])
        elif not sql.startswith("SELECT substr") or len(part) < step:
            return text
        sql = f"SELECT substr(content, {len(text) + 1}, {step}) FROM messages WHERE id = '{public}'"
