"""Reader of recorded conversations from files.

The format of the replay itself is JSONL, one conversation per line: `{"id": ..., "messages": [...], "tools": [...],
"times": [...]}`. The messages are as an agent would send them, and the times, in seconds, are those of the messages.
Other fields of the object are ignored. Such a file is read line by line. Every other format is read whole (`formats`).
Input that cannot be played is reported with its file and line before anything is played, since a run may take minutes.
"""

from __future__ import annotations

import gzip
import itertools
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from proxy.chat import json_spans
from proxy.dialects.completions.request import read_message
from proxy.errors import ConfigError, NotManaged
from proxy.replay.formats import READABLE, Chat, parse_documents, read_format

MAX_QUOTED_CHARS = 40
"""Characters of a wrong value that an error quotes."""
GZIP_MAGIC: Final = b"\x1f\x8b"
FOREIGN_KEYS: Final = frozenset({
    "trajectory_format", "info", "run_type", "request", "custom_id", "conversations", "system", "sessionId", "payload",
})  # fmt: skip
"""Keys of objects that have `messages` too, and are of another format."""
FOREIGN_BLOCKS: Final = (b'"tool_use"', b'"tool_result"', b'"kwargs"')
"""Parts of messages that are no chat messages."""
_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TIMES = msgspec.json.Decoder(tuple[float, ...])
_NAME = msgspec.json.Decoder(str | int)


@dataclass(frozen=True, slots=True)
class RecordedConversation:
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
    """Number of messages at the front that belong to another branch. Their requests are played, so that the policy
    remembers what it should, but not counted."""
    tenant: str = ""
    """The tenant whose conversation it was."""
    answers: tuple[tuple[str, str], ...] = ()
    """Answers of helper models in it, by the id of the Ask."""
    model: str = ""
    """The model of its last request, empty if not known."""


def read_conversations(path: Path) -> Iterator[RecordedConversation]:
    """Yield every conversation of a file, whatever its format; blank lines are skipped. Raises ConfigError, with the
    line where there is one, if the file or a line holds none."""
    if path.is_dir():
        raise ConfigError("FILE", str(path), f"a file: this is a folder. Name the files in it, as in {path}/*.jsonl")
    if not path.is_file():
        raise ConfigError("FILE", str(path), "a file that is there")
    try:
        with _open_file(path) as file:
            first = next((line for line in file if line.strip()), b"")
            if not first:
                raise ConfigError("FILE", str(path), "a file with something in it: this one is empty")
            if _is_own(first):
                file.seek(0)
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield _read_line(line, path, number)
                return
            file.seek(0)
            data = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise ConfigError("FILE", str(path), f"a whole .gz file ({problem})") from None
    except OSError as problem:
        raise ConfigError("FILE", str(path), f"a file that can be read ({problem.strerror})") from None
    yield from _read_foreign(data, path)


def _open_file(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]  # both are read alike


def _is_own(line: bytes) -> bool:
    """True if a line is a conversation in the format of the replay itself."""
    try:
        fields = _LINE.decode(line)
    except (ValueError, RecursionError):
        return False
    if "messages" not in fields or FOREIGN_KEYS & fields.keys():
        return False
    return not any(one in line for one in FOREIGN_BLOCKS)


def _read_foreign(data: bytes, path: Path) -> Iterator[RecordedConversation]:
    """Yield the conversations of a file of another format. Raises ConfigError if it has none."""
    try:
        documents = parse_documents(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        documents = None
    if documents == []:
        raise ConfigError("FILE", str(path), "a file with something in it: this one is an empty list")
    chats = read_format(documents) if documents is not None else None
    if chats is None:
        start = data.lstrip()[:MAX_QUOTED_CHARS].decode("utf-8", "replace")
        what = "JSON: this is none. Readable are " if documents is None else "a recording. Readable are "
        raise ConfigError("line", start, what + READABLE, line=1, source=str(path))
    if not chats:
        raise ConfigError(
            "FILE", str(path), "a recording with messages: its format is known, and nothing was said in it"
        )
    for chat in chats:
        yield _read_chat(chat, path)


def _read_chat(chat: Chat, path: Path) -> RecordedConversation:
    messages = tuple(msgspec.json.encode(one) for one in chat.messages)
    for at, raw in enumerate(messages):
        try:
            read_message(raw)
        except NotManaged as problem:
            shown = raw.decode("utf-8", "replace")[:MAX_QUOTED_CHARS]
            allowed = f"a chat message ({problem})"
            raise ConfigError(f"{chat.id}: messages[{at}]", shown, allowed, source=str(path)) from None
    tools = msgspec.json.encode(chat.tools) if chat.tools else None
    # A session that was resumed may have copied lines whose times are earlier.
    times = () if any(map(math.isnan, chat.times)) else tuple(itertools.accumulate(chat.times, max))
    return RecordedConversation(chat.id, path.name, messages, tools, times)


def _read_line(line: bytes, path: Path, number: int) -> RecordedConversation:
    def make_error(key: str, value: bytes | None, allowed: str) -> ConfigError:
        shown = None if value is None else value.decode("utf-8", "replace").strip()[:MAX_QUOTED_CHARS]
        return ConfigError(key, shown, allowed, line=number, source=str(path))

    try:
        fields = _LINE.decode(line)
    except (ValueError, RecursionError) as problem:
        raise make_error("line", line, f'one JSON object: {{"id", "messages", "tools"}} ({problem})') from None
    given = bytes(fields.get("messages", b""))
    spans = json_spans.find_elements(given)
    if not spans:
        raise make_error("messages", given or None, "a list with at least one message")
    messages = tuple(given[start:end] for start, end in spans)
    for at, raw in enumerate(messages):
        try:
            read_message(raw)
        except NotManaged as problem:
            raise make_error(f"messages[{at}]", raw, f"a chat message ({problem})") from None
    tools, times = bytes(fields.get("tools", b"")), _read_times(fields, len(messages))
    if tools in (b"", b"null", b"[]"):
        return RecordedConversation(_read_name(fields, number), path.name, messages, times=times)
    if json_spans.find_elements(tools) is None:
        raise make_error("tools", tools, "a list of tool definitions")
    return RecordedConversation(_read_name(fields, number), path.name, messages, tools, times)


def _read_times(fields: dict[str, msgspec.Raw], count: int) -> tuple[float, ...]:
    """Return the times of the messages, as `context-proxy export` writes them; empty if they are of another kind."""
    try:
        times = _TIMES.decode(fields.get("times", b""))
    except ValueError:
        return ()
    return times if len(times) == count and list(times) == sorted(times) else ()


def _read_name(fields: dict[str, msgspec.Raw], number: int) -> str:
    """Return the conversation's id, or its line number if it has no id that names it."""
    try:
        return str(_NAME.decode(fields.get("id", b"")))
    except ValueError:
        return f"line {number}"


def count_requests(paths: Iterable[Path]) -> int:
    """Return the number of requests that are played: the answers. All files are read, so that an error in
    any of them is reported now: ConfigError."""
    return sum(
        read_message(raw).role == "assistant"
        for path in paths
        for one in read_conversations(path)
        for raw in one.messages[1:]
    )
