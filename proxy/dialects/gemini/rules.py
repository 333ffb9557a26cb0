"""Rules that Google refuses a request of generateContent by.

`find_violations` names each breach as `G4 contents.3: ...`. The numbers are those of this list.

    G1 there is a content             G5 results stand directly behind their calls
    G2 roles are user and model       G6 a result names a function that was called
    G3 calls come behind a content    G7 no content and no part is empty
       of the user's                  G8 the first call of each step of the newest turn is signed
    G4 there are as many results      G9 functions are declared once
       as calls                       G10 the last content is the user's

A model that signs calls is known by the signatures in the body: only then is G8 judged. G10 is no refusal. A request
that ends with an answer is continued, which no plan may ask for by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from proxy.dialects import spans
from proxy.dialects.base import UNSIGNED, select_added
from proxy.dialects.gemini.contents import get_field
from proxy.dialects.known_prefix import keep_objects


def find_violations(body: bytes) -> list[str]:
    """The rules that this body breaks, one line a breach. Raises ValueError or RecursionError if it is not JSON."""
    value = spans.read_any(body)
    if not isinstance(value, dict):
        return ["G1 the body is no object"]
    inner = get_field(value, "generateContentRequest")
    value = inner if isinstance(inner, dict) else value
    contents = keep_objects(value.get("contents"))
    if not contents:
        return ["G1 contents: at least one content is required"]
    found = [*_judge_contents(contents), *_judge_tools(value)]
    turns = _group_turns(contents)
    return [*found, *_judge_calls(turns), *_judge_signatures(turns)]


def find_added_violations(body: bytes, client_body: bytes) -> list[str]:
    """The breaches of rules that `body` breaks more often than the client's own body does.

    Rules are compared by their number, since places move. A client that changes from a model that signs calls to one
    that does not has unsigned calls of its own, so G8 is not judged there. Raises ValueError or RecursionError as
    `find_violations`.
    """
    violations = find_violations(body)
    if not violations:
        return []
    allowed = find_violations(client_body)
    is_unsigned = any(line.startswith("G8 ") for line in allowed)
    return select_added([line for line in violations if not (is_unsigned and line.startswith("G8 "))], allowed)


class _Turn:
    """Contents of one role that follow each other."""

    def __init__(self, at: int, role: str, contents: Sequence[dict[str, Any]]) -> None:
        self.at = at
        self.role = role
        self.parts = [part for content in contents for part in keep_objects(content.get("parts"))]
        self.calls = [call for part in self.parts if isinstance(call := get_field(part, "functionCall"), dict)]
        self.results = [one for part in self.parts if isinstance(one := get_field(part, "functionResponse"), dict)]


def _find_role(content: dict[str, Any]) -> str:
    role = content.get("role") or "user"
    return "user" if role in ("function", "tool") else str(role)


def _group_turns(contents: Sequence[dict[str, Any]]) -> list[_Turn]:
    turns = []
    at = 0
    for role, group in groupby(contents, _find_role):
        contents_of_turn = list(group)
        turns.append(_Turn(at, role, contents_of_turn))
        at += len(contents_of_turn)
    return turns


def _judge_contents(contents: Sequence[dict[str, Any]]) -> Iterator[str]:
    for n, content in enumerate(contents):
        if _find_role(content) not in ("user", "model"):
            yield f"G2 contents.{n}: unknown role {content.get('role')!r}"
        parts = keep_objects(content.get("parts"))
        if not parts:
            yield f"G7 contents.{n}: must have at least one part"
        for k, part in enumerate(parts):
            if not set(part) - {"thought", "thoughtSignature", "thought_signature"}:
                yield f"G7 contents.{n}.parts.{k}: must have one initialized field"
            elif set(part) == {"text"} and not part["text"] and _find_role(content) == "user":
                yield f"G7 contents.{n}.parts.{k}: text must not be empty"
    if _find_role(contents[-1]) == "model":
        yield f"G10 contents.{len(contents) - 1}: the last content must be the user's"


def _judge_calls(turns: Sequence[_Turn]) -> Iterator[str]:
    for n, turn in enumerate(turns):
        before = turns[n - 1] if n else None
        after = turns[n + 1] if n + 1 < len(turns) else None
        if turn.calls and (before is None or turn.role != "model"):
            yield f"G3 contents.{turn.at}: a call must come behind a content of the user's"
        if turn.results and (before is None or not before.calls or turn.role != "user"):
            yield f"G5 contents.{turn.at}: results must come directly behind their calls"
        elif turn.results:
            assert before is not None  # noqa: S101  # by the condition before
            called = Counter(str(call.get("name")) for call in before.calls)
            for name, count in Counter(str(one.get("name")) for one in turn.results).items():
                if count > called[name]:
                    yield f"G6 contents.{turn.at}: {count} results of {name}, which was called {called[name]} times"
        if turn.calls and (after is not None) and len(after.results) != len(turn.calls):
            yield f"G4 contents.{turn.at}: {len(turn.calls)} calls and {len(after.results)} results"


def sign_calls(body: bytes) -> bytes:
    """The body with Google's signature for unsigned calls on the first call of each step of the newest turn that lacks
    one. The signature stood on a call of the proxy's tools, which the client never got. Raises ValueError, KeyError or
    RecursionError if the body cannot be read."""
    span = spans.read_members(body)["contents"]
    unsigned: list[int] = []
    role, is_open = "", True
    for start, end in spans.read_elements(body, span):
        content = msgspec.json.decode(body[start:end], type=dict[str, Any])
        if _find_role(content) != role:
            role, is_open = _find_role(content), True
        if role == "user" and any(part.get("text") for part in keep_objects(content.get("parts"))):
            unsigned = []
        if role == "user" or not is_open:
            continue
        places = spans.read_elements(body, spans.read_members(body, (start, end))["parts"])
        for part, (_, stop) in zip(keep_objects(content.get("parts")), places, strict=True):
            if get_field(part, "functionCall") is not None:
                is_open = False
                unsigned += [] if _is_signed(part) else [stop - 1]
                break
    made = b',"thoughtSignature":' + UNSIGNED
    return spans.apply_replacements(body, [(place, place, made) for place in unsigned])


def _judge_signatures(turns: Sequence[_Turn]) -> Iterator[str]:
    if not any(_is_signed(part) for turn in turns for part in turn.parts):
        return
    prompts = [
        n for n, turn in enumerate(turns) if turn.role == "user" and any(part.get("text") for part in turn.parts)
    ]
    for turn in turns[prompts[-1] if prompts else 0 :]:
        first = next((part for part in turn.parts if get_field(part, "functionCall") is not None), None)
        if first is not None and not _is_signed(first):
            yield f"G8 contents.{turn.at}: the first call lacks its thought signature"


def _is_signed(part: dict[str, Any]) -> bool:
    return bool(get_field(part, "thoughtSignature"))


def _judge_tools(value: dict[str, Any]) -> Iterator[str]:
    tools = value.get("tools")
    declared = [
        one.get("name")
        for tool in (tools if isinstance(tools, list) else ())
        if isinstance(tool, dict)
        for one in get_field(tool, "functionDeclarations") or ()
        if isinstance(one, dict)
    ]
    for name, count in Counter(declared).items():
        if count > 1:
            yield f"G9 tools: {count} functions are named {name}"
