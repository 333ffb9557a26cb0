"""Long tool loops of a thinking model, through the reader, the writer and the relay, against the strict upstream.

Old results are shortened when they are first sent, notes of the proxy's stand at the tail, calls of the proxy's tools
are hidden alone, mixed and in parallel, and STATE is withheld. No request is refused and no thinking is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import pytest

from proxy.chat import chain
from proxy.dialects.base import Binding, find_broken
from proxy.dialects.completions.request import read_message, read_request, replace_text
from proxy.dialects.messages.blocks import make_answer_blocks
from proxy.dialects.messages.request import read_messages_request
from proxy.dialects.messages.rules import find_added_violations, trace_answer, trace_prompt
from proxy.dialects.written_history import OutgoingMessage
from proxy.notes.state_block import HEADINGS
from proxy.sessions.hidden_rounds import HiddenRound, splice_hidden_rounds
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.messages_answer import MessagesAnswer
from proxy.stream.messages_body import join_rounds, read_round, remove_blocks
from proxy.stream.messages_relay import MessagesRelay
from tests.dialects.messages.drawn import append_messages
from tests.stream.messages_rounds import HIDDEN, call, own_call, read, text, think
from tests.strict_messages import Block, StrictMessages, events, find_mismatches, refuse

STATE = "### STATE\nGoal: ship it\nContext: a test\nResolved: nothing"
TOOL = b'{"type":"function","function":{"name":"recall","parameters":{"type":"object"}}}'
STEPS = 25


def _answers() -> Iterator[list[Block]]:
    """The answers of the model, round after round, without end."""
    ids = count()
    while True:
        for kinds in ("c", "o", "oc", "to", "ooc", "cco", "sc", "tsoc", "o", "o", "tkc", "skc"):
            yield [think(f"thought {next(ids)}"), *(_block(kind, next(ids)) for kind in kinds)]


def _block(kind: str, n: int) -> Block:
    if kind == "c":
        return call(f"toolu_{n}", path=f"{n}.py")
    if kind == "o":
        return own_call(f"toolu_own_{n}", q=n)
    return think(f"between {n}") if kind == "k" else text(f"Reading on.\n\n{STATE}" if kind == "s" else "Hm, well.")


def _without_state(content: list[Block], relay: MessagesRelay | None) -> list[Block]:
    """The message that the upstream gets back of a stream, without a note that no thinking is bound to."""
    if relay is None or [block["type"] for block in content[1:3]] == ["text", "thinking"]:
        return content
    return [{**one, "text": one["text"].removesuffix(f"\n\n{STATE}")} if "text" in one else one for one in content]


class _Proxy:
    """The parts under test, joined as an exchange joins them. known: the prompt of each token that was handed out."""

    def __init__(self, *, is_stream: bool) -> None:
        self.strict = StrictMessages()
        self.answers = _answers()
        self.is_stream = is_stream
        self.rounds: dict[bytes, list[HiddenRound]] = {}
        self.known: dict[str, Binding] = {}
        self.notes: dict[bytes, bytes] = {}
        self.short: dict[bytes, bytes] = {}
        self.hidden = 0
        self.saved = 0

    def plan(self, body: bytes) -> tuple[bytes, list[bytes]]:
        """(the body to send, the chain keys of the client's messages)."""
        wire = read_messages_request(body)
        request = read_request(wire.chat_body)
        keys = chain.compute_keys("t", request.messages)
        spliced = splice_hidden_rounds(request, keys, self.rounds)
        places = {id(message): n for n, message in enumerate(request.messages)}
        self.notes.setdefault(keys[-1], b'{"role":"user","content":"Note %d."}' % len(self.notes))
        made: list[OutgoingMessage] = []
        for message, key in zip(spliced.request.messages, spliced.keys, strict=True):
            source, raw = places.get(id(message)), message.raw
            if message.is_result and source is not None:
                raw = self.short.setdefault(key, replace_text(raw, f"short {len(self.short)}"))
                self.saved += len(message.raw) - len(raw)
            made.append((source, raw))
            if key in self.notes:
                made.append((None, self.notes[key]))
        sent = wire.write(made, tools=TOOL)
        assert find_added_violations(sent, body) == []
        return sent, keys

    def ask(self, body: bytes) -> dict[str, Any]:
        """The answer of the strict upstream to one request, which it must not refuse."""
        assert find_broken(trace_prompt(body).bindings, self.known) == []
        value = json.loads(body)
        assert list(refuse(value)) == []
        assert list(find_mismatches(value)) == []
        return self.strict.make_message(value, next(self.answers))

    def serve(self, body: bytes) -> dict[str, Any]:
        """The answer that the client gets."""
        sent, keys = self.plan(body)
        replaces: list[bytes] = []
        bodies: list[bytes] = []
        relay, out = None, b""
        while True:
            message = self.ask(sent)
            raw = json.dumps(message).encode()
            upstream = MessagesAnswer.from_body(raw).build_round_message()
            if self.is_stream:
                relay = MessagesRelay(RelayOptions(withheld=HEADINGS, hidden_tools=HIDDEN), previous=relay)
                out += relay.feed(b"".join(events(message))) + relay.end()
                upstream = relay.build_round_message()
                calls, goes_on = relay.hidden_calls, relay.goes_on
            else:
                bodies.append(remove_blocks(raw)[0])
                found = read_round(raw, HIDDEN)
                calls, goes_on = found.hidden_calls, found.goes_on
            assert upstream is not None
            assert json.loads(make_answer_blocks(upstream)) == _without_state(message["content"], relay)
            prompt = trace_prompt(sent)
            self.known |= prompt.bindings | trace_answer(prompt, upstream)
            replaces.append(upstream)
            self.hidden += len(calls)
            results = [
                json.dumps({"role": "tool", "tool_call_id": one.id, "content": f"found {one.arguments}"}).encode()
                for one in calls
            ]
            if not goes_on:
                break
            replaces += results
            sent = append_messages(sent, [upstream, *results])
        if relay is not None:
            shown, answer = read(out + relay.terminal), relay.answer.build_message()
        else:
            joined = join_rounds(bodies, HIDDEN)
            shown, answer = json.loads(joined), MessagesAnswer.from_body(joined).build_message()
        assert answer is not None
        made = read_message(answer)
        key = chain.derive_next_key(keys[-1], made.digest)
        ids = tuple(one.id for one in made.calls)
        self.rounds.setdefault(keys[-1], []).append(HiddenRound(key, keys[-1], tuple(replaces), tuple(results), ids))
        return shown


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("system", ["You.", [{"type": "text", "text": "You.", "cache_control": {"type": "ephemeral"}}]])
def test_nothing_is_refused_and_no_thinking_is_lost(is_stream: bool, system: Any) -> None:
    proxy = _Proxy(is_stream=is_stream)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Do."}]
    sent: list[bytes] = []
    for _ in range(STEPS):
        body = {"model": "claude-opus-5-5", "max_tokens": 99, "system": system, "messages": messages}
        if is_stream:
            body["stream"] = True
        raw = json.dumps(body).encode()
        shown = proxy.serve(raw)
        sent.append(proxy.plan(raw)[0])
        content = shown["content"]
        assert not any("STATE" in block.get("text", "") or block.get("name") == "recall" for block in content)
        calls = [block["id"] for block in content if block["type"] == "tool_use"]
        assert calls
        assert shown["stop_reason"] == "tool_use"
        messages.append({"role": "assistant", "content": content})
        results = [{"type": "tool_result", "tool_use_id": one, "content": "line of output\n" * 50} for one in calls]
        messages.append({"role": "user", "content": [*results, {"type": "text", "text": "Mind the time."}]})
    prompts = [json.loads(one)["messages"] for one in sent]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before, "what was sent once is sent again, byte for byte"
    assert proxy.hidden > STEPS // 2
    assert len(proxy.known) > STEPS
    assert proxy.saved > 0
