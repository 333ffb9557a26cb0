"""Answers of the Responses dialect that are one body, with the result that `responses_relay` gives for a stream.

The functions have the signatures of `proxy.stream.completions_body` and of `proxy.stream.block_filter.remove_blocks`.
Bytes that no change concerns stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.completions.stream import write_json
from proxy.dialects.responses import stream as responses_stream
from proxy.notes import state_block
from proxy.stream.answer_relay import ClientEcho
from proxy.stream.completions_answer import CAPTURE_LIMIT
from proxy.stream.completions_body import RoundContent
from proxy.stream.responses_answer import ResponsesAnswer
from proxy.stream.tool_call_filter import HiddenCall

Blocks = list[state_block.NoteBlock]
STATE_HEADING = state_block.HEADING


def read_answer(body: bytes) -> ResponsesAnswer:
    """The answer in a body."""
    return ResponsesAnswer.from_body(body, max(CAPTURE_LIMIT, len(body)))


def is_hidden(item: Mapping[str, Any], hidden_tools: frozenset[str]) -> bool:
    """True for a call of one of these tools."""
    return item.get("type") == "function_call" and str(item.get("name")) in hidden_tools and not item.get("namespace")


def remove_blocks(
    body: bytes, headings: tuple[str, ...] = state_block.HEADINGS
) -> tuple[bytes, list[state_block.NoteBlock]]:
    """(a body without such blocks, the blocks). A message of nothing else leaves; an unreadable body stays."""
    if not state_block.may_have_blocks(body, headings):
        return body, []
    raws = responses_stream.read_output(body)
    blocks: Blocks = []
    kept: list[bytes] = []
    for raw in raws:
        visible, found = cut_item(raw, headings)
        blocks += found
        if visible is not None:
            kept.append(visible)
    return (set_members(body, {"output": join_items(kept)}), blocks) if blocks else (body, [])


def cut_item(raw: bytes, headings: tuple[str, ...]) -> tuple[bytes | None, Blocks]:
    """(an item without blocks, the blocks). None for a message in which nothing is left."""
    item = responses_stream.read_object(raw) or {}
    content = item.get("content")
    if item.get("type") != "message" or not isinstance(content, list):
        return raw, []
    texts: dict[int, str] = {}
    blocks: Blocks = []
    for place, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "output_text" else None
        if isinstance(text, str):
            shown, found = state_block.split_blocks(text, headings, is_cut_off=item.get("status") == "incomplete")
            blocks += found
            if found:
                texts[place] = shown
    return (cut_texts(raw, texts, headings), blocks) if blocks else (raw, [])


def cut_texts(raw: bytes, texts: Mapping[int, str], headings: tuple[str, ...]) -> bytes | None:
    """A message item with these texts in its parts, by position; parts without one leave. None if all do."""
    content = responses_stream.read_member(raw, "content", (responses_stream.read_object(raw) or {}).get("content"))
    elements = json_spans.find_elements(content) or []
    kept = []
    for place, (start, end) in enumerate(elements):
        part = content[start:end]
        if place not in texts:
            kept.append(part)
        elif texts[place]:
            kept.append(cut_part(part, texts[place], headings))
    return set_members(raw, {"content": join_items(kept)}) if kept else None


def cut_part(part: bytes, shown: str, headings: tuple[str, ...]) -> bytes:
    """A text part with the text that is shown, and the annotations and log probabilities that belong to it."""
    value = responses_stream.read_object(part) or {}
    new = {"text": write_json(shown)}
    notes, logged = value.get("annotations"), value.get("logprobs")
    if isinstance(notes, list) and notes:
        left = [shift_note(note, str(value.get("text")), headings) for note in notes]
        new["annotations"] = write_json([note for note in left if note is not None])
    if isinstance(logged, list) and logged:
        new["logprobs"] = write_json(logged[: count_shown_tokens(logged, shown)[0]])
    return set_members(part, new)


def count_shown_tokens(logged: Sequence[Any], shown: str) -> tuple[int, int]:
    """(the number of tokens, from the first on, that the shown text begins with; the characters of these)."""
    at = 0
    for n, one in enumerate(logged):
        token = one.get("token") if isinstance(one, dict) else None
        if not isinstance(token, str) or not shown.startswith(token, at):
            return n, at
        at += len(token)
    return len(logged), at


def shift_note(note: Any, text: str, headings: tuple[str, ...]) -> Any:
    """An annotation with its positions in the text without blocks; None if it is in a block."""
    if not isinstance(note, dict):
        return note
    blocks = state_block.find_blocks(text, headings)
    places = {name: note[name] for name in ("start_index", "end_index", "index") if isinstance(note.get(name), int)}
    first = places.get("start_index", places.get("index", 0))
    if any(block.start <= first < block.end for block in blocks):
        return None
    moved = {
        name: at - sum(block.end - block.start for block in blocks if block.end <= at) for name, at in places.items()
    }
    return {**note, **moved}


def read_round(body: bytes, hidden_tools: frozenset[str], headings: tuple[str, ...] = ()) -> RoundContent:
    """The content of one body, and the calls of these tools in it. headings: as for `build_round_message`."""
    answer = read_answer(body)
    message = build_round_message(answer, headings) if headings else answer.build_message()
    response = responses_stream.read_object(body) or {}
    items = [responses_stream.read_object(raw) or {} for raw in answer.items]
    ours = [item for item in items if is_hidden(item, hidden_tools)]
    shown = len(answer.calls) - len(ours)
    calls = make_hidden_calls(ours)
    is_sound = answer.error is None and responses_stream.read_status(response) == "completed" and not answer.is_capped
    if message is None or not calls or not is_sound:
        return RoundContent(message, [], max(shown, 0), goes_on=False, usage=answer.usage)
    return RoundContent(message, calls, shown, not shown, answer.usage)


def build_round_message(answer: ResponsesAnswer, headings: tuple[str, ...]) -> bytes | None:
    """The canonical message of a round without these blocks.

    Reasoning is bound to the text before it: that text stays. The blocks stay also where nothing but reasoning
    would be left.
    """
    shown: list[bytes] = []
    is_bound, has_answer = False, False
    for raw in reversed(answer.items):
        is_bound = is_bound or (responses_stream.read_object(raw) or {}).get("type") == "reasoning"
        visible = raw if is_bound else cut_item(raw, headings)[0]
        has_answer = has_answer or (visible is not None and not is_bound)
        shown += [] if visible is None else [visible]
    if not has_answer or shown[::-1] == list(answer.items):
        return answer.build_message()
    message = ResponsesAnswer(max(CAPTURE_LIMIT, sum(map(len, shown)) + 64 * len(shown)))
    for index, raw in enumerate(reversed(shown)):
        message.put_item(index, raw)
    return message.build_message()


def make_hidden_calls(items: Sequence[Mapping[str, Any]]) -> list[HiddenCall]:
    """The calls in these items; none if one of them has no id and so cannot be answered."""
    ids = [item.get("call_id") for item in items]
    if not all(isinstance(one, str) and one for one in ids) or len(set(ids)) < len(ids):
        return []
    return [HiddenCall(str(item["call_id"]), str(item["name"]), str(item.get("arguments") or "")) for item in items]


def join_rounds(bodies: Sequence[bytes], hidden_tools: frozenset[str]) -> bytes:
    """The one body for the client: the visible items of all rounds, under the id of the first.

    bodies: of the rounds in their order, with blocks already removed; at least one. Output tokens are those of all
    rounds, input tokens the last round's. A last body that cannot be read is returned as it is.
    """
    last = responses_stream.read_object(bodies[-1])
    if last is None or not isinstance(last.get("output"), list):
        return bodies[-1]
    shown: list[bytes] = []
    count = 0
    for body in bodies:
        raws = responses_stream.read_output(body)
        count += len(raws)
        shown += [raw for raw in raws if not is_hidden(responses_stream.read_object(raw) or {}, hidden_tools)]
    if len(bodies) == 1:
        return set_members(bodies[0], {"output": join_items(shown)}) if len(shown) < count else bodies[0]
    earlier = [responses_stream.read_object(body) or {} for body in bodies[:-1]]
    new = {"output": join_items(shown)} | read_head(bodies[0])
    if isinstance(last.get("usage"), dict):
        new["usage"] = write_json(
            responses_stream.add_spent_usage(last["usage"], [one.get("usage") for one in earlier])
        )
    return set_members(bodies[-1], new)


def read_head(response: bytes) -> dict[str, bytes]:
    """The members that are the same on all rounds of an answer."""
    found = {name: json_spans.read_value(response, name) for name in ("id", "created_at")}
    return {name: raw for name, raw in found.items() if raw is not None}


def join_items(raws: Sequence[bytes]) -> bytes:
    """A JSON list of these items."""
    return b"[" + b",".join(raws) + b"]"


def set_members(raw: bytes, new: Mapping[str, bytes]) -> bytes:
    """The object with new values for members that it has; every other byte stays."""
    members = json_spans.find_members(raw)
    if members is None:
        value = responses_stream.read_object(raw) or {}
        return write_json({**value, **{name: read_json_value(one) for name, one in new.items() if name in value}})
    return spans.apply_replacements(raw, [(m.start, m.end, new[m.key]) for m in members if m.key in new])


def read_json_value(raw: bytes) -> Any:
    """The value of a JSON text."""
    found = responses_stream.read_object(b'{"value":' + raw + b"}")
    return None if found is None else found["value"]


def restore_echo(response: bytes, hidden_tools: frozenset[str], echo: ClientEcho) -> bytes:
    """A response object that repeats the request as the client knows it.

    hidden_tools: their definitions leave `tools`.
    """
    value = responses_stream.read_object(response) or {}
    new: dict[str, bytes] = {}
    if echo.instructions is not None and "instructions" in value:
        new["instructions"] = echo.instructions
    tools = value.get("tools")
    if isinstance(tools, list) and any(_name(tool) in hidden_tools for tool in tools):
        raw = responses_stream.read_member(response, "tools", tools)
        elements = [raw[start:end] for start, end in json_spans.find_elements(raw) or ()]
        new["tools"] = join_items(
            [one for one in elements if _name(responses_stream.read_object(one)) not in hidden_tools]
        )
    return set_members(response, new) if new else response


def _name(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""
