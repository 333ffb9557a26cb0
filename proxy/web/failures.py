"""Tells the client what went wrong, in OpenAI's shape; and where an answer has begun, breaks it off.

Once the first byte is out there is nothing honest left but an end that looks like one: the connection is closed in
the middle of its chunked body or short of its Content-Length, so that no client takes a part for the whole.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Final

from proxy.errors import (
    ClientGone,
    HeadersTooLarge,
    ProxyError,
    RequestError,
    TooLarge,
    TooMany,
    Unauthorized,
    Unavailable,
)
from proxy.metrics import Metrics
from proxy.web.listen import App, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

LINGER_S: Final = 2.0
"""How long a request that is too large is read on and thrown away after it has been refused."""


def render(error: ProxyError, *, apart: bool = False) -> bytes:
    """The error's body; also what goes after `data: ` where a stream breaks. apart: what to do about it in a field of
    its own, as the admin API has it; OpenAI's clients show the message alone."""
    told = {"message": str(error), "type": error.type, "param": None, "code": error.code}
    if apart:
        told = {"message": error.message, "type": error.type, "code": error.code, "hint": error.hint}
    return json.dumps({"error": told}).encode()


async def send_error(
    send: Send,
    error: ProxyError,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    receive: Receive | None = None,
    apart: bool = False,
) -> None:
    """A whole answer that is this error. `headers` come after its own.

    What would fail in the same way again says so (`x-should-retry: false`, which the SDKs obey). An upstream that was
    away, and ourselves when we are busy, do not: clients retry a lost connection, and must not lose that through us.
    With `receive` a client in the middle of what is too large gets to read why, before the connection is closed.
    """
    body = render(error, apart=apart)
    out = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if isinstance(error, Unauthorized):
        out.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, Unavailable | TooMany):
        out.append((b"retry-after", b"1"))
    elif isinstance(error, RequestError):
        out.append((b"x-should-retry", b"false"))
    closing = isinstance(error, TooLarge | HeadersTooLarge)
    if closing:
        out.append((b"connection", b"close"))  # or the rest of it would have to be read
    await send({"type": "http.response.start", "status": error.status, "headers": [*out, *headers]})
    if closing and receive is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await _linger(receive)
        body = b""
    await send({"type": "http.response.body", "body": body})


async def _linger(receive: Receive) -> None:
    """Closing with bytes unread makes the kernel send a reset, which can overtake the answer (RFC 9112 9.6)."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            message = await receive()
            while message["type"] != "http.disconnect" and message.get("more_body", False):
                message = await receive()


def answering(app: App, metrics: Metrics) -> App:
    """The outermost layer: every error that comes out of `app` is told, or ends the connection.

    An error that is not ours is a mistake of ours: counted, logged with where it happened, told as a plain 500.
    """

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        begun = False

        def send_noting(message: Message) -> Awaitable[None]:
            nonlocal begun
            begun = True
            return send(message)

        try:
            await app(scope, receive, send_noting)
        except ClientGone:
            metrics.client_gone_total.inc()
        except asyncio.CancelledError:  # only by the server, when it stops and waits no longer
            if not begun:
                await send_error(send, Unavailable("the proxy is stopping", hint="Try again in a moment."))
        except Exception as error:  # the last resort: nothing above this could tell the client anything
            if not isinstance(error, ProxyError):
                metrics.swallowed_total.labels(where="web").inc()
                log.exception("a request failed through a mistake of the proxy's own")
                error = ProxyError("the proxy failed; this is a mistake in it", hint="Its log says where.")
            if not begun:
                await send_error(send, error, receive=receive)
                return
            # Returning with the answer unfinished makes the server close the connection: truncation, to be seen.
            log.warning("an answer was broken off: %s", error)

    return answered
