"""Tool loop for answers that call tools of the proxy: run the calls, send the results upstream, and give the client one
answer.

The client sees only the text, the thoughts and its own calls. Rounds, time and repetition are bounded. A failure is
reported to the model where that helps. Otherwise the client's original request is sent, as long as no part of an answer
has gone out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from proxy.chat import chain, json_spans
from proxy.dialects.completions.request import read_message
from proxy.dialects.usage import Usage
from proxy.errors import NotManaged, UpstreamBroken, UpstreamError
from proxy.exchange import (
    bound_reasoning,
    cache_breakpoints,
    fallback,
    prefix_bindings,
    publish_events,
)
from proxy.exchange.client_stream import relay_to_client
from proxy.exchange.fallback import FallbackReason
from proxy.exchange.send_prompt import Sender
from proxy.exchange.services import ERROR_BODY_BYTES, Headers, Incoming, ResponseWriter, Services
from proxy.exchange.turn import Turn
from proxy.notes.state_block import NoteBlock
from proxy.sessions import tool_offer as offers
from proxy.sessions.hidden_rounds import HiddenRound, append_messages
from proxy.stream.answer_relay import AnswerRelay
from proxy.stream.completions_body import may_call
from proxy.stream.sse import begins_stream
from proxy.stream.tool_call_filter import HiddenCall
from proxy.tools.run_tool import is_error_result, make_error_result, run_tool_call
from proxy.tools.tool_context import ToolContext
from proxy.upstream.client import SERVER_ERRORS_FROM, TOO_MANY_REQUESTS, Reply, Target

log = logging.getLogger(__name__)

READ_SHARE = 0.5
"""Share of the client's announced read timeout that rounds may take where nothing is streamed."""
MAX_NOTE_ERROR_CHARS = 300
"""Characters of the provider's own error that the note of an exchange keeps."""
IDEMPOTENCY_HEADERS = (b"idempotency-key", b"x-idempotency-key")
"""Headers by which an upstream knows a request that comes again."""
REPEATS = 3
"""Number of times that the same call is made in one answer before no more calls are run."""
REPEATED_CALL = "You already made this exact call in this turn; its result is above. Use it, or ask for something else."
LIMIT_RESULTS = {
    "rounds": "This tool is no longer available in this turn. Answer with what you have.",
    "time": "There is no time left for this tool in this turn. Answer with what you have.",
    "repeats": "This exact call was made three times in this turn. Answer with what you have.",
}
"""Results of calls that are not run any more, by the limit that ended the rounds."""

MakeRelay = Callable[[AnswerRelay], AnswerRelay]
"""Makes the relay of the next round from the relay of the round before."""


class RoundLimits:
    """The limits on the rounds of one answer: their number, their time, and the repeats of one call."""

    def __init__(self, max_rounds: int, seconds: float) -> None:
        """seconds: that all rounds may take, from now on."""
        self.deadline = asyncio.get_running_loop().time() + seconds
        """The event loop's time at which no more calls are run."""
        self._max_rounds = max_rounds
        self._round_count = 0
        self._call_counts: Counter[tuple[str, str]] = Counter()

    def add_round(self, calls: Sequence[HiddenCall]) -> str:
        """Count a round with these calls. Return the limit that it passes, a key of `LIMIT_RESULTS`, or ""."""
        self._round_count += 1
        self._call_counts.update({_make_call_key(call) for call in calls})
        if self._round_count > self._max_rounds:
            return "rounds"
        if asyncio.get_running_loop().time() >= self.deadline:
            return "time"
        return "repeats" if any(self._call_counts[_make_call_key(call)] >= REPEATS for call in calls) else ""

    def is_repeat(self, call: HiddenCall) -> bool:
        """True if an earlier round had the same call."""
        return self._call_counts[_make_call_key(call)] > 1


class ToolLoop:
    """The rounds of one answer. Made where tools of the proxy are offered; costs nothing until one is called."""

    def __init__(self, services: Services, turn: Turn, target: Target, incoming: Incoming) -> None:
        self.tool_names = frozenset(turn.enriched.tool_offer.names)
        self._services = services
        self.turn = turn
        """The turn with the rounds so far."""
        self._sender = Sender(services, target, incoming)
        self._sent_body = turn.prompt.chat_body
        self._sent_bytes = turn.prompt.outgoing
        self._hidden_messages: list[bytes] = []
        self._sent_count = 0
        self._limits: RoundLimits | None = None
        """They begin with the first call."""
        self._without_tools = False
        """The request that was sent last offers no tool of the proxy."""
        self._sends_original = False
        """The request that was sent last has nothing of the proxy."""

    async def run_stream(
        self, relay: AnswerRelay, out: ResponseWriter, make_relay: MakeRelay
    ) -> tuple[AnswerRelay, UpstreamError | None]:
        """Continue from a round that has ended until the answer has ended. Return the last round's relay, and the
        reason why it broke or None. The client's part of the rounds is written to `out`."""
        broken: UpstreamError | None = None
        while relay.goes_on and broken is None:
            message = relay.build_round_message()
            if self._without_tools or message is None:
                rest = relay.end_answer()  # nothing is left to be asked: the client gets the text so far
                if rest:
                    await out.write(rest)
                break
            relay, broken = await self._run_round(relay, message, out, make_relay)
        if broken is None and not relay.answer.is_truncated:
            await self._keep_round(relay.build_round_message(), relay.hidden_calls, relay.answer.build_message())
        return relay, broken

    async def _run_round(
        self, before: AnswerRelay, message: bytes, out: ResponseWriter, make: MakeRelay
    ) -> tuple[AnswerRelay, UpstreamError | None]:
        """Run one more round of a stream; send the original request instead if the round fails before any output."""
        self._add_usage(before.round_usage)
        relay: AnswerRelay | None = None
        broken: UpstreamError | None = None
        try:
            reply = await self._send_results(message, before.hidden_calls)
            relay = make(before)
            broken = await relay_to_client(reply, relay, out)
        except UpstreamError as problem:
            broken = problem
        if relay is not None and broken is None and (relay.goes_on or not relay.answer.is_truncated):
            return relay, None
        if _has_output(relay or before):
            return relay or before, broken
        self._give_up()
        try:
            reply = await self._send_round(self.turn.prompt.outgoing)
        except UpstreamError as problem:
            return relay or before, problem
        relay = make(relay or before)
        relay.drop_held_text()
        return relay, await relay_to_client(reply, relay, out)

    async def run_body(self, body: bytes, headings: tuple[str, ...]) -> tuple[bytes, list[NoteBlock]] | None:
        """Run the rounds of answers that come in one body each. Return (the body for the client, the blocks that were
        taken out of all bodies); None where the original request has to be sent. headings: of the blocks that the
        client must not see."""
        answers = self.turn.dialect.answers
        bodies: list[bytes] = []
        blocks: list[NoteBlock] = []

        def take(received: bytes) -> None:
            visible, more = answers.remove_blocks(received, headings) if headings else (received, [])
            bodies.append(visible)
            blocks.extend(more)

        take(body)
        if not may_call(bodies[0], self.tool_names):
            return bodies[0], blocks
        round_answer = answers.read_round(body, self.tool_names, headings)
        while round_answer.goes_on and not self._without_tools and round_answer.message is not None:
            self._add_usage(round_answer.usage)
            try:
                reply = await self._send_results(round_answer.message, round_answer.hidden_calls)
                try:
                    limits = self._services.settings.limits
                    body = await reply.read_answer(limits.body_mb << 20, limits.values)
                finally:
                    await reply.close()
            except UpstreamError:
                self._give_up_body(None)
                return None
            take(body)
            round_answer = answers.read_round(body, self.tool_names, headings)
            if round_answer.message is None:
                self._give_up_body(round_answer.usage)
                return None
        joined = answers.join_rounds(bodies, self.tool_names)
        await self._keep_round(round_answer.message, round_answer.hidden_calls, answers.read(joined).build_message())
        return joined, blocks

    async def _send_results(self, message: bytes, calls: Sequence[HiddenCall]) -> Reply:
        """Run the calls of a round, and send the request with their results. Raises UpstreamError."""
        self.turn = prefix_bindings.record_round(self.turn, self._sent_bytes, message)
        results = await self._make_results(calls)
        self._hidden_messages += [message, *results]
        body = append_messages(self._sent_body, [message, *results])
        if offers.read_tool_choice(self.turn.request) == "required":
            self._without_tools = True  # the model has to call a tool: one of the proxy may satisfy that once
        tools = self.turn.request.tools
        drops_tools = self._without_tools and not self.turn.is_bound  # reasoning is bound to the tools as well
        if drops_tools and tools is not None:
            body = json_spans.set_member(body, "tools", tools)
        self._sent_body = body
        if self.turn.wire_request is not None:
            try:
                body = self.turn.write_body(self._hidden_messages, with_tools=not drops_tools)
            except ValueError as problem:
                raise UpstreamBroken(f"a hidden round cannot be written: {problem}") from problem
        body = bound_reasoning.leave_out_refused(self.turn, body)
        self._sent_bytes = cache_breakpoints.mark_body(self._services, self.turn, body)
        return await self._send_round(self._sent_bytes)

    async def _make_results(self, calls: Sequence[HiddenCall]) -> list[bytes]:
        """Return the tool message for each call. The message of a call that is not run any more gives the reason."""
        if self._limits is None:
            self._limits = RoundLimits(self._services.settings.tools.rounds, self._find_time_limit())
        limits = self._limits
        passed = limits.add_round(calls)
        ended = "rounds" if self._without_tools else passed
        self._without_tools = self._without_tools or bool(ended)  # then the next request offers no tool of the proxy
        self._services.metrics.tool_rounds_total.labels(outcome=ended or "run").inc()
        if not ended:
            await self._wait_for_messages()
        results = []
        for call in calls:
            text = make_error_result(LIMIT_RESULTS[ended]) if ended else await self._run_call(call, limits)
            # Messages and Gemini have a word for a call that failed; chat completions would refuse the member.
            failed = {"is_error": True} if self.turn.wire_request is not None and is_error_result(text) else {}
            results.append(msgspec.json.encode({"role": "tool", "tool_call_id": call.id, "content": text, **failed}))
        return results

    async def _wait_for_messages(self) -> None:
        """Wait for the client's new messages to be in the store for tools; no longer than for any other write."""
        written = self.turn.pending.write
        if written is not None and not written.done():
            self._services.store.flush_deferred()
            await asyncio.wait([written], timeout=self._services.settings.limits.commit_wait_ms / 1000)

    async def _run_call(self, call: HiddenCall, limits: RoundLimits) -> str:
        if limits.is_repeat(call):
            return make_error_result(REPEATED_CALL)
        try:
            async with asyncio.timeout_at(limits.deadline):
                return await run_tool_call(call, self._make_context())
        except TimeoutError:
            self._without_tools = True
            return make_error_result(LIMIT_RESULTS["time"])

    def _make_context(self) -> ToolContext:
        services, turn = self._services, self.turn
        header = services.settings.memos.project_header.lower().encode()
        named = [value for name, value in self._sender.incoming.headers if header and name.lower() == header]
        return ToolContext(
            tenant=turn.tenant,
            session=turn.located.branch.session,
            branch=turn.located.branch.name,
            explicit=turn.located.explicit,
            project=named[0].decode("latin-1").strip() if named else "",
            store=services.store,
            settings=services.settings,
            metrics=services.metrics,
            now=services.now,
            sandbox=services.sandbox,
            read_slots=services.read_slots,
            prompt=turn.enriched.spliced.request.messages,
            prompt_keys=turn.enriched.spliced.keys,
            has_scratchpad=turn.located.has_scratchpad,
            on_memo_saved=lambda memo, merged: publish_events.publish_memo_saved(services, turn, memo, merged=merged),
            offered_tools=self.tool_names,
        )

    def _find_time_limit(self) -> float:
        """Seconds that all rounds may take: less than the client's read timeout where nothing is streamed meanwhile."""
        seconds = self._services.settings.tools.seconds
        for name, value in self._sender.incoming.headers:
            if name.lower() == b"x-stainless-read-timeout" and not self.turn.request.stream:
                with suppress(ValueError):
                    seconds = min(seconds, float(value) * READ_SHARE)
        return seconds

    async def _keep_round(self, message: bytes | None, calls: Sequence[HiddenCall], shown: bytes | None) -> None:
        """Put the hidden round of a whole answer on the turn. calls: the proxy's in its last message."""
        if self._sends_original or message is None or shown is None:
            return
        if not self._hidden_messages and not calls:
            return
        try:
            ours = any(call.name in self.tool_names for call in read_message(message).calls)
            theirs = read_message(shown).calls
        except NotManaged:
            return
        if ours and not calls:
            return  # they were cut off: a call without its result is refused by every strict upstream
        self.turn = prefix_bindings.record_round(self.turn, self._sent_bytes, message)
        drops_tools = self._without_tools and not self.turn.is_bound
        results = await self._make_results(calls) if calls else ()
        ids = tuple(call.id for call in theirs) if calls else ()
        messages = (*self._hidden_messages, message)
        hidden = HiddenRound(b"", b"", messages, tuple(results), ids, without_tools=drops_tools)
        self.turn = self.turn.with_rounds(hidden=hidden)

    def _add_usage(self, usage: Usage | None) -> None:
        if usage is not None:
            if usage.cached is None and self.turn.located.branch.state.cache_hit_seen:
                usage = msgspec.structs.replace(usage, cached=0)  # as for the last round (`record_outcome`)
            self.turn = self.turn.with_rounds(usage=(*self.turn.rounds.usage, usage))

    async def _send_round(self, body: bytes) -> Reply:
        """Send a body of a round. Raises UpstreamError also for an answer that cannot be a round."""
        reply = await self._sender.send_body(self.turn, body, self._make_headers())
        if reply.is_readable and reply.is_stream == self.turn.request.stream:
            return reply
        limit = self._services.settings.limits.body_mb << 20
        if reply.is_readable and self.turn.request.stream and begins_stream(await reply.peek_body(limit)):
            return reply
        raise UpstreamBroken(await self._record_refusal(reply))

    def _make_headers(self) -> Headers:
        """The headers of one more request after the same answer. Under the client's own idempotency key an upstream
        would give its first answer again, or refuse another body."""
        self._sent_count += 1
        return [
            (name, b"%b-%d" % (value, self._sent_count) if name.lower() in IDEMPOTENCY_HEADERS else value)
            for name, value in self._sender.incoming.headers
        ]

    async def _record_refusal(self, reply: Reply) -> str:
        """Note on the turn why a round got no answer, and return it in words for the client. What an upstream says of
        a request that it does not accept is about messages that the client does not know."""
        message = f"the upstream ended the answer with status {reply.status}"
        text = ""
        with suppress(UpstreamError):
            body = b"" if reply.encoding else await reply.read_body(ERROR_BODY_BYTES)
            text = self.turn.dialect.answers.read(body).error or body.decode("utf-8", "replace").strip()
        await reply.close()
        text = text[:MAX_NOTE_ERROR_CHARS]
        note = f"a round of the proxy's tools was refused: http {reply.status}" + (f": {text}" if text else "")
        self.turn = self.turn.with_rounds(refusal=note)
        log.warning("upstream %s refused a round of the proxy's tools with %d", self.turn.upstream, reply.status)
        is_own = reply.status == TOO_MANY_REQUESTS or reply.status >= SERVER_ERRORS_FROM
        return f"{message}: {text}" if text and is_own else message

    def _give_up(self) -> None:
        """Drop the hidden rounds so far: the original request is sent instead."""
        self._sends_original = True
        turn = fallback.use_original(self._services, self.turn, FallbackReason.ROUNDS)
        own = turn.repair_answers(prefix_bindings.make_whole(turn)[0])
        self.turn = turn.with_prompt(outgoing=own).with_rounds(hidden=None, bindings={})

    def _give_up_body(self, usage: Usage | None) -> None:
        """Drop the hidden rounds of an answer in one body. usage: that of the round that failed."""
        self._add_usage(usage)
        self._give_up()
        tried = [msgspec.structs.replace(one, unlisted=one.completion) for one in self.turn.rounds.usage]
        self.turn = self.turn.with_rounds(usage=tuple(tried))

    async def send_original(self) -> Reply:
        """Send the client's own request, repaired for this upstream. Return its answer. Raises UpstreamError."""
        return await self._sender.send_body(self.turn, self.turn.prompt.outgoing, self._make_headers())


def _make_call_key(call: HiddenCall) -> tuple[str, str]:
    return call.name, chain.canonicalize_arguments(call.arguments)


def _has_output(relay: AnswerRelay) -> bool:
    """True if the client has got any part of the answer that it would get twice from another one, or an error."""
    if relay.answer.error is not None:
        return True
    raw = relay.answer.build_message()
    if raw is None:
        return False
    found = msgspec.json.decode(raw)
    return any(value for name, value in found.items() if name != "role")
