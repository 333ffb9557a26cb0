"""Error answers in the shape of the client's dialect, OpenAI's by default; an answer that has begun is broken off.

Once the first byte is sent, only a visible break is honest. The connection is closed in the middle of its chunked body
or short of its Content-Length. No client then takes a part for the whole.
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
    TooSlow,
    Unauthorized,
    Unavailable,
)
from proxy.exchange.dialect import DIALECTS
from proxy.metrics import Metrics
from proxy.web.asgi import App, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

DIALECT_KEY: Final = "context_proxy.dialect"
"""Key of the scope for the name of the wire format that the client speaks."""
LINGER_S: Final = 2.0
"""Seconds for which a request that is too large is read and discarded after it was refused."""


def render_error(error: ProxyError, *, separate_hint: bool = False) -> bytes:
    """Return the error's body; also the text after `data: ` if a stream breaks. separate_hint: the hint goes into its
    own field, as in the admin API. OpenAI's clients show the message alone."""
    fields = {"message": str(error), "type": error.type, "param": None, "code": error.code}
    if separate_hint:
        fields = {"message": error.message, "type": error.type, "code": error.code, "hint": error.hint}
    return json.dumps({"error": fields}).encode()


def build_error_headers(error: ProxyError, length: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that is this error. length: bytes of its body.

    A request that would fail again in the same way gets `x-should-retry: false`, which the SDKs obey. Errors for an
    unreachable upstream, a busy proxy or a slow connection do not carry it: clients retry after a lost connection, and
    may continue to do so."""
    out = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
    if isinstance(error, Unauthorized):
        out.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, Unavailable | TooMany):
        out.append((b"retry-after", b"1"))
    elif isinstance(error, RequestError) and not isinstance(error, TooSlow):
        out.append((b"x-should-retry", b"false"))
    return out


async def send_error(
    send: Send,
    error: ProxyError,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    receive: Receive | None = None,
    separate_hint: bool = False,
    dialect: str = "",
) -> None:
    """Send a whole answer that is this error. `headers` come after its own. dialect: the name of the client's wire
    format; "" for a path that calls no model.

    With `receive`, a client that is still sending a body that is too large can read the reason before the
    connection is closed."""
    make_body = DIALECTS[dialect].answers.make_error_body if dialect else None
    if make_body is not None:
        body = make_body(str(error), error.code, error.status)
    else:
        body = render_error(error, separate_hint=separate_hint)
    out = build_error_headers(error, len(body))
    closing = isinstance(error, TooLarge | HeadersTooLarge)
    if closing:
        out.append((b"connection", b"close"))  # or the rest of the body would have to be read
    await send({"type": "http.response.start", "status": error.status, "headers": [*out, *headers]})
    if closing and receive is not None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await _discard_body(receive)
        body = b""
    await send({"type": "http.response.body", "body": body})


async def _discard_body(receive: Receive) -> None:
    """Read and discard a body's rest: a close with bytes unread resets, past the answer (RFC 9112 9.6)."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            message = await receive()
            while message["type"] != "http.disconnect" and message.get("more_body", False):
                message = await receive()


def convert_error(error: BaseException) -> ProxyError:
    """Return the error with which `answer_errors` answers this one. That of a client that has left is not sent."""
    if isinstance(error, ProxyError):
        return error
    if isinstance(error, asyncio.CancelledError):  # only by the server, when it stops and no longer waits
        return Unavailable("the proxy is stopping", hint="Try again in a moment.")
    return ProxyError("the proxy failed; this is a mistake in it", hint="Its log says where.")


def answer_errors(app: App, metrics: Metrics) -> App:
    """Return the outermost layer: every error that comes out of `app` is answered, or ends the connection.

    An error of another type is a fault of the proxy: it is counted, logged with its place, and answered as a plain 500.
    """

    async def answer_error(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        begun = False

        def note_status(message: Message) -> Awaitable[None]:
            nonlocal begun
            begun = True
            return send(message)

        try:
            await app(scope, receive, note_status)
        except ClientGone:
            metrics.client_gone_total.inc()
        except asyncio.CancelledError as error:
            if not begun:
                await send_error(send, convert_error(error))
        except Exception as error:  # the last resort: no code above this could tell the client anything
            if not isinstance(error, ProxyError):
                metrics.internal_errors_total.labels(where="web").inc()
                log.exception("a request failed through a mistake of the proxy's own")
            answered = convert_error(error)
            if not begun:
                await send_error(send, answered, receive=receive, dialect=scope.get(DIALECT_KEY, ""))
                return
            # Returning with the answer unfinished makes the server close the connection: a visible truncation.
            log.warning("an answer was broken off: %s", answered)

    return answer_error
