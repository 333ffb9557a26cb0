"""The provider's rules for a request, and the prompts that reasoning is bound to.

Each rule stands for a refusal of the provider. A client's own history may break a rule; only a violation that a plan
adds counts. So a line names ids and texts, and positions stand in front of the colon, where a comparison skips them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.base import Binding, BindingTrace, ChainHash
from proxy.dialects.responses import items as wire

MAX_CALL_ID: Final = 64
"""Characters of a `call_id`."""
MAX_MARKS: Final = 4
"""Cache marks in a request."""
ID_PREFIXES: Final = {
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""Beginning of the ids of some items. A message of the assistant has `msg`."""
REQUIRED_MEMBERS: Final = {
    "message": ("role", "content"),
    "reasoning": ("summary",),
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call_output": ("call_id", "output"),
    "shell_call": ("call_id", "action"),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call": ("call_id", "operation"),
    "apply_patch_call_output": ("call_id", "status"),
    "computer_call_output": ("call_id", "output"),
    "item_reference": ("id",),
}
"""Members that an item of a type must have."""
MODEL_PARTS: Final = frozenset({"output_text", "refusal"})
"""Content parts of an assistant message; every other message has parts whose type begins with `input_`."""

_REPLAYED_WITHOUT_ID = frozenset(
    {"message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call", "tool_search_call"}
)
"""Items that a provider takes without their id. Without an id, an item is not held to its reasoning."""
_NOT_COMPARED = frozenset({"id", "status", "created_by", wire.CACHE_MARK})
_NOT_COMPARED_IN_PARTS = frozenset({"annotations", "logprobs", wire.CACHE_MARK})

Item = dict[str, Any]


def find_violations(body: bytes, partners: Mapping[str, str] | None = None) -> list[str]:
    """The rules that a body breaks, one line each: rule, position, and the reason. Rules that need the provider's store
    are not judged.

    partners: the reasoning that each item was made after (`find_partners` of the client's body); without it R7 is not
    judged. Raises ValueError for a body that is no JSON object.
    """
    request = msgspec.json.decode(body, type=dict[str, Any])
    given = request.get("input")
    items = [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []
    found = _check_top(request)
    found += _check_shapes(items, is_stored=request.get("store") is not False)
    found += _check_pairs(items)
    found += _check_reasoning(items, partners or {})
    return found


def find_added_violations(body: bytes, original: bytes) -> list[str]:
    """The violations of an outgoing body that the client's own body does not have. Raises ValueError as
    `find_violations`."""
    partners = find_partners(original) if b'"reasoning"' in original else {}
    found = find_violations(body, partners)
    if not found:  # as nearly always: the client's body need not be read for that
        return []
    before = Counter(_split_place(line) for line in find_violations(original))
    new = []
    for line in found:
        key = _split_place(line)
        if before[key]:
            before[key] -= 1
        else:
            new.append(line)
    return new


def _split_place(line: str) -> tuple[str, str]:
    place, _, reason = line.partition(": ")
    return place.split(" ")[0], reason


def _check_top(request: Mapping[str, Any]) -> list[str]:
    found = []
    if not isinstance(request.get("model"), str):
        found.append("R1 model: missing")
    if not any(request.get(name) is not None for name in ("input", "previous_response_id", "prompt", "conversation")):
        found.append("R1 input: missing")
    if request.get("stream_options") is not None and request.get("stream") is not True:
        found.append("R2 stream_options: without stream")
    tools = request.get("tools")
    names = {tool.get("name") for tool in tools if isinstance(tool, dict)} if isinstance(tools, list) else set()
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom") and choice.get("name") not in names:
        found.append(f"R2 tool_choice: names no tool {choice.get('name')}")
    if request.get("previous_response_id") is not None and request.get("conversation") is not None:
        found.append("R10 previous_response_id: together with conversation")
    return found


def _check_shapes(items: Sequence[Item], *, is_stored: bool) -> list[str]:
    """Check each item alone, and ids and cache marks over all of them."""
    found: list[str] = []
    ids: set[str] = set()
    marks = 0
    for n, item in enumerate(items):
        kind, place = wire.find_type(item), f"input.{n}"
        missing = [name for name in REQUIRED_MEMBERS.get(kind, ()) if name not in item]
        found += [f"R3 {place}: {kind} without {name}" for name in missing]
        own = item.get("id")
        if isinstance(own, str) and own:
            if own in ids and kind not in ("item_reference", "local_shell_call_output"):
                found.append(f"R11 {place}: duplicate item {own}")
            ids.add(own)
            wanted = "msg" if kind == "message" and item.get("role") == "assistant" else ID_PREFIXES.get(kind)
            if wanted is not None and not own.startswith(wanted):
                found.append(f"R12 {place}: the id {own} does not begin with {wanted}")
            if kind == "reasoning" and not is_stored and wire.find_token(item) is None:
                found.append(f"R8 {place}: {own} is not stored and not encrypted")
        call_id = item.get("call_id")
        if isinstance(call_id, str) and len(call_id) > MAX_CALL_ID:
            found.append(f"R13 {place}: a call_id of {len(call_id)} characters")
        marks += _count_marks(item)
        found += _check_parts(item, kind, place)
        if kind == "compaction_trigger" and n + 1 < len(items):
            found.append(f"R15 {place}: compaction_trigger is not the last item")
    # A line for each, so that a body with fewer than the client's own has no new one.
    return found + [f"R16 input: more than {MAX_MARKS} cache marks"] * (marks - MAX_MARKS)


def _list_parts(item: Mapping[str, Any], name: str) -> list[Item]:
    parts = item.get(name)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _count_marks(item: Mapping[str, Any]) -> int:
    parts = _list_parts(item, "content") + _list_parts(item, "output")
    return sum(part.get(wire.CACHE_MARK) is not None for part in parts)


def _check_parts(item: Mapping[str, Any], kind: str, place: str) -> list[str]:
    if kind != "message":
        return []
    is_model = item.get("role") == "assistant"
    found = []
    for part in _list_parts(item, "content"):
        part_kind = str(part.get("type"))
        if is_model != (part_kind in MODEL_PARTS) and part_kind.startswith(("input_", "output_", "refusal")):
            found.append(f"R14 {place}: {part_kind} in a message of {item.get('role')}")
    return found


def _check_pairs(items: Sequence[Item]) -> list[str]:
    """Check that each result has its call in front of it, each call has its result, and no call has two."""
    found: list[str] = []
    asked: dict[str, tuple[int, str]] = {}
    answered: set[str] = set()
    hosted: dict[str, int] = {}
    for n, item in enumerate(items):
        kind = wire.find_type(item)
        call_id, answers = wire.find_call(item), wire.find_answered_call(item)
        if call_id is not None:
            asked[call_id] = n, kind
            answered.discard(call_id)  # ids are used again in some recorded runs
        elif answers is not None:
            wanted = wire.RESULTS[kind]
            if asked.get(answers, (0, ""))[1] != wanted:
                found.append(f"R5 input.{n}: no {wanted} for {kind} {answers}")
            elif answers in answered:
                found.append(f"R5 input.{n}: a second {kind} {answers}")
            answered.add(answers)
        elif kind in wire.OPAQUE_PAIRS.values():
            hosted[str(item.get("call_id"))] = n
        elif kind in wire.OPAQUE_PAIRS and hosted.pop(str(item.get("call_id")), None) is None:
            found.append(f"R5 input.{n}: no {wire.OPAQUE_PAIRS[kind]} for {kind} {item.get('call_id')}")
    open_calls = [(n, f"{kind} {call}") for call, (n, kind) in asked.items() if call not in answered]
    open_calls += [(n, f"program {call}") for call, n in hosted.items()]
    return found + [f"R4 input.{n}: no output for {name}" for n, name in open_calls]


def _check_reasoning(items: Sequence[Item], partners: Mapping[str, str]) -> list[str]:
    found = []
    here, earlier = _find_partners(items), set[str]()
    for n, item in enumerate(items):
        kind, own = wire.find_type(item), item.get("id")
        if kind == "reasoning":
            earlier.add(_name_reasoning(item))
            if _is_orphan(items, n):
                found.append(f"R6 input.{n}: {_name_reasoning(item)} without the item that followed it")
        elif isinstance(own, str) and own in partners and here.get(own) != partners[own]:
            # The client has the rounds of an answer as one. Where a hidden round was put back, an item of the next
            # round is no longer right behind the reasoning of the one before, and was not made after it.
            if partners[own] in earlier:
                continue
            found.append(f"R7 input.{n}: {own} without its reasoning {partners[own]}")
    return found


def _is_orphan(items: Sequence[Item], n: int) -> bool:
    """True if a reasoning item leads to nothing: no other item of the model follows it."""
    if n + 1 >= len(items):
        return True
    following = items[n + 1]
    return wire.find_type(following) == "reasoning" or wire.find_role(following) != "model"


def _name_reasoning(item: Mapping[str, Any]) -> str:
    own = item.get("id")
    return own if isinstance(own, str) and own else (wire.find_token(item) or "reasoning")


def find_partners(body: bytes) -> dict[str, str]:
    """For each item with an id that the model made after reasoning, that reasoning: its id, or else its token."""
    request = msgspec.json.decode(body, type=dict[str, Any])
    given = request.get("input")
    return _find_partners([item for item in given if isinstance(item, dict)] if isinstance(given, list) else [])


def _find_partners(items: Sequence[Item]) -> dict[str, str]:
    found: dict[str, str] = {}
    reasoning = ""
    for item in items:
        if wire.find_role(item) != "model":
            reasoning = ""
        elif wire.find_type(item) == "reasoning":
            reasoning = _name_reasoning(item)
        elif reasoning and isinstance(item.get("id"), str):
            found[item["id"]] = reasoning
    return found


def trace_answer(prompt: BindingTrace, answer: bytes) -> dict[str, Binding]:
    """The bindings of an answer to this prompt. answer: the canonical message. Raises ValueError if it cannot be
    read."""
    trace = prompt.copy()
    _add_items(trace, map(msgspec.json.decode, wire.make_items(answer, {})))
    return trace.bindings


def trace_prompt(body: bytes) -> BindingTrace:
    """The bindings in a body.

    The prompt is the tools, the text format, the effort and every earlier item; `instructions` and earlier reasoning
    are no part of it. Ids, states and annotations are left out, because no edit changes them and clients do. Raises
    ValueError for a body that is no JSON object.
    """
    request = msgspec.json.decode(body, type=dict[str, Any])
    given = request.get("input")
    head = ChainHash()
    text, reasoning = request.get("text"), request.get("reasoning")
    head.add(request.get("tools") or [])
    head.add(text.get("format") if isinstance(text, dict) else None)
    head.add(reasoning.get("effort") if isinstance(reasoning, dict) else None)
    trace = BindingTrace(head)
    _add_items(trace, [{"role": "user", "content": given}] if isinstance(given, str) else given or [])
    return trace


def _add_items(trace: BindingTrace, items: Iterable[Any]) -> None:
    for item in items:
        token = wire.find_token(item) if isinstance(item, dict) else None
        if token is not None:
            trace.add_token(token)
        elif not isinstance(item, dict) or wire.find_type(item) != "reasoning":
            trace.add(_canonicalize(item))


def _canonicalize(item: Any) -> Any:
    """An item as it is compared: a text is one text part."""
    if not isinstance(item, dict):
        return item
    kind = wire.find_type(item)
    kept = {"type": kind, **{name: item[name] for name in item if name not in _NOT_COMPARED}}
    if kind == "item_reference":
        kept["id"] = item.get("id")
    for name in ("content", "output"):
        value = kept.get(name)
        if isinstance(value, str) and kind == "message":
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            kept[name] = [{"type": part, "text": value}]
        elif isinstance(value, list):
            kept[name] = [
                {key: part[key] for key in part if key not in _NOT_COMPARED_IN_PARTS}
                if isinstance(part, dict)
                else part
                for part in value
            ]
    return kept


def strip_bound(body: bytes, tokens: Collection[str]) -> bytes:
    """The body without the reasoning items of these tokens.

    Items that the reasoning led to lose their ids: an item with an id is refused without its reasoning. Raises
    ValueError if an item must keep its id, or if the items cannot be told apart.
    """
    new = _without_reasoning(body, lambda items, n: wire.find_token(items[n]) in tokens)
    if new is not body and (added := [line for line in find_added_violations(new, body) if line.startswith("R7")]):
        raise ValueError(added[0])
    return new


def remove_orphan_reasoning(body: bytes) -> bytes:
    """The body without reasoning that leads to nothing. Reasoning in front of a hidden call is such a one, if the call
    can no longer be put back. Raises ValueError as `strip_bound`."""
    return _without_reasoning(body, lambda items, n: wire.find_type(items[n]) == "reasoning" and _is_orphan(items, n))


def _without_reasoning(body: bytes, is_gone: Callable[[Sequence[Item], int], bool]) -> bytes:
    span = spans.read_members(body).get("input")
    if span is None or body[span[0] : span[0] + 1] != b"[":
        return body
    elements = spans.read_elements(body, span)
    raws = [body[start:end] for start, end in elements]
    items = [msgspec.json.decode(raw, type=dict[str, Any]) for raw in raws]
    kept: list[tuple[int | None, bytes]] = []
    is_led = False
    for n, item in enumerate(items):
        kind = wire.find_type(item)
        if kind == "reasoning":
            is_led = is_gone(items, n)
            if is_led:
                continue
        elif wire.find_role(item) != "model":
            is_led = False
        raw = raws[n]
        if is_led and kind in _REPLAYED_WITHOUT_ID and "id" in item:
            for name in ("id", "status") if kind == "message" else ("id",):
                raw = json_spans.remove_member(raw, name)
        kept.append((n, raw))
    if len(kept) == len(items):
        return body
    return spans.apply_replacements(body, [(*span, spans.rewrite_array(body, span, elements, kept))])
