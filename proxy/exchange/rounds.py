"""Tool loop for answers that call tools of ours: run the calls, send the results upstream, and give the client one
answer.

The client sees only the text, the thoughts and its own calls. Rounds, time and repetition are bounded. A failure is
reported to the model where that helps. Otherwise the client's original request is sent, as long as no part of an answer
has gone out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from proxy.chat import key, slices
from proxy.chat.dialects.completions import read_message
from proxy.errors import ClientGone, NotManaged, UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.exchange import announcing
from proxy.exchange import offer as offers
from proxy.exchange.parts import Headers, Incoming, Outgoing, Parts
from proxy.exchange.turn import Turn
from proxy.exchange.weave import Round, appended
from proxy.stream.assemble import Answer
from proxy.stream.chunk import Usage
from proxy.stream.hidden import HiddenCall
from proxy.stream.relay import Relay
from proxy.stream.whole import join_rounds, may_call, read_round
from proxy.tools.desk import Desk
from proxy.tools.run import failure, run
from proxy.upstream.client import Reply, Target

KEEPALIVE_S = 10.0
"""Seconds of silence after which a stream gets a comment: some clients, and proxies before them, give up on silence."""
READ_SHARE = 0.5
"""Share of the client's announced read timeout that rounds may take where nothing is streamed."""

REPEATS = 3
"""Number of times that the same call is made in one answer before no more calls are run."""
REPEATED = "This very call was made before in this turn; its result stands above. Use it, or ask for something else."
ENDED = {
    "rounds": "This tool is not answered any more in this turn. Answer with what there is.",
    "time": "There is no time left for this tool in this turn. Answer with what there is.",
    "repeats": "This very call was made three times in this turn. Answer with what there is.",
}
"""Results of calls that are not run any more, by the limit that ended the rounds."""

Make = Callable[[Relay], Relay]
"""Makes the relay of the next round from the relay of the round before."""


class Rounds:
    """The rounds behind one answer. Made where tools of ours are offered; costs nothing until one is called."""

    def __init__(self, parts: Parts, turn: Turn, target: Target, incoming: Incoming) -> None:
        self.names = frozenset(turn.offer.names)
        self._parts = parts
        self._turn = turn
        self._target = target
        self._incoming = incoming
        self._sent = turn.body
        self._behind: list[bytes] = []
        self._asked: Counter[tuple[str, str]] = Counter()
        self._count = 0
        self._until: float | None = None
        self._bare = False  # the request that was sent last has none of our tools
        self._original = False  # the request that was sent last has nothing of ours

    async def stream(self, relay: Relay, out: Outgoing, make: Make) -> tuple[Relay, UpstreamError | None]:
        """Continue from a round that has ended until the answer has ended. Return the last round's relay, and the
        reason why it broke or None. The client's part of the rounds is written to `out`."""
        broken: UpstreamError | None = None
        while relay.goes_on and broken is None:
            message = relay.message()
            if self._bare or message is None:
                rest = relay.stop()  # nothing is left to be asked: the client gets the text so far
                if rest:
                    await out.write(rest)
                break
            relay, broken = await self._next(relay, message, out, make)
        if broken is None and not relay.answer.truncated:
            await self._keep(relay.message(), relay.hidden_calls, relay.answer.message())
        return relay, broken

    async def _next(
        self, before: Relay, message: bytes, out: Outgoing, make: Make
    ) -> tuple[Relay, UpstreamError | None]:
        """Run one more round of a stream; send the original request instead if the round fails before any output."""
        self._spend(before.usage)
        relay: Relay | None = None
        broken: UpstreamError | None = None
        try:
            reply = await self._go_on(message, before.hidden_calls)
            relay = make(before)
            broken = await pump(reply, relay, out)
        except UpstreamError as problem:
            broken = problem
        if relay is not None and broken is None and (relay.goes_on or not relay.answer.truncated):
            return relay, None
        if _said(relay or before):
            return relay or before, broken
        self._give_up()
        try:
            reply = await self._send(self._incoming.body)
        except UpstreamError as problem:
            return relay or before, problem
        relay = make(relay or before)
        relay.drop_held()
        return relay, await pump(reply, relay, out)

    async def whole(self, body: bytes, clean: Callable[[bytes], bytes]) -> bytes | None:
        """Run the rounds of answers that come in one body each, and return the body for the client. None where the
        original request has to be sent. clean: takes out of a body the blocks that the client must not see."""
        if not may_call(body, self.names):
            return body
        bodies = [body]
        found = read_round(body, self.names)
        while found.goes_on and not self._bare and found.message is not None:
            self._spend(found.usage)
            try:
                reply = await self._go_on(found.message, found.hidden_calls)
                try:
                    body = clean(await reply.read(self._parts.settings.limits.body_mb << 20))
                finally:
                    await reply.close()
            except UpstreamError:
                self._give_up()
                return None
            bodies.append(body)
            found = read_round(body, self.names)
            if found.message is None:
                self._give_up()
                return None
        joined = join_rounds(bodies, self.names)
        await self._keep(found.message, found.hidden_calls, Answer.from_body(joined).message())
        return joined

    async def _go_on(self, message: bytes, calls: Sequence[HiddenCall]) -> Reply:
        """Run the calls of a round, and send the request with their results. Raises UpstreamError."""
        results = await self._results(calls)
        self._behind += [message, *results]
        body = appended(self._sent, [message, *results])
        if offers.choice(self._turn.request) == "required":
            self._bare = True  # the model has to call a tool: one of ours may satisfy that once
        tools = self._turn.request.tools
        if self._bare and tools is not None:
            body = slices.with_member(body, "tools", tools)
        self._sent = body
        return await self._send(body)

    async def _results(self, calls: Sequence[HiddenCall]) -> list[bytes]:
        """Return the tool message for each call. The message of a call that is not run any more gives the reason."""
        ended = self._ended(calls)
        self._parts.metrics.tool_rounds_total.labels(outcome=ended or "run").inc()
        if not ended:
            await self._stored()
        made = []
        for call in calls:
            text = failure(ENDED[ended]) if ended else await self._run(call)
            made.append(msgspec.json.encode({"role": "tool", "tool_call_id": call.id, "content": text}))
        return made

    async def _stored(self) -> None:
        """Wait for the client's new messages to be in the store, where tools look for them; no longer than for any
        other write."""
        written = self._turn.written
        if written is not None and not written.done():
            self._parts.store.hurry()
            await asyncio.wait([written], timeout=self._parts.settings.limits.commit_wait_ms / 1000)

    def _ended(self, calls: Sequence[HiddenCall]) -> str:
        """Return the reason why calls are not run any more, "" while they are. Then our tools are left out of the next
        request."""
        limits, now = self._parts.settings.tools, asyncio.get_running_loop().time()
        self._count += 1
        if self._until is None:
            self._until = now + self._seconds()
        self._asked.update({_fingerprint(call) for call in calls})
        ended = ""
        if self._bare or self._count > limits.rounds:
            ended = "rounds"
        elif now >= self._until:
            ended = "time"
        elif any(self._asked[_fingerprint(call)] >= REPEATS for call in calls):
            ended = "repeats"
        self._bare = self._bare or bool(ended)
        return ended

    async def _run(self, call: HiddenCall) -> str:
        if self._asked[_fingerprint(call)] > 1:
            return failure(REPEATED)
        try:
            async with asyncio.timeout_at(self._until):
                return await run(call, self._desk())
        except TimeoutError:
            self._bare = True
            return failure(ENDED["time"])

    def _desk(self) -> Desk:
        parts, turn = self._parts, self._turn
        header = parts.settings.memos.project_header.lower().encode()
        named = [value for name, value in self._incoming.headers if header and name.lower() == header]
        return Desk(
            tenant=turn.tenant,
            session=turn.place.thread.session,
            thread=turn.place.thread.name,
            explicit=turn.place.explicit,
            project=named[0].decode("latin-1").strip() if named else "",
            store=parts.store,
            settings=parts.settings,
            metrics=parts.metrics,
            now=parts.now,
            sandbox=parts.sandbox,
            prompt=turn.woven.request.messages,
            keys=turn.woven.keys,
            saved=lambda memo, merged: announcing.memo(parts, turn, memo, merged=merged),
            offered=self.names,
        )

    def _seconds(self) -> float:
        """Seconds that all rounds may take: less than the client's read timeout where nothing is streamed meanwhile."""
        seconds = self._parts.settings.tools.seconds
        for name, value in self._incoming.headers:
            if name.lower() == b"x-stainless-read-timeout" and not self._turn.request.stream:
                with suppress(ValueError):
                    seconds = min(seconds, float(value) * READ_SHARE)
        return seconds

    async def _keep(self, message: bytes | None, calls: Sequence[HiddenCall], shown: bytes | None) -> None:
        """Put the hidden round of a whole answer on the turn, to be stored with the answer. calls: those of ours in its
        last message."""
        if self._original or message is None or shown is None:
            return
        if not self._behind and not calls:
            return
        try:
            ours = any(call.name in self.names for call in read_message(message).calls)
            theirs = read_message(shown).calls
        except NotManaged:
            return
        if ours and not calls:
            return  # they were cut off: a call without its result is refused by every strict upstream
        bare = self._bare
        results = await self._results(calls) if calls else ()
        ids = tuple(call.id for call in theirs) if calls else ()
        self._turn.hidden = Round(b"", b"", (*self._behind, message), tuple(results), ids, bare=bare)

    def _spend(self, usage: Usage | None) -> None:
        if usage is not None:
            self._turn.spent.append(usage)

    async def _send(self, body: bytes) -> Reply:
        """Send a body of a round. Raises UpstreamError also for an answer that cannot be a round."""
        came = self._incoming
        reply = await self._parts.client.send(self._target, came.method, came.path, came.query, came.headers, body)
        streams = reply.content_type.startswith("text/event-stream")
        if reply.status == 200 and not reply.encoding and streams == self._turn.request.stream:
            return reply
        await reply.close()
        raise UpstreamBroken(f"the upstream ended the answer with status {reply.status}")

    def _give_up(self) -> None:
        """Drop the hidden rounds so far: the original request is sent instead."""
        self._original = True
        self._turn.fallback = "rounds"
        self._turn.usage_added = False
        self._turn.hidden = None
        self._parts.metrics.bypasses_total.labels(reason="rounds").inc()

    async def original(self) -> Reply:
        """Return the answer to the client's own bytes, whatever it is. Raises UpstreamError."""
        came = self._incoming
        return await self._parts.client.send(self._target, came.method, came.path, came.query, came.headers, came.body)


def _fingerprint(call: HiddenCall) -> tuple[str, str]:
    return call.name, key.canonical_arguments(call.arguments)


def _said(relay: Relay) -> bool:
    """True if the client has got any part of the answer that it would get twice from another one."""
    raw = relay.answer.message()
    if raw is None:
        return False
    found = msgspec.json.decode(raw)
    return any(value for name, value in found.items() if name != "role")


async def pump(reply: Reply, relay: Relay, out: Outgoing) -> UpstreamError | None:
    """Relay one stream to the client, up to its end. Return the error that broke it, or None."""
    broken: UpstreamError | None = None
    try:
        try:
            async for data in reply.chunks():
                visible = relay.feed(data)
                if visible:
                    await out.write(visible)
        except (UpstreamBroken, UpstreamTimeout) as problem:
            broken = problem
        rest = relay.end()
        if rest:
            await out.write(rest)
    finally:
        await reply.close()
    return broken


class _Stamped:
    """A client with one writer at a time, and the time of its last bytes."""

    def __init__(self, out: Outgoing) -> None:
        self._out = out
        self._turn = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self.last = self._clock()

    async def start(self, status: int, headers: Headers) -> None:
        await self._out.start(status, headers)

    async def write(self, data: bytes) -> None:
        async with self._turn:
            await self._out.write(data)
        self.last = self._clock()

    async def end(self, data: bytes = b"") -> None:
        async with self._turn:
            await self._out.end(data)

    async def abort(self) -> None:
        await self._out.abort()

    async def beat(self) -> None:
        """Send a comment when nothing has gone out for KEEPALIVE_S; it stands between two events, since only whole
        events go out."""
        while True:
            silent = self._clock() - self.last
            if silent >= KEEPALIVE_S:
                await self.write(b": keepalive\n\n")
                silent = 0.0
            await asyncio.sleep(KEEPALIVE_S - silent)


@asynccontextmanager
async def beating(out: Outgoing) -> AsyncIterator[Outgoing]:
    """Wrap the client's stream: while it is silent, keepalive comments are sent."""
    stamped = _Stamped(out)
    task = asyncio.create_task(stamped.beat())
    try:
        yield stamped
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ClientGone):
            await task
