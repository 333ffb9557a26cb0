"""Gemini's generateContent: reading a request into chat form, and reading one `Content` by itself.

The model and the wish for a stream stand in the path, not in the body (`read_place`). The canonical messages stand in
front of all values that change from request to request, so a body that has only grown gives a chat body that has only
grown. Only the fields named here are read; everything else travels in its bytes.

Imported conversations and the functions of REPLOID have single contents, which `read_message` reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from proxy.chat import chain, json_spans
from proxy.chat.json_spans import SizeLimits
from proxy.chat.message import Call, ContentShape, Message
from proxy.dialects import spans
from proxy.dialects.completions.request import make_message
from proxy.dialects.gemini.contents import (
    WireCall,
    convert_part,
    convert_result,
    find_span,
    get_field,
    make_assistant_message,
    read_field,
)
from proxy.dialects.gemini.write import SYSTEM, Unit, write_body
from proxy.dialects.written_history import OutgoingMessage
from proxy.errors import NotManaged

SEGMENT: Final = r"[A-Za-z0-9._~@+-]+"
"""A part of a path that the client chooses. A server that decodes it twice must not find another path in it."""
PATH: Final = re.compile(
    rf"(?:/v1\w*)?(?:/projects/{SEGMENT}/locations/{SEGMENT})?(?:/publishers/{SEGMENT})?"
    rf"/(?:models|tunedModels)/(?P<model>{SEGMENT}):(?P<method>generateContent|streamGenerateContent|countTokens)/?",
    re.ASCII,
)
"""The paths of requests with a history: of the Gemini API and of Vertex AI."""

_ROLES = {"model": "assistant", "user": "user", "function": "tool", "system": "system", "tool": "tool"}


def read_message(raw: bytes) -> Message:
    """The message in one `Content` (`{"role", "parts": [...]}`). Raises NotManaged if `raw` is no such object.

    A part with `functionCall` is a call, a part with `functionResponse` a result; parts with `thought` are reasoning.
    Older models give no call ids; then the function's name is the id, as Gemini itself matches them.
    """
    try:
        content = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as problem:
        raise NotManaged("unreadable", f"a message that cannot be read: {problem}") from problem
    if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
        raise NotManaged("shape", "no Gemini content: an object with a list of parts is expected")
    texts: list[str] = []
    reasoning: list[str] = []
    media: list[bytes] = []
    calls: list[Call] = []
    call_id = None
    for part in content["parts"]:
        if not isinstance(part, dict):
            raise NotManaged("shape", "a part that is no object")
        if isinstance(part.get("functionCall"), dict):
            calls.append(_read_call(part["functionCall"]))
        elif isinstance(part.get("functionResponse"), dict):
            answer = part["functionResponse"]
            call_id = str(answer.get("id") or answer.get("name") or "")
            texts.append(_read_result(answer.get("response")))
        elif isinstance(part.get("text"), str):
            (reasoning if part.get("thought") else texts).append(part["text"])
        else:
            media.append(chain.compute_form(msgspec.json.encode(part, order="sorted")))
    role = "tool" if call_id is not None else _ROLES.get(str(content.get("role", "user")), "user")
    text = "".join(texts)
    named = chain.digest_message(role, text, calls, call_id, media)
    shape: ContentShape = "mixed" if media else "parts"
    return Message(
        raw,
        role,
        text,
        tuple(calls),
        call_id,
        "".join(reasoning),
        shape,
        len(media),
        False,
        named,
        chain.compute_form(raw),
        len(content["parts"]),
    )


def _read_call(call: dict[str, Any]) -> Call:
    name = str(call.get("name") or "")
    return Call(str(call.get("id") or name), name, msgspec.json.encode(call.get("args") or {}).decode())


def _read_result(response: Any) -> str:
    """A result's text: its only value, if the response is an object with one text; otherwise its JSON."""
    if isinstance(response, dict) and len(response) == 1:
        (only,) = response.values()
        if isinstance(only, str):
            return only
    return response if isinstance(response, str) else msgspec.json.encode(response).decode()


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a request that its path says. is_stream: the answer is events, or one list without `alt=sse`."""

    model: str
    is_stream: bool


def read_place(path: str) -> Place:
    """Read a path, which may end with its query. Another path than `PATH` names no model."""
    path, _, query = path.partition("?")
    match = PATH.search(unquote(path))
    if match is None:
        return Place("", is_stream=False)
    parameters = dict(parse_qsl(query))
    return Place(match["model"], match["method"] == "streamGenerateContent" and parameters.get("alt") == "sse")


@dataclass(frozen=True, slots=True)
class GeminiRequest:
    """A request of generateContent. See `proxy.dialects.base.WireRequest`."""

    body: bytes
    chat_body: bytes
    bound: tuple[str | None, ...]
    root: spans.Span
    """The object with the contents: the body, or the request that is to be counted."""
    units: tuple[Unit, ...]
    is_cut: bool = False
    """A first call in the newest turn lacks its signature, which may have stood on a call of the proxy's tools."""
    memo: None = None
    canonical: tuple[bytes, ...] = ()
    """None and (): nothing is kept from one request to the next."""

    @property
    def members(self) -> dict[str, spans.Span]:
        """Spans of the values beside the contents."""
        return spans.read_members(self.body, self.root)

    def write(self, messages: Sequence[OutgoingMessage], *, tools: bytes = b"") -> bytes:
        """The wire body with these messages. Raises ValueError for a change that may not be made (`write_body`)."""
        return write_body(self.body, self.members, self.units, messages, tools)


def read_gemini_request(body: bytes, limits: SizeLimits | None = None, path: str = "") -> GeminiRequest:
    """The request in this body, and in the path with its query. Raises NotManaged: `unreadable` or `shape` if it is not
    understood, `size` if it is over the limits, `chain` if a part of the prompt is at the provider."""
    if limits is not None:
        limits.check_body(body)
    try:
        return _read_request(body, limits, read_place(path))
    except (ValueError, KeyError, RecursionError) as problem:
        raise NotManaged("shape", f"a request that cannot be read: {problem}") from problem


def _read_request(body: bytes, limits: SizeLimits | None, place: Place) -> GeminiRequest:
    members = spans.find_body_members(body, limits)
    root = find_span(members, "generateContentRequest") or (0, len(body))  # of countTokens
    if root != (0, len(body)):
        members = spans.read_members(body, root)
    values = _Values(body, members)
    if values.get("cachedContent"):
        raise NotManaged("chain", "the provider holds the beginning of this prompt")
    span = find_span(members, "contents")
    if span is None:
        raise NotManaged("shape", "no contents")
    contents = spans.find_history(body, span, limits, "contents is no list, or an empty one")
    reader = _ContentReader(body)
    system = values.raw("systemInstruction")
    if system is not None and system != b"null":
        reader.units.append(_convert_system(system))
    for n, one in enumerate(contents):
        reader.add(n, one)
    reader.end_answer()
    chats = [unit.chat for unit in reader.units]
    return GeminiRequest(
        body,
        _write_chat_body(values, place, chats, ends_in_answer=reader.units[-1].kind == "answer"),
        (None,) * len(chats),
        root,
        tuple(reader.units),
        reader.is_unsigned,
    )


def _convert_system(raw: bytes) -> Unit:
    if raw[:1] == b'"':
        return Unit(make_message("system", raw), SYSTEM, (), (), "system")
    if raw[:1] != b"{":
        raise NotManaged("shape", "a system instruction that is neither text nor a content")
    parts = _read_parts(raw)
    content = b"[" + b",".join(convert_part(part) for part in parts) + b"]"
    return Unit(make_message("system", content), SYSTEM, tuple(range(len(parts))), (), "system")


def _read_parts(content: bytes) -> list[bytes]:
    raw = json_spans.read_value(content, "parts")
    if raw is None or raw == b"null":
        return []
    return [raw[start:end] for start, end in spans.read_elements(raw)]


class _ContentReader:
    """Reader of contents in their order: results find their calls in the answer before them."""

    def __init__(self, body: bytes) -> None:
        self.units: list[Unit] = []
        self.is_unsigned = False
        """The first call of an answer in the newest turn lacks its signature."""
        self._body = body
        self._answer: list[tuple[int, list[bytes]]] = []
        self._waiting: list[WireCall] = []

    def add(self, place: int, span: spans.Span) -> None:
        """Read one content. Raises NotManaged or ValueError if it is not understood."""
        raw = self._body[span[0] : span[1]]
        role = json_spans.read_value(raw, "role")
        named = json_spans.decode_string(role) if role is not None and role != b"null" else "user"
        parts = _read_parts(raw)
        if named == "model":
            self._answer.append((place, parts))
            return
        if named not in ("user", "function", "tool"):
            raise NotManaged("shape", "a content of an unknown role")
        self.end_answer()
        self._add_user(place, parts)

    def end_answer(self) -> None:
        """End the answer whose contents have come."""
        if not self._answer:
            return
        answer = make_assistant_message([part for _, parts in self._answer for part in parts])
        places = tuple(place for place, _ in self._answer)
        self.units.append(Unit(answer.chat, places[0], (), places, "answer"))
        self._answer = []
        self._waiting = list(answer.calls)
        self.is_unsigned |= answer.is_unsigned

    def _add_user(self, place: int, parts: Sequence[bytes]) -> None:
        others: list[int] = []
        results = 0
        for n, part in enumerate(parts):
            response = read_field(part, "functionResponse")
            if response is None:
                others.append(n)
                continue
            results += 1
            name = self._find_call(response)
            self.units.append(Unit(convert_result(part, name), place, (n,), (), "result"))
        if others or not results:
            self.is_unsigned = False
            content = b"[" + b",".join(convert_part(parts[n]) for n in others) + b"]"
            self.units.append(Unit(make_message("user", content), place, tuple(others), (), "user"))

    def _find_call(self, response: bytes) -> str:
        """The canonical id of the call that a response answers: by id, else the oldest open call of its name."""
        value = spans.read_any(response)
        if not isinstance(value, dict) or not isinstance(value.get("name", ""), str):
            raise NotManaged("shape", "a function response of an unknown kind")
        wire_id, name = value.get("id"), value.get("name", "")
        call = next((one for one in self._waiting if wire_id and one.wire_id == wire_id), None)
        call = call or next((one for one in self._waiting if one.name == name), None)
        if call is None:
            return wire_id if isinstance(wire_id, str) and wire_id else name
        self._waiting.remove(call)
        return call.id


class _Values:
    """Reader of top-level values, decoded one at a time."""

    def __init__(self, body: bytes, members: dict[str, spans.Span]) -> None:
        self._body = body
        self._members = members

    def raw(self, name: str) -> bytes | None:
        span = find_span(self._members, name)
        return self._body[span[0] : span[1]] if span else None

    def get(self, name: str) -> Any:
        raw = self.raw(name)
        return None if raw is None else spans.read_any(raw)


def _write_chat_body(values: _Values, place: Place, messages: Sequence[bytes], *, ends_in_answer: bool) -> bytes:
    """The chat-completions body. The messages come before all values that change between requests."""
    model = values.get("model")  # of a request that is to be counted
    named = place.model or (model.rpartition("/")[2] if isinstance(model, str) else "")
    pieces = [b'{"model":' + spans.encode_text(named), b'"messages":[' + b",".join(messages) + b"]"]
    if place.is_stream:
        pieces.append(b'"stream":true,"stream_options":{"include_usage":true}')
    tools = _convert_tools(values.get("tools"))
    if tools:
        pieces.append(b'"tools":' + msgspec.json.encode(tools))
    members = _convert_choice(values.get("toolConfig"))
    config = values.get("generationConfig")
    members |= _convert_config(config) if isinstance(config, dict) else {}
    if ends_in_answer:
        members["continue_final_message"] = True
    pieces += [msgspec.json.encode(name) + b":" + msgspec.json.encode(value) for name, value in members.items()]
    return b",".join(pieces) + b"}"


def _convert_tools(tools: Any) -> list[Any]:
    """The tools as chat definitions, [] without a function: the provider's own tools stand alone in older models."""
    chat_tools: list[Any] = []
    count = 0
    for tool in tools if isinstance(tools, list) else ():
        declared = get_field(tool, "functionDeclarations") if isinstance(tool, dict) else None
        if not isinstance(declared, list):
            chat_tools.append(tool)
            continue
        for declaration in declared:
            if not isinstance(declaration, dict) or not isinstance(declaration.get("name"), str):
                raise NotManaged("shape", "a function declaration without a name")
            schema = get_field(declaration, "parametersJsonSchema")
            schema = declaration.get("parameters") if schema is None else schema
            function = {"name": declaration["name"], "description": declaration.get("description") or ""}
            chat_tools.append(
                {"type": "function", "function": {**function, "parameters": schema or {"type": "object"}}}
            )
            count += 1
    return chat_tools if count else []


def _convert_choice(config: Any) -> dict[str, Any]:
    calling = get_field(config, "functionCallingConfig") if isinstance(config, dict) else None
    if not isinstance(calling, dict):
        return {}
    if get_field(calling, "streamFunctionCallArguments"):
        raise NotManaged("shape", "the arguments of calls are asked for in pieces")
    allowed = get_field(calling, "allowedFunctionNames")
    mode = str(calling.get("mode") or "").upper()
    if isinstance(allowed, list) and allowed:
        named = [{"type": "function", "function": {"name": one}} for one in allowed]
        wanted = {"mode": "required" if mode == "ANY" else "auto", "tools": named}
        return {"tool_choice": {"type": "allowed_tools", "allowed_tools": wanted}}
    return {"tool_choice": {"ANY": "required", "NONE": "none"}[mode]} if mode in ("ANY", "NONE") else {}


def _convert_config(config: dict[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    limit = get_field(config, "maxOutputTokens")
    if isinstance(limit, int):
        members["max_completion_tokens"] = limit
    schema = get_field(config, "responseJsonSchema") or get_field(config, "responseSchema")
    if get_field(config, "responseMimeType") == "application/json" or schema:
        members["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema or {}}}
    count = get_field(config, "candidateCount")
    if isinstance(count, int) and count > 1:
        members["n"] = count
    modalities = [str(one).lower() for one in get_field(config, "responseModalities") or ()]
    if modalities and modalities != ["text"]:
        members["modalities"] = modalities
    if get_field(config, "responseLogprobs") is True:
        members["logprobs"] = True
    thinking = get_field(config, "thinkingConfig")
    level = get_field(thinking, "thinkingLevel") if isinstance(thinking, dict) else None
    if isinstance(level, str):
        members["reasoning_effort"] = level.lower()
    return members
