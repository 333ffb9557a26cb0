"""Rules that Anthropic refuses a Messages request by, and the binding of thinking to its prompt.

`find_violations` names each breach as `M8 messages.3: ...`. The numbers are those of the list below.

    M2 max_tokens is there          M9  a result answers a call of the message before it
    M3 the body is an object        M10 ids are unique and well formed, inputs are objects
    M4 messages begin with a user   M11 thinking bears its signature
    M5 they end with a user         M12 an answer does not end with thinking
    M6 places of system messages    M13 with thinking "enabled" an open tool loop begins with thinking
    M7 nothing is empty             M14 at most four cache marks, long-lived ones first
    M8 each call has its result     M15 tool names are unique, and a forced tool is there
       in the next message, first

Rules that depend on the account or on the model are the provider's to judge. M5 is refused by newer models alone; it
is named because no plan may break it. Thinking is bound to the system prompt, the tools and all messages before it, as
they were sent. `trace_prompt` hashes what the provider compares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from proxy.dialects import spans
from proxy.dialects.base import Binding, BindingTrace, ChainHash, select_added
from proxy.dialects.messages.blocks import make_answer_blocks, read_token

_MAX_MARKS = 4
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_THINKING = ("thinking", "redacted_thinking")
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")

Blocks = Sequence[dict[str, Any]]


def find_violations(body: bytes) -> list[str]:
    """The rules that this body breaks, one line a breach. Raises ValueError or RecursionError if it is not JSON."""
    value = spans.read_any(body)
    if not isinstance(value, dict):
        return ["M3 the body is no object"]
    found = [] if isinstance(value.get("max_tokens"), int) else ["M2 max_tokens: a number is required"]
    messages = value.get("messages")
    messages = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    contents = [_read_blocks(one.get("content")) for one in messages]
    for judge in (_judge_roles, _judge_empty, _judge_calls, _judge_callers, _judge_ids, _judge_thinking):
        found += judge(messages, contents)
    found += _judge_open_loop(value.get("thinking"), messages, contents)
    return [*found, *_judge_marks(value, contents), *_judge_tools(value)]


def find_added_violations(body: bytes, client_body: bytes) -> list[str]:
    """The breaches of rules that `body` breaks more often than the client's own body does.

    Rules are compared by their number, since places move. Raises ValueError or RecursionError as `find_violations`.
    """
    found = find_violations(body)
    return select_added(found, find_violations(client_body)) if found else []


def _read_blocks(content: Any) -> Blocks:
    """The content as blocks: a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _is_answer(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _judge_roles(messages: Sequence[dict[str, Any]], contents: Sequence[Blocks]) -> Iterator[str]:
    roles = [message.get("role") for message in messages]
    if not roles:
        yield "M4 messages: at least one message is required"
        return
    if roles[0] == "assistant":
        yield "M4 messages.0: the first message must be the user's"
    for n, role in enumerate(roles):
        if role not in ("user", "assistant", "system"):
            yield f"M4 messages.{n}: unknown role {role!r}"
        if role != "system":
            continue
        before, after = roles[n - 1] if n else None, roles[n + 1] if n + 1 < len(roles) else None
        ends_in_server_call = before == "assistant" and bool(contents[n - 1]) and _is_of_server(contents[n - 1][-1])
        if before != "user" and not ends_in_server_call:
            yield f"M6 messages.{n}: a system message must follow a user message"
        if after not in (None, "assistant"):
            yield f"M6 messages.{n}: a system message must be last or come before an answer"
    if roles[-1] == "assistant":
        yield f"M5 messages.{len(roles) - 1}: the conversation must end with a user message"


def _is_of_server(block: dict[str, Any]) -> bool:
    kind = str(block.get("type"))
    return kind in _SERVER_CALLS or (kind.endswith("_tool_result"))


def _judge_empty(messages: Sequence[dict[str, Any]], contents: Sequence[Blocks]) -> Iterator[str]:
    for n, (message, blocks) in enumerate(zip(messages, contents, strict=True)):
        if not blocks and not (n == len(messages) - 1 and _is_answer(message)):
            yield f"M7 messages.{n}: must have non-empty content"
        for path, block in _walk(blocks, f"messages.{n}.content"):
            if block.get("type") == "text" and not str(block.get("text") or "").strip():
                yield f"M7 {path}: text must be non-empty"


def _walk(blocks: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All blocks with their paths, those inside of tool results too."""
    for n, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if isinstance(block, dict):
            yield f"{path}.{n}", block
            if block.get("type") == "tool_result":
                yield from _walk(block.get("content"), f"{path}.{n}.content")


def _judge_calls(messages: Sequence[dict[str, Any]], contents: Sequence[Blocks]) -> Iterator[str]:
    for n, (message, blocks) in enumerate(zip(messages, contents, strict=True)):
        results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
        before = contents[n - 1] if n and _is_answer(messages[n - 1]) else ()
        called = {block.get("id") for block in before if block.get("type") == "tool_use"}
        for found in results:
            if found not in called or message.get("role") != "user":
                yield f"M9 messages.{n}: a result of {found} without its call in the previous message"
        for found, count in Counter(results).items():
            if count > 1:
                yield f"M10 messages.{n}: {count} results of {found}"
        kinds = [block.get("type") == "tool_result" for block in blocks]
        if True in kinds and kinds != sorted(kinds, reverse=True):
            yield f"M8 messages.{n}: a result stands behind another block"
        if _is_answer(message):
            after = contents[n + 1] if n + 1 < len(messages) else ()
            answered = {block.get("tool_use_id") for block in after if block.get("type") == "tool_result"}
            calls = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
            if missing := [str(one) for one in calls if one not in answered]:
                yield f"M8 messages.{n}: calls without results in the next message: {', '.join(missing)}"
        yield from _judge_server_results(blocks, n)


def _judge_server_results(blocks: Blocks, n: int) -> Iterator[str]:
    made = {block.get("id") for block in blocks if block.get("type") in _SERVER_CALLS}
    for block in blocks:
        kind = str(block.get("type"))
        if kind.endswith("_tool_result") and block.get("tool_use_id") not in made:
            yield f"M9 messages.{n}: a {kind} without its call"


def _judge_callers(messages: Sequence[dict[str, Any]], contents: Sequence[Blocks]) -> Iterator[str]:
    """A call that the provider's code execution made names the block of that code, which has to be there."""
    made: set[Any] = set()
    for n, (_, blocks) in enumerate(zip(messages, contents, strict=True)):
        for block in blocks:
            caller = block.get("caller")
            named = caller.get("tool_id") if isinstance(caller, dict) else None
            if block.get("type") in _SERVER_CALLS:
                made.add(block.get("id"))
            elif isinstance(named, str) and named not in made:
                yield f"M9 messages.{n}: the code that called {block.get('id')} is not there"


def _judge_ids(messages: Sequence[dict[str, Any]], contents: Sequence[Blocks]) -> Iterator[str]:
    seen: set[str] = set()
    for n, (message, blocks) in enumerate(zip(messages, contents, strict=True)):
        for block in blocks:
            if block.get("type") != "tool_use":
                continue
            if not _is_answer(message):
                yield f"M10 messages.{n}: a call outside of an answer"
            call_id = str(block.get("id"))
            if call_id in seen:
                yield f"M10 messages.{n}: the id {call_id} is not unique"
            if not _ID.match(call_id):
                yield f"M10 messages.{n}: the id {call_id!r} is not well formed"
            if not isinstance(block.get("input"), dict):
                yield f"M10 messages.{n}: the input of {call_id} is no object"
            seen.add(call_id)


def _judge_thinking(messages: Sequence[dict[str, Any]], contents: Sequence[Blocks]) -> Iterator[str]:
    for n, (message, blocks) in enumerate(zip(messages, contents, strict=True)):
        for k, block in enumerate(blocks):
            if block.get("type") in _THINKING and not read_token(block):
                yield f"M11 messages.{n}.content.{k}: thinking without its signature"
            if block.get("type") in _THINKING and not _is_answer(message):
                yield f"M11 messages.{n}.content.{k}: thinking outside of an answer"
        if _is_answer(message) and blocks and blocks[-1].get("type") in _THINKING:
            yield f"M12 messages.{n}: the final block of an answer cannot be thinking"


def _judge_open_loop(thinking: Any, messages: Sequence[dict[str, Any]], contents: Sequence[Blocks]) -> Iterator[str]:
    last = len(messages) - 1
    while last > 0 and messages[last].get("role") == "system":  # it may stand behind the results of an open loop
        last -= 1
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled" or last < 1:
        return
    is_open = any(block.get("type") == "tool_result" for block in contents[last])
    before = contents[last - 1]
    if is_open and _is_answer(messages[last - 1]) and before and before[0].get("type") not in _THINKING:
        yield f"M13 messages.{last - 1}.content.0: expected thinking"


def _judge_marks(value: dict[str, Any], contents: Sequence[Blocks]) -> Iterator[str]:
    marks: list[tuple[str, Any]] = []
    for path, block in _list_marked(value, contents):
        mark = block.get("cache_control")
        if mark is None:
            continue
        if block.get("type") in _THINKING or (block.get("type") == "text" and not block.get("text")):
            yield f"M14 {path}: a cache mark on thinking or on an empty text"
        marks.append((path, mark.get("ttl") if isinstance(mark, dict) else None))
    count = len(marks) + (value.get("cache_control") is not None)
    if count > _MAX_MARKS:
        yield f"M14 {count} cache marks, at most {_MAX_MARKS} are allowed"
    is_short = False
    for path, ttl in marks:
        if ttl == "1h" and is_short:
            yield f"M14 {path}: a mark for one hour after a mark for five minutes"
        is_short = is_short or ttl != "1h"


def _list_marked(value: dict[str, Any], contents: Sequence[Blocks]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("tools", "system"):
        yield from _walk(value.get(name), name)
    for n, blocks in enumerate(contents):
        yield from _walk(list(blocks), f"messages.{n}.content")


def _judge_tools(value: dict[str, Any]) -> Iterator[str]:
    tools = value.get("tools")
    tools = [one for one in tools if isinstance(one, dict)] if isinstance(tools, list) else []
    names = [one["name"] for one in tools if isinstance(one.get("name"), str)]
    for name, count in Counter(names).items():
        if count > 1:
            yield f"M15 tools: {count} tools are named {name}"
    choice = value.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "tool" and choice.get("name") not in names:
        yield f"M15 tool_choice: no tool is named {choice.get('name')}"


# Bound thinking.


def trace_answer(prompt: BindingTrace, answer: bytes) -> dict[str, Binding]:
    """The bindings of an answer to this prompt. answer: the canonical message. Raises ValueError if it cannot be
    read."""
    trace = prompt.copy()
    _add_message(trace, {"role": "assistant", "content": spans.read_any(make_answer_blocks(answer))})
    return trace.bindings


def trace_prompt(body: bytes) -> BindingTrace:
    """The bindings in a body. Raises ValueError or RecursionError if a text is not JSON."""
    value = spans.read_any(body)
    value = value if isinstance(value, dict) else {}
    outside = ChainHash()
    outside.add([_normalize(block) for block in _read_blocks(value.get("system"))])
    tools = value.get("tools")
    # A deferred tool is not part of the prompt until something refers to it.
    outside.add(
        [_normalize(tool) for tool in tools or () if isinstance(tool, dict) and tool.get("defer_loading") is not True]
        if isinstance(tools, list)
        else []
    )
    trace = BindingTrace(outside)
    messages = value.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            _add_message(trace, message)
    return trace


def _add_message(trace: BindingTrace, message: dict[str, Any]) -> None:
    trace.add({name: one for name, one in message.items() if name not in ("content", "cache_control")})
    for block in _read_blocks(message.get("content")):
        if block.get("type") not in _THINKING:
            trace.add(_normalize(block))
        elif token := read_token(block):
            trace.add_token(token)


def _normalize(block: dict[str, Any]) -> dict[str, Any]:
    """A block as the provider compares it: without cache marks, and with a result's string as one text block."""
    made = {name: one for name, one in block.items() if name != "cache_control"}
    if block.get("type") == "tool_result":
        made["content"] = [_normalize(one) for one in _read_blocks(block.get("content"))]
    return made


def strip_bound(body: bytes, tokens: Collection[str]) -> bytes:
    """The body without the thinking blocks of these tokens. An answer of nothing else leaves with them.

    Raises ValueError if the request would break rule M13, or if the body cannot be read.
    """
    span = spans.read_members(body)["messages"]
    places = spans.read_elements(body, span)
    items: list[tuple[int | None, bytes]] = []
    for n, (start, end) in enumerate(places):
        kept = _strip_message(body[start:end], tokens)
        if kept:
            items.append((n, kept))
    if [raw for _, raw in items] == [body[start:end] for start, end in places]:
        return body
    new = body[: span[0]] + spans.rewrite_array(body, span, places, items) + body[span[1] :]
    if added := [line for line in find_added_violations(new, body) if line.startswith("M13")]:
        raise ValueError(added[0])
    return new


def fill_empty_answers(body: bytes) -> bytes:
    """The body with a text in each answer that is empty and not the last message, which rule M7 refuses.

    The client has such an answer if all of it was withheld. Raises ValueError if the body cannot be read.
    """
    span = spans.read_members(body)["messages"]
    replacements: list[spans.Replacement] = []
    for start, end in spans.read_elements(body, span)[:-1]:
        members = spans.read_members(body[start:end])
        role, content = (body[start + members[name][0] : start + members[name][1]] for name in ("role", "content"))
        if role == b'"assistant"' and (content == b'""' or (content[:1] == b"[" and not content[1:-1].strip())):
            at = members["content"]
            replacements.append((start + at[0], start + at[1], spans.encode_visible("")))
    return spans.apply_replacements(body, replacements)


def _strip_message(raw: bytes, tokens: Collection[str]) -> bytes:
    """One wire message without these thinking blocks; b"" if nothing is left of it."""
    start, end = spans.read_members(raw)["content"]
    if raw[start : start + 1] != b"[" or not any(token.encode() in raw for token in tokens):
        return raw
    elements = spans.read_elements(raw, (start, end))
    items: list[tuple[int | None, bytes]] = []
    for n, (begin, stop) in enumerate(elements):
        block = spans.read_any(raw[begin:stop])
        if block.get("type") not in _THINKING or read_token(block) not in tokens:
            items.append((n, raw[begin:stop]))
    if not items:
        return b""
    return raw[:start] + spans.rewrite_array(raw, (start, end), elements, items) + raw[end:]
