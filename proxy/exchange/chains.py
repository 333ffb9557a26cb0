"""Chains: requests that name an earlier response, whose history the provider holds.

The messages up to a response are found by its name: in memory, else in the store. With them a request is measured and
stored on its branch, and goes out as received. With `responses.takeover` it is completed from the store instead: it
names nothing, the provider stores nothing, and the prompt is managed as any other. The client sees what it would see
from the provider itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from proxy.chat import json_spans
from proxy.dialects.base import check_grown_body
from proxy.dialects.responses import chained, rules
from proxy.dialects.responses.chained import ChainParameters
from proxy.dialects.responses.request import ResponsesRequest
from proxy.errors import NotManaged, StoreUnavailable
from proxy.exchange.item_references import ITEM_PREFIX, remember_items, resolve_references
from proxy.exchange.rebuild_prompt import rebuild_request
from proxy.exchange.refusals import peek_refusal, remember_model
from proxy.exchange.services import TURN_BYTES, Headers, Incoming, ModelKey, ResponseWriter, Services
from proxy.exchange.turn import Turn, make_model_key
from proxy.sessions import locate
from proxy.sessions.provider_chains import NOTHING_KNOWN, Chain, KnownHistory
from proxy.store.base import Row
from proxy.store.response_names import ResponseNameRow, is_storable
from proxy.stream.completions_answer import AssembledAnswer
from proxy.stream.responses_echo import ResponseEcho
from proxy.stream.sse import begins_stream
from proxy.upstream.client import SUCCESS_STATUSES, Reply, is_event_stream
from proxy.upstream.headers import remove_headers

log = logging.getLogger(__name__)

MANY_BYTES: Final = 64 * 1024
"""Bytes of a request or a history from which it is read in a worker thread."""
MAX_BODY_BYTES: Final = 64 << 20
"""Bytes of an answer in one body that are held so that it can be rewritten."""
DIALECT: Final = "responses"
"""The dialect whose requests can name a response."""

_T = TypeVar("_T")


async def follow(services: Services, incoming: Incoming, *, may_take_over: bool, has_answer: bool = True) -> Incoming:
    """Return the request with its place in a chain, completed from the store where the proxy takes the chain over.

    may_take_over: the proxy may complete it. has_answer: False if it asks for a count or a compaction.
    """
    if incoming.dialect != DIALECT:
        return incoming
    parameters = await _read_parameters(services, incoming.body)
    if parameters is None or not (parameters.name or parameters.is_stored):
        return incoming
    tenant = find_tenant(services, incoming.headers, incoming.tenant)
    history = await find_history(services, tenant, parameters.name) if parameters.name else None
    chain = Chain(parameters, incoming.body, history or NOTHING_KNOWN)
    may_take_over = may_take_over and parameters.is_whole and not parameters.conversation
    try:
        resolved = incoming
        if (may_take_over or not chain.history.at_provider) and b"item_reference" in incoming.body:
            body = await resolve_references(services, tenant, incoming.body)
            resolved = incoming if body is None else msgspec.structs.replace(incoming, body=body, encoded=None)
            chain = replace(chain, is_resolved=body is not None)
        if not parameters.name:
            return await _begin(services, resolved, chain, may_take_over=may_take_over and has_answer)
        if history is not None and parameters.previous and _may_complete(history, may_take_over=may_take_over):
            # What the provider does not know can be left out in no case.
            chain = chain if history.at_provider else replace(chain, original=resolved.body)
            return await _take_over(services, resolved, chain, has_answer=has_answer)
    except (ValueError, KeyError, RecursionError, msgspec.DecodeError):
        services.metrics.internal_errors_total.labels(where="takeover").inc()
        log.exception("a chain cannot be completed from the store; the request goes on as received")
    return msgspec.structs.replace(incoming, chain=replace(chain, is_resolved=False))


async def _read_parameters(services: Services, body: bytes) -> ChainParameters | None:
    """The parameters in a body; None if it cannot be read, or is over the limits: then nothing of it is decoded."""
    cache = services.message_cache
    old = cache.find_prefix(body, DIALECT)
    before: ResponsesRequest | None = old.value if old is not None else None

    def read() -> ChainParameters | None:
        try:
            check_grown_body(body, cache.limits, before)
        except NotManaged:
            return None
        return chained.read_chain_parameters(body, before)

    return await run_in_worker(services, len(body) - len(old or ()), read)


def _may_complete(history: KnownHistory, *, may_take_over: bool) -> bool:
    """True if the proxy completes a request with this history. It always does where the provider does not know it."""
    return history.is_known and history.is_whole and (may_take_over or not history.at_provider)


async def _begin(services: Services, incoming: Incoming, chain: Chain, *, may_take_over: bool) -> Incoming:
    """Return a request that names nothing, and whose answer a later request may name."""
    if not may_take_over:
        return msgspec.structs.replace(incoming, chain=replace(chain, history=replace(NOTHING_KNOWN, is_known=True)))
    is_whole = await run_in_worker(services, len(incoming.body), lambda: chained.can_restore(incoming.body))
    chain = replace(chain, history=replace(NOTHING_KNOWN, is_known=True), is_whole=is_whole)
    if chain.parameters.asks_encrypted or not _may_ask_for_encrypted(services, incoming):
        return msgspec.structs.replace(incoming, chain=chain)
    body = chained.ask_for_encrypted(incoming.body)
    return msgspec.structs.replace(incoming, body=body, encoded=None, chain=replace(chain, adds_encrypted=True))


async def _take_over(services: Services, incoming: Incoming, chain: Chain, *, has_answer: bool) -> Incoming:
    """Return the request with the whole history. The provider is to store the answer only where the items of the
    request cannot be written again by a later one."""
    messages, parameters = chain.history.messages, chain.parameters

    def complete() -> tuple[bytes, bool]:
        body = chained.write_whole_request(incoming.body, chained.restore_items(messages))
        # An answer that was cut off may end in reasoning, which a request must not do.
        return rules.remove_orphan_reasoning(body), chained.can_restore(incoming.body, messages)

    if chained.has_bare_reasoning(messages) and chain.history.at_provider:
        return msgspec.structs.replace(incoming, chain=chain)
    body, is_whole = await run_in_worker(services, len(incoming.body) + chain.history.size, complete)
    if not has_answer:
        return msgspec.structs.replace(incoming, body=body, encoded=None, chain=replace(chain, is_taken_over=True))
    is_whole = is_whole and parameters.is_whole
    adds = not parameters.asks_encrypted and _may_ask_for_encrypted(services, incoming)
    body = chained.ask_for_encrypted(body) if adds else body
    body = chained.write_unstored(body) if is_whole else body
    at_provider = parameters.is_stored and not is_whole
    chain = replace(chain, is_taken_over=True, adds_encrypted=adds, is_whole=is_whole, at_provider=at_provider)
    return msgspec.structs.replace(incoming, body=body, encoded=None, chain=chain)


def return_unplanned(incoming: Incoming) -> Incoming:
    """Return the request as it goes out without a plan. These are the client's own bytes if the provider knows the
    history. Otherwise they are the whole history, with an answer that the provider stores."""
    chain = incoming.chain
    if chain is None:
        return incoming
    body = chain.original
    if repeats_other_values(incoming):
        try:
            body = chained.write_whole_request(chain.original, chained.restore_items(chain.history.messages))
        except (ValueError, RecursionError, msgspec.DecodeError):
            body = incoming.body  # it was written in the same way a moment ago
    return msgspec.structs.replace(incoming, body=body, chain=None)


def repeats_other_values(incoming: Incoming) -> bool:
    """True if the answer to an unplanned request has values of the proxy, not the client's: it is read then."""
    chain = incoming.chain
    return chain is not None and chain.is_taken_over and not chain.history.at_provider


def find_tenant(services: Services, headers: Headers, tenant: str | None) -> str:
    """The tenant of a request. tenant: that of the client's key; None if no keys are configured."""
    return locate.find_tenant(locate.decode_headers(headers), tenant, services.settings.identity)


async def run_in_worker(services: Services, size: int, work: Callable[[], _T]) -> _T:
    """The result of some work, in a worker thread where it reads many bytes. size: their number."""
    if size < MANY_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(services.workers, work)


async def find_history(services: Services, tenant: str, name: str) -> KnownHistory | None:
    """The messages up to the answer of this name, from memory or the store; None if it is not known. A store that is
    away knows nothing, and is counted."""
    history = services.histories.get(tenant, name)
    if name.startswith(ITEM_PREFIX):
        return None
    if history is not None:
        return None if await _is_deleted(services, tenant, name) else history
    forgotten = services.histories.forgotten
    try:
        row = await services.store.read_response_name(tenant, name)
        exchange = await services.store.read_exchange(tenant, row.session, row.exchange) if row is not None else None
        if row is None or exchange is None:
            return None
        request, _ = await rebuild_request(services.store, exchange, services.message_cache.get_message)
        messages = [message.raw for message in request.messages][1 if row.has_instructions else 0 :]
        if exchange.answer is not None:
            chain = await services.store.read_chain(tenant, row.session, exchange.answer)
            messages += [chain[-1].body] if chain else []
    except StoreUnavailable:
        services.metrics.internal_errors_total.labels(where="chain").inc()
        return None
    is_known = row.is_known and exchange.answer is not None and len(messages) > 0
    history = KnownHistory(row.session, tuple(messages), is_known, row.is_whole, row.at_provider)
    if forgotten == services.histories.forgotten:  # else the name may have been deleted since it was read
        services.histories.put(tenant, name, history)
    return history


async def _is_deleted(services: Services, tenant: str, name: str) -> bool:
    """True if a client has deleted a response through another replica. A store that is away knows nothing."""
    if not services.store.shared:
        return False
    try:
        row = await services.store.read_response_name(tenant, name)
    except StoreUnavailable:
        return False
    if row is None or row.exchange:
        return False
    services.histories.forget(tenant, name)
    return True


def record_names(
    services: Services, turn: Turn, answer: AssembledAnswer, answer_key: bytes | None, *, is_complete: bool
) -> list[Row]:
    """Return the rows with the names under which later requests may continue from this answer; memory is updated."""
    chain, request = turn.chain, turn.wire_request
    if chain is None or not chain.parameters.is_stored or not isinstance(request, ResponsesRequest):
        return []
    raw = answer.build_message()
    named = (answer.id, chain.parameters.conversation)
    names = [name for name in named if name and is_storable(name) and not name.startswith(ITEM_PREFIX)]
    is_known = chain.history.is_known and is_complete and answer_key is not None and raw is not None
    # The provider has the first of several rounds under the name that the client knows, with a call of the proxy.
    at_provider = chain.at_provider and turn.rounds.hidden is None
    messages = [message.raw for message in turn.request.messages][1 if request.has_instructions else 0 :]
    session = turn.located.branch.session
    is_whole = chain.is_whole and is_known and not answer.is_capped
    branch = turn.located.branch
    row = ResponseNameRow(
        turn.tenant, session, "", branch.name, turn.id, is_known, is_whole, at_provider, request.has_instructions,
        services.now(),
    )  # fmt: skip
    history = KnownHistory(session, (*messages, *([raw] if raw is not None else [])), is_known, is_whole, at_provider)
    for name in names:
        services.histories.put(turn.tenant, name, history, follows=chain.parameters.previous)
    if is_whole and raw is not None:
        names += [ITEM_PREFIX + name for name in remember_items(services, turn.tenant, session, [raw])]
    return [msgspec.structs.replace(row, name=name) for name in names]


def _may_ask_for_encrypted(services: Services, incoming: Incoming) -> bool:
    """True if the model of a request is not known to refuse encrypted reasoning."""
    return not services.encrypted_refused or _find_model_key(services, incoming) not in services.encrypted_refused


def read_model_name(body: bytes) -> str:
    """The model that a request names; "" if it names none."""
    raw = json_spans.read_value(body, "model")
    return (json_spans.decode_string(raw) if raw is not None else None) or ""


def _find_model_key(services: Services, incoming: Incoming) -> ModelKey:
    model = read_model_name(incoming.body)
    tenant = find_tenant(services, incoming.headers, incoming.tenant)
    return make_model_key(tenant, services.client.select_target(model or None).name, model)


async def learn_refusal(services: Services, incoming: Incoming, reply: Reply) -> bool:
    """True if a model refuses the encrypted reasoning that the proxy asks for: from now on it does not ask."""
    if incoming.chain is None or not incoming.chain.adds_encrypted or reply.status != 400:
        return False
    error = await peek_refusal(reply)
    if b"ncrypted content" not in error and b"encrypted_content" not in error and b'"include"' not in error:
        return False
    remember_model(services.encrypted_refused, _find_model_key(services, incoming))
    return True


def drop_refused(services: Services, incoming: Incoming, body: bytes) -> bytes:
    """A body to send, without the question for encrypted reasoning where the model refuses it."""
    chain = incoming.chain
    if chain is None or not chain.adds_encrypted or _may_ask_for_encrypted(services, incoming):
        return body
    return chained.drop_encrypted(body)


class ChainWriter(ResponseWriter):
    """The way back to the client of a request that the proxy has completed: the answer repeats the client's values."""

    def __init__(self, out: ResponseWriter, chain: Chain) -> None:
        members: dict[str, bytes] = {}
        if chain.is_taken_over:
            members = {"previous_response_id": msgspec.json.encode(chain.parameters.previous)}
            members["store"] = b"true" if chain.parameters.is_stored else b"false"
        self._out = out
        self._echo = ResponseEcho(members, hides_tokens=chain.adds_encrypted)
        self._head: tuple[int, Headers] | None = None
        self._body = bytearray()
        self._is_stream = False

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers; those of an answer in one body wait for the body."""
        self._is_stream = is_event_stream(status, headers)
        if self._is_stream:
            await self._out.start(status, headers)
        else:
            self._head = status, headers

    async def write(self, data: bytes) -> None:
        if self._is_stream:
            if data := await self._rewrite_stream(data):
                await self._out.write(data)
        elif self._head is None:
            await self._out.write(data)
        else:
            self._body += data
            if len(self._body) > MAX_BODY_BYTES:  # too long to be held: it goes on as it comes
                await self._release(None)

    async def end(self, data: bytes = b"") -> None:
        if self._is_stream:
            await self._out.end(await self._rewrite_stream(data) + self._echo.flush())
            return
        if self._head is None:
            await self._out.end(data)
            return
        body = bytes(self._body + data)
        if self._head[0] not in SUCCESS_STATUSES:
            await self._release(body)
        elif begins_stream(body):  # under another media type
            await self._release_stream(body)
        else:
            await self._release(self._echo.rewrite_body(body))

    async def _rewrite_stream(self, data: bytes) -> bytes:
        """Return the bytes to send for these bytes of a stream. Of many, all but the last are sent here, and other
        requests get their turn between."""
        at = 0
        while len(data) - at > TURN_BYTES:
            if ready := self._echo.feed(data[at : at + TURN_BYTES]):
                await self._out.write(ready)
            await asyncio.sleep(0)
            at += TURN_BYTES
        return self._echo.feed(data[at:])

    async def _release_stream(self, body: bytes) -> None:
        """Send the head and the events of a stream that was held."""
        assert self._head is not None  # noqa: S101  # as in `end`
        (status, headers), self._head, self._is_stream = self._head, None, True
        await self._out.start(status, remove_headers(headers, b"content-length"))
        await self.end(body)

    async def _release(self, body: bytes | None) -> None:
        """Send the head with a whole body, or with what has come of one."""
        if self._head is None:
            return
        (status, headers), self._head = self._head, None
        if body is None:
            await self._out.start(status, headers)
            await self._out.write(bytes(self._body))
            self._body.clear()
            return
        kept = remove_headers(headers, b"content-length")
        await self._out.respond(status, [*kept, (b"content-length", b"%d" % len(body))], body)

    async def abort(self) -> None:
        if self._head is not None:
            await self._release(None)
        await self._out.abort()


def wrap_writer(incoming: Incoming, out: ResponseWriter) -> ResponseWriter:
    """The way back to the client: with the client's own values where the proxy has sent others."""
    chain = incoming.chain
    is_changed = chain is not None and (chain.is_taken_over or chain.adds_encrypted)
    return ChainWriter(out, chain) if chain is not None and is_changed else out
