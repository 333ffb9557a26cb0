"""Answers of the admin API in pieces, within the memory for bodies.

A view of a whole prompt may have 40 MB, and a client that takes it slowly keeps it in memory. So it counts there like a
body that comes slowly. Without room it is refused, and after some seconds it gives way to others.
"""

from __future__ import annotations

from typing import Final

from proxy.errors import ClientGone, ProxyError, Unavailable
from proxy.web.asgi import MAX_JOINED_BYTES, Message, Send, with_write_timeout
from proxy.web.error_responses import send_error
from proxy.web.limits import BodyShare

PIECE_BYTES: Final = 256 * 1024
"""Bytes that are handed to a connection at a time: it copies what the client has not taken."""


class AnswerPieces:
    """The way back to one client. An answer that has begun and finds no room breaks off; any other one gets 503."""

    def __init__(self, send: Send, share: BodyShare, seconds: float) -> None:
        """seconds: the longest time for which the client may take nothing."""
        self._send = with_write_timeout(send, seconds)
        self._share = share
        self._reserved = 0
        self._is_refused = False

    async def __call__(self, message: Message) -> None:
        """Send one part of the answer. Raises ClientGone."""
        if self._is_refused:
            return
        if message["type"] == "http.response.start":
            declared = next((value for name, value in message["headers"] if name == b"content-length"), b"0")
            try:
                self._reserve(int(declared))
            except Unavailable as problem:
                self._is_refused = True
                await self._refuse(problem)
                return
        body: bytes = message.get("body", b"")
        if len(body) <= PIECE_BYTES:
            await self._send(message)
            return
        try:
            self._reserve(len(body))
            await self._share.give_way_during(self._send_pieces(body, more=message.get("more_body", False)))
        except Unavailable as problem:
            raise ClientGone(f"an answer of {len(body)} bytes broke off: {problem.message}") from problem

    def _reserve(self, size: int) -> None:
        """Reserve room for a part of so many bytes. Raises Unavailable."""
        if size > max(self._reserved, MAX_JOINED_BYTES):
            self._share.reserve(size - self._reserved)
            self._reserved = size

    async def _refuse(self, problem: ProxyError) -> None:
        await send_error(self._send, problem, separate_hint=True)

    async def _send_pieces(self, body: bytes, *, more: bool) -> None:
        for start in range(0, len(body), PIECE_BYTES):
            end = start + PIECE_BYTES
            is_last = end >= len(body) and not more
            await self._send({"type": "http.response.body", "body": body[start:end], "more_body": not is_last})
