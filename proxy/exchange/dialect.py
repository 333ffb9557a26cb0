"""The dialects that clients speak: for each wire format the functions that read, write and relay it.

The exchange works on chat-completions messages. It asks the dialect of a request for everything on the wire: the
request, the answer (a stream or one body), and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.chat import json_spans
from proxy.chat.json_spans import SizeLimits
from proxy.chat.message import Message, Request
from proxy.dialects.base import Binding, BindingTrace, Breakpoints, ChainHash, ClientMarks, WireRequest
from proxy.dialects.cloud_paths import read_cloud_path
from proxy.dialects.completions import rules as completions_rules
from proxy.dialects.completions.request import is_thinking
from proxy.dialects.completions.stream import make_error_event
from proxy.dialects.compress.request import read_compress_request
from proxy.dialects.gemini import request as gemini_request
from proxy.dialects.gemini import rules as gemini_rules
from proxy.dialects.gemini import stream as gemini_stream
from proxy.dialects.known_prefix import PrefixMemo
from proxy.dialects.messages import breakpoints as messages_breakpoints
from proxy.dialects.messages import context_management
from proxy.dialects.messages import rules as messages_rules
from proxy.dialects.messages import stream as messages_stream
from proxy.dialects.messages.request import find_session_names as find_messages_session_names
from proxy.dialects.messages.request import read_messages_request
from proxy.dialects.responses import rules as responses_rules
from proxy.dialects.responses import stream as responses_stream
from proxy.dialects.responses.items import COMPACTIONS
from proxy.dialects.responses.request import ResponsesRequest
from proxy.dialects.responses.request import find_session_names as find_responses_session_names
from proxy.dialects.responses.request import read_wire_request as read_responses_request
from proxy.errors import NotManaged
from proxy.notes.state_block import NoteBlock
from proxy.stream import completions_body, gemini_body, messages_body, responses_body
from proxy.stream.answer_relay import AnswerRelay, ClientEcho, RelayOptions
from proxy.stream.block_filter import remove_blocks
from proxy.stream.completions_answer import AssembledAnswer
from proxy.stream.completions_body import RoundContent
from proxy.stream.completions_relay import CompletionsRelay
from proxy.stream.gemini_answer import GeminiAnswer
from proxy.stream.gemini_relay import GeminiRelay
from proxy.stream.messages_answer import MessagesAnswer
from proxy.stream.messages_patch import remove_hidden_member
from proxy.stream.messages_relay import MessagesRelay
from proxy.stream.responses_relay import ResponsesRelay

_BOUND = re.compile(rb'"signature"\s*:\s*"[^"]|"(?:redacted_thinking|reasoning\.encrypted)"|"type"\s*:\s*"reasoning"')
"""Marks of reasoning that is bound to its prompt, in the bytes of an answer. What Responses stores is bound
without a token in the request."""
_SEALED = b'"encrypted_content"'
_COMPACTED = re.compile(rb'"type"\s*:\s*"(?:%b)"' % "|".join(sorted(COMPACTIONS)).encode())
"""A history that Responses has compacted is sealed as reasoning is. So is the page of a web search in Messages, which
is bound to nothing."""


@dataclass(frozen=True, slots=True)
class RequestReader:
    """The reader of requests in a wire format."""

    read: Callable[..., WireRequest]
    """Reads a body with its size limits."""
    continues_earlier: bool = False
    """True if `read` is a `WireReader`: it takes an earlier request that the body begins with."""
    takes_path: bool = False
    """True if `read` takes the path with its query, which says a part of the request."""
    read_held: Callable[[bytes, SizeLimits | None, Sequence[bytes]], WireRequest] | None = None
    """Reads a request whose history the provider holds, with the messages of it that are known."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Answers in a wire format, as a stream and as one body."""

    make_relay: Callable[[RelayOptions, Any], AnswerRelay]
    """The relay of a stream, from its options and the relay of the round before (None for the first round)."""
    read: Callable[[bytes], AssembledAnswer]
    """The answer in one body."""
    remove_blocks: Callable[[bytes, tuple[str, ...]], tuple[bytes, list[NoteBlock]]]
    """(A body without the blocks under these headings, the blocks)."""
    read_round: Callable[[bytes, frozenset[str], tuple[str, ...]], RoundContent]
    """The content of one body of a round, and the calls of these tools in it. Its message goes back to upstream without
    the blocks under these headings, as that of a stream does."""
    join_rounds: Callable[[Sequence[bytes], frozenset[str]], bytes]
    make_error_event: Callable[[str, str], bytes]
    """An error in a stream, from its message and code."""
    make_error_body: Callable[[str, str, int], bytes] | None = None
    """An error as a whole answer, from its message, code and HTTP status; None: in the form of chat completions."""
    has_comments: bool = True
    """True if clients skip comments in a stream. A blank line between two events is skipped by all."""
    find_changed_instructions: Callable[[Any, bytes], bytes | None] = lambda *_: None
    """The client's own instructions (`ClientEcho.instructions`), from its request and the sent body."""
    restore_echo: Callable[[bytes, frozenset[str], ClientEcho], bytes] = lambda body, *_: body
    """An answer in one body that repeats the request as the client knows it, without the definitions of these tools."""


@dataclass(frozen=True, slots=True)
class BoundReasoning:
    """Reasoning that the provider binds to the prompt before it. By default there is none."""

    is_wanted: Callable[[Any], bool] = lambda _: False
    """True if a request asks for such reasoning: the wire request, or the request itself."""
    trace_prompt: Callable[[bytes, PrefixMemo | None], BindingTrace] = lambda *_: BindingTrace(ChainHash())
    """The prompts that the reasoning in a body is bound to. What is known of its beginning is not read again."""
    trace_answer: Callable[[BindingTrace, bytes], Mapping[str, Binding]] = lambda *_: {}
    """The prompts that an answer's reasoning is bound to, by token: from its prompt and canonical message."""
    strip: Callable[[bytes, Collection[str]], bytes] = lambda body, _: body
    """A body without the reasoning of these tokens."""
    drops_broken: bool = False
    """True if the provider leaves out reasoning after another prompt, and refuses nothing."""


@dataclass(frozen=True, slots=True)
class CacheBreakpoints:
    """Breakpoints of the provider's cache in a request."""

    add: Callable[[bytes, Breakpoints], bytes]
    """A body with breakpoints of the proxy."""
    read_client_marks: Callable[[Any], ClientMarks]
    """The breakpoints that a client has set, from its request in its wire format."""


@dataclass(frozen=True, slots=True)
class ResultClearing:
    """The provider's own clearing of old tool results."""

    may_clear: Callable[[bytes], bool]
    """True if the provider may be asked to clear results of this body."""
    ask: Callable[[bytes, int], bytes]
    """A body that asks the provider to clear all tool results but the newest ones, whose number is given."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire format, as the exchange uses it."""

    name: str
    answers: AnswerFormat
    reader: RequestReader | None = None
    """None where the wire is the form that the exchange works on."""
    reasoning: BoundReasoning = BoundReasoning()
    breakpoints: CacheBreakpoints | None = None
    """None where the provider caches without breakpoints."""
    clearing: ResultClearing | None = None
    """None where the provider clears nothing."""
    is_user_first: bool = False
    """True if providers refuse a conversation that begins with the assistant, whichever upstream it goes to."""
    is_system_between: bool = False
    """True if providers refuse a system message in a conversation that no answer follows (`Model.system_between`)."""
    find_session_names: Callable[[Mapping[str, str], Any], list[str]] = lambda *_: []
    """The names that a client gives its session, from its headers and its request."""
    keeps_answer: Callable[[Any], bool] = lambda _: False
    """True if the provider stores the answer, so that the client may go on by naming it, past the proxy's additions."""
    find_added_violations: Callable[[bytes, Any], list[str]] = lambda *_: []
    """The rules that a body breaks and the client's own does not, from its request."""
    repair_answers: Callable[[bytes], bytes] = lambda body: body
    """A body whose answers can be sent again after parts of them were withheld (`WireRequest.is_cut`)."""
    withheld_mark: bytes = b""
    """Bytes of a hidden round whose answer the client cannot send again as it has it; empty: any round may be one."""
    returns_rows: bool = False
    """True if the answer is all the messages in their order, for a gateway that sends them to a model."""


COMPLETIONS = Dialect(
    name="completions",
    answers=AnswerFormat(
        make_relay=CompletionsRelay,
        read=AssembledAnswer.from_body,
        remove_blocks=remove_blocks,
        read_round=completions_body.read_round,
        join_rounds=completions_body.join_rounds,
        make_error_event=make_error_event,
    ),
    reasoning=BoundReasoning(
        is_wanted=is_thinking,
        trace_prompt=completions_rules.trace_prompt,
        trace_answer=completions_rules.trace_answer,
        strip=completions_rules.strip_bound,
    ),
    repair_answers=completions_rules.sign_calls,
    withheld_mark=completions_rules.SIGNATURE,
)


def _contains(request: Any, member: str, text: bytes) -> bool:
    """True if a top-level value of a request has this text in it."""
    start, end = request.members.get(member, (0, 0))
    return text in request.body[start:end]


def _read_responses(body: bytes, limits: SizeLimits | None, before: ResponsesRequest | None = None) -> ResponsesRequest:
    """The request in this body. Raises NotManaged, also for references to items that the provider stores. Their text is
    not in the request: the history could not be recognised by it, and an edit would be lost with the next request."""
    request = read_responses_request(body, limits, before)
    known = len(before.messages) - 1 if before is not None else 0  # an earlier request has no references
    if any(b'"item_reference"' in message.canonical for message in request.messages[known:]):
        raise NotManaged("chain", "the provider holds items of the history: set store to false")
    return request


def _read_held_responses(body: bytes, limits: SizeLimits | None, held: Sequence[bytes]) -> WireRequest:
    return read_responses_request(body, limits, held=held)


def _find_changed_instructions(request: ResponsesRequest, sent: bytes) -> bytes | None:
    """The client's own instructions, where others were sent; a response repeats them."""
    start, end = request.members.get("instructions", (0, 0))
    if sent.startswith(request.body[:end]):  # also without instructions: the proxy adds none
        return None
    own = request.body[start:end]
    return None if json_spans.read_value(sent, "instructions") == own else own


def _hide_clearing(body: bytes, _: frozenset[str], echo: ClientEcho) -> bytes:
    return remove_hidden_member(body, echo.hidden_member)


MESSAGES = Dialect(
    name="messages",
    answers=AnswerFormat(
        make_relay=MessagesRelay,
        read=MessagesAnswer.from_body,
        remove_blocks=messages_body.remove_blocks,
        read_round=messages_body.read_round,
        join_rounds=messages_body.join_rounds,
        make_error_event=messages_stream.make_error_event,
        make_error_body=lambda message, code, _: messages_stream.make_error_body(message, code),
        restore_echo=_hide_clearing,
    ),
    reader=RequestReader(read_messages_request, continues_earlier=True),
    reasoning=BoundReasoning(
        is_wanted=lambda request: (
            _contains(request, "thinking", b"type") and not _contains(request, "thinking", b'"disabled"')
        ),
        trace_prompt=messages_rules.trace_prompt,
        trace_answer=messages_rules.trace_answer,
        strip=messages_rules.strip_bound,
    ),
    breakpoints=CacheBreakpoints(
        add=messages_breakpoints.add_breakpoints,
        read_client_marks=lambda request: messages_breakpoints.read_client_marks(
            request.body, request.members, request.places, request.first_mark
        ),
    ),
    clearing=ResultClearing(may_clear=context_management.may_clear, ask=context_management.clear_results),
    is_user_first=True,
    is_system_between=True,
    find_session_names=find_messages_session_names,
    find_added_violations=lambda sent, request: messages_rules.find_added_violations(sent, request.body, request.memo),
    repair_answers=messages_rules.fill_empty_answers,
)
RESPONSES = Dialect(
    name="responses",
    answers=AnswerFormat(
        make_relay=ResponsesRelay,
        read=responses_body.read_answer,
        remove_blocks=responses_body.remove_blocks,
        read_round=responses_body.read_round,
        join_rounds=responses_body.join_rounds,
        make_error_event=responses_stream.make_error_event,
        find_changed_instructions=_find_changed_instructions,
        restore_echo=responses_body.restore_echo,
    ),
    reader=RequestReader(_read_responses, continues_earlier=True, read_held=_read_held_responses),
    reasoning=BoundReasoning(
        is_wanted=lambda request: _contains(request, "include", b"reasoning.encrypted_content"),
        trace_prompt=responses_rules.trace_prompt,
        trace_answer=responses_rules.trace_answer,
        strip=responses_rules.strip_bound,
        drops_broken=True,
    ),
    find_session_names=find_responses_session_names,
    keeps_answer=lambda request: not _contains(request, "store", b"false"),
    find_added_violations=lambda sent, request: responses_rules.find_added_violations(
        sent, request.body, request.memo, has_reasoning=request.first_reasoning >= 0
    ),
    repair_answers=responses_rules.remove_orphan_reasoning,
)
GEMINI = Dialect(
    name="gemini",
    answers=AnswerFormat(
        make_relay=GeminiRelay,
        read=GeminiAnswer.from_body,
        remove_blocks=gemini_body.remove_blocks,
        read_round=gemini_body.read_round,
        join_rounds=gemini_body.join_rounds,
        make_error_event=gemini_stream.make_error_event,
        make_error_body=gemini_stream.make_error_body,
        has_comments=False,
    ),
    reader=RequestReader(gemini_request.read_gemini_request, takes_path=True),
    is_user_first=True,
    find_added_violations=lambda sent, request: gemini_rules.find_added_violations(sent, request.body),
    repair_answers=gemini_rules.sign_calls,
    withheld_mark=b"thoughtSignature",
)
COMPRESS = replace(
    COMPLETIONS,
    name="compress",
    reader=RequestReader(read_compress_request),
    reasoning=replace(COMPLETIONS.reasoning, is_wanted=lambda _: False),
    returns_rows=True,
)
DIALECTS: Mapping[str, Dialect] = {one.name: one for one in (COMPLETIONS, MESSAGES, RESPONSES, GEMINI, COMPRESS)}
DIALECT_PATHS: Mapping[str, str] = {
    f"{prefix}{path}": name
    for path, name in (
        ("/chat/completions", "completions"),
        ("/messages", "messages"),
        ("/messages/count_tokens", "messages"),
        ("/responses", "responses"),
        ("/responses/input_tokens", "responses"),
        ("/responses/compact", "responses"),
    )
    for prefix in ("/v1", "")
}
"""The dialect of each path with a conversation, a count or a compaction; with and without /v1."""


def find_dialect(path: str) -> str | None:
    """The name of the dialect of a path, decoded and without a session's part; None if it carries no conversation."""
    if found := DIALECT_PATHS.get(path):
        return found
    if gemini_request.PATH.fullmatch(path):
        return "gemini"
    cloud_path = read_cloud_path(path)
    return cloud_path.dialect if cloud_path is not None else None


def find_path_template(path: str) -> str | None:
    """The path of `find_dialect` without what differs from request to request; None if it carries no conversation."""
    if path in DIALECT_PATHS:
        return path
    if found := gemini_request.PATH.fullmatch(path):
        return f"/v1beta/models/{{model}}:{found['method']}"
    cloud_path = read_cloud_path(path)
    return cloud_path.template if cloud_path is not None else None


def repair_cut_answers(dialect: Dialect, body: bytes) -> bytes:
    """A body without a plan, whose answers can be sent again although parts of them were withheld."""
    try:
        return dialect.repair_answers(body)
    except (NotManaged, ValueError, KeyError, RecursionError):
        return body  # the upstream judges a request that cannot be read


def is_bound(message: Message) -> bool:
    """True if an answer bears reasoning that the model binds to the prompt before it."""
    return message.role == "assistant" and is_bound_answer(message.raw)


def is_bound_answer(raw: bytes) -> bool:
    """True if the bytes of an answer bear reasoning that is bound to its prompt."""
    return _BOUND.search(raw) is not None or (_SEALED in raw and _COMPACTED.search(raw) is not None)


def shows_reasoning(message: Message) -> bool:
    """True if an answer shows its reasoning without a token. A model that does so once binds none of its reasoning:
    DeepSeek, Kimi, GLM and models of one's own are asked to think in the same words as Claude."""
    return message.role == "assistant" and bool(message.reasoning) and not is_bound_answer(message.raw)


def count_sent_messages(request: Request, known_until: int) -> int:
    """Number of messages that were sent before: the known messages, and all up to the last bound answer. Another proxy,
    or none, may have sent that answer."""
    bound = request.find_indices("bound", is_bound)
    return max(known_until + 1, bound[-1] + 1 if bound else 0)
