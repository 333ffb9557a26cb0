"""A WebSocket to an upstream, with the upstream's own address, key, authorities and outbound proxy.

It needs the package `websockets`, which the extra `websocket` brings: without it no client's handshake comes this far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.datastructures import Headers as WireHeaders
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode
from websockets.http11 import USER_AGENT
from websockets.typing import Subprotocol

from proxy.errors import BadRequest, UpstreamTimeout, UpstreamUnreachable
from proxy.settings.model import DEMO
from proxy.upstream.headers import (
    Headers,
    build_request_headers,
    build_response_headers,
    list_key_encodings,
    remove_overrides,
)
from proxy.upstream.transport import (
    HAPPY_EYEBALLS_DELAY_S,
    Address,
    Target,
    create_client_context,
    find_key_header,
    parse_address,
)

PING_S: Final = 20.0
"""Seconds between two pings, and for the answer to one."""
CLOSE_S: Final = 5.0
"""Seconds for the upstream's part of a close."""
MAX_WAITING: Final = 4
"""Frames of the upstream that may wait for a slow client; then no more are read."""
CREDENTIAL_SUBPROTOCOLS: Final = ("openai-insecure-api-key.", "openai-organization.", "openai-project.")
"""Beginnings of the subprotocols in which a browser sends a key and its account. With a key of the operator they would
choose where that key is used."""
_PASSED_ON: Final = (401, 403, 429)
"""Statuses of a refused handshake that say something of the client's key or of its rate."""
_SENDABLE: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})
_ABNORMAL: Final = int(CloseCode.INTERNAL_ERROR)


@dataclass(frozen=True, slots=True)
class Closed(Exception):  # the end of a connection is no error
    """The upstream has closed the connection, with this code and reason."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class HandshakeRefused(Exception):  # an answer, which may go on to the client
    """The upstream has answered a handshake with something else than WebSocket."""

    status: int
    headers: Headers
    body: bytes

    @property
    def is_final(self) -> bool:
        """True if the client has to see this answer: over HTTP it would be the same."""
        return self.status in _PASSED_ON


class _Connect(connect):
    """A connection that follows no redirect: it would take a key to another place."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class UpstreamWebSocket:
    """An open connection. The operator's key never leaves it towards the client."""

    def __init__(self, connection: ClientConnection, key: str | None) -> None:
        self._connection = connection
        self._key = key
        self._forms = () if key is None else list_key_encodings(key)
        self._text_forms = tuple(form.decode() for form in self._forms)

    @property
    def subprotocol(self) -> str | None:
        """The subprotocol that the upstream has chosen."""
        return self._connection.subprotocol

    @property
    def headers(self) -> Headers:
        """The headers of the upstream's handshake that the client may see."""
        response = self._connection.response
        raw = [] if response is None else list(response.headers.raw_items())
        return _build_headers(raw, self._key)

    async def receive(self) -> str | bytes:
        """The next message. Raises Closed."""
        try:
            message = await self._connection.recv()
        except ConnectionClosed as closed:
            received = closed.rcvd
            code, reason = (received.code, received.reason) if received is not None else (_ABNORMAL, "")
            raise Closed(code if is_sendable(code) else 1000, self._hide_key(reason)) from closed
        return self._hide_key(message) if isinstance(message, str) else message

    def _hide_key(self, text: str) -> str:
        for form in self._text_forms:
            if form in text:
                text = text.replace(form, "*" * len(form))
        return text

    async def send(self, message: str | bytes) -> None:
        """Send a message. Waits while the upstream is slow. Raises Closed."""
        try:
            await self._connection.send(message)
        except ConnectionClosed as closed:
            raise Closed(_ABNORMAL, "") from closed

    async def close(self, code: int, reason: str) -> None:
        """Close the connection, for the reason that the client has given."""
        reason = reason.encode()[:123].decode("utf-8", "ignore")
        await self._connection.close(code if is_sendable(code) else 1001, reason)


def is_sendable(code: int) -> bool:
    """True if a close frame may carry this code. Others only report how a connection ended."""
    return code in _SENDABLE or 3000 <= code <= 4999


async def open_websocket(
    target: Target,
    path: str,
    query: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    subprotocols: Sequence[str],
    *,
    connect_s: float,
    most_bytes: int,
) -> UpstreamWebSocket:
    """Open a WebSocket to a target. path: percent-encoded, as received. most_bytes: of one message.

    Raises HandshakeRefused, BadRequest, UpstreamTimeout and UpstreamUnreachable.
    """
    if target.base_url == DEMO or target.auth:  # a handshake is not signed, and AWS's models have no WebSocket
        raise HandshakeRefused(404, [], b"")
    address = parse_address(target)
    scheme = "wss" if address.scheme == b"https" else "ws"
    query = query if target.key is None else remove_overrides(query)
    place = address.host_header.decode() + address.request_target(path, query).decode()
    offered = [one for one in subprotocols if target.key is None or not one.startswith(CREDENTIAL_SUBPROTOCOLS)]
    options: dict[str, Any] = {"ssl": create_client_context(target)} if scheme == "wss" else {}
    if not target.proxy:
        options["happy_eyeballs_delay"] = HAPPY_EYEBALLS_DELAY_S
    try:
        connection = await _Connect(
            f"{scheme}://{place}",
            additional_headers=WireHeaders(_read_headers(headers, target, address, path)),
            user_agent_header=None,
            subprotocols=[Subprotocol(one) for one in offered] or None,
            compression=None,
            proxy=target.proxy or None,
            open_timeout=connect_s,
            close_timeout=CLOSE_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            max_size=most_bytes,
            max_queue=MAX_WAITING,
            **options,
        )
    except InvalidStatus as refused:
        response = refused.response
        found = _build_headers(list(response.headers.raw_items()), target.key)
        raise HandshakeRefused(
            response.status_code, found, _redact_key(bytes(response.body or b""), target.key)
        ) from refused
    except TimeoutError as problem:
        raise UpstreamTimeout(f"upstream {target.name!r} did not answer a WebSocket handshake in time") from problem
    except (InvalidURI, UnicodeError) as problem:
        raise BadRequest("the path cannot be passed on") from problem
    except InvalidHandshake as problem:
        raise HandshakeRefused(502, [], b"") from problem
    except (OSError, EOFError) as problem:
        raise UpstreamUnreachable(f"upstream {target.name!r} cannot be reached: {type(problem).__name__}") from problem
    return UpstreamWebSocket(connection, target.key)


def _read_headers(
    headers: Iterable[tuple[bytes, bytes]], target: Target, address: Address, path: str
) -> list[tuple[str, str]]:
    """The client's headers as the upstream gets them; those of the handshake itself are made again."""
    kept = [(name, value) for name, value in headers if not name.lower().startswith(b"sec-websocket-")]
    key_header = find_key_header(target, address, path)
    request_headers = build_request_headers(kept, host=address.host_header, key=target.key, key_header=key_header)
    if not any(name == b"user-agent" for name, _ in request_headers):
        request_headers.append((b"user-agent", USER_AGENT.encode()))
    left_out = (b"host", b"content-type", b"accept-encoding")
    return [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in request_headers if name not in left_out
    ]


def _build_headers(raw: Iterable[tuple[str, str]], key: str | None) -> Headers:
    received = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in raw]
    kept = build_response_headers(received, key)
    return [(name, value) for name, value in kept if not name.startswith(b"sec-websocket-")]


def _redact_key(body: bytes, key: str | None) -> bytes:
    for form in () if key is None else list_key_encodings(key):
        body = body.replace(form, b"*" * len(form))
    return body
