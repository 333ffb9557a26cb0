"""Recordings as people have them: the format is recognised by the content, and each becomes chat conversations.

Logs hold a conversation many times, since each request has all of it. The longest one is taken, and the others, which
are its beginnings, are left out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from proxy.replay.message_forms import (
    Json,
    make_assistant,
    read_answer,
    read_blocks,
    read_chat,
    read_request,
    read_timed_items,
    read_tools,
    read_turns,
)

READABLE: Final = (
    "JSONL of conversations, JSON arrays of conversations or of messages, OpenAI batch files, logs of requests and "
    "responses, sessions of Claude Code and Codex, trajectories of mini-swe-agent, exports of LangSmith and Langfuse, "
    "ShareGPT, HAR; each also as .gz, and from stdin as -"
)
"""The formats, in the words of an error."""


@dataclass(slots=True)
class Chat:
    """A conversation as chat completions has it."""

    id: str
    messages: list[Json] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """The time of each message in seconds, NaN where the recording has none; empty for formats without times."""


def parse_documents(text: str) -> list[Any] | None:
    """Return the JSON values of a text: of one document, or of one document a line. None if it is neither."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        pass
    else:
        return document if isinstance(document, list) else [document]
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        return None


def read_format(documents: list[Any]) -> list[Chat] | None:
    """Return the conversations of documents. None if the format is not known."""
    objects = [one for one in documents if isinstance(one, Mapping)]
    if documents and all(isinstance(one, list) for one in documents):
        return [Chat(f"number {n}", list(read_chat(one))) for n, one in enumerate(documents, 1)]
    for reader in READERS:
        found = reader(objects)
        if found is not None:
            return [one for one in found if one.messages]
    return None


def _read_claude_code(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    """Claude Code writes one line for each block of an answer; the blocks of one answer share its id."""
    lines = [one for one in objects if "sessionId" in one and isinstance(one.get("message"), Mapping)]
    if not lines:
        return None
    chats: dict[str, Chat] = {}
    last: dict[str, str] = {}
    for line in lines:
        side = str(line.get("agentId") or "side") if line.get("isSidechain") else ""
        name = str(line["sessionId"]) + (f" {side}" if side else "")
        chat = chats.setdefault(name, Chat(name))
        answer = str(line["message"].get("id") or "")
        messages = list(read_blocks(line["message"]))
        for one in messages:
            if one["role"] == "assistant" and answer and last.get(name) == answer:
                _append_block(chat.messages[-1], one)
            else:
                chat.messages.append(one)
                chat.times.append(_read_timestamp(line))
        if messages:
            last[name] = answer if messages[-1]["role"] == "assistant" else ""
    return list(chats.values())


def _append_block(message: Json, block: Json) -> None:
    """Add the text and calls of a further block to an answer."""
    texts = [text for text in (message["content"], block["content"]) if text]
    message["content"] = "\n".join(texts) or None
    if block.get("tool_calls"):
        message.setdefault("tool_calls", []).extend(block["tool_calls"])


def _read_codex(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    lines = [line for line in objects if isinstance(line.get("payload"), Mapping) and "type" in line]
    if not any(line["type"] == "response_item" for line in lines):
        return None
    meta: Mapping[str, Any] = next((line["payload"] for line in lines if line["type"] == "session_meta"), {})
    given = meta.get("instructions") or meta.get("base_instructions")
    text = given.get("text") if isinstance(given, Mapping) else given
    head = [{"role": "system", "content": str(text)}] if text else []
    items = [(line["payload"], _read_timestamp(line)) for line in lines if line["type"] == "response_item"]
    timed = list(read_timed_items(items))
    tools = read_tools(meta.get("dynamic_tools"))
    messages, times = [message for message, _ in timed], [time for _, time in timed]
    name = str(meta.get("id") or "session")
    return [Chat(name, [*head, *messages], tools, [*times[: len(head)], *times])]


def _read_timestamp(line: Mapping[str, Any]) -> float:
    """Return the time of a line of a session file, in seconds; NaN if it has none."""
    try:
        return datetime.fromisoformat(str(line.get("timestamp"))).timestamp()
    except ValueError:
        return math.nan


def _read_har(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    logs = [one["log"] for one in objects if isinstance(one.get("log"), Mapping) and "entries" in one["log"]]
    if not logs:
        return None
    pairs = []
    for entry in (entry for log in logs for entry in log["entries"]):
        body = _decode((entry.get("request") or {}).get("postData", {}).get("text"))
        content = (entry.get("response") or {}).get("content") or {}
        text = content.get("text")
        if content.get("encoding") == "base64" and isinstance(text, str):
            try:
                text = base64.b64decode(text).decode("utf-8", "replace")
            except (binascii.Error, ValueError):
                text = None
        pairs.append(
            (body, _read_stream(text) if isinstance(text, str) and text.startswith("data:") else _decode(text))
        )
    return _collect_conversations(pairs)


def _read_stream(text: str) -> Any:
    """Return the answer of a stream of chat completions: the texts and calls of its chunks."""
    answered, calls = "", dict[int, Json]()
    for line in text.splitlines():
        event = _decode(line.removeprefix("data:").strip())
        for choice in (event.get("choices") or ())[:1] if isinstance(event, Mapping) else ():
            delta = choice.get("delta") or {}
            answered += delta.get("content") or ""
            for part in delta.get("tool_calls") or ():
                new: Json = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(part.get("index", 0), new)
                call["id"] += part.get("id") or ""
                for name in ("name", "arguments"):
                    call["function"][name] += (part.get("function") or {}).get(name) or ""
    return make_assistant(answered, list(calls.values())) if answered or calls else None


def _read_requests(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    """OpenAI's batch files, in and out, and logs with a request and a response in each line."""
    pairs: list[tuple[Any, Any]] = []
    batch: dict[str, int] = {}
    known = False
    for entry in objects:
        if "custom_id" in entry:
            known = True
            answer = entry.get("response")
            answered = answer.get("body") if isinstance(answer, Mapping) else None
            at = batch.setdefault(str(entry["custom_id"]), len(pairs))
            if at == len(pairs):
                pairs.append((None, None))
            pairs[at] = (_decode(entry.get("body")) or pairs[at][0], answered or pairs[at][1])
            continue
        body = _decode(_take_first(entry, "request", "request_body", "req", "kwargs"))
        if not isinstance(body, Mapping):
            continue
        body = _decode(body["body"]) if "body" in body else body
        answer = _decode(_take_first(entry, "response", "response_body", "resp", "completion"))
        answer = _decode(answer["body"]) if isinstance(answer, Mapping) and "body" in answer else answer
        known = True
        pairs.append((body, answer))
    if not known:
        return None
    return _collect_conversations(pairs)


def _read_langsmith(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    """Runs of a trace. Only those of a model are conversations."""
    runs = [one for one in objects if "run_type" in one]
    if not runs:
        return None
    pairs = []
    for run in runs:
        given = run.get("inputs")
        if run["run_type"] not in ("llm", "chat_model") or not isinstance(given, Mapping):
            continue
        listed = given.get("messages")
        listed = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], list) else listed
        tools = given.get("tools") or (run.get("extra") or {}).get("invocation_params", {}).get("tools")
        outputs = run.get("outputs") or {}
        generations = outputs.get("generations")
        while isinstance(generations, list) and generations:
            generations = generations[0]
        answer = generations.get("message") if isinstance(generations, Mapping) else outputs.get("messages") or outputs
        pairs.append(({"messages": listed, "tools": tools}, [answer] if isinstance(generations, Mapping) else answer))
    return _collect_conversations(pairs)


def _read_langfuse(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    """Observations of a trace. Those of a model are generations."""
    listed = [
        each
        for observation in objects
        for each in observation.get("observations") or (observation,)
        if isinstance(each, Mapping)
    ]
    generations = [
        observation for observation in listed if observation.get("type") == "GENERATION" and "input" in observation
    ]
    if not generations:
        return None
    pairs = []
    for observation in generations:
        given = _decode(observation["input"])
        body = given if isinstance(given, Mapping) else {"messages": given}
        pairs.append((body, _decode(observation.get("output"))))
    return _collect_conversations(pairs)


def _read_sharegpt(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    talks = [talk for talk in objects if isinstance(talk.get("conversations"), list)]
    if not talks:
        return None
    chats = []
    for n, talk in enumerate(talks, 1):
        tools = read_tools(_decode(talk.get("tools")))
        system = [{"role": "system", "content": talk["system"]}] if talk.get("system") else []
        chats.append(Chat(str(talk.get("id") or f"number {n}"), [*system, *read_turns(talk["conversations"])], tools))
    return chats


def _read_messages(objects: list[Mapping[str, Any]]) -> list[Chat] | None:
    """Conversations with their messages, mini-swe-agent's trajectories among them; or one conversation's messages."""
    if objects and all("role" in one and ("content" in one or "tool_calls" in one) for one in objects):
        return [Chat("conversation", list(read_chat(objects)))]
    talks = [one for one in objects if isinstance(one.get("messages"), list)]
    if not talks:
        return None
    chats = []
    for n, one in enumerate(talks, 1):
        messages, tools = read_request(one)
        name = one.get("id") or one.get("instance_id")
        name = name if isinstance(name, str | int) else f"number {n}"
        chats.append(Chat(str(name), messages, tools))
    return chats


READERS: Final[tuple[Callable[[list[Mapping[str, Any]]], list[Chat] | None], ...]] = (
    _read_claude_code, _read_codex, _read_har, _read_langsmith, _read_langfuse, _read_sharegpt, _read_requests,
    _read_messages,
)  # fmt: skip
"""The formats, the special ones before the general."""


def _collect_conversations(pairs: Iterable[tuple[Any, Any]]) -> list[Chat]:
    """Return the conversations of requests with their answers."""
    chats = []
    for n, (body, answer) in enumerate(pairs, 1):
        if isinstance(body, Mapping):
            messages, tools = read_request(body)
            if messages:
                chats.append(Chat(f"request {n}", [*messages, *read_answer(answer)], tools))
    return list(_select_longest(chats))


def _select_longest(chats: list[Chat]) -> Iterator[Chat]:
    """Yield the conversations that are not the beginning of another one, in the order in which they began."""
    chains = [list(_hash_prefixes(chat.messages)) for chat in chats]
    beginnings = {link for links in chains for link in links[:-1]}
    seen = set[bytes]()
    for chat, links in zip(chats, chains, strict=True):
        if links[-1] not in beginnings and links[-1] not in seen:
            seen.add(links[-1])
            yield chat


def _hash_prefixes(messages: list[Json]) -> Iterator[bytes]:
    """Yield a digest of each beginning of a history. Keys without a value count as absent: answers have more of them
    than what a client sends back."""
    link = b""
    for message in messages:
        filled = {key: value for key, value in message.items() if value not in (None, "", [])}
        link = hashlib.blake2b(link + json.dumps(filled, sort_keys=True).encode(), digest_size=16).digest()
        yield link


def _take_first(entry: Mapping[str, Any], *names: str) -> Any:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _decode(value: Any) -> Any:
    """Return JSON that is in a text; any other value as it is, and None for a text that is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
