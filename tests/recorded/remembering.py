"""Questions about what was said months ago: whether the messages that hold the answer are found again.

Each question is asked behind its whole conversation, of which the prompt keeps the last messages alone. What was found
is read off the prompt that the upstream got.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import msgspec

from proxy.chat import chain
from proxy.dialects.completions.request import read_message
from proxy.notes.topic_words import find_topic_words
from proxy.tools import sandbox_child
from proxy.tools.query_db import format_result
from proxy.tools.sandbox import QueryResult
from tests.proxy_server import RunningProxy
from tests.recorded.play import Conversation, Model

LAST = 50
"""Messages at the end that stay in the prompt; what they hold is not asked for."""
ROWS = 45
"""Rows that a query asks for: as many as fit into a result with a sentence of each."""


@dataclass
class Shares:
    """Of the questions: with any of their messages found, with all of them, and the mean share of them."""

    questions: int = 0
    any: float = 0.0
    all: float = 0.0
    recall: float = 0.0

    def add(self, wanted: frozenset[int], found: frozenset[int]) -> None:
        """One more question."""
        got = len(wanted & found)
        before, self.questions = self.questions, self.questions + 1
        for name, value in (("any", got > 0), ("all", got == len(wanted)), ("recall", got / len(wanted))):
            setattr(self, name, (getattr(self, name) * before + value) / self.questions)

    def __str__(self) -> str:
        return f"{self.questions} questions: any {self.any:.3f}, all {self.all:.3f}, recall {self.recall:.3f}"


def questions(conversation: Conversation) -> Iterator[tuple[str, frozenset[int]]]:
    """(the question, the places of the messages that hold its answer), where they are out of the prompt."""
    end = len(conversation["messages"]) - LAST
    for one in conversation["questions"]:
        wanted = frozenset(n for n in one["evidence_messages"] if n < end)
        if wanted:
            yield one["question"], wanted


def names(conversation: Conversation, tenant: str) -> dict[str, int]:
    """The place of each message by its public id."""
    read = [read_message(json.dumps(m).encode()) for m in conversation["messages"]]
    return {chain.public_id(k): n for n, k in enumerate(chain.compute_keys(tenant, read))}


async def list_sent_for(
    proxy: RunningProxy, model: Model, conversation: Conversation, question: str
) -> list[Mapping[str, Any]]:
    """The messages that the upstream got for a question."""
    model.answer = {"role": "assistant", "content": "Well."}
    model.bodies.clear()
    messages = [*conversation["messages"], {"role": "user", "content": question}]
    # Without a session's name, so that the other questions are not found in the store.
    heard = await proxy.post({"model": "replay", "messages": messages}, key=conversation["id"], seconds=60)
    assert heard.status == 200, heard.body
    found: list[Mapping[str, Any]] = json.loads(model.bodies[-1])["messages"]
    return found


def quoted(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """The ids that stand before the quotations in a prompt."""
    return [name for m in messages for name in re.findall(r"^> ([a-z2-7]{10})[,:] ", m["content"], re.MULTILINE)]


def queries(question: str, rounds: int) -> Iterator[str]:
    """The queries that a model sends to `query_db`: the words of the question, with a later offset each time."""
    words = " OR ".join(dict.fromkeys(find_topic_words(question)))
    for n in range(rounds):
        yield (
            f"SELECT id, substr(snippet(messages_fts, -1, '', '', '...', 24), 1, 140) FROM messages_fts"
            f" WHERE messages_fts MATCH '{words}' AND role = 'user' ORDER BY rank LIMIT {ROWS} OFFSET {ROWS * n}"
        )


class Searched:
    """The database of `query_db`, made once for many statements: a process for each would take minutes."""

    def __init__(self, rows: Sequence[bytes], most: int) -> None:
        """most: characters of a result."""
        # SQLite's limit is one for the whole process, and cannot be raised: it would limit the store of later tests.
        with patch.object(sandbox_child, "HEAP_BYTES", 0):
            self._database = sandbox_child.fill(iter([*rows, b""]), search=True)
        sandbox_child.guard(self._database)
        self._most = most

    def ask(self, sql: str) -> str:
        """The result that the model gets."""
        return format_result(msgspec.convert(sandbox_child.run_statement(self._database, sql), QueryResult), self._most)

    def ids_by_round(self, question: str, rounds: int) -> list[frozenset[str]]:
        """All that it has read after each of so many rounds."""
        found: list[frozenset[str]] = []
        for sql in queries(question, rounds):
            head, *lines = self.ask(sql).split("\n")
            assert "[+" not in head, head  # no row was cut to make room
            found.append(frozenset(json.loads(line)[0] for line in lines).union(*found[-1:]))
            if len(lines) < ROWS:
                assert "more with OFFSET" not in head, head
                return found + found[-1:] * (rounds - len(found))
        return found
