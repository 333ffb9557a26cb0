"""ASGI: reads the request body, detects a client disconnect while a handler runs, and logs each request.

ASGI reports a disconnect only to code that waits for it. A task must therefore always wait, from before the upstream is
contacted to the last byte: it listens while another task works. The proxy's own connections (`server.py`) report a
disconnect by themselves (`Disconnect`), which saves both tasks.

A half-closed connection counts as left: the server closes its side as well, so an answer could not be delivered. Work
is cancelled once and then awaited; a second cancellation would hit its clean-up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, MutableMapping
from functools import partial
from types import coroutine
from typing import Any, Final, TypeVar

from proxy.errors import ClientGone, TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")

DISCONNECT_KEY: Final = "context.disconnect"
"""Key of the scope for the Disconnect of a connection of the proxy."""
HOLD_HEAD_KEY: Final = "context.hold_head"
"""Key of the scope, on a connection of the proxy: makes the HeldHead of the answer."""
MAX_JOINED_BYTES: Final = 64 * 1024
"""Bytes of a body up to which it is copied after its head: the copy costs less than a second system call."""
MAX_WAITING_BYTES: Final = 256 * 1024
"""Bytes of a request body that may wait for the upstream to take them."""

log = logging.getLogger("proxy.requests")
LOG_FIELDS_KEY: Final = "context.log_fields"
"""Key of a request's scope for the fields of the request log that the exchange fills in."""
MAX_PATH_CHARS: Final = 200
"""Characters of a path that are logged, or named in a header."""
QUIET_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
CLIENT_GONE_STATUS: Final = 499
"""The status of a request whose client left before the answer began."""


class HeldHead:
    """The transport of an answer while its head is held. The head is written with the first part of the body, in one
    system call and mostly one packet. cycle: uvicorn's, of the answer."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._transport: asyncio.Transport = cycle.transport
        self._head = b""
        cycle.transport = self

    def write(self, data: bytes) -> None:
        """Hold the first write, which is the head. Write it with the second one."""
        if not self._head:
            self._head = data
        elif len(data) <= MAX_JOINED_BYTES:
            data, self._head = self._head + data, b""
            self.release()
            self._transport.write(data)
        else:
            self.release()
            self._transport.write(data)

    def release(self) -> None:
        """Give the transport back to the answer. A head that is still held is written."""
        self._cycle.transport = self._transport
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def is_closing(self) -> bool:
        """True if the connection is being closed."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection after the head."""
        self.release()
        self._transport.close()


class Disconnect:
    """A client's disconnect, reported by its connection."""

    __slots__ = ("_left", "_task")

    def __init__(self) -> None:
        self._left = False
        self._task: asyncio.Task[Any] | None = None

    def report_left(self) -> None:
        """Record that the client has left, and cancel the work. Only the first call counts."""
        if not self._left and self._task is not None:
            self._task.cancel()
        self._left = True

    def has_left(self) -> bool:
        """True if the disconnect was reported."""
        return self._left

    async def run_until_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, done in the calling task. Raises ClientGone as `run_while_connected` does."""
        if self.has_left():
            work.close()
            raise ClientGone("the client has left")
        task = self._task = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError as error:
            if task is None or not self.has_left():
                raise  # the server cancels this request (shutdown)
            task.uncancel()
            raise ClientGone("the client has left") from error
        finally:
            self._task = None


async def run_while_connected(scope: Scope, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raises ClientGone once it has ended after the client left.

    No other code may call `receive` meanwhile; further bytes of a request body are dropped (`Upload` keeps them). If
    the work has ended when the client leaves, its own result counts.
    """
    disconnect: Disconnect | None = scope.get(DISCONNECT_KEY)
    if disconnect is not None:
        return await disconnect.run_until_disconnect(work)
    return await _run_until_disconnect(_wait_for_disconnect(receive), work)


async def read_body(
    receive: Receive,
    limit: int,
    declared: int | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Return the whole request body. Raises TooLarge if it has over `limit` bytes, or declares so
    (`read_content_length`), before the rest is read. on_bytes: called with the size of each part before the part is
    kept; an error from it ends the reading."""
    if declared is not None and declared > limit:
        raise TooLarge(f"the request body is {declared} bytes long; {limit} are allowed", hint="See limits.body_mb.")
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more:
        message = await receive()
        parts.append(_read_piece(message))
        size += len(parts[-1])
        on_bytes(len(parts[-1]))
        if size > limit:
            raise TooLarge(f"the request body is over {limit} bytes", hint="See limits.body_mb.")
        has_more = message.get("more_body", False)
    return b"".join(parts)


def read_content_length(scope: Scope) -> int | None:
    """Return the value of Content-Length; None if there is none or it is not a number."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


def has_body(scope: Scope) -> bool:
    """True if the request announces a body (RFC 9112 6: by one of these two headers, never by its method)."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


class Upload:
    """A request body that is passed on piece by piece. The client's disconnect is still noticed.

    Receiving runs ahead of the reading, but at most by MAX_WAITING_BYTES bytes. Then it stops, and so does the client
    (back-pressure).
    """

    def __init__(self, receive: Receive, disconnect: Disconnect | None = None) -> None:
        self._receive = receive
        self._disconnect = disconnect
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._is_complete = False
        self._changed = asyncio.Event()

    async def read_pieces(self) -> AsyncIterator[bytes]:
        """Yield the body's pieces. Use it only while `run_while_connected` is running."""
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._size -= len(part)
                self._changed.set()
                if part:
                    yield part
            if self._is_complete:
                return
            self._changed.clear()
            await self._changed.wait()

    async def run_while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, which reads `read_pieces`, until it ends or the client leaves. Raises ClientGone."""
        if self._disconnect is None:
            return await _run_until_disconnect(self._read_body(), work)
        if self._disconnect.has_left():
            work.close()
            raise ClientGone("the client has left")
        # The receiving task may wait for the upstream to take data, so the proxy's own connection reports the
        # disconnect.
        return await self._disconnect.run_until_disconnect(_run_until_disconnect(self._read_body(), work))

    async def _read_body(self) -> None:
        while not self._is_complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            part = message.get("body", b"")
            self._parts.append(part)
            self._size += len(part)
            self._is_complete = not message.get("more_body", False)
            self._changed.set()
            while self._size > MAX_WAITING_BYTES:
                self._changed.clear()
                await self._changed.wait()
        await _wait_for_disconnect(self._receive)


def with_write_timeout(send: Send, seconds: float) -> Send:
    """Return a `send` that treats a client as gone if it takes nothing for `seconds`: a full socket must not block the
    proxy. Then it raises ClientGone."""

    async def send_in_time(message: Message) -> None:
        sending = send(message).__await__()
        try:
            waiting = next(sending)
        except StopIteration:
            return  # taken at once, as nearly always: then no timeout is needed
        try:
            async with asyncio.timeout(seconds):
                await _resume_coroutine(sending, waiting)
        except TimeoutError as error:
            raise ClientGone(f"the client took nothing for {seconds:g} s") from error

    return send_in_time


async def send_json(send: Send, body: bytes, headers: Iterable[tuple[bytes, bytes]], seconds: float) -> None:
    """Send a whole JSON answer with status 200. Raises ClientGone as `with_write_timeout` does."""
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    send = with_write_timeout(send, seconds)
    await send({"type": "http.response.start", "status": 200, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


@coroutine
def _resume_coroutine(work: Generator[Any, Any, T], waiting: Any) -> Generator[Any, Any, T]:
    """Run the rest of a coroutine that already ran to its first wait. waiting: the future that it waits for."""
    while True:
        try:
            got = yield waiting
        except BaseException as error:  # noqa: BLE001  # a cancellation, which the work must receive
            step = partial(work.throw, error)
        else:
            step = partial(work.send, got)
        try:
            waiting = step()
        except StopIteration as end:
            result: T = end.value
            return result


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return once the client has left. Any other message is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _run_until_disconnect(disconnect: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Cancel `work` once `disconnect` ends, and raise ClientGone."""
    loop = asyncio.get_running_loop()
    work_task = loop.create_task(work)
    disconnect_task = loop.create_task(disconnect)
    is_cancelled = False
    try:
        await asyncio.wait((work_task, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done():
            is_cancelled = work_task.cancel()
            await asyncio.wait((work_task,))
    except asyncio.CancelledError:
        # The server cancels this request (shutdown). A second cancellation would hit the clean-up of the work.
        if not is_cancelled and not work_task.done():
            work_task.cancel()
        await _wait_for_end(work_task)
        raise
    finally:
        disconnect_task.cancel()
    if work_task.cancelled() and is_cancelled:
        raise ClientGone("the client has left")
    return work_task.result()


async def _wait_for_end(task: asyncio.Task[Any]) -> None:
    """Wait for a cancelled task, however often the caller is cancelled meanwhile."""
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()  # retrieved, because no other code will ask for it


def _read_piece(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone("the client left before its request was complete")
    body: bytes = message.get("body", b"")
    return body


def log_requests(app: App) -> App:
    """Return the outermost layer: the request log, one line for each request that `app` has answered.

    The line holds the method, the path without its query, the status and the milliseconds. For a managed request it
    also holds the session, the policy, the upstream, the prompt's tokens before and after, and the cached tokens. It
    never holds a header, a body, a query or an error's text, because these may contain credentials and messages.

    The exchange writes its fields into the scope; this layer adds those of the connection. Probes are logged at
    debug level, because they come every few seconds.
    """

    async def log_request(scope: Scope, receive: Receive, send: Send) -> None:
        level = logging.DEBUG if scope.get("path") in QUIET_PATHS else logging.INFO
        if scope["type"] != "http" or not log.isEnabledFor(level):
            await app(scope, receive, send)
            return
        began = time.perf_counter()
        fields: dict[str, Any] = {}
        scope[LOG_FIELDS_KEY] = fields
        status, is_complete = CLIENT_GONE_STATUS, False

        def note_status(message: Message) -> Awaitable[None]:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                is_complete = not message.get("more_body", False)
            return send(message)

        try:
            await app(scope, receive, note_status)
        finally:
            line = {"method": scope["method"], "path": render_path(scope), "status": status, **fields}
            if not is_complete:
                line["broken_off"] = True
            line["ms"] = round((time.perf_counter() - began) * 1000, 1)
            log.log(level, "request", extra=line)

    return log_request


def render_path(scope: Scope) -> str:
    """Return the path as received, without its query; cut, and without control characters."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode("utf-8", "surrogateescape")
    text = raw.partition(b"?")[0].decode("ascii", "replace")[:MAX_PATH_CHARS]
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
