"""`POST /v1/compress` and `GET /v1/retrieve/{hash}`: the rows of a gateway, shortened, and the originals again.

The rows take the way of a chat request up to the bytes that would go upstream (`prepare_request`): the same identity,
policy, schedule and store. Then they go back to the gateway, as many as came and in their order. A row that was
shortened once comes back in the same bytes with every later request, so the provider's cache keeps its prefix.

Each shortened row ends with the hash under which its original is retrieved. Nothing else is added to a row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from proxy.chat import json_spans
from proxy.dialects.completions.request import append_text, read_message
from proxy.dialects.compress.request import CompressRequest
from proxy.errors import BadRequest, NotFound, NotManaged, StoreUnavailable
from proxy.exchange import publish_events, record_outcome
from proxy.exchange.fallback import count_fallback
from proxy.exchange.handler import record_gap
from proxy.exchange.prepare_request import prepare_request
from proxy.exchange.record_outcome import Outcome
from proxy.exchange.send_prompt import record_sent
from proxy.exchange.services import Headers, Incoming, Services
from proxy.exchange.turn import Turn
from proxy.sessions import locate

log = logging.getLogger(__name__)

HASH_CHARS = 16
"""Hexadecimal digits of a hash: the beginning of the message's chain key."""
MAX_HASH_CHARS = 24
MIN_HASH_CHARS = 12
BYPASS_HEADERS = (b"x-headroom-bypass", b"x-context-off")
"""Headers that switch the compression of one request off."""
UNREADABLE = ("unreadable", "shape")
"""Reasons for which a body has no rows that could be returned."""
NOTHING_TO_DO = "rows"
"""The reason for which rows come back without a session: there is neither a result nor an answer among them."""


NO_ROWS = "messages is no list, or an empty one"


class _RowsField(msgspec.Struct):
    messages: msgspec.Raw


_ROWS = msgspec.json.Decoder(_RowsField)


@dataclass(frozen=True, slots=True)
class CompressAnswer:
    """The answer to a gateway: its body as JSON, and the headers that report on it."""

    body: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows to return. hashes: of the shortened ones, whose originals can be retrieved."""

    raws: Sequence[bytes]
    before: int = 0
    after: int = 0
    stages: Sequence[str] = ()
    hashes: Sequence[str] = ()


async def compress_rows(services: Services, incoming: Incoming) -> CompressAnswer:
    """Answer one request of a gateway. A request that cannot be managed gets its rows back as received.

    Raises BadRequest for a body without rows, Unavailable if storing is required and the store is away.
    """
    incoming = replace(incoming, dialect="compress")
    if any(name in BYPASS_HEADERS and value.strip().lower() in (b"1", b"true") for name, value in incoming.headers):
        return _return_original(services, incoming, "off")
    if incoming.unmanaged_reason:
        raise BadRequest("the body cannot be decoded", hint="Send it as plain JSON.")
    services.open_requests += 1
    try:
        turn, _ = await prepare_request(services, incoming)
        return _finish(services, turn)
    except NotManaged as problem:
        if problem.reason in UNREADABLE:
            raise BadRequest(f"the rows cannot be read: {problem}") from problem
        return _return_original(services, incoming, problem.reason)
    except StoreUnavailable as problem:
        record_gap(services, incoming, problem)
        return _return_original(services, incoming, "store")
    except Exception:  # promise P4: no fault of the proxy may fail a request; counted and logged
        services.metrics.internal_errors_total.labels(where="compress").inc()
        log.exception("planning failed; the rows go back as received")
        return _return_original(services, incoming, "error")
    finally:
        services.open_requests -= 1


def _finish(services: Services, turn: Turn) -> CompressAnswer:
    """Record the request, and return the answer that its plan makes."""
    record_sent(services, turn)
    publish_events.publish_plan(services, turn)
    rows = record_outcome.record_outcome(services, turn, Outcome("complete", 200, note="rows of a gateway"))
    record_outcome.store_in_background(services, turn, rows)
    found = _find_rows(turn)
    return CompressAnswer(_encode(found), record_outcome.make_context_headers(turn))


def _find_rows(turn: Turn) -> _Rows:
    """The rows that go back: those of the plan, each shortened one with its hash at its end."""
    wire_request = turn.wire_request
    if not isinstance(wire_request, CompressRequest):
        raise TypeError("rows of another dialect")
    messages, token_counter = turn.request.messages, turn.token_counter
    originals = wire_request.read_rows()
    sent_rows = _read_rows(turn.prompt.outgoing)
    sizes = dict(zip(turn.prompt.plan.sources, turn.prompt.plan.sizes, strict=False))
    raws: list[bytes] = []
    hashes: list[str] = []
    stages: dict[str, None] = {}
    before = after = 0
    for place, original, raw in zip(wire_request.places, originals, sent_rows, strict=True):
        size = token_counter(messages[place])
        before += size
        if raw != original:
            key = turn.keys[place]
            raw = append_text(raw, make_hash_line(key.hex()[:HASH_CHARS]))  # noqa: PLW2901  the same row
            if len(raw) < len(original):
                size = sizes.get(place, 0) + token_counter.count_text(make_hash_line(""))
                hashes.append(key.hex()[:HASH_CHARS])
                edit = turn.prompt.plan.edits.get(key)
                stages |= {edit.stage: None} if edit is not None else {}
            else:
                raw = original  # noqa: PLW2901  the line would make it longer than it came
        raws.append(raw)
        after += size
    return _Rows(raws, before, after, tuple(stages), tuple(hashes))


def make_hash_line(name: str) -> str:
    """The end of a shortened row: the hash by which a gateway's tool retrieves the original."""
    return f"\n[shortened; original: hash={name}]"


def _read_rows(body: bytes) -> list[bytes]:
    array = json_spans.read_value(body, "messages") or b""
    spans = json_spans.find_elements(array)
    if not spans:
        raise BadRequest(NO_ROWS)
    return [array[start:end] for start, end in spans]


def _return_original(services: Services, incoming: Incoming, reason: str) -> CompressAnswer:
    """The answer with the rows as received, and the reason in a header."""
    if reason != NOTHING_TO_DO:
        count_fallback(services, reason)
        publish_events.publish_fallback(services, incoming, reason)
    incoming.log_fields["fallback"] = reason
    try:
        rows = bytes(_ROWS.decode(incoming.body).messages)  # not one by one: there may be millions
    except (ValueError, RecursionError) as problem:
        raise BadRequest(NO_ROWS) from problem
    inner = rows[1:-1].strip()
    if rows[:1] != b"[" or not inner:
        raise BadRequest(NO_ROWS)
    return CompressAnswer(_encode(_Rows([inner])), [(b"x-context-fallback", reason.encode())])


def _encode(rows: _Rows) -> bytes:
    """The answer's body; the rows keep the bytes that the client sent."""
    fields = {
        "tokens_before": rows.before,
        "tokens_after": rows.after,
        "tokens_saved": rows.before - rows.after,
        "compression_ratio": round(rows.after / rows.before, 4) if rows.before else 1.0,
        "transforms_applied": list(rows.stages),
        "ccr_hashes": list(rows.hashes),
    }
    return b'{"messages":[' + b",".join(rows.raws) + b"]," + msgspec.json.encode(fields)[1:]


async def retrieve_original(services: Services, incoming: Incoming, name: str) -> CompressAnswer:
    """The original of a shortened row, of the caller's own tenant. Raises NotFound if there is none, StoreUnavailable
    if the store cannot be read."""
    tenant, _ = locate.find_owner(incoming.headers, incoming.tenant, None, services.settings.identity)
    name = name.lower()
    try:
        prefix = bytes.fromhex(name[: len(name) // 2 * 2])
    except ValueError:
        prefix = b""
    if not MIN_HASH_CHARS <= len(name) <= MAX_HASH_CHARS or len(prefix) != len(name) // 2:
        raise NotFound("this is no hash of a message", hint="A hash has 16 hexadecimal digits; copy it exactly.")
    row = await services.store.find_returned_message(tenant, prefix)
    if row is None or not row.key.hex().startswith(name):
        raise NotFound("no message has this hash", hint="It was given to another tenant, or has been removed.")
    message = read_message(row.body)
    fields = {
        "hash": name,
        "original_content": message.text,
        "original_tokens": row.tokens,
        "role": message.role,
        "tool_call_id": message.call_id,
    }
    return CompressAnswer(msgspec.json.encode(fields), [(b"x-context-session", row.session.encode("utf-8", "replace"))])
