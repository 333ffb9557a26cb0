"""Items of the Responses wire, and the chat message that each of them is for the rest of the proxy.

A canonical message depends on its own items alone, never on their position. So the same history gives the same bytes
again, and a history that only grew gives messages that only grew. Items that the model made stand together in one
assistant message; its member `wire` holds these items as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from proxy.chat import json_spans
from proxy.dialects.completions.request import CONTINUES
from proxy.errors import NotManaged

ItemRole = Literal["user", "system", "result", "model"]
"""Maker of an item: the user, the developer, a tool, or the model."""

CACHE_MARK: Final = "prompt_cache_breakpoint"
"""The client's cache mark on a content part."""
REASONING_NAME: Final = b'"reasoning"'
"""The type of reasoning, as it stands in a body."""
COMPACTIONS: Final = frozenset({"compaction", "compaction_summary", "context_compaction"})
"""Items that stand for all in front of them: no new edit is made there, and what was sent stays as it was."""

CALLS: Final = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "shell_call",
        "local_shell_call",
        "apply_patch_call",
        "computer_call",
        "tool_search_call",
        "mcp_approval_request",
    }
)
"""Items by which the model asks the client for something."""
RESULTS: Final = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "shell_call_output": "shell_call",
    "local_shell_call_output": "local_shell_call",
    "apply_patch_call_output": "apply_patch_call",
    "computer_call_output": "computer_call",
    "tool_search_output": "tool_search_call",
    "mcp_approval_response": "mcp_approval_request",
}
"""The client's answers, each with the item that it answers."""
OPAQUE_PAIRS: Final = {"program_output": "program"}
"""Items of the provider that belong together by their `call_id`."""

DEVELOPER_ITEMS = frozenset({"additional_tools", "configuration_update"})
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_FLEETING = frozenset({"id", "status", "encrypted_content", "created_by", CACHE_MARK})
"""Members of an opaque item that a client may leave out or change when it sends the item back."""
_FOREIGN_TYPES = frozenset({"text", "tool_use", "thinking", "redacted_thinking"})
_FOREIGN_ENDS = ("tool_use", "_tool_result")
"""Types of the blocks of Messages."""
_REPLAYED_WITHOUT_ID = frozenset(
    {"message", "function_call", "custom_tool_call", "shell_call", "apply_patch_call", "tool_search_call"}
)
"""Items that a provider takes without their id. Without an id, an item is not held to its reasoning."""
_RAW = msgspec.json.Decoder()


def find_type(item: Mapping[str, Any]) -> str:
    """The item's type. Messages and references may lack it."""
    kind = item.get("type")
    if isinstance(kind, str) and kind:
        return kind
    if "role" in item:
        return "message"
    return "item_reference" if isinstance(item.get("id"), str) else ""


def find_role(item: Mapping[str, Any]) -> ItemRole:
    """The maker of an item. An item of an unknown type is the model's, unless it has its own role. Raises NotManaged:
    `shape` for an item without a type, or for a message of an unknown role."""
    kind = find_type(item)
    if not kind:
        raise NotManaged("shape", "an item without a type")
    if kind == "message" or (kind not in RESULTS and isinstance(item.get("role"), str)):
        role = item.get("role")
        if role in ("system", "developer"):
            return "system"
        if role in ("user", "assistant"):
            return "user" if role == "user" else "model"
        raise NotManaged("shape", "a message item of an unknown role")
    if kind in DEVELOPER_ITEMS:
        return "system"
    return "result" if kind in RESULTS and find_answered_call(item) is not None else "model"


def find_answered_call(item: Mapping[str, Any]) -> str | None:
    """The id of the call that an item answers; None if there is none, or if the provider answered it."""
    kind = find_type(item)
    if kind not in RESULTS:
        return None
    name = "approval_request_id" if kind == "mcp_approval_response" else "call_id"
    call_id = item.get(name)
    if kind == "local_shell_call_output" and not isinstance(call_id, str):
        call_id = item.get("id")
    if isinstance(call_id, str):
        return call_id
    return None if kind == "tool_search_output" else ""


def find_call_types(items: Iterable[bytes]) -> dict[str, str]:
    """The type of each call among these items, by its id."""
    call_types: dict[str, str] = {}
    for raw in items:
        if b"call" in raw:
            item = _RAW.decode(raw)
            call_id = find_call(item)
            if call_id:
                call_types[call_id] = find_type(item)
    return call_types


def find_call(item: Mapping[str, Any]) -> str | None:
    """The id under which a call is answered; None for an item that the client does not answer."""
    kind = find_type(item)
    if kind not in CALLS:
        return None
    if kind == "mcp_approval_request":
        call_id = item.get("id")
    else:
        call_id = item.get("call_id")
        if kind == "tool_search_call" and not isinstance(call_id, str):
            return None  # the provider searches by itself
        if not isinstance(call_id, str):
            call_id = item.get("id")
    return call_id if isinstance(call_id, str) else ""


def find_token(item: Mapping[str, Any]) -> str | None:
    """The token by which the provider ties a reasoning item to everything in front of it."""
    token = item.get("encrypted_content") if find_type(item) == "reasoning" else None
    return token if isinstance(token, str) and token else None


def make_message(item: Mapping[str, Any]) -> bytes:
    """The canonical message of an item that the model did not make. Raises NotManaged if not understood."""
    kind = find_type(item)
    if kind == "message":
        return _encode({"role": item["role"], "content": _make_content(item.get("content"))})
    call_id = find_answered_call(item)
    if call_id is not None:
        return _encode({"role": "tool", "tool_call_id": call_id, "content": _make_result(kind, item)})
    role = item.get("role")
    role = role if isinstance(role, str) else "developer"
    return _encode({"role": role, "content": [make_opaque_part(item)]})


def _make_content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NotManaged("shape", "content that is neither text nor a list of parts")
    return [_make_part(part) for part in content]


def _make_result(kind: str, item: Mapping[str, Any]) -> Any:
    output = item.get("output")
    if kind == "shell_call_output" and isinstance(output, list):
        parts: list[Any] = []
        for chunk in output:
            if not isinstance(chunk, dict):
                raise NotManaged("shape", "a shell output that is no object")
            texts = [chunk[name] for name in SHELL_TEXTS if isinstance(chunk.get(name), str) and chunk[name]]
            parts += [{"type": "text", "text": text} for text in texts]
            parts.append({"type": "outcome", "outcome": chunk.get("outcome")})
        return parts
    if isinstance(output, str | list):
        return _make_content(output)
    if isinstance(output, dict):
        return [_make_part(output)]
    return [make_opaque_part(item)]


SHELL_TEXTS: Final = ("stdout", "stderr")
"""Members of a shell's output that are text."""


def _make_part(part: Any) -> dict[str, Any]:
    """A content part in the form of chat completions. A part of an unknown type is one that no stage edits."""
    if not isinstance(part, dict):
        raise NotManaged("shape", "a content part that is no object")
    kind = str(part.get("type", "")) or "unknown"
    chat_part: dict[str, Any]
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        chat_part = {"type": "text", "text": part["text"]}
    elif kind == "refusal":
        chat_part = {"type": "refusal", "refusal": part.get("refusal")}
    elif kind == "input_image" and isinstance(part.get("image_url"), str):
        chat_part = {"type": "image_url", "image_url": {"url": part["image_url"]}}
        if isinstance(part.get("detail"), str):
            chat_part["image_url"]["detail"] = part["detail"]
    elif kind == "input_file":
        names = ("filename", "file_data", "file_id", "file_url")
        chat_part = {"type": "file", "file": {name: part[name] for name in names if name in part}}
    else:
        kind = "unknown" if kind in ("type", "text") else kind
        chat_part = {"type": kind, kind: {name: part[name] for name in part if name not in ("type", CACHE_MARK)}}
    if part.get(CACHE_MARK) is not None:
        chat_part[CACHE_MARK] = part[CACHE_MARK]
    return chat_part


def make_opaque_part(item: Mapping[str, Any]) -> dict[str, Any]:
    """The part that stands for an item which chat completions cannot express. A reference is known by its id."""
    kind = find_type(item)
    left_out = _FLEETING - {"id"} if kind == "item_reference" else _FLEETING
    return {"type": kind, kind: {name: item[name] for name in item if name != "type" and name not in left_out}}


def make_assistant(items: Sequence[tuple[Mapping[str, Any], bytes]]) -> bytes:
    """The canonical message of an answer's items, each with its bytes. Raises NotManaged if not understood."""
    texts: list[str] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    is_text = True
    for item, _ in items:
        kind = find_type(item)
        if kind == "message":
            content_parts = _make_content(item.get("content"))
            content_parts = (
                [{"type": "text", "text": content_parts}] if isinstance(content_parts, str) else content_parts or []
            )
            text = "".join(part["text"] for part in content_parts if part["type"] == "text")
            texts += [text] if text else []
            parts += content_parts
            is_text = is_text and all(part["type"] == "text" and len(part) == 2 for part in content_parts)
        elif kind == "reasoning":
            reasoning += _read_reasoning(item)
        elif find_call(item) is not None:
            calls.append(_make_call(kind, item))
        else:
            parts.append(make_opaque_part(item))
            is_text = False
    message: dict[str, Any] = {"role": "assistant"}
    message["content"] = ("\n\n".join(texts) if texts else None) if is_text else parts
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = "\n\n".join(reasoning)
    if _goes_on([item for item, _ in items]):
        message[CONTINUES] = True
    message["wire"] = msgspec.Raw(b"[" + b",".join([raw for _, raw in items]) + b"]")
    return _encode(message)


def _goes_on(items: Sequence[Mapping[str, Any]]) -> bool:
    """True if these items belong to a program of an earlier answer: its output, or calls that it makes."""
    programs = {str(item.get("call_id")) for item in items if find_type(item) in OPAQUE_PAIRS.values()}
    for item in items:
        caller = item.get("caller")
        name = caller.get("caller_id") if isinstance(caller, dict) else None
        name = item.get("call_id") if find_type(item) in OPAQUE_PAIRS else name
        if isinstance(name, str) and name not in programs:
            return True
    return False


def _read_reasoning(item: Mapping[str, Any]) -> list[str]:
    for name in ("content", "summary"):
        parts = item.get(name)
        texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        shown = [text for text in texts if isinstance(text, str) and text]
        if shown:
            return shown
    return []


_NAMED_CALLS = {
    "shell_call": ("shell", "action"),
    "local_shell_call": ("local_shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
    "tool_search_call": ("tool_search", "arguments"),
}
"""Calls without a name of their own: name, and the member that holds what is asked."""


def _make_call(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    call_id = find_call(item)
    if kind == "custom_tool_call":
        inner = {"name": _read_text(item.get("name")), "input": _read_text(item.get("input"))}
        return {"id": call_id, "type": "custom", "custom": inner}
    if kind in _NAMED_CALLS:
        name, member = _NAMED_CALLS[kind]
        arguments = item.get(member)
    elif kind == "computer_call":
        name, arguments = "computer", item.get("actions", item.get("action"))
    elif kind == "mcp_approval_request":
        name, arguments = kind, [item.get("server_label"), item.get("name"), item.get("arguments")]
    else:
        name, arguments = _read_text(item.get("name")), _read_text(item.get("arguments"))
    written = arguments if isinstance(arguments, str) else _encode(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}


def _read_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _encode(value).decode()


def find_texts(raw: bytes, item: Mapping[str, Any]) -> tuple[list[tuple[int, int]], int | None]:
    """Return (spans, end). The spans are those of the JSON strings that are the text parts of the item's canonical
    message, in order. The end is the position behind the last part, None if the item has no list that takes a text
    part."""
    kind = find_type(item)
    list_member = json_spans.find_member(raw, "content" if kind == "message" else "output")
    if list_member is None:
        return [], None
    if raw[list_member.start : list_member.start + 1] == b'"':
        return [(list_member.start, list_member.end)], None
    elements = json_spans.find_elements(raw[list_member.start : list_member.end])
    if elements is None:
        return [], None
    texts: list[tuple[int, int]] = []
    is_shell = kind == "shell_call_output"
    for start, end in elements:
        part = raw[list_member.start + start : list_member.start + end]
        at = list_member.start + start
        members = {one.key: one for one in json_spans.find_members(part) or ()}
        if is_shell:
            names = [name for name in SHELL_TEXTS if name in members]
            spans = [(at + members[name].start, at + members[name].end) for name in names]
            texts += [span for span in spans if raw[span[0] : span[0] + 1] == b'"' and raw[slice(*span)] != b'""']
        elif "text" in members and part[members["text"].start : members["text"].start + 1] == b'"':
            kind_span = members.get("type")
            if kind_span and json_spans.decode_string(part[kind_span.start : kind_span.end]) in _TEXT_PARTS:
                texts.append((at + members["text"].start, at + members["text"].end))
    end = list_member.start + elements[-1][1] if elements else list_member.start + 1
    return texts, None if is_shell else end


def make_items(message: bytes, call_types: Mapping[str, str]) -> list[bytes]:
    """The items of a message of the proxy, in the order of an answer. call_types: the type of each call in front of it,
    by its id. Raises ValueError if the message cannot be expressed."""
    fields = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
    own = _read_wire(bytes(fields["wire"])) if "wire" in fields else None
    if own is not None:
        return own
    role = _decode_field(fields, "role")
    content = _decode_field(fields, "content")
    if role == "tool":
        call_id = _decode_field(fields, "tool_call_id")
        kind = "custom_tool_call_output" if call_types.get(call_id) == "custom_tool_call" else "function_call_output"
        output = content if isinstance(content, str) else _make_parts(content, "input_text")
        return [_encode({"type": kind, "call_id": call_id, "output": output})]
    if role == "assistant":
        items: list[bytes] = []
        if content:
            parts = _make_parts(content, "output_text")
            items.append(_encode({"type": "message", "role": "assistant", "content": parts}))
        return items + [_make_call_item(call) for call in _decode_field(fields, "tool_calls") or ()]
    return [_encode({"type": "message", "role": "developer", "content": _make_parts(content, "input_text")})]


def _read_wire(wire: bytes) -> list[bytes] | None:
    """The items in a member `wire`; None if another dialect wrote it: its blocks and parts have other types."""
    items = [wire[start:end] for start, end in json_spans.find_elements(wire) or ()]
    values = [_RAW.decode(item) for item in items]
    kinds = [find_type(value) if isinstance(value, dict) else "" for value in values]
    is_foreign = any(kind in _FOREIGN_TYPES or not kind or kind.endswith(_FOREIGN_ENDS) for kind in kinds)
    return None if is_foreign else items


def leave_out_reasoning(
    raws: Sequence[bytes], items: Sequence[Mapping[str, Any]], is_gone: Callable[[int], bool]
) -> list[tuple[int | None, bytes]]:
    """(index, bytes) of the items without the reasoning that is gone, by its index.

    Items that it led to lose their ids: an item with an id is refused without its reasoning.
    """
    kept: list[tuple[int | None, bytes]] = []
    is_led = False
    for n, item in enumerate(items):
        kind = find_type(item)
        if kind == "reasoning":
            is_led = is_gone(n)
            if is_led:
                continue
        elif find_role(item) != "model":
            is_led = False
        raw = raws[n]
        if is_led and kind in _REPLAYED_WITHOUT_ID and "id" in item:
            for name in ("id", "status") if kind == "message" else ("id",):
                raw = json_spans.remove_member(raw, name)
        kept.append((n, raw))
    return kept


def leave_out_unstored_reasoning(raws: Sequence[bytes]) -> list[bytes]:
    """The items of an unstored answer as they can be sent again, without reasoning by its id alone."""
    items = [_RAW.decode(raw) for raw in raws]
    return [raw for _, raw in leave_out_reasoning(raws, items, lambda n: is_id_alone(items[n]))]


def is_id_alone(item: Mapping[str, Any]) -> bool:
    """True if reasoning has an id and is not encrypted, so that only the provider that stored it knows what it is."""
    return bool(item.get("id")) and isinstance(item["id"], str) and find_token(item) is None


def _make_parts(content: Any, kind: str) -> list[dict[str, Any]]:
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    texts = [part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a part of ours that is no text")
    return [{"type": kind, "text": text} for text in texts]


def _make_call_item(call: Mapping[str, Any]) -> bytes:
    inner = call.get("custom")
    if isinstance(inner, dict):
        fields = {"type": "custom_tool_call", "call_id": call.get("id"), "name": inner["name"], "input": inner["input"]}
        return _encode(fields)
    inner = call["function"]
    return _encode(
        {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": inner["name"],
            "arguments": inner.get("arguments", ""),
        }
    )


def _decode_field(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    return _RAW.decode(fields[name]) if name in fields else None


def make_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool definition of chat completions in the form of Responses, where `strict` is true unless it is said."""
    kind = tool.get("type")
    inner = tool.get(kind) if isinstance(kind, str) else None
    if not isinstance(inner, dict):
        return dict(tool)
    made = {"type": kind, **inner}
    if kind == "function":
        made.setdefault("strict", False)
    return made


def make_chat_tool(tool: Any) -> Any:
    """A tool definition of Responses in the form of chat completions; hosted tools stay as they are."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        return tool
    return {"type": kind, kind: {name: tool[name] for name in tool if name != "type"}}


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
