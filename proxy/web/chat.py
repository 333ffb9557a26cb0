"""Requests of agents and gateways: from ASGI to an exchange and back.

The paths of a gateway, `POST /v1/compress` and `GET /v1/retrieve/{hash}`, are behind the same key, limits and body
budget as chat. Questions about a stored response are answered from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from proxy.dialects.cloud_paths import BEDROCK_PREFIX
from proxy.exchange import bedrock_stream
from proxy.exchange.compress_rows import compress_rows, retrieve_original
from proxy.exchange.count_prompt import COUNT_PATHS, handle_count
from proxy.exchange.handler import COMPACTION_PATHS, handle_chat, handle_compaction
from proxy.exchange.services import Headers, Incoming, ResponseWriter, Services
from proxy.exchange.stored_responses import ResponseQuestion, StoredResponse, answer_question
from proxy.web.asgi import (
    HOLD_HEAD_KEY,
    LOG_FIELDS_KEY,
    HeldHead,
    Receive,
    Scope,
    Send,
    read_body,
    read_content_length,
    run_while_connected,
    send_json,
    with_write_timeout,
)
from proxy.web.auth import CALLER_KEY, Caller
from proxy.web.content_encoding import NotDecodedError, decode_body, read_codings
from proxy.web.limits import BodyShare
from proxy.web.routes import GATEWAY_PATH, SessionPath


class AsgiResponse(ResponseWriter):
    """The answer to one client, sent over ASGI. hold_head: holds the head of a whole answer until its body is sent, if
    the server can do that (`HOLD_HEAD_KEY`)."""

    __slots__ = ("_hold_head", "_send")

    def __init__(self, send: Send, hold_head: Callable[[], HeldHead] | None = None) -> None:
        self._send = send
        self._hold_head = hold_head

    async def start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data})

    async def abort(self) -> None:
        """Send nothing more: the server closes a connection whose answer was left unfinished."""

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer, its head and body in one write where the server allows it."""
        held = self._hold_head() if self._hold_head is not None else None
        try:
            await self.start(status, headers)
            await self.end(body)
        finally:
            if held is not None:
                held.release()


async def serve_chat(
    scope: Scope,
    receive: Receive,
    send: Send,
    services: Services,
    place: SessionPath,
    share: BodyShare,
    dialect: str,
) -> None:
    """Handle one chat request. share: its part of the body budget. dialect: the name of its wire format."""
    incoming = await read_incoming(scope, receive, services, place, share, dialect)
    answer: ResponseWriter = AsgiResponse(
        with_write_timeout(send, services.settings.timeouts.idle_s), scope.get(HOLD_HEAD_KEY)
    )
    if incoming.frames is not None:
        answer = bedrock_stream.FrameWriter(answer, incoming.frames)
    route = place.raw_path.partition("?")[0]
    if route.endswith(COMPACTION_PATHS):
        handle = handle_compaction
    elif route.endswith(COUNT_PATHS):
        handle = handle_count
    else:
        handle = handle_chat
    await run_while_connected(scope, receive, handle(services, incoming, answer))


async def serve_stored_response(
    send: Send, services: Services, stored: StoredResponse, question: ResponseQuestion
) -> None:
    """Answer one question from the store."""
    body = await answer_question(services, stored, question)
    session = stored.row.session.encode("utf-8", "replace")
    headers = [(b"x-context-session", session), (b"x-context-chain", b"taken over")]
    await send_json(send, body, headers, services.settings.timeouts.idle_s)


async def serve_gateway(
    scope: Scope, receive: Receive, send: Send, services: Services, place: SessionPath, share: BodyShare
) -> None:
    """Answer one request of a gateway, made before anything is sent. The arguments: as `serve_chat`."""
    incoming = await read_incoming(scope, receive, services, place, share, "compress")
    found = GATEWAY_PATH.fullmatch(place.path)
    name = found["hash"] if found is not None else None
    work = compress_rows(services, incoming) if name is None else retrieve_original(services, incoming, name)
    answer = await run_while_connected(scope, receive, work)
    await send_json(send, answer.body, answer.headers, services.settings.timeouts.idle_s)


async def read_incoming(
    scope: Scope, receive: Receive, services: Services, place: SessionPath, share: BodyShare, dialect: str
) -> Incoming:
    """Return the request with its whole body, decompressed. The arguments are those of `serve_chat`."""
    caller: Caller = scope[CALLER_KEY]  # set by `web.auth`; without it the request fails
    limit = services.settings.limits.body_mb << 20
    body = await share.give_way_during(read_body(receive, limit, read_content_length(scope), share.reserve))
    incoming = Incoming(
        method=scope["method"],
        path=place.raw_path,
        query=scope.get("query_string", b""),
        headers=list(scope["headers"]),
        body=body,
        session=place.session,
        tenant=caller.one_tenant,
        log_fields=scope.setdefault(LOG_FIELDS_KEY, {}),
        dialect=dialect,
    )
    if any(name == b"content-encoding" for name, _ in incoming.headers):
        incoming = await _decode_request(services, incoming, share.reserve)
    if place.path.startswith(BEDROCK_PREFIX) and not incoming.unmanaged_reason:
        incoming = bedrock_stream.read_request(incoming, place.path)
    return incoming


async def _decode_request(services: Services, incoming: Incoming, on_bytes: Callable[[int], None]) -> Incoming:
    """Return the request with its body decompressed. on_bytes: called with the number of decompressed bytes."""
    applied, limit = read_codings(incoming.headers), services.settings.limits.managed_mb << 20
    if not applied:
        return incoming
    work = partial(decode_body, incoming.body, applied, limit)
    try:
        # Some kilobytes may stand for megabytes, and zlib lets other threads run meanwhile.
        body = await asyncio.get_running_loop().run_in_executor(services.workers, work)
    except NotDecodedError:
        return replace(incoming, unmanaged_reason="encoding")
    on_bytes(len(body))
    headers = [
        (name, value) for name, value in incoming.headers if name not in (b"content-encoding", b"content-length")
    ]
    return replace(incoming, headers=headers, body=body, encoded=(incoming.headers, incoming.body))
