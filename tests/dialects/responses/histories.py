"""Conversations on the Responses wire, as clients send them: every kind of item, in any spelling of JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30)
WORDS = st.sampled_from(["ls -la\nmain.py", "2 passed", "Ünïcode ✓ \U0001f600", 'a "quoted" \\ path', "x" * 300, "\t"])
SAYINGS = st.one_of(TEXTS, WORDS)
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
MARK = {"mode": "explicit"}


def user(content: Any = "Do it.") -> Json:
    return {"type": "message", "role": "user", "content": content}


def developer(content: Any = "Be brief.") -> Json:
    return {"type": "message", "role": "developer", "content": content}


def assistant(text: str, number: int = 1, **more: Any) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": f"msg_{number}",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    } | more


def reasoning(number: int = 1, **more: Any) -> Json:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"gAAA{number}"} | more


def call(number: int = 1, name: str = "shell", arguments: str = '{"command":["ls"]}', **more: Any) -> Json:
    made = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name}
    return made | {"arguments": arguments, "status": "completed"} | more


def output(number: int = 1, text: Any = "main.py", **more: Any) -> Json:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": text} | more


def make_pair(kind: str, number: int, text: Any) -> tuple[Json, Json]:
    """A call of one kind with its output."""
    call_id = f"call_{number}"
    if kind == "custom":
        made: Json = {
            "type": "custom_tool_call",
            "id": f"ctc_{number}",
            "call_id": call_id,
            "name": "patch",
            "input": "*",
        }
        return made, {"type": "custom_tool_call_output", "call_id": call_id, "output": text}
    if kind == "shell":
        made = {"type": "shell_call", "call_id": call_id, "action": {"commands": ["ls"]}}
        chunk = {
            "stdout": text if isinstance(text, str) else "",
            "stderr": "e",
            "outcome": {"type": "exit", "exit_code": 0},
        }
        return made, {"type": "shell_call_output", "call_id": call_id, "output": [chunk]}
    if kind == "local_shell":
        made = {"type": "local_shell_call", "id": call_id, "call_id": call_id, "action": {"type": "exec"}}
        return made, {"type": "local_shell_call_output", "id": call_id, "output": "done"}
    if kind == "apply_patch":
        made = {"type": "apply_patch_call", "call_id": call_id, "operation": {"type": "delete_file", "path": "a"}}
        return made, {"type": "apply_patch_call_output", "call_id": call_id, "status": "completed", "output": "ok"}
    if kind == "computer":
        made = {"type": "computer_call", "id": f"cu_{number}", "call_id": call_id, "action": {"type": "screenshot"}}
        shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,BBBB"}
        return made, {"type": "computer_call_output", "call_id": call_id, "output": shot}
    if kind == "tool_search":
        made = {"type": "tool_search_call", "call_id": call_id, "execution": "client", "arguments": {"q": "x"}}
        return made, {"type": "tool_search_output", "call_id": call_id, "execution": "client", "tools": []}
    if kind == "approval":
        made = {"type": "mcp_approval_request", "id": call_id, "name": "n", "server_label": "s", "arguments": "{}"}
        return made, {"type": "mcp_approval_response", "approval_request_id": call_id, "approve": True}
    return call(number), output(number, text)


KINDS = ("function", "function", "custom", "shell", "local_shell", "apply_patch", "computer", "tool_search", "approval")
HOSTED: tuple[Json, ...] = (
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
    {"type": "a_new_item", "id": "n_1", "what": [1, 2.50, None]},
    {"type": "item_reference", "id": "msg_77"},
)

INPUT_PARTS = st.one_of(
    SAYINGS.map(lambda text: {"type": "input_text", "text": text}),
    SAYINGS.map(lambda text: {"type": "input_text", "text": text, "prompt_cache_breakpoint": MARK}),
    st.just(IMAGE),
    st.just({"type": "input_file", "file_id": "file_1"}),
    st.just({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}),
)
CONTENTS = st.one_of(SAYINGS, st.lists(INPUT_PARTS, min_size=1, max_size=4))


@st.composite
def steps(draw: st.DrawFn, number: int) -> list[Json]:
    """One answer of the model with the results of its calls."""
    made: list[Json] = []
    has_ids = draw(st.booleans())
    if draw(st.booleans()):
        thought = reasoning(number)
        if draw(st.booleans()):
            thought["summary"] = [{"type": "summary_text", "text": draw(SAYINGS)}]
        made.append(thought)
    if draw(st.booleans()):
        made.append(draw(st.sampled_from(HOSTED)) | {"id": f"h_{number}"})
    if draw(st.booleans()) or not made:
        made.append(assistant(draw(SAYINGS), number))
    outputs = []
    for n in range(draw(st.integers(0, 3))):
        pair = make_pair(draw(st.sampled_from(KINDS)), number * 10 + n, draw(CONTENTS))
        made.append(pair[0])
        outputs.append(pair[1])
    if made[-1]["type"] == "reasoning":
        made.append(assistant("Well.", number))
    if not has_ids:
        kept = ("mcp_approval_request", "local_shell_call", "item_reference")
        made = [item if item["type"] in kept else {k: v for k, v in item.items() if k != "id"} for item in made]
    return made + draw(st.permutations(outputs))


@st.composite
def histories(draw: st.DrawFn) -> list[Json]:
    """The items of a conversation that a strict upstream takes."""
    made: list[Json] = [developer(draw(SAYINGS))] if draw(st.booleans()) else []
    made.append(user(draw(CONTENTS)))
    for number in range(1, draw(st.integers(1, 5))):
        made += draw(steps(number))
        if draw(st.booleans()) or not made[-1]["type"].endswith(("_output", "_response")):
            made.append(user(draw(CONTENTS)))
    return made


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request body, spelled in one of the ways in which clients spell JSON."""
    body: Json = {"model": "gpt-6.2"}
    if draw(st.booleans()):
        body["instructions"] = draw(SAYINGS)
    if draw(st.booleans()):
        body["tools"] = [
            {"type": "function", "name": "shell", "parameters": {}, "strict": True},
            {"type": "web_search"},
        ]
    body["input"] = draw(st.one_of(histories(), SAYINGS))
    body |= draw(st.sampled_from([{}, {"stream": True}, {"reasoning": {"effort": "high"}, "temperature": 1.50}]))
    body |= draw(
        st.sampled_from([{}, {"text": {"format": {"type": "text"}}}, {"max_output_tokens": 10, "x": "\u0007"}])
    )
    spelling: Json = draw(st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}]))
    return json.dumps(body, **spelling).encode()
