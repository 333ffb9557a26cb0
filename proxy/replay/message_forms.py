"""Chat messages from other formats: Anthropic's blocks, OpenAI's items, LangChain's objects, ShareGPT's turns.

A replay plays chat completions. The texts, calls and results of a conversation are the same in every format. What
is beside them (reasoning, ids of items, cache marks, pictures) has no place in the recordings that are compared,
and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from proxy.chat.message import CHAT_ROLES

Json = dict[str, Any]

LANGCHAIN_ROLES: Final = {
    "human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "function",
    "HumanMessage": "user", "AIMessage": "assistant", "SystemMessage": "system", "ToolMessage": "tool",
    "HumanMessageChunk": "user", "AIMessageChunk": "assistant", "FunctionMessage": "function",
}  # fmt: skip
SHAREGPT_ROLES: Final = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "system": "system", "tool": "tool", "observation": "tool", "function_response": "tool",
    "function_call": "call", "tool_call": "call",
}  # fmt: skip
KEPT_KEYS: Final = ("role", "content", "name", "tool_calls", "tool_call_id", "function_call")


def read_text(content: Any) -> str:
    """Return the text of a content: a text, a part, or a list of these."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        found = content.get("text", content.get("output", content.get("content")))
        return read_text(found) if found is not None else ""
    if isinstance(content, Sequence):
        return "\n".join(text for part in content if (text := read_text(part)))
    return ""


def make_call(call_id: str, name: str, arguments: Any) -> Json:
    """Return a tool call of a chat message."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def make_assistant(text: str, calls: Sequence[Json] = ()) -> Json:
    """Return an assistant message."""
    made: Json = {"role": "assistant", "content": text or None}
    return made | ({"tool_calls": list(calls)} if calls else {})


def make_result(call_id: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": read_text(content)}


def read_chat(messages: Iterable[Any]) -> Iterator[Json]:
    """Yield the chat messages among these, with the keys of a request. LangChain's objects become messages."""
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        if "role" not in message and ("kwargs" in message or message.get("type") in LANGCHAIN_ROLES):
            yield from _read_langchain(message)
        elif message.get("role") in CHAT_ROLES:
            yield {
                key: message[key]
                for key in KEPT_KEYS
                if key in message and (message[key] is not None or key == "content")
            }


def _read_langchain(entry: Mapping[str, Any]) -> Iterator[Json]:
    """Yield a message of LangChain: `{"lc", "id": [..., "AIMessage"], "kwargs"}`, or `{"type": "ai", "data"}`."""
    path = entry.get("id")
    kind = str(path[-1]) if isinstance(path, list) and path else str(entry.get("type"))
    fields = entry.get("kwargs") or entry.get("data") or entry
    kind = str(fields.get("type", kind)) if kind not in LANGCHAIN_ROLES else kind
    role = LANGCHAIN_ROLES.get(kind)
    if role is None or not isinstance(fields, Mapping):
        return
    if role == "tool":
        yield make_result(str(fields.get("tool_call_id", "")), fields.get("content"))
    elif role == "assistant":
        more = fields.get("additional_kwargs")
        calls = [make_call(str(c.get("id", "")), c["name"], c.get("args", {})) for c in fields.get("tool_calls") or ()]
        if not calls and isinstance(more, Mapping):
            calls = list(more.get("tool_calls") or ())
        yield make_assistant(_join_texts(fields.get("content")), calls)
    else:
        yield {"role": role, "content": read_text(fields.get("content"))}


def _join_texts(content: Any) -> str:
    """Return the texts of an answer, without its reasoning and calls."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [one for one in content if isinstance(one, Mapping) and one.get("type") in ("text", "output_text")]
    return "\n".join(str(one.get("text", "")) for one in parts)


def read_blocks(message: Mapping[str, Any]) -> Iterator[Json]:
    """Yield a message of Anthropic's as chat messages: its results first, then its text and calls."""
    role, content = message.get("role"), message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    blocks = [one for one in blocks if isinstance(one, Mapping)]
    for one in blocks:
        if one.get("type") == "tool_result":
            yield make_result(str(one.get("tool_use_id", "")), one.get("content"))
    text = _join_texts(blocks)
    calls = [make_call(str(b.get("id", "")), str(b.get("name", "")), b.get("input", {})) for b in blocks
             if b.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use")]  # fmt: skip
    if role == "assistant":
        if text or calls:
            yield make_assistant(text, calls)
    elif text:
        yield {"role": "user" if role == "user" else "system", "content": text}


def read_items(items: Any) -> Iterator[Json]:
    """Yield items of Responses as chat messages. Calls that follow a text, or one another, are one message."""
    listed = [{"role": "user", "content": items}] if isinstance(items, str) else list(items or ())
    return (message for message, _ in read_timed_items((one, 0.0) for one in listed))


def read_timed_items(items: Iterable[tuple[Any, float]]) -> Iterator[tuple[Json, float]]:
    """Yield items of Responses as chat messages, as `read_items`, each with the time of its first item."""
    answer: tuple[Json, float] | None = None
    for item, time in items:
        message = _read_item(item.get("type") or "message", item) if isinstance(item, Mapping) else None
        if message is None:
            continue
        if answer is not None and message["role"] == "assistant" and message.get("tool_calls"):
            answer[0].setdefault("tool_calls", []).extend(message["tool_calls"])
            continue
        if answer is not None:
            yield answer
            answer = None
        if message["role"] == "assistant":
            answer = message, time
        else:
            yield message, time
    if answer is not None:
        yield answer


def _read_item(kind: str, item: Mapping[str, Any]) -> Json | None:
    call_id = str(item.get("call_id") or item.get("id") or "")
    if kind in ("function_call", "custom_tool_call", "local_shell_call"):
        given = item.get("arguments", item.get("input", item.get("action", {})))
        return make_assistant("", [make_call(call_id, str(item.get("name") or "shell"), given)])
    if kind.endswith("_call_output"):
        return make_result(call_id, item.get("output"))
    if kind != "message" or item.get("role") not in CHAT_ROLES:
        return None
    text = read_text(item.get("content"))
    return make_assistant(text) if item["role"] == "assistant" else {"role": item["role"], "content": text}


def read_turns(turns: Iterable[Any]) -> list[Json]:
    """Return the turns of ShareGPT as chat messages. Its calls and results have no ids, so they get numbers. A call
    belongs to the text before it."""
    chat_messages: list[Json] = []
    numbers = count(1)
    open_calls: list[str] = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            continue
        role = SHAREGPT_ROLES.get(str(turn.get("from", turn.get("role", ""))))
        text = read_text(turn.get("value", turn.get("content", "")))
        if role == "call":
            calls = [
                make_call(f"call_{next(numbers)}", str(each.get("name", "tool")), each.get("arguments", {}))
                for each in _read_calls(text)
            ]
            open_calls += [each["id"] for each in calls]
            if chat_messages and chat_messages[-1]["role"] == "assistant":
                chat_messages[-1].setdefault("tool_calls", []).extend(calls)
            else:
                chat_messages.append(make_assistant("", calls))
        elif role == "tool":
            chat_messages.append(make_result(open_calls.pop(0) if open_calls else "call_1", text))
        elif role == "assistant":
            chat_messages.append(make_assistant(text))
        elif role is not None:
            chat_messages.append({"role": role, "content": text})
    return chat_messages


def _read_calls(text: str) -> list[Json]:
    try:
        given = json.loads(text)
    except ValueError:
        return []
    return [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, dict)]


def read_tools(tools: Any) -> list[Json]:
    """Return tool definitions of any format as those of chat completions."""
    definitions = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, Mapping):
            continue
        if isinstance(tool.get("function"), Mapping):
            definitions.append({"type": "function", "function": dict(tool["function"])})
        elif tool.get("name"):
            given = tool.get("parameters") or tool.get("input_schema") or {"type": "object"}
            about = {"description": tool["description"]} if tool.get("description") else {}
            definitions.append({"type": "function", "function": {"name": tool["name"], **about, "parameters": given}})
    return definitions


def read_request(body: Mapping[str, Any]) -> tuple[list[Json], list[Json]]:
    """Return (messages, tools) of the body of a request, in any of the three formats."""
    tools = read_tools(body.get("tools"))
    if "input" in body and "messages" not in body:
        before = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
        return [*before, *read_items(body["input"])], tools
    messages = body.get("messages")
    listed = messages if isinstance(messages, list) else []
    if "system" in body or any(_has_blocks(one) for one in listed):
        system = read_text(body.get("system"))
        head = [{"role": "system", "content": system}] if system else []
        return [*head, *(made for one in listed if isinstance(one, Mapping) for made in read_blocks(one))], tools
    return list(read_chat(listed)), tools


def _has_blocks(message: Any) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, list) else ()
    return any(isinstance(one, Mapping) and one.get("type") in ("tool_use", "tool_result", "thinking") for one in parts)


def read_answer(body: Any) -> list[Json]:
    """Return the messages of an answer's body, in any of the three formats; none if it holds none."""
    if isinstance(body, list):
        return list(read_chat(body))
    if not isinstance(body, Mapping):
        return []
    if isinstance(body.get("choices"), list):
        found = [one.get("message") for one in body["choices"][:1] if isinstance(one, Mapping)]
        return list(read_chat(found))
    if isinstance(body.get("output"), list):
        return list(read_items(body["output"]))
    if body.get("role") == "assistant" and _has_blocks_or_text(body):
        return list(read_blocks(body))
    return list(read_chat([body])) if body.get("role") in CHAT_ROLES else []


def _has_blocks_or_text(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("content"), list)
