"""Hidden rounds: the request that upstream should see, made from the request that the client sent.

- A round is one request of the tool loop (`exchange.tool_loop`) with its answer. Where the model calls tools of the
  proxy, several rounds make one answer of the client's.
- A hidden message is one of these rounds that never reached the client: a call of the proxy's own tools, or its result.
- A hidden round has all the hidden messages that led to one answer. It is stored with the answer.
- A request is spliced when its hidden rounds are put back, and the definitions of the offered tools follow the
  client's own.

Hidden messages are put back at the place of the answer that they led to, byte for byte as upstream wrote and got them.
Live requests and the rebuilding of past prompts use the same function, so both give the same bytes. Where the client
has changed its history, nothing is put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from proxy.chat import chain, json_spans
from proxy.chat.message import Message, Request
from proxy.dialects.completions.request import CONTINUES, MessageReader, read_message
from proxy.errors import NotManaged
from proxy.sessions.given_answer import says_nothing

ADDED_TOOLS: Final = "added tools"
"""Name in `Request.memo_values` of the tools with those of the proxy behind them."""


@dataclass(frozen=True, slots=True)
class HiddenRound:
    """The messages that led to one answer of the proxy and are hidden from the client."""

    answer_key: bytes
    """The answer's chain key, as the client has it."""
    request_tip: bytes
    """The chain key of the end of the request that the round answers."""
    replaces: tuple[bytes, ...]
    """The messages that are in the answer's place, as upstream saw them; the last is the answer itself."""
    results: tuple[bytes, ...] = ()
    """Results of our own calls in the answer, where it also called the client's tools."""
    client_call_ids: tuple[str, ...] = ()
    """The ids of the client's calls."""
    stored_at: float = 0.0
    """The time at which the round was stored, in seconds."""
    without_tools: bool = False
    """Our tools were left out of the last request."""

    @property
    def size(self) -> int:
        """Bytes of its messages."""
        return sum(map(len, self.replaces)) + sum(map(len, self.results))


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """A round as it is stored. The messages are JSON texts in JSON strings, so their bytes do not change."""

    replaces: list[str]
    results: list[str] = []
    calls: list[str] = []
    bare: bool = False


_BODY = msgspec.json.Decoder(_Body)


def encode_round(hidden_round: HiddenRound) -> bytes:
    """Encode the part of a round that is stored as JSON."""
    replaces, results = ([raw.decode() for raw in raws] for raws in (hidden_round.replaces, hidden_round.results))
    return msgspec.json.encode(_Body(replaces, results, list(hidden_round.client_call_ids), hidden_round.without_tools))


def decode_round(chain_key: bytes, tip: bytes, body: bytes, at: float) -> HiddenRound:
    """Decode a stored round. Raises ValueError if it cannot be read."""
    stored = _BODY.decode(body)
    replaces, results = (tuple(raw.encode() for raw in raws) for raws in (stored.replaces, stored.results))
    return HiddenRound(chain_key, tip, replaces, results, tuple(stored.calls), at, stored.bare)


class SplicedRequest(msgspec.Struct, frozen=True, eq=False):
    """A request with the messages that were put into it."""

    request: Request
    keys: Sequence[bytes]
    """The chain key of each message; the client's messages keep theirs."""
    round_count: int = 0
    """The number of rounds that were put back."""
    hidden_at: Mapping[bytes, float] = {}
    """The time at which each message that the client does not have was made, by key."""
    added_tools: bytes = b""
    """The definitions that were added, b"" for none."""


RoundsByTip = Mapping[bytes, Sequence[HiddenRound]]
"""Hidden rounds by the chain key of the end of the request that they answer."""


def splice_hidden_rounds(
    request: Request,
    keys: Sequence[bytes],
    rounds_by_tip: RoundsByTip,
    tools: bytes = b"",
    message_reader: MessageReader = read_message,
    *,
    is_plain: bool = False,
) -> SplicedRequest:
    """Put the hidden rounds into a request, and `tools` (definitions, with commas between) after the client's own.
    is_plain: the request is sent as chat completions, which have no place for what another dialect has kept.

    Return the request itself where there is nothing to add. Raises NotManaged if a stored message cannot be read.
    """
    rounds_by_index = match_rounds(request, keys, rounds_by_tip) if any(rounds_by_tip.values()) else {}
    if not rounds_by_index and not tools:
        return SplicedRequest(request, keys)
    messages, names, hidden = request.messages, keys, dict[bytes, float]()
    if rounds_by_index:
        read = (lambda raw: message_reader(drop_wire(raw))) if is_plain else message_reader
        history = _put_back(request.messages, keys, rounds_by_index, read)
        messages, names, hidden = tuple(history.messages), history.keys, history.hidden_at
    array = _add_tools(request, tools) if tools else request.tools
    is_spliced = request.is_spliced or bool(rounds_by_index)
    spliced = replace(request, messages=messages, tools=array, known_messages=(), prefix_bytes=0, is_spliced=is_spliced)
    return SplicedRequest(spliced, names, len(rounds_by_index), hidden, tools if array is not request.tools else b"")


def _add_tools(request: Request, tools: bytes) -> bytes | None:
    """The request's tools with `tools` after them, None if it has none. The same object as for the request before, if
    both are the same: it is hashed where tokens are counted."""
    known: tuple[bytes | None, bytes, bytes | None] = request.memo_values.get(ADDED_TOOLS, (None, b"", None))
    if known[:2] != (request.tools, tools):
        array = request.tools[:-1] + b"," + tools + b"]" if request.tools is not None else None
        known = request.memo_values[ADDED_TOOLS] = request.tools, tools, array
    return known[2]


def drop_wire(raw: bytes) -> bytes:
    """A message of a hidden round as chat completions have it.

    Items or blocks of another dialect are removed, with what was read from them: reasoning, and that the answer
    continues another one. So is the mark of a failed call.
    """
    if b'"is_error"' in raw:
        raw = json_spans.remove_member(raw, "is_error")
    if b'"wire"' not in raw or json_spans.find_member(raw, "wire") is None:
        return raw
    for name in ("wire", "reasoning_content", CONTINUES):
        raw = json_spans.remove_member(raw, name)
    return raw


def add_tools(spliced: SplicedRequest, tools: bytes) -> SplicedRequest:
    """Return the request with definitions added, for a tool that is offered once the prompt has been planned."""
    added = splice_hidden_rounds(spliced.request, spliced.keys, {}, tools)
    return replace(spliced, request=added.request, added_tools=added.added_tools)


def match_rounds(request: Request, keys: Sequence[bytes], rounds_by_tip: RoundsByTip) -> dict[int, HiddenRound]:
    """Return each round that belongs to this history, by the index of its answer.

    An answer is known by its chain key. If the client rewords it, the answer is known by its position and the ids of
    its calls. Ids that only count are those of another answer to the same request, too. Then the calls have to be the
    same.
    """
    rounds_by_index = {}
    for n, message in enumerate(request.messages):
        if message.role != "assistant" or not n:
            continue
        rounds = rounds_by_tip.get(keys[n - 1], ())
        found = next((one for one in rounds if one.answer_key == keys[n]), None)
        found = found or next((one for one in rounds if _is_reworded_in(one, message)), None)
        if found is not None:
            rounds_by_index[n] = found
    return rounds_by_index


def _is_reworded_in(hidden_round: HiddenRound, message: Message) -> bool:
    """True if a client's message in the place of the round's answer has the same calls."""
    ids = hidden_round.client_call_ids
    if not ids or ids != tuple(call.id for call in message.calls):
        return False
    if not all(says_nothing(call.id, call.name) for call in message.calls):
        return True
    try:
        given = [call for call in read_message(hidden_round.replaces[-1]).calls if call.id in ids]
    except NotManaged:
        return False
    return [(call.name, chain.canonicalize_arguments(call.arguments)) for call in given] == [
        (call.name, chain.canonicalize_arguments(call.arguments)) for call in message.calls
    ]


class _SplicedHistory:
    """A history with hidden messages put back."""

    __slots__ = ("_read", "hidden_at", "keys", "messages")

    def __init__(self, read: MessageReader) -> None:
        self._read = read
        self.messages: list[Message] = []
        self.keys: list[bytes] = []
        self.hidden_at: dict[bytes, float] = {}
        """As `SplicedRequest.hidden_at`."""

    def add(self, messages: Sequence[Message], keys: Sequence[bytes]) -> None:
        """Add messages of the client."""
        self.messages += messages
        self.keys += keys

    def add_answer(self, hidden_round: HiddenRound, chain_key: bytes) -> Message:
        """Add what a round has in the place of the client's answer: hidden messages, then the answer, which is
        returned. chain_key: that of the client's answer, which it keeps."""
        after = hidden_round.request_tip
        for raw in hidden_round.replaces[:-1]:
            after = self._hide(raw, after, hidden_round.stored_at)
        answer = self._read(hidden_round.replaces[-1])
        self.add((answer,), (chain_key,))
        return answer

    def add_results(
        self, hidden_round: HiddenRound, answer: Message, messages: Sequence[Message], keys: Sequence[bytes], begin: int
    ) -> int:
        """Add the results of the answer's calls: ours, and those of the client, which begin at index `begin`. Return
        the index after them.

        Ours stand where their calls are among all of the answer's, and the client's keep their own order.
        """
        places = {call.id: place for place, call in enumerate(answer.calls)}
        placed = [(places.get(self._read(raw).call_id or "", 0), raw) for raw in hidden_round.results]
        ours = deque(sorted(placed, key=itemgetter(0)))
        after = hidden_round.answer_key
        end = begin
        while end < len(messages) and messages[end].is_result:
            place = places.get(messages[end].call_id or "", -1)
            while ours and ours[0][0] < place:
                after = self._hide(ours.popleft()[1], after, hidden_round.stored_at)
            self.add((messages[end],), (keys[end],))
            end += 1
        for _, raw in ours:
            after = self._hide(raw, after, hidden_round.stored_at)
        return end

    def _hide(self, raw: bytes, after: bytes, at: float) -> bytes:
        """Add a message that the client does not have. Return its key, in a chain of the round's own that is the same
        whatever the client adds. after: the key before it in that chain."""
        message = self._read(raw)
        name = chain.derive_next_key(after, message.digest)
        self.hidden_at[name] = at
        self.add((message,), (name,))
        return name


def _put_back(
    messages: Sequence[Message], keys: Sequence[bytes], rounds_by_index: Mapping[int, HiddenRound], read: MessageReader
) -> _SplicedHistory:
    """Put rounds back. rounds_by_index: the rounds by the index of the answer that they belong to."""
    history = _SplicedHistory(read)
    done = 0
    for n, hidden_round in rounds_by_index.items():
        if n < done:
            continue
        history.add(messages[done:n], keys[done:n])
        answer = history.add_answer(hidden_round, keys[n])
        done = history.add_results(hidden_round, answer, messages, keys, n + 1)
    history.add(messages[done:], keys[done:])
    return history


def append_messages(body: bytes, messages: Sequence[bytes]) -> bytes:
    """Return a body with more messages after its own messages. Raises ValueError if the place cannot be found."""
    found = json_spans.find_member(body, "messages")
    if found is None:
        raise ValueError("a body without messages that can be told apart")
    end = body.rindex(b"]", found.start, found.end)
    return b"".join([body[:end].rstrip(b" \t\r\n"), *(b"," + raw for raw in messages), body[end:]])
