"""Recorded conversations, one at a time: from JSONL files, a conversation a line.

`{"id": ..., "messages": [...], "tools": [...]}`: messages as an agent would send them, everything else in the object is
left aside. What cannot be played is told with its file and line before anything is played, since a run may
take minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from proxy.chat import slices
from proxy.chat.dialects.completions import read_message
from proxy.errors import ConfigError, NotManaged

SHOWN = 40
"""Characters of a wrong value that an error quotes."""
_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAME = msgspec.json.Decoder(str | int)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A recorded conversation. messages, tools: the bytes of each as they were recorded.

    source: the file or the store that it comes from. times: when each message was first seen, in seconds; empty
    where nobody knows. shared: how many messages at the front belong to another thread: their requests are played, so
    that the policy remembers what it should, and not counted. tenant: whose it was. answers: what helper models have
    answered in it, by the id of the Ask.
    """

    id: str
    source: str
    messages: tuple[bytes, ...]
    tools: bytes | None = None
    times: tuple[float, ...] = ()
    shared: int = 0
    tenant: str = ""
    answers: tuple[tuple[str, str], ...] = ()


def conversations(path: Path) -> Iterator[Conversation]:
    """Every conversation of a file, blank lines left aside. ConfigError, with the line, for what is none."""
    if not path.is_file():
        raise ConfigError("FILE", str(path), "a file that is there")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _conversation(line, path, number)


def _conversation(line: bytes, path: Path, number: int) -> Conversation:
    def wrong(key: str, value: bytes | None, allowed: str) -> ConfigError:
        shown = None if value is None else value.decode("utf-8", "replace").strip()[:SHOWN]
        return ConfigError(key, shown, allowed, line=number, source=str(path))

    try:
        fields = _LINE.decode(line)
    except (ValueError, RecursionError) as problem:
        raise wrong("line", line, f'one JSON object: {{"id", "messages", "tools"}} ({problem})') from None
    given = bytes(fields.get("messages", b""))
    spans = slices.elements(given)
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
        return Conversation(_name(fields, number), path.name, messages)
    if slices.elements(tools) is None:
        raise wrong("tools", tools, "a list of tool definitions")
    return Conversation(_name(fields, number), path.name, messages, tools)


def _name(fields: dict[str, msgspec.Raw], number: int) -> str:
    """The conversation's id, or its line where it has none that names it."""
    try:
        return str(_NAME.decode(fields.get("id", b"")))
    except ValueError:
        return f"line {number}"


def count(paths: Iterable[Path]) -> int:
    """How many conversations there are. Reads all of them, so that what is wrong with any is told now: ConfigError."""
    return sum(1 for path in paths for _ in conversations(path))
