"""Reading a Messages body into chat form.

Only the fields named here are read; everything else travels in its bytes. The canonical messages stand in front of all
values that change between requests. So a body that has only grown gives a chat body that has only grown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import SizeLimits
from proxy.dialects import spans
from proxy.dialects.base import check_grown_body
from proxy.dialects.completions.request import TopLevelFields, list_array_pieces
from proxy.dialects.known_prefix import HistoryMemo
from proxy.dialects.messages.blocks import MessageUnit, convert_message
from proxy.dialects.messages.breakpoints import MARK_NAME, has_mark
from proxy.dialects.messages.write import SYSTEM_PLACE, WireBody, find_unit, write_body
from proxy.dialects.written_history import OutgoingMessage
from proxy.errors import NotManaged

MARKED_TAIL: Final = 4
"""Messages at the end of a prompt in which a client may have set cache marks that it takes off again."""

_FRAME_NAMES: Final = ("model", "stream", "tools", "tool_choice", "max_tokens", "output_config", "metadata")
"""Values that `ChatFrame` is made from."""
_SESSION = re.compile(r"_session_([0-9a-fA-F-]{8,64})$")
"""End of a user id in the older form of Claude Code."""


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The values beside the history, which few requests change."""

    raw: tuple[bytes | None, ...]
    """The bytes of the values, in the order of their names; None for one that is not there."""
    head: bytes
    """The chat body in front of its messages."""
    tail: bytes
    """The members behind them."""
    user_id: str
    """`metadata.user_id`."""

    def write(self, messages: Sequence[bytes]) -> bytes:
        """The chat-completions body. The messages come before all values that change between requests."""
        end = b',"continue_final_message":true}' if messages[-1].startswith(b'{"role":"assistant"') else b"}"
        return b"".join((self.head, *list_array_pieces(messages), self.tail, end))


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A Messages request. See `proxy.dialects.base.WireRequest`."""

    body: bytes
    chat_body: bytes
    bound: tuple[str | None, ...]
    members: dict[str, spans.Span]
    """Spans of the top-level values."""
    places: tuple[spans.Span, ...]
    """Spans of the wire messages."""
    units: tuple[tuple[int, MessageUnit], ...]
    """The canonical messages, each with the index of its wire message, or `SYSTEM_PLACE`."""
    canonical: tuple[bytes, ...]
    """The messages of `chat_body`."""
    frame: ChatFrame
    is_cut: bool = False
    """True if an answer in front of another message is empty: all of it was withheld from the client."""
    stable: int = 0
    """Number of wire messages that the next body of the history is expected to begin with, read alike."""
    value_count: int = 0
    """Upper bound of the number of JSON values up to `prefix_end`; 0: not counted."""
    first_mark: int = -1
    """Offset of the first cache mark, by its name alone; -1 if the body has none."""
    memo: HistoryMemo = field(default_factory=HistoryMemo, compare=False, repr=False)
    """See `proxy.dialects.base.WireRequest.memo`."""

    @property
    def prefix_end(self) -> int:
        """The end of the last message that is expected to stay."""
        return self.places[self.stable - 1][1] if self.stable else 0

    @property
    def frame_bytes(self) -> int:
        frame = self.frame
        return sum(len(value) for value in (*frame.raw, frame.head, frame.tail) if value is not None)

    def write(self, messages: Sequence[OutgoingMessage], *, tools: bytes = b"") -> bytes:
        """The wire body with these messages. Raises ValueError for a change that may not be made (`write`)."""
        wire = WireBody(self.body, self.members, self.places, self.units)
        return write_body(wire, messages, tools, memo=self.memo, stable=self.stable)


def read_messages_request(
    body: bytes, limits: SizeLimits | None = None, before: MessagesRequest | None = None
) -> MessagesRequest:
    """The request in this body. Raises NotManaged: `unreadable` or `shape` for a body that is not understood, `size`
    over the limits, `chain` if the provider holds the history, `compaction` for a compaction.

    before: an earlier request whose bytes up to its `prefix_end` this body begins with; only the rest is converted.
    """
    count = check_grown_body(body, limits, before)
    prefix_end, first_mark = (before.prefix_end, before.first_mark) if before is not None else (0, -1)
    longer = None
    if before is not None and before.stable and not before.is_cut:
        kept = before.places[: before.stable]
        longer = spans.find_longer_history(body, "messages", before.members, kept, limits)
    members, places = longer or _find_places(body, limits)
    values = TopLevelFields(body, members)
    _check_history_is_here(values)
    system = values.raw("system")
    own = (_convert_system(system),) if system not in (None, b"null", b"[]", b'""') else ()
    first, memo, units = 0, HistoryMemo(), tuple([(SYSTEM_PLACE, unit) for unit in own])
    canonical, bound = tuple([unit.chat for unit in own]), tuple([unit.bound for unit in own])
    if longer is not None and before is not None:
        first, memo = before.stable, before.memo.copy(before.stable)
        stays = slice(find_unit(before.units, 0), find_unit(before.units, first))
        units += before.units[stays]
        canonical, bound = canonical + before.canonical[stays], bound + before.bound[stays]
    new = [convert_message(body[start:end]) for start, end in places[first:]]
    empty_answers = [n for n, one in enumerate(new, first) if one.is_empty and one.role == "assistant"]
    new_units = [(n, unit) for n, one in enumerate(new, first) for unit in one.units]
    units += tuple(new_units)
    canonical += tuple([unit.chat for _, unit in new_units])
    bound += tuple([unit.bound for _, unit in new_units])
    frame = _read_frame(values, before.frame if before is not None else None)
    # An empty answer is cut only if another message follows it.
    stable = _count_stable(body, places[: len(places) - (len(places) - 1 in empty_answers)])
    marks_behind = json_spans.count_marks(body[places[stable - 1][1] :]) if count and stable else 0
    return MessagesRequest(
        body=body,
        chat_body=frame.write(canonical),
        bound=bound,
        members=members,
        places=places,
        units=units,
        canonical=canonical,
        frame=frame,
        is_cut=any(place + 1 < len(places) for place in empty_answers),
        stable=stable,
        value_count=max(1, count - marks_behind) if count and stable else 0,
        first_mark=spans.find_again(body, MARK_NAME, prefix_end, first_mark),
        memo=memo,
    )


def _check_history_is_here(values: TopLevelFields) -> None:
    """Raise NotManaged if the provider holds the history, or is asked to compact it."""
    if values.get("thread") is not None:
        raise NotManaged("chain", "the provider holds the history of this request")
    if values.get("compaction") is not None:
        raise NotManaged("compaction", "the request asks for a compaction")


def _count_stable(body: bytes, places: Sequence[spans.Span]) -> int:
    """Number of wire messages in front of the first one at the end with a cache mark. Clients set marks at the end of
    a prompt, and take them off when the conversation goes on."""
    last = [n for n in range(max(1, len(places) - MARKED_TAIL), len(places)) if has_mark(body, places[n])]
    return last[0] if last else len(places)


def _find_places(body: bytes, limits: SizeLimits | None) -> tuple[dict[str, spans.Span], tuple[spans.Span, ...]]:
    members = spans.find_body_members(body, limits)
    if "messages" not in members:
        raise NotManaged("shape", "no messages")
    return members, spans.find_history(body, members["messages"], limits, "messages is no list, or an empty one")


def _convert_system(system: bytes) -> MessageUnit:
    if system[:1] not in (b'"', b"["):
        raise NotManaged("shape", "a system prompt that is neither text nor a list")
    blocks = range(len(json_spans.find_elements(system) or ())) if system[:1] == b"[" else ()
    return MessageUnit(b'{"role":"system","content":' + system + b"}", tuple(blocks))


def _read_frame(values: TopLevelFields, known: ChatFrame | None) -> ChatFrame:
    """The frame of a request; `known` if the values that it is made from have the same bytes."""
    raw = tuple([values.raw(name) for name in _FRAME_NAMES])
    if known is not None and known.raw == raw:
        return known
    model = values.get("model")
    head = b'{"model":' + spans.encode_text(model if isinstance(model, str) else "") + b',"messages":'
    pieces: list[bytes] = []
    if values.get("stream") is True:
        pieces.append(b'"stream":true,"stream_options":{"include_usage":true}')
    tools = values.raw("tools")
    if tools not in (None, b"null", b"[]"):
        pieces.append(b'"tools":[' + b",".join(_convert_definitions(tools or b"")) + b"]")
    members: dict[str, Any] = {}
    choice = values.get("tool_choice")
    if isinstance(choice, dict):
        members["tool_choice"] = _convert_choice(choice)
    limit = values.get("max_tokens")
    if isinstance(limit, int):
        members["max_completion_tokens"] = limit
    config = values.get("output_config")
    config = config if isinstance(config, dict) else {}
    if isinstance(config.get("format"), dict):
        members["response_format"] = {"type": "json_schema", "json_schema": {"schema": config["format"].get("schema")}}
    if isinstance(config.get("effort"), str):
        members["reasoning_effort"] = config["effort"]
    pieces += [msgspec.json.encode(name) + b":" + msgspec.json.encode(value) for name, value in members.items()]
    metadata = values.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    tail = b"".join([b"," + piece for piece in pieces])
    return ChatFrame(raw, head, tail, user_id if isinstance(user_id, str) else "")


def _convert_definitions(tools: bytes) -> list[bytes]:
    """The tools as chat definitions. A tool of the provider's with a name is a function without parameters."""
    definitions = []
    elements = json_spans.find_elements(tools)
    if elements is None:
        raise NotManaged("shape", "tools is no list")
    for start, end in elements:
        raw = tools[start:end]
        spans_of_tool = json_spans.find_members(raw)
        if spans_of_tool is None:
            raise NotManaged("shape", "a tool that cannot be read")
        values = {one.key: raw[one.start : one.end] for one in spans_of_tool}
        if "name" not in values:
            definitions.append(raw)
            continue
        function = [b'"name":' + values["name"]]
        if "description" in values:
            function.append(b'"description":' + values["description"])
        if "input_schema" in values:
            function.append(b'"parameters":' + values["input_schema"])
        definitions.append(b'{"type":"function","function":{' + b",".join(function) + b"}}")
    return definitions


def _convert_choice(choice: dict[str, Any]) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return {"any": "required"}.get(str(kind), kind)


def find_session_names(headers: Mapping[str, str], request: MessagesRequest) -> list[str]:
    """The names that the client gives this conversation, most specific first. headers: with lower-case names.

    Content decides later which messages belong together: side calls bear the same names.
    """
    names = []
    session = headers.get("x-claude-code-session-id", "")
    if session:
        agent = headers.get("x-claude-code-agent-id", "")
        names += [f"{session}/{agent}", session] if agent else [session]
    found = _read_user_session(request.frame.user_id)
    if found and found not in names:
        names.append(found)
    return names


def _read_user_session(user_id: str) -> str:
    """The session in a user id: a JSON object with `session_id`, or `..._session_` and the session."""
    if user_id.startswith("{"):
        try:
            value = msgspec.json.decode(user_id)
        except (ValueError, RecursionError):
            return ""
        session = value.get("session_id") if isinstance(value, dict) else None
        return session if isinstance(session, str) else ""
    match = _SESSION.search(user_id)
    return match[1] if match else ""
