"""Chat requests: from ASGI to an exchange and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from proxy.exchange.converse import converse
from proxy.exchange.parts import Headers, Incoming, Parts
from proxy.web.body_budget import BodyShare
from proxy.web.content_encoding import NotDecodedError, codings, decode
from proxy.web.gate import CALLER
from proxy.web.keys import Caller
from proxy.web.listen import Receive, Scope, Send, declared_length, patient, read_body, while_connected
from proxy.web.request_log import FACTS


class Answer:
    """The answer to one client, sent over ASGI."""

    __slots__ = ("_send",)

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        await self._send({"type": "http.response.body", "body": data})

    async def abort(self) -> None:
        """Send nothing more: the server closes a connection whose answer was left unfinished."""


async def chat(
    scope: Scope,
    receive: Receive,
    send: Send,
    parts: Parts,
    path: str,
    session: str | None,
    share: BodyShare,
) -> None:
    """Handle one chat request. path: the path for upstream, percent-encoded. session: the session that the path names.
    share: the part of the body budget that this request holds."""
    caller: Caller = scope[CALLER]  # set by the gate; without it the request fails
    limit = parts.settings.limits.body_mb << 20
    body = await share.whole(read_body(receive, limit, declared_length(scope), share.add))
    incoming = Incoming(
        method=scope["method"],
        path=path,
        query=scope.get("query_string", b""),
        headers=list(scope["headers"]),
        body=body,
        session=session,
        tenant=caller.one_tenant,
        facts=scope.setdefault(FACTS, {}),
    )
    if any(name == b"content-encoding" for name, _ in incoming.headers):
        incoming = await _decoded(parts, incoming, share.add)
    answer = Answer(patient(send, parts.settings.timeouts.idle_s))
    await while_connected(scope, receive, converse(parts, incoming, answer))


async def _decoded(parts: Parts, incoming: Incoming, held: Callable[[int], None]) -> Incoming:
    """Return the request with its body decompressed. held: called with the number of decompressed bytes."""
    applied, limit = codings(incoming.headers), parts.settings.limits.managed_mb << 20
    if not applied:
        return incoming
    work = partial(decode, incoming.body, applied, limit)
    try:
        # Some kilobytes may stand for megabytes, and zlib lets other threads run meanwhile.
        body = await asyncio.get_running_loop().run_in_executor(parts.workers, work)
    except NotDecodedError:
        return replace(incoming, unmanaged="encoding")
    held(len(body))
    headers = [
        (name, value) for name, value in incoming.headers if name not in (b"content-encoding", b"content-length")
    ]
    return replace(incoming, headers=headers, body=body, encoded=(incoming.headers, incoming.body))
