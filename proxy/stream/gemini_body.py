"""Answers of the Gemini dialect that are one body: an object, or the list of chunks of a stream without events.

The responses of a body go through `proxy.stream.gemini_relay` one by one, so that a body and a stream of the same
answer lose the same parts. The result has the form of the body: one object, or a list.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from proxy.dialects.gemini.stream import cut_parts, set_parts
from proxy.notes import state_block
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_answer import CAPTURE_LIMIT
from proxy.stream.completions_body import RoundContent
from proxy.stream.gemini_answer import split_body
from proxy.stream.gemini_relay import GeminiRelay
from proxy.stream.sse import SseEvent

_HEAD, _END = b"data: ", b"\n\n"


def remove_blocks(
    body: bytes, headings: tuple[str, ...] = state_block.HEADINGS
) -> tuple[bytes, list[state_block.NoteBlock]]:
    """Return (the body without such blocks, the blocks).

    A body that cannot be read is returned as it is.
    """
    if not state_block.may_have_blocks(body, headings):
        return body, []
    relay, datas = _relay(body, RelayOptions(withheld=headings))
    others = [heading for heading in headings if heading != state_block.HEADING]
    found = [state_block.NoteBlock(0, 0, one) for one in relay.blocks]
    if others:
        found += [state_block.NoteBlock(0, 0, one, others[0]) for one in relay.other_blocks]
    return (_join(body, datas), found) if found else (body, [])


def read_round(body: bytes, hidden_tools: frozenset[str], headings: tuple[str, ...] = ()) -> RoundContent:
    """Return what upstream says and asks for in one body. headings: as for `GeminiAnswer.build_round_message`."""
    relay, _ = _relay(body, RelayOptions(hidden_tools=hidden_tools, withheld=headings))
    message = relay.build_round_message()
    return RoundContent(message, relay.hidden_calls, relay.shown_calls, relay.goes_on, relay.round_usage)


def join_rounds(bodies: Sequence[bytes], hidden_tools: frozenset[str]) -> bytes:
    """Return the one body for the client: the parts of all rounds without hidden calls, and the first one's id.

    bodies: of the rounds in their order, with blocks already removed; at least one. Output tokens are those of all
    rounds, input tokens the last round's. A last body that cannot be read is returned as it is.
    """
    relay: GeminiRelay | None = None
    datas: list[bytes] = []
    for body in bodies:
        relay, more = _relay(body, RelayOptions(hidden_tools=hidden_tools), relay)
        datas += more
    if relay is None or relay.answer.unparsed:
        return bodies[-1]
    if relay.goes_on:
        relay.end_answer()
        datas += [_read_data(one) for one in relay.end_events]
    same = len(bodies) == 1 and datas == split_body(bodies[0])
    return bodies[0] if same else _join(bodies[-1], datas)


def _relay(body: bytes, options: RelayOptions, previous: GeminiRelay | None = None) -> tuple[GeminiRelay, list[bytes]]:
    """(the relay of a body, the responses that the client gets)."""
    relay = GeminiRelay(replace(options, limit=max(CAPTURE_LIMIT, 2 * len(body))), previous)
    out: list[bytes] = []
    for one in split_body(body):
        relay.take_event(SseEvent(_HEAD + one + _END, one), out)
    relay.end_round(out)
    return relay, [_read_data(one) for one in (*out, *relay.end_events)]


def _read_data(raw: bytes) -> bytes:
    return raw.removeprefix(_HEAD).removesuffix(_END)


def _join(body: bytes, responses: Sequence[bytes]) -> bytes:
    """These responses in the form of a body. In an object, the last response gets the parts of all."""
    if body.lstrip()[:1] == b"[":
        return b"[" + b",".join(responses) + b"]"
    if len(responses) == 1:
        return responses[0]
    parts = [part for one in responses for part in cut_parts(one)]
    kept = [part for part in parts if part != b'{"text":""}']
    return set_parts(responses[-1], kept or parts[:1])
