"""Reader of recorded conversations from JSONL files, one conversation per line.

A line is `{"id": ..., "messages": [...], "tools": [...]}`. The messages are as an agent would send them; other fields
of the object are ignored. Input that cannot be played is reported with its file and line before anything is played,
since a run may take minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from proxy.chat import json_spans
from proxy.dialects.completions.request import read_message
from proxy.errors import ConfigError, NotManaged

MAX_QUOTED_CHARS = 40
"""Characters of a wrong value that an error quotes."""
_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAME = msgspec.json.Decoder(str | int)


@dataclass(frozen=True, slots=True)
class RecordedConversation:
    """A recorded conversation."""

    id: str
    source: str
    """The name of the file or store that it comes from."""
    messages: tuple[bytes, ...]
    """The bytes of each message as recorded."""
    tools: bytes | None = None
    """The bytes of the tools array as recorded, None if there is none."""
    times: tuple[float, ...] = ()
    """The time at which each message was first seen, in seconds; empty if not known."""
    shared_messages: int = 0
    """Number of messages at the front that belong to another thread. Their requests are played, so that the policy
    remembers what it should, but not counted."""
    tenant: str = ""
    """The tenant whose conversation it was."""
    answers: tuple[tuple[str, str], ...] = ()
    """Answers of helper models in it, by the id of the Ask."""


def read_conversations(path: Path) -> Iterator[RecordedConversation]:
    """Yield every conversation of a file; blank lines are skipped. Raises ConfigError, with the line, if a line holds
    none."""
    if not path.is_file():
        raise ConfigError("FILE", str(path), "a file that is there")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _conversation(line, path, number)


def _conversation(line: bytes, path: Path, number: int) -> RecordedConversation:
    def wrong(key: str, value: bytes | None, allowed: str) -> ConfigError:
        shown = None if value is None else value.decode("utf-8", "replace").strip()[:MAX_QUOTED_CHARS]
        return ConfigError(key, shown, allowed, line=number, source=str(path))

    try:
        fields = _LINE.decode(line)
    except (ValueError, RecursionError) as problem:
        raise wrong("line", line, f'one JSON object: {{"id", "messages", "tools"}} ({problem})') from None
    given = bytes(fields.get("messages", b""))
    spans = json_spans.find_elements(given)
    if not spans:
        raise wrong("messages", given or None, "a list with at least one message")
    messages = tuple(given[start:end] for start, end in spans)
    for at, raw in enumerate(messages):
        try:
            read_message(raw)
        except NotManaged as problem:
            raise wrong(f"messages[{at}]", raw, f"a chat message ({problem})") from None
    tools = bytes(fields.get("tools", b""))
    if tools in (b"", b"null", b"[]"):
        return RecordedConversation(_name(fields, number), path.name, messages)
    if json_spans.find_elements(tools) is None:
        raise wrong("tools", tools, "a list of tool definitions")
    return RecordedConversation(_name(fields, number), path.name, messages, tools)


def _name(fields: dict[str, msgspec.Raw], number: int) -> str:
    """Return the conversation's id, or its line number if it has no id that names it."""
    try:
        return str(_NAME.decode(fields.get("id", b"")))
    except ValueError:
        return f"line {number}"


def count_conversations(paths: Iterable[Path]) -> int:
    """Return the number of conversations. All files are read, so that an error in any of them is reported now:
    ConfigError."""
    return sum(1 for path in paths for _ in read_conversations(path))
