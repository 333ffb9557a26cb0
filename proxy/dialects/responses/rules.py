"""The provider's rules for a request, and the prompts that reasoning is bound to.

Each rule stands for a refusal of the provider. A client's own history may break a rule; only a violation that a plan
adds counts. So a line names ids and texts, and positions stand in front of the colon, where a comparison skips them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from proxy.dialects import spans
from proxy.dialects.base import Binding, BindingTrace, ChainHash, HistoryTracer
from proxy.dialects.known_prefix import (
    CHANGING_TAIL,
    JUDGED,
    PARTNERS,
    BodyHistory,
    HistoryMemo,
    PrefixMemo,
    keep_objects,
    read_history,
)
from proxy.dialects.responses import items as responses_items

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

_NOT_COMPARED = frozenset({"id", "status", "created_by", responses_items.CACHE_MARK})
_NOT_COMPARED_IN_PARTS = frozenset({"annotations", "logprobs", responses_items.CACHE_MARK})

Item = dict[str, Any]


@dataclass(slots=True)
class _Checked:
    """The part of a check that items leave for those behind them."""

    beside: tuple[Item, ...] = ()
    """The last item of the known beginning. It is checked again: the item behind it counts."""
    is_stored: bool = True
    ids: set[str] = field(default_factory=set)
    marks: int = 0
    """Number of cache marks."""
    asked: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By call: the index of its newest item, and its type."""
    answered: set[str] = field(default_factory=set)
    hosted: dict[str, int] = field(default_factory=dict)
    """By call of a hosted program without a result: the index of its item."""
    reasoning: str = ""
    """The reasoning that the next item is made after."""
    earlier: set[str] = field(default_factory=set)
    """All reasoning so far."""

    def copy(self) -> _Checked:
        """The same, to which more can be added."""
        return _Checked(
            self.beside, self.is_stored, set(self.ids), self.marks, dict(self.asked), set(self.answered),
            dict(self.hosted), self.reasoning, set(self.earlier),
        )  # fmt: skip


def find_violations(
    body: bytes, partners: Mapping[str, str] | None = None, memo: PrefixMemo | None = None
) -> list[str]:
    """The rules that a body breaks, one line each: rule, position, and the reason. Rules that need the provider's store
    are not judged.

    partners: the reasoning that each item was made after (`find_partners` of the client's body); without it R7 is not
    judged. memo: the items behind the known beginning are checked alone. A beginning is noted if all of the body is
    right. Raises ValueError for a body that is no JSON object.
    """
    history: BodyHistory[_Checked] = read_history(body, "input", memo.find_prefix(JUDGED, body) if memo else None)
    is_stored = history.read_value("store") is not False
    if history.state is not None and history.state.is_stored != is_stored:
        history = read_history(body, "input", None)
    known = history.state.copy() if history.state is not None else _Checked(is_stored=is_stored)
    items = [*known.beside, *keep_objects(history.new)]
    skipped = history.first - len(known.beside)
    violations = _check_top(history)
    last = len(history.places) - CHANGING_TAIL  # the items in front of it may be known to the next body
    kept: _Checked | None = None
    for n, item in enumerate(items):
        if n + skipped == last - 1 and last > history.first:
            kept = known.copy()
            kept.beside = (item,)
        kind = responses_items.find_type(item)
        violations += _check_item(item, kind, n + skipped, known, is_last=n + 1 == len(items))
        violations += _check_pair(item, kind, n + skipped, known)
        violations += _check_reasoning(items, n, kind, n + skipped, known, partners or {})
    # A line for each, so that a body with fewer than the client's own has no new one.
    violations += [f"R16 input: more than {MAX_MARKS} cache marks"] * (known.marks - MAX_MARKS)
    violations += _list_open_calls(known)
    if memo is not None and kept is not None and not violations and len(items) == len(known.beside) + len(history.new):
        history.remember(memo, JUDGED, last, kept)
    return violations


def find_added_violations(
    body: bytes, original: bytes, memo: HistoryMemo | None = None, *, has_reasoning: bool | None = None
) -> list[str]:
    """The violations of an outgoing body that the client's own body does not have.

    memo: see `find_violations`. has_reasoning: False if the client's body has none; None: it is searched for. Raises
    ValueError as `find_violations`.
    """
    own, sent = (memo.own, memo.sent) if memo is not None else (None, None)
    if has_reasoning is None:
        has_reasoning = responses_items.REASONING_NAME in original
    partners = find_partners(original, own) if has_reasoning else {}
    violations = find_violations(body, partners, sent)
    if not violations:  # as nearly always: the client's body need not be read for that
        return []
    before = Counter(_split_place(line) for line in find_violations(original))
    new = []
    for line in violations:
        key = _split_place(line)
        if before[key]:
            before[key] -= 1
        else:
            new.append(line)
    return new


def _split_place(line: str) -> tuple[str, str]:
    place, _, reason = line.partition(": ")
    return place.split(" ")[0], reason


def _check_top(history: BodyHistory[Any]) -> list[str]:
    violations = []
    if not isinstance(history.read_value("model"), str):
        violations.append("R1 model: missing")
    names = ("input", "previous_response_id", "prompt", "conversation")
    if not any(map(history.has_value, names)):
        violations.append("R1 input: missing")
    if history.has_value("stream_options") and history.read_value("stream") is not True:
        violations.append("R2 stream_options: without stream")
    choice = history.read_value("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        tools = keep_objects(history.read_value("tools"))
        if all(tool.get("name") != choice.get("name") for tool in tools):
            violations.append(f"R2 tool_choice: names no tool {choice.get('name')}")
    if history.has_value("previous_response_id") and history.has_value("conversation"):
        violations.append("R10 previous_response_id: together with conversation")
    return violations


def _check_item(item: Item, kind: str, index: int, known: _Checked, *, is_last: bool) -> list[str]:
    """Check an item alone, and its id among all ids so far."""
    place = f"input.{index}"
    violations = [f"R3 {place}: {kind} without {name}" for name in REQUIRED_MEMBERS.get(kind, ()) if name not in item]
    own = item.get("id")
    if isinstance(own, str) and own:
        if own in known.ids and kind not in ("item_reference", "local_shell_call_output"):
            violations.append(f"R11 {place}: duplicate item {own}")
        known.ids.add(own)
        prefix = "msg" if kind == "message" and item.get("role") == "assistant" else ID_PREFIXES.get(kind)
        if prefix is not None and not own.startswith(prefix):
            violations.append(f"R12 {place}: the id {own} does not begin with {prefix}")
        if kind == "reasoning" and not known.is_stored and responses_items.is_id_alone(item):
            violations.append(f"R8 {place}: {own} is not stored and not encrypted")
    call_id = item.get("call_id")
    if isinstance(call_id, str) and len(call_id) > MAX_CALL_ID:
        violations.append(f"R13 {place}: a call_id of {len(call_id)} characters")
    contents = keep_objects(item.get("content"))
    known.marks += _count_marks(contents) + _count_marks(keep_objects(item.get("output")))
    if kind == "message":
        violations += _check_parts(item, contents, place)
    if kind == "compaction_trigger" and not is_last:
        violations.append(f"R15 {place}: compaction_trigger is not the last item")
    return violations


def _count_marks(parts: Sequence[Item]) -> int:
    return sum([part.get(responses_items.CACHE_MARK) is not None for part in parts])


def _check_parts(item: Mapping[str, Any], parts: Sequence[Item], place: str) -> list[str]:
    """Check the content of a message."""
    is_model = item.get("role") == "assistant"
    violations = []
    for part in parts:
        part_kind = str(part.get("type"))
        if is_model != (part_kind in MODEL_PARTS) and part_kind.startswith(("input_", "output_", "refusal")):
            violations.append(f"R14 {place}: {part_kind} in a message of {item.get('role')}")
    return violations


def _check_pair(item: Item, kind: str, index: int, known: _Checked) -> list[str]:
    """Check that a result has its call in front of it, and that the call has no other result."""
    call_id = responses_items.find_call(item) if kind in responses_items.CALLS else None
    answers = responses_items.find_answered_call(item) if kind in responses_items.RESULTS else None
    if call_id is not None:
        known.asked[call_id] = index, kind
        known.answered.discard(call_id)  # ids are used again in some recorded runs
    elif answers is not None:
        wanted, was_answered = responses_items.RESULTS[kind], answers in known.answered
        known.answered.add(answers)
        if known.asked.get(answers, (0, ""))[1] != wanted:
            return [f"R5 input.{index}: no {wanted} for {kind} {answers}"]
        if was_answered:
            return [f"R5 input.{index}: a second {kind} {answers}"]
    elif kind in responses_items.OPAQUE_PAIRS.values():
        known.hosted[str(item.get("call_id"))] = index
    elif kind in responses_items.OPAQUE_PAIRS and known.hosted.pop(str(item.get("call_id")), None) is None:
        return [f"R5 input.{index}: no {responses_items.OPAQUE_PAIRS[kind]} for {kind} {item.get('call_id')}"]
    return []


def _list_open_calls(known: _Checked) -> list[str]:
    """The calls without a result."""
    if known.asked.keys() <= known.answered and not known.hosted:
        return []
    calls = [(n, f"{kind} {call}") for call, (n, kind) in known.asked.items() if call not in known.answered]
    calls += [(n, f"program {call}") for call, n in known.hosted.items()]
    return [f"R4 input.{n}: no output for {name}" for n, name in calls]


def _check_reasoning(
    items: Sequence[Item], n: int, kind: str, index: int, known: _Checked, partners: Mapping[str, str]
) -> list[str]:
    """Check that reasoning leads to an item, and that an item stands behind its reasoning. n, index: of the item, among
    `items` and in the body."""
    item, own = items[n], items[n].get("id")
    known.reasoning = _find_reasoning(item, kind, known.reasoning)
    if kind == "reasoning":
        known.earlier.add(known.reasoning)
        if _is_orphan(items, n):
            return [f"R6 input.{index}: {known.reasoning} without the item that followed it"]
    elif isinstance(own, str):
        partner = partners.get(own, known.reasoning)
        # The client has the rounds of an answer as one. Where a hidden round was put back, an item of the next round is
        # no longer right behind the reasoning of the one before, and was not made after it.
        if partner != known.reasoning and partner not in known.earlier:
            return [f"R7 input.{index}: {own} without its reasoning {partner}"]
    return []


def _find_reasoning(item: Item, kind: str, before: str) -> str:
    """The reasoning that this item is made after, or that it is; "" for an item that is not the model's. before: that
    of the item in front of it."""
    if responses_items.find_role(item) != "model":
        return ""
    return _name_reasoning(item) if kind == "reasoning" else before


def _is_orphan(items: Sequence[Item], n: int) -> bool:
    """True if a reasoning item leads to nothing: no other item of the model follows it."""
    if n + 1 >= len(items):
        return True
    following = items[n + 1]
    return responses_items.find_type(following) == "reasoning" or responses_items.find_role(following) != "model"


def _name_reasoning(item: Mapping[str, Any]) -> str:
    own = item.get("id")
    return own if isinstance(own, str) and own else (responses_items.find_token(item) or "reasoning")


def find_partners(body: bytes, memo: PrefixMemo | None = None) -> dict[str, str]:
    """For each item with an id that the model made after reasoning, that reasoning: its id, or else its token. memo:
    only the items behind the known beginning are read."""
    history = read_history(body, "input", memo.find_prefix(PARTNERS, body) if memo is not None else None)
    reasoning, known = history.state if history.state is not None else ("", {})
    partners = dict(known)
    for n, item in enumerate(history.new, history.first + 1):
        if isinstance(item, dict):
            kind = responses_items.find_type(item)
            reasoning = _find_reasoning(item, kind, reasoning)
            if reasoning and kind != "reasoning" and isinstance(item.get("id"), str):
                partners[item["id"]] = reasoning
        if memo is not None and n == len(history.places) - CHANGING_TAIL:
            history.remember(memo, PARTNERS, n, (reasoning, dict(partners)))
    return partners


def trace_answer(prompt: BindingTrace, answer: bytes) -> dict[str, Binding]:
    """The bindings of an answer to this prompt. answer: the canonical message. Raises ValueError if unreadable."""
    trace = prompt.copy()
    _add_items(trace, map(msgspec.json.decode, responses_items.make_items(answer, {})))
    return trace.bindings


def _begin_trace(history: BodyHistory[Any]) -> BindingTrace:
    """The trace with what counts outside of the items. An input that is one text is one item."""
    head = ChainHash()
    text, reasoning = history.read_value("text"), history.read_value("reasoning")
    head.add(history.read_value("tools") or [])
    head.add(text.get("format") if isinstance(text, dict) else None)
    head.add(reasoning.get("effort") if isinstance(reasoning, dict) else None)
    trace = BindingTrace(head)
    given = None if history.places else history.read_value("input")
    if isinstance(given, str):
        _add_items(trace, [{"role": "user", "content": given}])
    return trace


def _add_items(trace: BindingTrace, items: Iterable[Any]) -> None:
    for item in items:
        token = responses_items.find_token(item) if isinstance(item, dict) else None
        if token is not None:
            trace.add_token(token)
        elif not isinstance(item, dict) or responses_items.find_type(item) != "reasoning":
            trace.add(_canonicalize(item))


trace_prompt: Final = HistoryTracer("input", ("tools", "text", "reasoning"), _begin_trace, _add_items).trace
"""The prompt is the tools, the text format, the effort and every earlier item; `instructions` and earlier reasoning are
no part of it. Ids, states and annotations are left out, because no edit changes them and clients do."""


def _canonicalize(item: Any) -> Any:
    """An item as it is compared: a text is one text part."""
    if not isinstance(item, dict):
        return item
    kind = responses_items.find_type(item)
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
    new = _without_reasoning(body, lambda items, n: responses_items.find_token(items[n]) in tokens)
    if new is not body and (added := [line for line in find_added_violations(new, body) if line.startswith("R7")]):
        raise ValueError(added[0])
    return new


def remove_orphan_reasoning(body: bytes) -> bytes:
    """The body without reasoning that leads to nothing. Reasoning in front of a hidden call is such a one, if the call
    can no longer be put back. Raises ValueError as `strip_bound`."""
    return _without_reasoning(
        body, lambda items, n: responses_items.find_type(items[n]) == "reasoning" and _is_orphan(items, n)
    )


def _without_reasoning(body: bytes, is_gone: Callable[[Sequence[Item], int], bool]) -> bytes:
    span = spans.read_members(body).get("input")
    if span is None or body[span[0] : span[0] + 1] != b"[":
        return body
    elements = spans.read_elements(body, span)
    raws = [body[start:end] for start, end in elements]
    items = [msgspec.json.decode(raw, type=dict[str, Any]) for raw in raws]
    kept = responses_items.leave_out_reasoning(raws, items, lambda n: is_gone(items, n))
    if len(kept) == len(items):
        return body
    return spans.apply_replacements(body, [(*span, spans.rewrite_array(body, span, elements, kept))])
