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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.dialects import spans
from proxy.dialects.base import Binding, BindingTrace, ChainHash, HistoryTracer, select_added
from proxy.dialects.known_prefix import (
    CHANGING_TAIL,
    JUDGED,
    BodyHistory,
    HistoryMemo,
    PrefixMemo,
    keep_objects,
    read_history,
)
from proxy.dialects.messages.blocks import SERVER_CALLS, THINKING, find_server_calls, make_answer_blocks, read_token

_MAX_MARKS = 4
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_PLAIN = frozenset({"text", "tool_use", "tool_result"})
"""Kinds of blocks that are neither thinking nor of the provider's own tools."""

Blocks = Sequence[dict[str, Any]]
_Placed = tuple[str, dict[str, Any]]
"""A block with its place among the blocks of a message: `2`, or `2.content.0` inside of a result."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The judgement of the tools and the system prompt, which few requests change."""

    raw: tuple[bytes, bytes]
    """The bytes of both."""
    names: frozenset[str] = frozenset()
    """Names of the tools."""
    marks: tuple[tuple[str, Any], ...] = ()
    """The cache marks in them: the place, and the lifetime."""
    violations: tuple[str, ...] = ()


@dataclass(slots=True)
class _Judged:
    """The part of a judgement that messages leave for those behind them."""

    beside: tuple[dict[str, Any], ...] = ()
    """The last message of the known beginning, and the two in front of it. The last one is judged again: the message
    behind it counts. An open loop begins up to two messages in front of the last one."""
    ids: set[str] = field(default_factory=set)
    """Ids of the calls."""
    code: set[Any] = field(default_factory=set)
    """Ids of the calls of the provider's own tools."""
    marks: list[tuple[str, Any]] = field(default_factory=list)
    """The cache marks: the place, and the lifetime."""
    head: _Head = _Head((b"", b""))

    def copy(self) -> _Judged:
        """The same, to which more can be added."""
        return _Judged(self.beside, set(self.ids), set(self.code), list(self.marks), self.head)


@dataclass(slots=True)
class _Messages:
    """The messages to judge, with those right in front of them."""

    values: Sequence[dict[str, Any]]
    contents: Sequence[Blocks]
    skipped: int
    """Number of messages of the body in front of `values`."""
    judged: _Judged

    def name(self, n: int) -> str:
        return f"messages.{n + self.skipped}"


def find_violations(body: bytes, memo: PrefixMemo | None = None) -> list[str]:
    """The rules that this body breaks, one line a breach. Raises ValueError or RecursionError if it is not JSON.

    memo: the messages behind the known beginning are judged alone. A beginning is noted if all of the body is right.
    """
    try:
        history = read_history(body, "messages", memo.find_prefix(JUDGED, body) if memo is not None else None)
    except ValueError:
        if isinstance(spans.read_any(body), dict):
            raise
        return ["M3 the body is no object"]
    known: _Judged = history.state.copy() if history.state is not None else _Judged()
    known.head = _judge_head(history, known.head)
    values = [*known.beside, *keep_objects(history.new)]
    contents = [_read_blocks(one.get("content")) for one in values]
    messages = _Messages(values, contents, history.first - len(known.beside), known)
    begin = max(0, len(known.beside) - 1)
    violations = [] if isinstance(history.read_value("max_tokens"), int) else ["M2 max_tokens: a number is required"]
    last = len(history.places) - CHANGING_TAIL  # the messages in front of it may be known to the next body
    kept: _Judged | None = None
    for n in range(begin, len(values)):
        if n and n + messages.skipped == last - 1 and last > history.first:
            kept = known.copy()
            kept.beside = tuple(values[max(0, n - 2) : n + 1])
        violations += _judge_message(messages, n)
    violations += _judge_ends(messages)
    violations += _judge_open_loop(history.read_value("thinking"), messages)
    violations += known.head.violations
    violations += _judge_marks(known, is_top_marked=history.read_value("cache_control") is not None)
    violations += _judge_choice(history.read_value("tool_choice"), known.head.names)
    if memo is not None and kept is not None and not violations and len(values) == len(known.beside) + len(history.new):
        history.remember(memo, JUDGED, last, kept)
    return violations


def find_added_violations(body: bytes, client_body: bytes, memo: HistoryMemo | None = None) -> list[str]:
    """The breaches of rules that `body` breaks more often than the client's own body does.

    Rules are compared by their number, since places move. Raises ValueError or RecursionError as `find_violations`.
    """
    found = find_violations(body, memo.sent if memo is not None else None)
    return select_added(found, find_violations(client_body)) if found else []


def _read_blocks(content: Any) -> Blocks:
    """The content as blocks: a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return keep_objects(content)


def _is_answer(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _judge_message(messages: _Messages, n: int) -> Iterator[str]:
    """Yield the breaches of one message. Most rules are of few kinds of blocks."""
    blocks = messages.contents[n]
    kinds = [str(block.get("type")) for block in blocks]
    is_plain = _PLAIN.issuperset(kinds)
    inner = list(_walk(blocks))
    members = set[str]().union(*[block for _, block in inner])
    yield from _judge_role(messages, n)
    yield from _judge_empty(messages, n, inner)
    if "tool_result" in kinds:
        yield from _judge_results(messages, n, kinds)
    if "tool_use" in kinds and _is_answer(messages.values[n]):
        yield from _judge_calls(messages, n)
    if not is_plain or "caller" in members:
        yield from _judge_hosted(messages, n)
    if "tool_use" in kinds:
        yield from _judge_ids(messages, n)
    if not is_plain:
        yield from _judge_thinking(messages, n)
    if "cache_control" in members:
        marks, violations = _list_marks(inner, f"{messages.name(n)}.content")
        messages.judged.marks += marks
        yield from violations


def _judge_role(messages: _Messages, n: int) -> Iterator[str]:
    values, role = messages.values, messages.values[n].get("role")
    if not n + messages.skipped and role == "assistant":
        yield f"M4 {messages.name(n)}: the first message must be the user's"
    if role not in ("user", "assistant", "system"):
        yield f"M4 {messages.name(n)}: unknown role {role!r}"
    if role != "system":
        return
    name = messages.name(n)
    before = values[n - 1].get("role") if n else None
    blocks = messages.contents[n - 1] if n else ()
    if before != "user" and not (before == "assistant" and blocks and _is_of_server(blocks[-1])):
        yield f"M6 {name}: a system message must follow a user message"
    if n + 1 < len(values) and not _is_answer(values[n + 1]):
        yield f"M6 {name}: a system message must be last or come before an answer"


def _judge_ends(messages: _Messages) -> Iterator[str]:
    if not messages.values:
        yield "M4 messages: at least one message is required"
    elif _is_answer(messages.values[-1]):
        yield f"M5 {messages.name(len(messages.values) - 1)}: the conversation must end with a user message"


def _is_of_server(block: dict[str, Any]) -> bool:
    kind = str(block.get("type"))
    return kind in SERVER_CALLS or (kind.endswith("_tool_result"))


def _judge_empty(messages: _Messages, n: int, inner: Sequence[_Placed]) -> Iterator[str]:
    if not messages.contents[n] and not (n == len(messages.values) - 1 and _is_answer(messages.values[n])):
        yield f"M7 {messages.name(n)}: must have non-empty content"
    for place, block in inner:
        if block.get("type") == "text" and not str(block.get("text") or "").strip():
            yield f"M7 {messages.name(n)}.content.{place}: text must be non-empty"


def _walk(blocks: Any, path: str = "") -> Iterator[_Placed]:
    """All blocks with their places, those inside of tool results too."""
    for n, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if isinstance(block, dict):
            yield f"{path}{n}", block
            if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                yield from _walk(block["content"], f"{path}{n}.content.")


def _judge_results(messages: _Messages, n: int, kinds: Sequence[str]) -> Iterator[str]:
    values, contents, name = messages.values, messages.contents, messages.name(n)
    results = [block.get("tool_use_id") for block in contents[n] if block.get("type") == "tool_result"]
    before = contents[n - 1] if n and _is_answer(values[n - 1]) else ()
    called = {block.get("id") for block in before if block.get("type") == "tool_use"}
    for result_id in results:
        if result_id not in called or values[n].get("role") != "user":
            yield f"M9 {name}: a result of {result_id} without its call in the previous message"
    for result_id, count in Counter(results).items() if len(results) > 1 else ():
        if count > 1:
            yield f"M10 {name}: {count} results of {result_id}"
    is_result = [kind == "tool_result" for kind in kinds]
    if is_result != sorted(is_result, reverse=True):
        yield f"M8 {name}: a result stands behind another block"


def _judge_calls(messages: _Messages, n: int) -> Iterator[str]:
    contents = messages.contents
    after = contents[n + 1] if n + 1 < len(contents) else ()
    answered = {block.get("tool_use_id") for block in after if block.get("type") == "tool_result"}
    calls = [block.get("id") for block in contents[n] if block.get("type") == "tool_use"]
    if missing := [str(one) for one in calls if one not in answered]:
        yield f"M8 {messages.name(n)}: calls without results in the next message: {', '.join(missing)}"


def _judge_hosted(messages: _Messages, n: int) -> Iterator[str]:
    """The provider's own calls have to be there: their results and the calls of their code name them. They stand in
    front, also in an earlier message where the provider has paused."""
    server_calls = messages.judged.code
    for block in messages.contents[n]:
        if block.get("type") in SERVER_CALLS:
            server_calls.add(block.get("id"))
        for missing in find_server_calls(block) - server_calls:
            yield f"M9 {messages.name(n)}: a {block.get('type')} without its call {missing}"


def _judge_ids(messages: _Messages, n: int) -> Iterator[str]:
    seen, name = messages.judged.ids, messages.name(n)
    for block in messages.contents[n]:
        if block.get("type") != "tool_use":
            continue
        if not _is_answer(messages.values[n]):
            yield f"M10 {name}: a call outside of an answer"
        call_id = str(block.get("id"))
        if call_id in seen:
            yield f"M10 {name}: the id {call_id} is not unique"
        if not _ID.match(call_id):
            yield f"M10 {name}: the id {call_id!r} is not well formed"
        if not isinstance(block.get("input"), dict):
            yield f"M10 {name}: the input of {call_id} is no object"
        seen.add(call_id)


def _judge_thinking(messages: _Messages, n: int) -> Iterator[str]:
    blocks, name = messages.contents[n], messages.name(n)
    is_answer = _is_answer(messages.values[n])
    for k, block in enumerate(blocks):
        if block.get("type") in THINKING and not read_token(block):
            yield f"M11 {name}.content.{k}: thinking without its signature"
        if block.get("type") in THINKING and not is_answer:
            yield f"M11 {name}.content.{k}: thinking outside of an answer"
    if is_answer and blocks and blocks[-1].get("type") in THINKING:
        yield f"M12 {name}: the final block of an answer cannot be thinking"


def _judge_open_loop(thinking: Any, messages: _Messages) -> Iterator[str]:
    values, contents = messages.values, messages.contents
    last = len(values) - 1
    while last > 0 and values[last].get("role") == "system":  # it may stand behind the results of an open loop
        last -= 1
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled" or last < 1:
        return
    is_open = any(block.get("type") == "tool_result" for block in contents[last])
    before = contents[last - 1]
    if is_open and _is_answer(values[last - 1]) and before and before[0].get("type") not in THINKING:
        yield f"M13 {messages.name(last - 1)}.content.0: expected thinking"


def _list_marks(inner: Iterable[_Placed], path: str) -> tuple[list[tuple[str, Any]], list[str]]:
    """(the cache marks in these blocks with their lifetimes, the breaches of marks at a wrong place). path: of the list
    in which they have their places."""
    marks: list[tuple[str, Any]] = []
    violations: list[str] = []
    for place, block in inner:
        mark = block.get("cache_control")
        if mark is None:
            continue
        if block.get("type") in THINKING or (block.get("type") == "text" and not block.get("text")):
            violations.append(f"M14 {path}.{place}: a cache mark on thinking or on an empty text")
        marks.append((f"{path}.{place}", mark.get("ttl") if isinstance(mark, dict) else None))
    return marks, violations


def _judge_marks(judged: _Judged, *, is_top_marked: bool) -> Iterator[str]:
    marks = [*judged.head.marks, *judged.marks]
    count = len(marks) + is_top_marked
    if count > _MAX_MARKS:
        yield f"M14 {count} cache marks, at most {_MAX_MARKS} are allowed"
    is_short = False
    for path, ttl in marks:
        if ttl == "1h" and is_short:
            yield f"M14 {path}: a mark for one hour after a mark for five minutes"
        is_short = is_short or ttl != "1h"


def _judge_head(history: BodyHistory[Any], known: _Head) -> _Head:
    """The judgement of the tools and the system prompt; `known` if they have the same bytes."""
    raw = history.cut_value("tools"), history.cut_value("system")
    if raw == known.raw:
        return known
    tools = history.read_value("tools")
    names = [one["name"] for one in keep_objects(tools) if isinstance(one.get("name"), str)]
    violations = [f"M15 tools: {count} tools are named {name}" for name, count in Counter(names).items() if count > 1]
    marks: list[tuple[str, Any]] = []
    for name, blocks in (("tools", tools), ("system", history.read_value("system"))):
        more_marks, more_violations = _list_marks(_walk(blocks), name)
        marks += more_marks
        violations += more_violations
    return _Head(raw, frozenset(names), tuple(marks), tuple(violations))


def _judge_choice(choice: Any, names: Collection[str]) -> Iterator[str]:
    if isinstance(choice, dict) and choice.get("type") == "tool" and choice.get("name") not in names:
        yield f"M15 tool_choice: no tool is named {choice.get('name')}"


# Bound thinking.


def trace_answer(prompt: BindingTrace, answer: bytes) -> dict[str, Binding]:
    """The bindings of an answer to this prompt. answer: the canonical message. Raises ValueError if unreadable."""
    trace = prompt.copy()
    _add_message(trace, {"role": "assistant", "content": spans.read_any(make_answer_blocks(answer))})
    return trace.bindings


def _add_messages(trace: BindingTrace, messages: Sequence[Any]) -> None:
    for message in messages:
        if isinstance(message, dict):
            _add_message(trace, message)


def _begin_trace(history: BodyHistory[Any]) -> BindingTrace:
    """The trace with the system prompt and the tools."""
    outside = ChainHash()
    outside.add([_normalize(block) for block in _read_blocks(history.read_value("system"))])
    # A deferred tool is not part of the prompt until something refers to it.
    tools = keep_objects(history.read_value("tools"))
    outside.add([_normalize(tool) for tool in tools if tool.get("defer_loading") is not True])
    return BindingTrace(outside)


trace_prompt: Final = HistoryTracer("messages", ("system", "tools"), _begin_trace, _add_messages).trace


def _add_message(trace: BindingTrace, message: dict[str, Any]) -> None:
    trace.add({name: one for name, one in message.items() if name not in ("content", "cache_control")})
    for block in _read_blocks(message.get("content")):
        if block.get("type") not in THINKING:
            trace.add(_normalize(block))
        elif token := read_token(block):
            trace.add_token(token)


def _normalize(block: dict[str, Any]) -> dict[str, Any]:
    """A block as the provider compares it: without cache marks, and with a result's string as one text block."""
    normalized = {name: one for name, one in block.items() if name != "cache_control"}
    if block.get("type") == "tool_result":
        normalized["content"] = [_normalize(one) for one in _read_blocks(block.get("content"))]
    return normalized


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
        if block.get("type") not in THINKING or read_token(block) not in tokens:
            items.append((n, raw[begin:stop]))
    if not items:
        return b""
    return raw[:start] + spans.rewrite_array(raw, (start, end), elements, items) + raw[end:]
