"""Whole conversations through the floors of the dialect, against the strict upstream: what a proxy does with them.

A proxy in miniature shortens results, hides calls of its own, withholds notes, and puts both back. The upstream must
refuse nothing and drop no reasoning, and the client must see nothing of the proxy.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from proxy.chat.message import Message
from proxy.dialects import base
from proxy.dialects.completions import request as completions
from proxy.dialects.responses import rules
from proxy.dialects.responses.request import read_wire_request
from proxy.notes.state_block import HEADINGS
from proxy.stream import responses_body as body_rules
from proxy.stream.answer_relay import ClientEcho, RelayOptions
from proxy.stream.responses_relay import ResponsesRelay
from tests.dialects.responses.histories import Json, developer, user
from tests.response_events import events
from tests.stream.responses_rounds import BLOCK, OURS, check_copies, check_numbers, read_with_sdk
from tests.strict_responses import Ask, Piece, Say, StrictResponses, Think

RECALL = json.dumps({"type": "function", "function": {"name": "recall", "parameters": {"type": "object"}}}).encode()
TOOLS = [{"type": "function", "name": "shell", "parameters": {}}, {"type": "custom", "name": "patch"}]
LONG = "a line of output\n" * 40
STUB = "[shortened]"


class Miniature:
    """The proxy in miniature. schedule: `append_only` shortens a result before it is first sent; `rolling` shortens old
    ones, and strips the reasoning that the edit would break."""

    def __init__(self, upstream: StrictResponses, schedule: str, *, streams: bool) -> None:
        self.upstream = upstream
        self.schedule = schedule
        self.streams = streams
        self.known: dict[str, base.Binding] = {}
        self.hidden: dict[bytes, list[bytes]] = {}
        self.stubs: set[str] = set()
        self.stripped: set[str] = set()
        self.saved = 0

    def ask(self, body: bytes) -> Json:
        """The response that the client gets."""
        request = read_wire_request(body)
        messages = completions.read_request(request.chat_body).messages
        out = [one for n, message in enumerate(messages) for one in self._edit(n, message)]
        if self.schedule == "append_only":
            self.stubs |= {m.call_id or "" for m in messages if m.is_result}
        elif self.schedule == "rolling":
            self.stubs |= {m.call_id or "" for m in messages[:-6] if m.is_result}
        rounds: list[bytes] = []
        bodies: list[bytes] = []
        data, relay = b"", None
        while True:
            sent = request.write(out, tools=RECALL)
            sent = rules.strip_bound(sent, self.stripped)
            broken = base.find_broken(rules.trace_prompt(sent).bindings, self.known)
            if broken:
                assert self.schedule == "rolling"
                self.stripped |= set(base.extend_to_newest(rules.trace_prompt(sent).bindings, broken))
                sent = rules.strip_bound(sent, self.stripped)
            assert base.find_broken(rules.trace_prompt(sent).bindings, self.known) == []
            assert rules.find_added_violations(sent, rules.strip_bound(body, self.stripped)) == []
            self.saved += len(body) - len(sent)
            made = self.upstream.respond(sent)
            if self.streams:
                relay = ResponsesRelay(RelayOptions(withheld=HEADINGS, hidden_tools=OURS), previous=relay)
                data += b"".join([relay.feed(one) for one in events(made)]) + relay.end() + relay.terminal
                message, calls, goes_on = relay.build_round_message(), relay.hidden_calls, relay.goes_on
            else:
                raw = json.dumps(made).encode()
                found = body_rules.read_round(raw, OURS)
                bodies.append(raw)
                message, calls, goes_on = found.message, found.hidden_calls, found.goes_on
            assert message is not None
            results = [json.dumps({"role": "tool", "tool_call_id": c.id, "content": "found"}).encode() for c in calls]
            self.known |= rules.trace_answer(rules.trace_prompt(sent), message)
            rounds += [message, *results]
            out += [(None, raw) for raw in (message, *results)]
            if not goes_on:
                break
        if relay is not None:
            answer, shown = relay.answer.build_message(), read_with_sdk(data).output
            output = check_copies(check_numbers(data))
            assert [one["id"] for one in output] == [one.id for one in shown]
            response = {**made, "output": output}
        else:
            joined = body_rules.restore_echo(
                body_rules.join_rounds([body_rules.remove_blocks(b)[0] for b in bodies], OURS), OURS, ClientEcho()
            )
            answer, response = body_rules.read_answer(joined).build_message(), json.loads(joined)
        assert answer is not None
        self.hidden[completions.read_message(answer).digest] = rounds
        assert "recall" not in json.dumps(response["output"])
        assert "STATE" not in json.dumps(response["output"])
        return dict(response)

    def _edit(self, n: int, message: Message) -> list[tuple[int | None, bytes]]:
        if message.digest in self.hidden:
            return [(None, raw) for raw in self.hidden[message.digest]]
        is_new = message.call_id not in self.stubs
        shortens = (is_new if self.schedule == "append_only" else not is_new) or self.schedule == "append_only"
        if message.is_result and shortens and len(message.text) > 100:
            return [(n, completions.replace_text(message.raw, STUB))]
        return [(n, message.raw)]


def make_script(chance: random.Random, steps: int) -> list[list[Piece]]:
    """Answers of a model that thinks, calls tools of both sides, and writes notes."""
    script: list[list[Piece]] = []
    for n in range(steps):
        note = f"Step {n}.\n\n{BLOCK}"
        shell, ours = Ask("shell", {"n": n}), Ask("recall", {"n": n})
        kinds: list[list[list[Piece]]] = [
            [[Think(f"t{n}"), shell]],
            [[Think(), ours], [Think("again"), Say(note), shell, Ask("patch", f"*** {n}")]],
            [[Think(), Say(note), ours, Ask("recall", {"m": n})], [ours], [Think(), shell]],
            [[Think(), shell, ours, shell]],
            [[Think(), Say(BLOCK), shell]],
            [[Say(note), shell]],
        ]
        script += chance.choice(kinds)
    return [*script, [Think(), Say("Done.")]]


@pytest.mark.parametrize("schedule", ["observe", "append_only", "rolling"])
@pytest.mark.parametrize("keeps_ids", [True, False])
@pytest.mark.parametrize("streams", [True, False])
def test_a_long_conversation_is_never_refused(schedule: str, keeps_ids: bool, streams: bool) -> None:
    upstream = StrictResponses(*make_script(random.Random(7), 40))
    proxy = Miniature(upstream, schedule, streams=streams)
    items: list[Json] = [developer(), user("Do it.")]
    for turn in range(60):
        asked: dict[str, Any] = {"model": "gpt-6.2", "input": items, "tools": TOOLS, "store": False}
        found = proxy.ask(json.dumps(asked | {"include": ["reasoning.encrypted_content"]}).encode())["output"]
        items += found if keeps_ids else [{k: v for k, v in one.items() if k != "id"} for one in found]
        calls = [one for one in found if "call_id" in one]
        if not calls:
            break
        items += [
            {"type": one["type"] + "_output", "call_id": one["call_id"], "output": LONG if turn % 2 else "short"}
            for one in calls
        ]
        if turn % 9 == 8:
            items.append(user("Go on."))
    assert items[-1]["content"][0]["text"] == "Done."
    assert (upstream.refused, upstream.dropped) == ([], [])
    assert (proxy.saved > 10_000) == (schedule != "observe")
    assert bool(proxy.stripped) == (schedule == "rolling")
