"""OpenAI's Chat Completions: reading a request into Messages, and writing one back slice by slice.

Only the fields named here are read; everything else travels in its slice. A value of an unexpected type makes a message
`none`-shaped or the request unmanaged, never an error: the upstream decides whether it is valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import msgspec

from proxy.chat import chain, json_spans
from proxy.chat.json_spans import MAX_TOP_LEVEL_KEYS, SizeLimits
from proxy.chat.media import is_image
from proxy.chat.message import Call, ContentShape, Message, PrefixCache, Request
from proxy.dialects.spans import find_body_members, find_history
from proxy.errors import NotManaged

CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
"""The client's cache marks inside a message: they stay where they are."""
CONTINUES = "continues"
"""Member of a canonical answer that is `Message.continues`."""
_REASONING = ("reasoning_content", "reasoning")
_THINKING = ("thinking", "reasoning")
_MESSAGE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY = msgspec.json.Decoder()
_RESULT_ROLES = ("tool", "function")
_MEDIA = {"image_url": "url", "input_audio": "data", "file": "file_data"}

TOOLS: Final = "tools"
"""Name in `Request.memo_values` of the tools with their names."""

MessageReader = Callable[[bytes], Message]
"""Reader of one message; a cache in front of `read_message` has the same signature."""


def read_message(raw: bytes) -> Message:
    """The message in these bytes. Raises NotManaged if it is no object with a role, or if its content is unreadable."""
    try:
        fields = _MESSAGE.decode(raw)
        role = _read_field(fields, "role")
        if not isinstance(role, str) or not role:
            raise NotManaged("shape", "a message without a role")
        content = _read_field(fields, "content")
        texts, shape, media, marked = _read_content(content)
        text = "".join(texts)
        calls = _read_calls(_read_field(fields, "tool_calls"), _read_field(fields, "function_call"))
        call_id = _read_field(fields, "tool_call_id")
        if role == "function":
            call_id = _read_field(fields, "name")
        call_id = call_id if isinstance(call_id, str) else None
        reasoning = _read_reasoning(fields)
        marked = marked or not fields.keys().isdisjoint(CACHE_MARKS)
    except (ValueError, RecursionError) as problem:
        raise NotManaged("unreadable", f"a message that cannot be read: {problem}") from problem
    named = chain.digest_message(role, text, calls, call_id, media)
    parts = len(content) if isinstance(content, list) else 0
    if len(texts) > 1 and role in _RESULT_ROLES:
        text = _set_on_lines(texts)
    return Message(
        raw, role, text, calls, call_id, reasoning, shape, len(media), marked, named, chain.compute_form(raw), parts,
        CONTINUES in fields,
    )  # fmt: skip


def _read_field(fields: dict[str, msgspec.Raw], name: str) -> Any:
    found = fields.get(name)
    return None if found is None else _ANY.decode(found)


def _read_reasoning(fields: dict[str, msgspec.Raw]) -> str:
    for name in _REASONING:
        found = _read_field(fields, name)
        if found and isinstance(found, str):
            return found
    return ""


def _set_on_lines(texts: Sequence[str]) -> str:
    """Return the text parts of a result, each from the beginning of a line on.

    Else the last word of a part and the first of the next one would read as one name. An exit code would stand in the
    last line of an output.
    """
    joined = ""
    for text in texts:
        joined += f"\n{text}" if joined[-1:].strip("\n") and text[:1].strip("\n") else text
    return joined


def _read_content(content: Any) -> tuple[list[str], ContentShape, list[bytes], bool]:
    """(texts, shape, a digest of each part that is not text, True if a part bears a cache mark). Raises NotManaged if
    `content` is of another type."""
    if content is None:
        return [], "none", [], False
    if isinstance(content, str):
        return [content], "string", [], False
    if not isinstance(content, list):
        raise NotManaged("shape", "content that is neither text nor a list of parts")
    texts, media, marked = [], [], False
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            media.append(b"")  # a bare string in a list: readable, but not a form that the proxy writes
        elif not isinstance(part, dict):
            raise NotManaged("shape", "a content part that is no object")
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            media.append(_digest_media_part(part))
        marked = marked or (isinstance(part, dict) and not part.keys().isdisjoint(CACHE_MARKS))
    return texts, "mixed" if media else "parts", media, marked


def _digest_media_part(part: dict[str, Any]) -> bytes:
    kind = str(part.get("type", ""))
    inner = part.get(kind)
    data = inner.get(_MEDIA.get(kind, ""), inner) if isinstance(inner, dict) else part
    if data is part:
        data = {name: part[name] for name in part if name not in CACHE_MARKS}
    return chain.compute_form(kind.encode() + msgspec.json.encode(data, order="sorted"))


def _read_calls(tool_calls: Any, function_call: Any) -> tuple[Call, ...]:
    calls = []
    for call in tool_calls if isinstance(tool_calls, list) else ():
        inner = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        if not isinstance(inner, dict):
            raise NotManaged("shape", "a tool call of an unknown kind")
        arguments = _to_text(inner.get("arguments", inner.get("input")))
        calls.append(Call(_to_text(call.get("id")), _to_text(inner.get("name")), arguments))
    if isinstance(function_call, dict):
        name = _to_text(function_call.get("name"))
        calls.append(Call(name, name, _to_text(function_call.get("arguments"))))
    return tuple(calls)


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def read_request(
    body: bytes,
    read: MessageReader = read_message,
    prefix: PrefixCache | None = None,
    *,
    is_prefix_checked: bool = False,
    limits: SizeLimits | None = None,
) -> Request:
    """The request in this body. Raises NotManaged: `unreadable` or `shape` if the body is not understood, `size` if it
    is over the limits.

    prefix: the prefix of an earlier body of the same history; if this body begins with it, only the rest is read.
    is_prefix_checked: the caller has already checked that the body begins with `prefix`.
    """
    if prefix is not None and (is_prefix_checked or body.startswith(prefix.body_prefix)):
        longer = _read_rest(body, read, prefix, limits)
        if longer is not None:
            return _check_limits(
                _build_request(body, *longer, prefix.messages, len(prefix.body_prefix), prefix.memo_values), limits
            )
    members = find_body_members(body, limits)
    if "messages" not in members:
        raise NotManaged("shape", "no messages")
    places = find_history(body, members["messages"], limits, "messages is no list, or an empty one")
    messages = tuple(read(body[start:end]) for start, end in places)
    return _check_limits(_build_request(body, members, messages, (), 0, {}), limits)


def _check_limits(request: Request, limits: SizeLimits | None) -> Request:
    if limits is not None:
        limits.check_request(request)
    return request


def _read_rest(
    body: bytes, read: MessageReader, prefix_cache: PrefixCache, limits: SizeLimits | None
) -> tuple[dict[str, tuple[int, int]], tuple[Message, ...]] | None:
    """(spans, messages) of a body that begins with `prefix_cache`; None if the rest does not continue from there."""
    most = (None, None) if limits is None else (limits.messages - len(prefix_cache.messages), MAX_TOP_LEVEL_KEYS)
    known = (prefix_cache.spans, prefix_cache.messages_start)
    found = json_spans.find_rest(body, len(prefix_cache.body_prefix), "messages", *known, *most)
    if found is None:
        return None
    spans, inside = found
    return spans, (*prefix_cache.messages, *(read(body[start:end]) for start, end in inside))


_PREFIX = re.compile(rb'"prefix"\s*:\s*true')
"""Mark of a message that the model is to continue (Mistral, DeepSeek)."""


def _build_request(
    body: bytes,
    spans: dict[str, tuple[int, int]],
    messages: tuple[Message, ...],
    known_messages: tuple[Message, ...],
    prefix_bytes: int,
    memo_values: dict[Hashable, Any],
) -> Request:
    fields = TopLevelFields(body, spans)
    tools, tool_names = _read_tools(fields.raw("tools"), memo_values)
    choices = fields.get("n")
    response_format = fields.get("response_format")
    model = fields.get("model")
    options = fields.get("stream_options")
    return Request(
        body=body,
        spans=spans,
        messages=messages,
        model=model if isinstance(model, str) else "",
        stream=fields.get("stream") is True,
        tools=tools,
        tool_names=tool_names,
        is_free_text=choices in (None, 1)
        and (response_format is None or (isinstance(response_format, dict) and response_format.get("type") == "text"))
        and fields.get("tool_choice") in (None, "auto", "none")
        and fields.get("modalities") in (None, ["text"])
        and fields.get("logprobs") is not True,
        usage_wanted=isinstance(options, dict) and options.get("include_usage") is True,
        choices=choices if isinstance(choices, int) else 1,
        reasoning_effort=str(fields.get("reasoning_effort") or ""),
        is_continuation=fields.get("continue_final_message") is True
        or fields.get("add_generation_prompt") is False
        or (messages[-1].role == "assistant" and _PREFIX.search(messages[-1].raw) is not None),
        max_tokens=_read_limit(fields.get("max_completion_tokens")) or _read_limit(fields.get("max_tokens")),
        known_messages=known_messages,
        prefix_bytes=prefix_bytes,
        memo_values=memo_values,
    )


def _read_limit(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 and value is not True else None


def is_thinking(request: Request) -> bool:
    """True if a request asks for reasoning by `thinking` or `reasoning`, which chat completions of OpenAI lack. Raises
    ValueError if a value is not JSON."""
    for name in _THINKING:
        value = _ANY.decode(request.body[slice(*request.spans[name])]) if name in request.spans else None
        if isinstance(value, dict) and value.get("type") != "disabled" and value.get("enabled") is not False:
            return True
    return False


def build_prefix_cache(request: Request) -> PrefixCache:
    """The prefix with which the next request of the same history is expected to begin."""
    start, end = request.spans["messages"]
    spans = {name: span for name, span in request.spans.items() if span[1] <= start}
    end = json_spans.find_array_end(request.body, (start, end))
    return PrefixCache(memoryview(request.body)[:end], start, spans, request.messages, request.memo_values)


class TopLevelFields:
    """Reader of top-level values, decoded one at a time: most requests need five short values of a large body."""

    def __init__(self, body: bytes, spans: dict[str, tuple[int, int]]) -> None:
        self._body = body
        self._spans = spans

    def raw(self, name: str) -> bytes | None:
        span = self._spans.get(name)
        return self._body[span[0] : span[1]] if span else None

    def get(self, name: str) -> Any:
        raw = self.raw(name)
        try:
            return None if raw is None else _ANY.decode(raw)
        except (ValueError, RecursionError) as problem:
            raise NotManaged("unreadable", f"{name} cannot be read: {problem}") from problem


def _read_tools(raw: bytes | None, memo_values: dict[Hashable, Any]) -> tuple[bytes | None, tuple[str, ...]]:
    """(The tools, their names). Those of the request before are not read again: an agent has 60 KB."""
    if raw in (None, b"null", b"[]"):
        return None, ()
    known: tuple[bytes, tuple[str, ...]] | None = memo_values.get(TOOLS)
    if known is None or known[0] != raw:
        known = memo_values[TOOLS] = raw, _read_tool_names(raw)
    return known


def _read_tool_names(tools: bytes) -> tuple[str, ...]:
    try:
        definitions = _ANY.decode(tools)
    except (ValueError, RecursionError) as problem:
        raise NotManaged("unreadable", f"tools cannot be read: {problem}") from problem
    if not isinstance(definitions, list):
        raise NotManaged("shape", "tools is no list")
    names = []
    for tool in definitions:
        inner = tool.get(tool.get("type")) if isinstance(tool, dict) and isinstance(tool.get("type"), str) else None
        if isinstance(inner, dict) and isinstance(inner.get("name"), str):
            names.append(inner["name"])
    return tuple(names)


def write_request(request: Request, messages: Sequence[bytes] | None = None, *, request_usage: bool = False) -> bytes:
    """The body to send: the client's own body with a new messages array (None: the request's), and usage requested in a
    stream.

    Every other top-level value stays the same slice, in the same order. The body is written in one go: unchanged bytes
    are copied once. Raises ValueError if the stream's options are no object.
    """
    body, spans = request.body, request.spans
    new: list[tuple[int, int, Sequence[bytes]]] = []
    if messages is None and request.is_spliced:
        messages = [m.raw for m in request.messages]
    if messages is not None:
        new.append((*spans["messages"], list_array_pieces(messages)))
    tools = spans.get("tools")
    if request.tools is not None and tools is not None and request.tools != body[tools[0] : tools[1]]:
        new.append((*tools, (request.tools,)))
    if request_usage and request.stream and not request.usage_wanted:
        new.append(_add_usage_option(body, spans.get("stream_options")))
    return _splice(body, new) if new else body


def list_array_pieces(members: Sequence[bytes]) -> list[bytes]:
    """The pieces of an array of these members, at least one. The caller joins them with the rest of the body, so that a
    long history is copied only once."""
    pieces = [b","] * (2 * len(members))
    pieces[::2] = members
    pieces[-1:] = [b"]"]
    return [b"[", *pieces]


def _add_usage_option(body: bytes, span: tuple[int, int] | None) -> tuple[int, int, Sequence[bytes]]:
    if span is None:
        end = body.rindex(b"}")
        return end, end, (b',"stream_options":{"include_usage":true}',)
    options = body[span[0] : span[1]]
    return *span, (json_spans.set_member(b"{}" if options == b"null" else options, "include_usage", b"true"),)


def remove_usage_option(body: bytes) -> bytes:
    """The body without the request for usage, and without `stream_options` if no other option is left. Raises
    ValueError if the body cannot be read."""
    options = json_spans.remove_member(json_spans.read_value(body, "stream_options") or b"{}", "include_usage")
    if json_spans.find_members(options):
        return json_spans.set_member(body, "stream_options", options)
    return json_spans.remove_member(body, "stream_options")


def _splice(body: bytes, new: list[tuple[int, int, Sequence[bytes]]]) -> bytes:
    """The body with some of its values replaced. new: (start, end, pieces) of each replacement."""
    pieces: list[bytes | memoryview] = []
    received, at = memoryview(body), 0
    for start, end, instead in sorted(new):
        pieces.append(received[at:start])
        pieces += instead
        at = end
    pieces.append(received[at:])
    return b"".join(pieces)


def replace_text(raw: bytes, text: str) -> bytes:
    """The message with its text replaced: the client's key order, unknown fields and cache marks stay in place.

    In a list, one part keeps its place and gets the new text, and the other text parts are dropped. That part is the
    last one with a cache mark, or else the first. Images and the like stay. Raises ValueError if the message has no
    text to replace.
    """
    content_member = json_spans.find_member(raw, "content")
    if content_member is None:
        raise ValueError("a message without content")
    content = raw[content_member.start : content_member.end]
    new = msgspec.json.encode(text)
    if content[:1] == b'"':
        return raw[: content_member.start] + new + raw[content_member.end :]
    spans = json_spans.find_elements(content)
    if not spans:
        raise ValueError("content that holds no text")
    parts = [content[a:b] for a, b in spans]
    holders = [n for n, part in enumerate(parts) if part[:1] == b"{" and json_spans.find_member(part, "text")]
    if not holders:
        raise ValueError("content that holds no text")
    # The last part with a mark ends the client's cached prefix, so that part is kept.
    marked = [n for n in holders if any(json_spans.find_member(parts[n], mark) for mark in CACHE_MARKS)]
    keep = marked[-1] if marked else holders[0]
    parts[keep] = json_spans.set_member(parts[keep], "text", new)
    kept = [part for n, part in enumerate(parts) if n == keep or n not in holders]
    return raw[: content_member.start] + b"[" + b",".join(kept) + b"]" + raw[content_member.end :]


def replace_images(raw: bytes, text: str) -> bytes:
    """The message with a text part in the place of each image; a cache mark of the image stays with it. Raises
    ValueError if the message has no image."""
    found = json_spans.find_member(raw, "content")
    content = raw[found.start : found.end] if found is not None else b""
    parts = [content[start:end] for start, end in json_spans.find_elements(content) or ()]
    images = {n for n, part in enumerate(parts) if part[:1] == b"{" and is_image(part)}
    if found is None or not images:
        raise ValueError("a message without an image")
    new = b'{"type":"text","text":' + msgspec.json.encode(text) + b"}"
    changed = [_copy_cache_marks(part, new) if n in images else part for n, part in enumerate(parts)]
    return raw[: found.start] + b"[" + b",".join(changed) + b"]" + raw[found.end :]


def _copy_cache_marks(part: bytes, new: bytes) -> bytes:
    for mark in CACHE_MARKS:
        # To read the members of an image takes longer than to look for the name.
        if mark.encode() in part and (value := json_spans.read_value(part, mark)) is not None:
            new = json_spans.set_member(new, mark, value)
    return new


def append_text(raw: bytes, text: str) -> bytes:
    """The message with text added at its end, or as one more part. Raises ValueError as `replace_text`."""
    content_member = json_spans.find_member(raw, "content")
    if content_member is None:
        raise ValueError("a message without content")
    content = raw[content_member.start : content_member.end]
    if content[:1] == b'"':
        # Both are JSON strings: the end of one and the start of the other meet without decoding either.
        return raw[: content_member.end - 1] + msgspec.json.encode(text)[1:] + raw[content_member.end :]
    if content[:1] != b"[":
        raise ValueError("content that holds no text")
    part = msgspec.json.encode({"type": "text", "text": text})
    inside = content[: content.rindex(b"]")]
    comma = b"," if inside[1:].strip() else b""
    return raw[: content_member.start] + inside + comma + part + b"]" + raw[content_member.end :]


def extend_text(raw: bytes, text: str) -> bytes:
    """The message with text added for good: as `append_text`, but to the text of a list that has only one part.

    Such a list and a string are one text to a provider. Clients turn one into the other when their cache mark moves,
    and reasoning behind the text is bound to it.
    """
    content_member = json_spans.find_member(raw, "content")
    content = raw[content_member.start : content_member.end] if content_member is not None else b""
    spans = json_spans.find_elements(content) if content[:1] == b"[" else None
    inner = json_spans.find_member(content[slice(*spans[0])], "text") if spans and len(spans) == 1 else None
    if content_member is None or spans is None or inner is None:
        return append_text(raw, text)
    end = content_member.start + spans[0][0] + inner.end
    if raw[end - 1 : end] != b'"':
        return append_text(raw, text)
    return raw[: end - 1] + msgspec.json.encode(text)[1:] + raw[end:]


def remove_calls(raw: bytes) -> bytes:
    """The assistant message with its text alone, for an upstream that cannot read its calls."""
    for name in ("tool_calls", "function_call"):
        if json_spans.find_member(raw, name):
            raw = json_spans.remove_member(raw, name)
    return raw


def replace_arguments(raw: bytes, arguments: Sequence[str | None]) -> bytes:
    """The assistant message with other arguments in its calls. arguments: one entry for each call, None for a call that
    stays as it is. Raises ValueError if a call has no arguments of that kind."""
    calls = json_spans.find_member(raw, "tool_calls")
    elements = json_spans.find_elements(raw[calls.start : calls.end]) if calls is not None else None
    if calls is None or elements is None or len(elements) != len(arguments):
        raise ValueError("a message with other calls")
    for (start, end), new in reversed(list(zip(elements, arguments, strict=True))):
        if new is None:
            continue
        call = raw[calls.start + start : calls.start + end]
        function = json_spans.read_value(call, "function")
        if function is None or json_spans.read_value(function, "arguments") is None:
            raise ValueError("a call without arguments")
        changed = json_spans.set_member(function, "arguments", msgspec.json.encode(new))
        made = json_spans.set_member(call, "function", changed)
        raw = raw[: calls.start + start] + made + raw[calls.start + end :]
    return raw


def read_changed_arguments(old: bytes, new: bytes) -> list[str | None] | None:
    """The new arguments of each call of an edited answer, or None. None if anything else has changed."""
    before, after = read_message(old).calls, read_message(new).calls
    if len(before) != len(after):
        return None
    changed = [a.arguments if a.arguments != b.arguments else None for b, a in zip(before, after, strict=True)]
    try:
        return changed if any(changed) and replace_arguments(old, changed) == new else None
    except ValueError:
        return None


def make_message(role: str, content: bytes, *more: tuple[str, bytes]) -> bytes:
    """A canonical message. content: its JSON. more: further members with their JSON."""
    rest = b"".join(b',"' + name.encode() + b'":' + value for name, value in more)
    return b'{"role":"' + role.encode() + b'","content":' + content + rest + b"}"


def make_user_message(text: str) -> bytes:
    """A user message of the proxy, for upstreams that accept one after a tool result."""
    return msgspec.json.encode({"role": "user", "content": text})


def read_tool_function(tool: Any) -> dict[str, Any]:
    """The function that a decoded tool definition describes; it has a name. Raises ValueError if the tool is none."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a tool that is no function")
    return function


ERASED_TEXT = "[removed by the operator]"


def erase_content(raw: bytes) -> bytes:
    """The message with `ERASED_TEXT` as its content. Its role stays, and the ids and names of calls."""
    message = read_message(raw)
    erased: dict[str, Any] = {"role": message.role, "content": ERASED_TEXT}
    if message.call_id is not None and message.role == "tool":
        erased["tool_call_id"] = message.call_id
    if message.calls:
        erased["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "{}"}}
            for call in message.calls
        ]
    return msgspec.json.encode(erased)
