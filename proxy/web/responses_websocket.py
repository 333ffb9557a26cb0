"""`/v1/responses` over WebSocket: each `response.create` frame is a request, and the events of its answer are frames.

The handshake has the requirements of a request: a key, an allowed origin. A frame then goes through the whole
application as a request over HTTP, with the headers of the handshake. Limits, planning, answer, log and counters are
the same. One response is made at a time in each lane of a connection; a client that leaves ends them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from proxy.dialects.responses import frames
from proxy.dialects.responses.frames import AnswerItems, Carried, CreateFrame
from proxy.errors import ClientGone, Unavailable
from proxy.exchange.services import TURN_BYTES
from proxy.sessions.locate import decode_headers
from proxy.stream.responses_echo import ResponseEcho
from proxy.stream.sse import SseEvent, SseParser, begins_stream
from proxy.upstream.client import SUCCESS_STATUSES, is_event_stream
from proxy.web.asgi import DISCONNECT_KEY, App, Disconnect, Message, Receive, Scope, Send
from proxy.web.auth import CALLER_KEY, Caller
from proxy.web.limits import BodyShare

SOCKET_PATHS: Final = ("/v1/responses", "/responses")
LIFE_S: Final = 3600.0
"""Seconds after which a connection is closed between two responses, as OpenAI does; the client connects again."""
BUSY_KEY: Final = "context.is_answering"
"""Key of a socket's scope: True while a response is made, so that a server that stops waits for it."""
MAX_ERROR_BYTES: Final = 1 << 20
MAX_BODY_BYTES: Final = 16 << 20
"""Bytes of a response in one body, which is held until it is whole. A longer one becomes an error."""
TOO_LONG_STATUS: Final = 502
TOO_LONG_TEXT: Final = b"The upstream's answer in one body is too long for a frame."
MAX_WAITING_FRAMES: Final = 2
"""Frames that may wait in a lane while a response is made."""
MAX_LANES: Final = 32
"""Lanes that a connection may have. A client has one, or one for each of its agents."""
_HANDSHAKE_HEADERS: Final = (b"connection", b"upgrade", b"content-length", b"content-type", b"accept")
_TOLD_HEADERS: Final = ("retry-after", "x-should-retry", "x-request-id")
"""Headers of an error that its frame has too."""
_POLICY_VIOLATION, _RESTART, _INTERNAL = 1008, 1012, 1011
TRY_AGAIN_LATER: Final = 1013
"""The code with which a connection ends for whose frame there is no room."""


class CarriedHistories:
    """The items that went over each lane of each open connection, within a bound for all of them.

    The oldest are forgotten first. The client then gets an error, and sends its history again."""

    __slots__ = ("_held", "_most", "size")

    def __init__(self, most: int) -> None:
        """Start empty. most: bytes of all histories."""
        self._most = most
        self._held: OrderedDict[object, Carried] = OrderedDict()
        self.size = 0

    def get(self, lane: object) -> Carried:
        """The items of a lane; none if they were forgotten."""
        return self._held.get(lane, Carried())

    def put(self, lane: object, carried: Carried) -> None:
        """Keep the items of a lane, in place of those before."""
        self.remove(lane)
        self._held[lane] = carried
        self.size += len(carried.items)
        while self.size > self._most:
            self.remove(next(iter(self._held)))

    def remove(self, lane: object) -> None:
        """Forget a lane. It may be called again."""
        gone = self._held.pop(lane, None)
        if gone is not None:
            self.size -= len(gone.items)


async def admit_handshake(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer a handshake that the access check has let in. The answer is for `ResponseSocket`."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def make_http_scope(scope: Scope, more: Iterable[tuple[bytes, bytes]] = (), method: str = "POST") -> Scope:
    """The scope of a request over HTTP with a handshake's path and headers. more: headers that replace these."""
    own = dict(more)
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name not in _HANDSHAKE_HEADERS
        and name not in own
        and not name.startswith(b"sec-websocket-")
        and not (name == b"openai-beta" and value.startswith(b"responses_websockets"))
    ]
    if method == "POST":
        kept += [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
    kept += own.items()
    copied = ("asgi", "http_version", "server", "client", "root_path", "path", "raw_path", "query_string")
    scheme = "https" if scope["scheme"] == "wss" else "http"
    made = {name: scope[name] for name in copied if name in scope}
    return {**made, "type": "http", "method": method, "scheme": scheme, "headers": kept}


async def receive_empty_body() -> Message:
    """The `receive` of such a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


class _Lane:
    """Frames that are answered one after the other: those of a connection that name the same `stream_id`, or none."""

    __slots__ = ("disconnect", "frames", "name", "task")

    def __init__(self, name: bytes) -> None:
        """Start without a frame. name: the `stream_id` as JSON; b"" for the frames that have none."""
        self.name = name
        self.frames: asyncio.Queue[tuple[bytes, BodyShare] | None] = asyncio.Queue()
        """Frames that wait, with their shares of the budget; None: the connection ends."""
        self.disconnect = Disconnect()
        self.task: asyncio.Task[None]

    def free_frames(self) -> None:
        """Drop the frames that wait."""
        while not self.frames.empty():
            if (waiting := self.frames.get_nowait()) is not None:
                waiting[1].free()


class ResponseSocket:
    """One connection. app: the whole application. admit: the part of it that lets a request in, and answers 204."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        app: App,
        admit: App,
        histories: CarriedHistories,
        share_body: Callable[[Caller], BodyShare],
        max_values: int,
        is_draining: Callable[[], bool],
    ) -> None:
        """share_body: makes a share of the budget for bodies. max_values: limit on the JSON values in one frame."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._app = app
        self._admit = admit
        self._histories = histories
        self._share_body = share_body
        self._max_values = max_values
        self._caller: Caller
        self._is_draining = is_draining
        self._lanes: dict[bytes, _Lane] = {}
        self._busy = 0
        """Number of responses that are being made."""
        self._is_old = False
        self._ended = asyncio.Event()
        """Set once a lane answers no more frames: the connection ends then."""
        self._has_left = False
        self._has_closed = False

    async def serve(self) -> None:
        """Serve the connection until its end."""
        await self._receive()  # websocket.connect
        if not await self._accept_handshake():
            return
        life = asyncio.get_running_loop().call_later(LIFE_S, self._end_life)
        reading = asyncio.create_task(self._read_frames())
        try:
            await self._ended.wait()
            if self._has_closed:
                self._report_left()
            for lane in self._lanes.values():
                lane.frames.put_nowait(None)
            await asyncio.gather(*(lane.task for lane in self._lanes.values()))
        finally:
            life.cancel()
            reading.cancel()
            for lane in self._lanes.values():
                lane.task.cancel()
                lane.free_frames()
                self._histories.remove(lane)
        if not self._has_left:
            await self._close(_RESTART, "connect again")

    async def _accept_handshake(self) -> bool:
        """Let the client in, or refuse the handshake with the answer that a request would have."""
        answer, scope = _Answer(), make_http_scope(self._scope)
        await self._admit(scope, receive_empty_body, answer.take)
        if answer.status == 204:
            self._caller = scope[CALLER_KEY]
            await self._send({"type": "websocket.accept"})
            return True
        headers = [(name, value) for name, value in answer.headers if name != b"connection"]
        await self._send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
        return False

    def _end_life(self) -> None:
        """End the connection now, or once no response is made."""
        self._is_old = True
        if not self._busy:
            self._ended.set()

    def _report_left(self) -> None:
        self._has_left = True
        for lane in self._lanes.values():
            lane.disconnect.report_left()
        self._ended.set()

    # A frame may have megabytes, and the next one may come after an hour. So the bytes of a frame are in the variables
    # of functions that end with it.

    async def _read_frames(self) -> None:
        """Read frames, also while responses are made: a client that leaves is noticed then."""
        with suppress(ClientGone):
            while await self._queue_frame(await self._receive()):
                pass
        self._report_left()

    async def _queue_frame(self, message: Message) -> bool:
        """Let the frame of a message wait in its lane. Return False if the connection must end."""
        if message["type"] == "websocket.disconnect":
            return False
        text = message.get("text")
        frame = text.encode() if text is not None else message.get("bytes") or b""
        if (refusal := frames.refuse_steering(frame, self._max_values)) is not None:
            return await self._send_event(refusal)
        if frames.is_interruption(frame, self._max_values):
            return True  # the response goes on to its end, for which the client waits in either case
        lane = self._find_lane(frames.read_lane(frame, self._max_values))
        if lane is None or lane.frames.qsize() >= MAX_WAITING_FRAMES:
            await self._close(_POLICY_VIOLATION, "one response at a time" if lane else "too many lanes")
            return False
        share = self._share_body(self._caller)
        try:
            share.reserve(len(frame))
        except Unavailable as problem:
            await self._close(TRY_AGAIN_LATER, problem.message)
            return False
        lane.frames.put_nowait((frame, share))
        return True

    def _find_lane(self, name: bytes) -> _Lane | None:
        """Return the lane of this name, begun if it is new; None if there are too many."""
        lane = self._lanes.get(name)
        if lane is None and len(self._lanes) < MAX_LANES:
            lane = self._lanes[name] = _Lane(name)
            lane.task = asyncio.create_task(self._answer_frames(lane))
        return lane

    async def _answer_frames(self, lane: _Lane) -> None:
        try:
            while not (self._is_draining() or self._is_old) and await self._answer_frame(await lane.frames.get(), lane):
                pass
        except ClientGone:
            pass
        finally:
            self._ended.set()

    async def _answer_frame(self, waiting: tuple[bytes, BodyShare] | None, lane: _Lane) -> bool:
        """Answer one frame with its share; None if the connection ends. Return False if it must end."""
        if waiting is None:
            return False
        self._count_busy(1)
        try:
            frame = self._read_frame(*waiting)
            del waiting
            if isinstance(frame, bytes):
                return await self._send_event(frames.name_lane(frame, lane.name))
            return await self._answer_create(frame, lane)
        finally:
            self._count_busy(-1)

    def _count_busy(self, more: int) -> None:
        self._busy += more
        self._scope[BUSY_KEY] = self._busy > 0

    def _read_frame(self, raw: bytes, share: BodyShare) -> CreateFrame | bytes:
        """Return what a frame asks for, or the event that refuses it. share: freed, since the request has its own."""
        try:
            carried = [self._histories.get(lane) for lane in self._lanes.values()]
            return frames.read_create(raw, carried, self._max_values)
        except frames.UnknownResponse as unknown:
            return frames.make_unknown_response_frame(str(unknown))
        except (ValueError, RecursionError) as problem:
            return frames.make_error_frame(400, f"The frame cannot be read: {problem}".encode())
        finally:
            share.free()

    async def _answer_create(self, frame: CreateFrame, lane: _Lane) -> bool:
        if not frame.generates:
            name = f"resp_{uuid.uuid4().hex}"
            self._histories.put(lane, Carried(name, frame.items))
            events = frames.make_warm_up(name, frame.model, int(time.time()))
            return all([await self._send_event(frames.name_lane(event, lane.name)) for event in events])
        return await self._answer_request(frame, lane)

    async def _answer_request(self, frame: CreateFrame, lane: _Lane) -> bool:
        length = b"content-length", b"%d" % len(frame.body)
        scope = make_http_scope(self._scope, [*frame.headers, length])
        scope[DISCONNECT_KEY] = lane.disconnect
        unread = [frame.body]

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.Event().wait()  # the connection reports a client that leaves (`Disconnect`)
            raise AssertionError

        def tell(event: bytes) -> Awaitable[bool]:
            return self._send_event(frames.name_lane(event, lane.name))

        answer = _Answer(tell, {"previous_response_id": frame.completed} if frame.completed else {})
        await self._app(scope, receive, answer.take)
        if self._has_left:
            return False
        carried = answer.items.carry(frame)
        if carried is not None:
            self._histories.put(lane, carried)
        elif not answer.is_whole:
            await self._close(_INTERNAL, "the answer broke off")
            return False
        return True

    async def _send_event(self, event: bytes) -> bool:
        """Send one frame. Raises ClientGone."""
        if self._has_left:
            raise ClientGone("the client has left")
        try:
            await self._send({"type": "websocket.send", "text": event.decode("utf-8", "replace")})
        except OSError as problem:  # uvicorn's error for a client that has left
            raise ClientGone("the client has left") from problem
        return True

    async def _close(self, code: int, reason: str) -> None:
        if self._has_closed:
            return
        self._has_closed = True
        with suppress(OSError):  # as in `_send_event`
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


class _Answer:
    """The answer to a request over HTTP, sent as frames while it comes. Without `tell` it is kept."""

    def __init__(
        self, tell: Callable[[bytes], Any] | None = None, members: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.is_whole = False
        self.items = AnswerItems()
        self._send_event = tell
        self._echo = ResponseEcho(members, hides_tokens=False) if members else None
        """Names the response that the client's frame names: the request over HTTP has its items instead."""
        self._parser: SseParser | None = None

    async def take(self, message: Message) -> None:
        """Take in one message of the application."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
            self._parser = SseParser() if is_event_stream(self.status, self.headers) else None
            return
        self.is_whole = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        if self._parser is not None:
            await self._tell_stream(self._parser, data)
            return
        is_success = self.status in SUCCESS_STATUSES
        if len(self.body) <= (MAX_BODY_BYTES if is_success else MAX_ERROR_BYTES):
            self.body += data
        if self.is_whole and self._send_event is not None:
            if is_success and len(self.body) > MAX_BODY_BYTES:
                await self._send_event(frames.make_error_frame(TOO_LONG_STATUS, TOO_LONG_TEXT))
            elif is_success and begins_stream(self.body):  # under another media type
                await self._tell_stream(SseParser(), bytes(self.body))
            elif is_success:
                await self._tell_all(frames.make_events(bytes(self.body)))
            else:
                await self._send_event(
                    frames.make_error_frame(self.status, bytes(self.body), self._find_told_headers())
                )

    def _find_told_headers(self) -> Mapping[str, str]:
        found = decode_headers(self.headers)
        return {name: found[name] for name in _TOLD_HEADERS if name in found}

    async def _tell_stream(self, parser: SseParser, data: bytes) -> None:
        """Send the events that these bytes complete. Other requests get their turn between those of many bytes."""
        for at in range(0, len(data), TURN_BYTES):
            if at:
                await asyncio.sleep(0)
            await self._tell_events(parser.feed(data[at : at + TURN_BYTES]))
        if self.is_whole:
            await self._tell_events(parser.flush())

    async def _tell_events(self, events: list[SseEvent]) -> None:
        await self._tell_all([one.data for one in events if one.data and one.data != b"[DONE]"])

    async def _tell_all(self, events: list[bytes]) -> None:
        for event in events:
            self.items.add(event)
            if self._send_event is not None:
                frame = frames.convert_event(event)
                await self._send_event(frame if self._echo is None else self._echo.rewrite_data(frame))
