"""Requests that name an earlier response or a conversation in place of the messages before them.

The provider holds these messages. `read_chain_parameters` reads the names in such a request. `write_whole_request` puts
the history back as items, so the request needs nothing of the provider. The items are made from canonical messages, and
are the same on every request and every replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import SizeLimits
from proxy.dialects import spans
from proxy.dialects.responses import items as responses_items
from proxy.dialects.responses.request import ResponsesRequest
from proxy.errors import NotManaged

ENCRYPTED: Final = "reasoning.encrypted_content"
"""The entry of `include` that asks for reasoning with its token, which can be sent back without a stored response."""

MAX_PARAMETER_BYTES: Final = 64 * 1024
"""Bytes of a value that is read. A longer one names nothing, and its decoding would take seconds."""

_LOST: Final = frozenset({"id", "status"})
"""Members of an item that need not come back: the provider gives them to what it stores."""
_OBJECT = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class ChainParameters:
    """The parameters of a request that concern responses which the provider stores."""

    previous: str = ""
    """The id of the response that the request goes on from; "" for none."""
    conversation: str = ""
    """The id of the conversation object that it belongs to; "" for none."""
    is_stored: bool = True
    """True if the answer will be stored, so that a later request may name it."""
    is_whole: bool = True
    """False for a request that only the provider can complete: in the background, or with a stored prompt."""
    asks_encrypted: bool = False
    """True if the client asks for encrypted reasoning itself."""
    is_background: bool = False
    """True if the answer is made in the background: the client fetches it later, past the proxy."""

    @property
    def name(self) -> str:
        """The name under which the provider holds the history; "" if it holds none."""
        return self.previous or self.conversation


def read_chain_parameters(body: bytes, before: ResponsesRequest | None = None) -> ChainParameters | None:
    """The parameters in a request's body; None if it cannot be read. before: an earlier request whose bytes up to its
    `prefix_end` this body begins with; only the rest is read."""
    try:
        longer = None
        if before is not None and before.elements:
            longer = spans.find_longer_history(body, "input", before.members, before.elements, None)
        members = longer[0] if longer is not None else spans.find_body_members(body, SizeLimits())
    except NotManaged:  # too many keys, or an object that cannot be read
        return None
    names = ("previous_response_id", "conversation", "store", "background", "include")
    try:
        value = {
            name: spans.read_any(body[start:end])
            for name, (start, end) in members.items()
            if name in names and end - start <= MAX_PARAMETER_BYTES
        }
    except (ValueError, RecursionError):
        return None
    conversation = value.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    previous, include = value.get("previous_response_id"), value.get("include")
    is_background = value.get("background") is True
    return ChainParameters(
        previous if isinstance(previous, str) else "",
        conversation if isinstance(conversation, str) else "",
        value.get("store") is not False,
        not is_background and ("prompt" not in members or body[slice(*members["prompt"])] == b"null"),
        isinstance(include, list) and ENCRYPTED in include,
        is_background,
    )


def restore_items(messages: Sequence[bytes], call_types: dict[str, str] | None = None) -> list[bytes]:
    """The items of canonical messages. Raises ValueError for a message that cannot be written as items again.

    call_types: the types of the calls in front, by their ids; those of these messages are added to it.
    """
    items: list[bytes] = []
    call_types = {} if call_types is None else call_types
    for raw in messages:
        message = _OBJECT.decode(raw)
        if message.get("role") == "assistant":
            answer_items = responses_items.make_items(raw, call_types)
            call_types |= responses_items.find_call_types(answer_items)
            items += answer_items
        else:
            items.append(msgspec.json.encode(_restore_item(message, call_types)))
    return items


def _restore_item(message: Mapping[str, Any], call_types: Mapping[str, str]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        call_id = message.get("tool_call_id")
        kind = call_types.get(str(call_id), "function_call")
        if kind not in ("function_call", "custom_tool_call"):
            raise ValueError(f"the output of a {kind}")
        output = content if isinstance(content, str) else [_restore_part(part) for part in content or ()]
        return {"type": f"{kind}_output", "call_id": call_id, "output": output}
    if isinstance(content, list) and len(content) == 1 and content[0].get("type") in responses_items.DEVELOPER_ITEMS:
        kind = content[0]["type"]
        return {"type": kind, **content[0][kind]}
    if isinstance(content, list):
        content = [_restore_part(part) for part in content]
    return {"type": "message", "role": role, "content": content}


def _restore_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(part.get("type"))
    restored: dict[str, Any]
    if kind == "text":
        restored = {"type": "input_text", "text": part.get("text")}
    elif kind == "image_url":
        image = part["image_url"]
        restored = {"type": "input_image", "image_url": image.get("url")}
        restored |= {"detail": image["detail"]} if "detail" in image else {}
    elif kind == "file":
        restored = {"type": "input_file", **part["file"]}
    elif isinstance(part.get(kind), dict):
        restored = {"type": kind, **part[kind]}
    else:
        raise ValueError(f"a part of the type {kind}")
    if part.get(responses_items.CACHE_MARK) is not None:
        restored[responses_items.CACHE_MARK] = part[responses_items.CACHE_MARK]
    return restored


def can_restore(body: bytes, history: Sequence[bytes] = ()) -> bool:
    """True if the items of a request can be written again from their canonical messages, with nothing lost but ids.

    history: the canonical messages in front of the request, which have the calls that it answers.
    """
    try:
        raws = _read_items(body)
        types = responses_items.find_call_types(
            item for raw in history if b'"assistant"' in raw[:40] for item in responses_items.make_items(raw, {})
        )
        types |= responses_items.find_call_types(raws)
        return all(_is_restored(_OBJECT.decode(raw), types) for raw in raws)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, NotManaged):
        return False


def _is_restored(item: dict[str, Any], call_types: Mapping[str, str]) -> bool:
    if responses_items.find_type(item) == "item_reference":
        return False
    if responses_items.find_role(item) == "model":
        return True  # its bytes are kept
    restored = _restore_item(_OBJECT.decode(responses_items.make_message(item)), call_types)
    wanted = {"type": responses_items.find_type(item), **item}
    return {k: v for k, v in wanted.items() if k not in _LOST} == restored


def has_bare_reasoning(messages: Sequence[bytes]) -> bool:
    """True if an answer among these canonical messages has reasoning without its token, which only the provider has."""
    for raw in messages:
        if b'"reasoning"' not in raw:
            continue
        for item in responses_items.make_items(raw, {}) if _OBJECT.decode(raw).get("role") == "assistant" else ():
            value = _OBJECT.decode(item)
            if responses_items.find_type(value) == "reasoning" and responses_items.find_token(value) is None:
                return True
    return False


def _read_items(body: bytes) -> list[bytes]:
    """The items of a request's input, each with its bytes. Raises ValueError."""
    span = spans.read_members(body).get("input")
    if span is None or body[slice(*span)] == b"null":
        return []
    if body[span[0] : span[0] + 1] == b'"':
        return [b'{"type":"message","role":"user","content":' + body[slice(*span)] + b"}"]
    return [body[start:end] for start, end in spans.read_elements(body, span)]


def write_whole_request(body: bytes, items: Sequence[bytes]) -> bytes:
    """The request with these items in front of its own, and without the names of what the provider holds. Raises
    ValueError if the body cannot be changed."""
    new = b"[" + b",".join([*items, *_read_items(body)]) + b"]"
    for name in ("previous_response_id", "conversation"):
        body = json_spans.remove_member(body, name)
    return json_spans.set_member(body, "input", new)


def list_references(body: bytes) -> list[str]:
    """The ids of the items that a request refers to, in order. Raises ValueError."""
    return [name for raw in _read_items(body) if (name := _read_reference(raw))]


def _read_reference(raw: bytes) -> str:
    """The id that an item refers to; "" for an item of another type."""
    item = _OBJECT.decode(raw) if b"item_reference" in raw or b'"type"' not in raw else {}
    name = item.get("id") if item and responses_items.find_type(item) == "item_reference" else None
    return name if isinstance(name, str) else ""


def replace_references(body: bytes, items: Mapping[str, bytes]) -> bytes:
    """The request with items in place of references. Raises ValueError, KeyError for an unknown one."""
    made = [items[name] if (name := _read_reference(raw)) else raw for raw in _read_items(body)]
    return json_spans.set_member(body, "input", b"[" + b",".join(made) + b"]")


def write_unstored(body: bytes) -> bytes:
    """The request whose answer the provider does not store. Raises ValueError."""
    return json_spans.set_member(body, "store", b"false")


def ask_for_encrypted(body: bytes) -> bytes:
    """The request that asks for encrypted reasoning. Raises ValueError."""
    span = spans.read_members(body).get("include")
    entry = spans.encode_text(ENCRYPTED)
    if span is None or body[slice(*span)] == b"null":
        return json_spans.set_member(body, "include", b"[" + entry + b"]")
    if ENCRYPTED in spans.read_any(body[slice(*span)]):
        return body
    return spans.apply_replacements(body, [spans.append_element(body, span, entry)])


def drop_encrypted(body: bytes) -> bytes:
    """The request that does not ask for encrypted reasoning. Raises ValueError."""
    span = spans.read_members(body).get("include")
    if span is None or body[slice(*span)] == b"null":
        return body
    left = [one for one in spans.read_any(body[slice(*span)]) if one != ENCRYPTED]
    if not left:
        return json_spans.remove_member(body, "include")
    return json_spans.set_member(body, "include", msgspec.json.encode(left))
