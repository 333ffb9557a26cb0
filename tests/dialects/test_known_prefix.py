"""A remembered beginning of a body changes no result: not the written body, its violations, or its bindings."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.chat.message import Message
from proxy.dialects.base import BindingTrace
from proxy.dialects.completions import rules as completions_rules
from proxy.dialects.completions.request import read_message, read_request, replace_text
from proxy.dialects.known_prefix import (
    CHANGING_TAIL,
    JUDGED,
    TRACED,
    BodyHistory,
    HistoryMemo,
    PrefixMemo,
    read_history,
)
from proxy.dialects.messages import rules as messages_rules
from proxy.dialects.messages.request import read_messages_request
from proxy.dialects.responses import rules as responses_rules
from proxy.dialects.responses.request import read_wire_request
from proxy.dialects.written_history import OutgoingMessage
from tests.dialects.messages import drawn
from tests.dialects.responses import histories

Json = dict[str, Any]
NOTE = b'{"role":"user","content":"Note of the proxy."}'
SYSTEM = b'{"role":"system","content":"Rules of the proxy."}'
MESSAGES_CALL = '{"type":"tool_use","id":"toolu_own_%d","name":"recall","input":{}}'
ITEM_CALL = '{"type":"function_call","call_id":"toolu_own_%d","name":"recall","arguments":"{}"}'


@dataclass(frozen=True)
class Format:
    """One wire format. key: the member with the history."""

    key: str
    read: Callable[..., Any]
    judge: Callable[[bytes, bytes, HistoryMemo], list[str]]
    """The rules that a written body breaks; the other one is the client's."""
    trace: Callable[[bytes, PrefixMemo | None], BindingTrace]
    call: str
    head: Json
    heads: tuple[Json, ...]
    """Values of a request that may change from one to the next."""
    mark: str


FORMATS = {
    "messages": Format(
        "messages", read_messages_request,
        lambda sent, _, memo: messages_rules.find_violations(sent, memo.sent), messages_rules.trace_prompt,
        MESSAGES_CALL, {"model": "m", "max_tokens": 9, "thinking": {"type": "enabled"}},
        (
            {"system": "You.", "tools": []},
            {"system": "You.", "tools": [{"name": "f0", "input_schema": {}}, {"name": "f0", "input_schema": {}}]},
            {"system": [{"type": "text", "text": "You.", "cache_control": drawn.MARK}]},
            {"tool_choice": {"type": "tool", "name": "gone"}},
            {},
        ),
        "cache_control",
    ),
    "responses": Format(
        "input", read_wire_request,
        lambda sent, body, memo: responses_rules.find_violations(
            sent, responses_rules.find_partners(body, memo.own), memo.sent
        ),
        responses_rules.trace_prompt, ITEM_CALL,
        {"model": "m"},
        (
            {"instructions": "You.", "store": False},
            {"instructions": "You.", "store": False, "tools": [{"type": "function", "name": "shell"}]},
            {"instructions": "You.", "reasoning": {"effort": "high"}},
            {"tool_choice": {"type": "function", "name": "gone"}},
            {"stream_options": {}},
        ),
        "prompt_cache_breakpoint",
    ),
}  # fmt: skip


@st.composite
def long_messages(draw: st.DrawFn) -> list[Json]:
    """A history of Messages of up to 25 messages."""
    made: list[Json] = [{"role": "user", "content": drawn.prompt(draw)}]
    for n in range(draw(st.integers(3, 12))):
        content, calls = drawn.answer(draw, n)
        made.append({"role": "assistant", "content": content})
        blocks = [drawn.result(draw, one) for one in calls]
        made.append({"role": "user", "content": blocks or drawn.prompt(draw)})
    return made


@st.composite
def long_items(draw: st.DrawFn) -> list[Json]:
    """A history of Responses."""
    made: list[Json] = [histories.user("Do.")]
    for number in range(1, draw(st.integers(4, 10))):
        made += draw(histories.steps(number))
        if draw(st.booleans()):
            made.append(histories.user("Go on."))
    return made


HISTORIES = {"messages": long_messages(), "responses": long_items()}


def grow(items: Sequence[Json], dice: random.Random) -> Iterator[list[Json]]:
    """The histories of one agent's requests: they grow; now and then one goes back, or an old element changes."""
    end = 1
    while end <= len(items):
        if dice.random() < 0.9:
            yield [*items[:end]]
        elif dice.random() < 0.5:
            yield [*items[: max(1, end - 3)]]
        else:
            gone = dice.randrange(end)
            yield [*items[:gone], *items[gone + 1 : end]] or [items[0]]
        end += dice.randint(1, 3)


class Planner:
    """Edits of one agent's history: repeated with every request, and now and then others."""

    def __init__(self, form: Format, dice: random.Random) -> None:
        self.form, self.dice = form, dice
        self.salt = 0

    def plan(self, messages: Sequence[Message]) -> list[OutgoingMessage]:
        if self.dice.random() < 0.25:
            self.salt += 1
        made: list[OutgoingMessage] = []
        if self.salt % 2:
            made.append((None, SYSTEM))
        for n, message in enumerate(messages):
            chosen = random.Random(message.digest + bytes([self.salt % 3])).random()
            if message.role == "assistant" and chosen < 0.2:
                made += self._make_round(n)
            if message.role in ("user", "tool") and message.text and chosen < 0.4:
                made.append((n, replace_text(message.raw, f"stub {chosen}")))
            elif chosen > 0.04 or message.is_system:  # some leave, which breaks rules
                made.append((n, message.raw))
            if message.role in ("user", "tool") and chosen > 0.85:
                made.append((None, NOTE))
        return [*made, (None, NOTE)] if self.dice.random() < 0.5 else made

    def _make_round(self, n: int) -> list[OutgoingMessage]:
        """A call of the proxy's tool and its result."""
        item = self.form.call % n
        call = {"id": f"toolu_own_{n}", "type": "function", "function": {"name": "recall", "arguments": "{}"}}
        answer = {"role": "assistant", "content": None, "tool_calls": [call], "wire": [json.loads(item)]}
        result = {"role": "tool", "tool_call_id": f"toolu_own_{n}", "content": "found"}
        return [(None, json.dumps(one).encode()) for one in (answer, result)]


def outcome(compute: Callable[[], Any]) -> Any:
    """The result, or the error's words."""
    try:
        return compute()
    except (ValueError, TypeError) as problem:
        return type(problem), str(problem)


def compare(form: Format, body: bytes, plan: Sequence[OutgoingMessage], known: Any) -> None:
    """A request that is read with what is known gives the same as one that is read alone."""
    written = outcome(lambda: form.read(body).write(plan))
    assert outcome(lambda: known.write(plan)) == written
    for sent, memo in ((written, known.memo.sent), (body, known.memo.own)):
        if isinstance(sent, bytes):
            compare_traces(form, sent, memo)
    if isinstance(written, bytes):
        judged = outcome(lambda: sorted(form.judge(written, body, HistoryMemo())))
        assert outcome(lambda: sorted(form.judge(written, body, known.memo))) == judged


@given(st.data(), st.integers(0, 1 << 30))
@settings(max_examples=60)
def test_the_bindings_of_chat_completions_do_not_depend_on_what_is_known(data: Any, seed: int) -> None:
    dice, memo = random.Random(seed), PrefixMemo()
    tools: list[Json] = []
    messages: list[Json] = [{"role": "system", "content": "You."}]
    for n in range(data.draw(st.integers(4, 14))):
        thought = {"type": "thinking", "thinking": "x", "signature": f"s{n}="}
        messages += [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"}]
        messages[-1] |= {"thinking_blocks": [thought]} if dice.random() < 0.6 else {}
        if dice.random() < 0.1:
            messages.append({"role": "developer", "content": f"d{n}"})
        if dice.random() < 0.05:
            del messages[dice.randrange(len(messages))]
        tools = [{"name": f"f{n}"}] if dice.random() < 0.1 else tools
        note = [{"role": "system", "content": "Only now."}] if dice.random() < 0.2 else []
        body = json.dumps({"model": "m", "messages": [*messages, *note], "tools": tools}).encode()
        traced = completions_rules.trace_prompt(body)
        assert completions_rules.trace_prompt(body, memo).bindings == traced.bindings
    assert JUDGED not in memo.known


def compare_traces(form: Format, body: bytes, memo: PrefixMemo) -> None:
    traced = outcome(lambda: form.trace(body, None).bindings)
    assert outcome(lambda: form.trace(body, memo).bindings) == traced


@pytest.mark.parametrize("name", FORMATS)
@given(st.data(), st.integers(0, 1 << 30))
@settings(max_examples=60, suppress_health_check=[HealthCheck.data_too_large])
def test_a_remembered_prefix_changes_no_result(name: str, data: Any, seed: int) -> None:
    form, dice = FORMATS[name], random.Random(seed)
    planner = Planner(form, dice)
    earlier: list[Any] = []
    head = form.heads[seed % len(form.heads)]
    for items in grow(data.draw(HISTORIES[name]), dice):
        head = dice.choice(form.heads) if dice.random() < 0.1 else head
        body = write_body(form, items, head)
        # The longest earlier request that the body continues, as the cache of messages finds it.
        before = max(
            (one for one in earlier if one.prefix_end and body.startswith(one.body[: one.prefix_end])),
            key=lambda one: one.prefix_end,
            default=None,
        )
        earlier.append(form.read(body, None, before))
        assert earlier[-1] == form.read(body)
        compare(form, body, planner.plan(read_request(form.read(body).chat_body).messages), earlier[-1])


def write_body(form: Format, items: Sequence[Json], head: Json) -> bytes:
    """A body with the history in front of everything that may change."""
    order = [("model", form.head["model"]), (form.key, items), *form.head.items(), *head.items()]
    return json.dumps(dict(order)).encode()


def make_plain(name: str, count: int) -> list[Json]:
    """A history of questions and answers."""
    if name == "responses":
        return [histories.assistant("a", n) if n % 2 else histories.user("q" * 200) for n in range(count)]
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": [{"type": "text", "text": f"t{n}"}]} for n in range(count)]


@pytest.mark.parametrize("name", FORMATS)
def test_only_what_is_new_is_read_written_and_judged(name: str) -> None:
    form = FORMATS[name]

    def plan(request: Any) -> list[OutgoingMessage]:
        messages = read_request(request.chat_body).messages
        return [(n, replace_text(m.raw, "cut") if m.role == "user" else m.raw) for n, m in enumerate(messages)]

    before = form.read(write_body(form, make_plain(name, 39), {}))
    before.write(plan(before))
    request = form.read(write_body(form, make_plain(name, 41), {}), None, before)
    known = request.memo.written.find_beginning(plan(request))
    assert len(known.elements) == 38, "all elements of the request before, but for its last one"
    sent = request.write(plan(request))
    assert bytes(known.array) in sent
    assert form.judge(sent, request.body, request.memo) == []
    form.trace(sent, request.memo.sent)
    assert set(request.memo.sent.known) == {JUDGED, TRACED}
    for prefix in request.memo.sent.known.values():
        assert len(prefix.places) == 41 - CHANGING_TAIL
        assert sent.startswith(prefix.text)
        assert len(read_history(sent, form.key, prefix).new) == CHANGING_TAIL


@pytest.mark.parametrize("name", FORMATS)
def test_values_outside_of_the_history_are_judged_each_time(name: str) -> None:
    form, items, memo = FORMATS[name], make_plain(name, 11), HistoryMemo()
    if name == "responses":
        items.insert(3, histories.reasoning(3, encrypted_content=None))
    thinking = {"type": "thinking", "thinking": "", "signature": "s"}
    if name == "messages":
        items[3]["content"].insert(0, thinking)
    tools = [{"name": "f0", "type": "function", "input_schema": {}, "parameters": {}}]
    choice = {"type": "tool" if name == "messages" else "function", "name": "f0"}
    heads: list[Json] = [
        {"tools": tools},
        {"tools": tools, "tool_choice": choice},
        {"tools": tools * 2},
        {"tools": [{**tools[0], "name": "g"}], "tool_choice": choice},
        {"tools": tools, "store": False, "system": "You."},
    ]
    for head in heads * 2:
        body = write_body(form, items, head)
        assert form.judge(body, body, memo) == form.judge(body, body, HistoryMemo())
        compare_traces(form, body, memo.sent)


def test_the_last_known_message_is_judged_with_the_one_after_it() -> None:
    body: Json = {"max_tokens": 9, "messages": [{"role": "user", "content": "Do."}]}
    for n in range(4):
        call = {"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": "out"}
        body["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    body["messages"].append({"role": "user", "content": "Go on."})
    memo = PrefixMemo()
    assert messages_rules.find_violations(json.dumps(body).encode(), memo) == []
    known = len(memo.known[JUDGED].places)
    assert body["messages"][known - 1]["role"] == "assistant"
    body["messages"][known:] = [{"role": "user", "content": "No result."}]
    cut = json.dumps(body).encode()
    assert memo.find_prefix(JUDGED, cut) is not None
    assert messages_rules.find_violations(cut, memo) == messages_rules.find_violations(cut)


def test_an_open_loop_is_found_where_a_body_ends_with_the_known_beginning() -> None:
    messages: list[Json] = [{"role": "user", "content": "Do."}]
    for n in range(3):
        call = {"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": "out"}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    messages.insert(3, {"role": "system", "content": "Note."})
    memo = PrefixMemo()
    assert messages_rules.find_violations(json.dumps({"max_tokens": 9, "messages": messages}).encode(), memo) == []
    known = messages[: len(memo.known[JUDGED].places)]
    assert known[-1]["role"] == "system"
    cut = json.dumps({"max_tokens": 9, "messages": known, "thinking": {"type": "enabled"}}).encode()
    assert memo.find_prefix(JUDGED, cut) is not None
    assert messages_rules.find_violations(cut, memo) == ["M13 messages.1.content.0: expected thinking"]


def test_a_message_that_one_of_the_proxy_parts_is_not_written_twice() -> None:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "out"}
    messages: list[Json] = [
        {"role": "user", "content": "Do."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on."}]},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "More."},
    ]
    before = None
    for count in (3, 5):  # the second time, the first part is among the messages that are written already
        body = json.dumps({"max_tokens": 9, "messages": messages[:count]}).encode()
        request = read_messages_request(body, None, before)
        plan: list[OutgoingMessage] = list(enumerate(request.canonical))
        plan.insert(3, (None, SYSTEM))
        made = json.loads(request.write(plan))["messages"]
        assert [one["role"] for one in made[2:5]] == ["user", "system", "user"]
        assert (made[2]["content"], made[4]["content"]) == ([result], [{"type": "text", "text": "Go on."}])
        before = request


def test_the_last_known_item_is_judged_with_the_one_after_it() -> None:
    items = [histories.user()]
    for n in range(1, 5):
        items += [histories.reasoning(n), histories.call(n), histories.output(n)]
    body = json.dumps({"model": "m", "store": False, "input": [*items[:10], histories.user(), histories.user()]})
    memo = PrefixMemo()
    assert responses_rules.find_violations(body.encode(), None, memo) == []
    known = items[: len(memo.known[JUDGED].places)]
    assert known[-1]["type"] == "reasoning"
    cut = json.dumps({"model": "m", "store": False, "input": [*known, histories.user("No.")]}).encode()
    assert memo.find_prefix(JUDGED, cut) is not None
    assert responses_rules.find_violations(cut, None, memo) == responses_rules.find_violations(cut)


def test_a_change_before_a_compaction_is_written_as_before() -> None:
    items = [histories.user("old"), histories.assistant("a"), histories.user("new")]
    before = read_wire_request(json.dumps({"input": items}).encode())

    def plan(request: Any) -> list[OutgoingMessage]:
        messages = read_request(request.chat_body).messages
        return [(n, replace_text(m.raw, "cut") if not n else m.raw) for n, m in enumerate(messages)]

    written = json.loads(before.write(plan(before)))["input"]
    longer = [*items, {"type": "compaction", "encrypted_content": "e"}, histories.user("newer")]
    request = read_wire_request(json.dumps({"input": longer}).encode(), None, before)
    assert json.loads(request.write(plan(request)))["input"] == [*written, *longer[3:]]


def test_a_result_of_the_proxy_finds_its_call_among_the_items_that_are_written_already() -> None:
    call, _ = histories.make_pair("custom", 1, "")
    items = [histories.user("a"), call]
    result: list[OutgoingMessage] = [(None, b'{"role":"tool","tool_call_id":"call_1","content":"found"}')]
    before = read_wire_request(json.dumps({"input": items}).encode())
    plan = [(n, message.raw) for n, message in enumerate(read_request(before.chat_body).messages)]
    before.write([*plan, *result, (None, NOTE)])
    after = read_wire_request(json.dumps({"input": [*items, histories.user("b")]}).encode(), None, before)
    plan = [(n, message.raw) for n, message in enumerate(read_request(after.chat_body).messages)]
    made = json.loads(after.write([*plan[:2], *result, *plan[2:]]))["input"]
    assert [one["type"] for one in made] == ["message", "custom_tool_call", "custom_tool_call_output", "message"]


def test_a_beginning_that_a_body_does_not_have_is_not_used() -> None:
    memo = PrefixMemo()
    body = json.dumps({"input": [1, 2, 3]}).encode()
    history: BodyHistory[int] = read_history(body, "input", None)
    assert (history.new, history.first, history.state) == ([1, 2, 3], 0, None)
    history.remember(memo, "sum", 2, 3)
    longer = read_history(body[:-2] + b', 4], "store": false}', "input", memo.find_prefix("sum", body))
    assert (longer.new, longer.first, longer.state) == ([3, 4], 2, 3)
    assert longer.read_value("store") is False
    assert (longer.read_value("model"), longer.cut_value("model")) == (None, b"")
    assert memo.find_prefix("sum", b'{"input": [1, 7]}') is None
    for rest in (b"}", b', 4], "input": []}'):  # no list, and a key that is there twice
        with pytest.raises(ValueError, match=r"told apart"):
            read_history(body[:14] + rest, "input", memo.find_prefix("sum", body[:14] + rest))


def test_a_beginning_keeps_no_earlier_body() -> None:
    memo = PrefixMemo()
    first, again = (json.dumps({"input": [1, 2, 3], "n": n}).encode() for n in range(2))
    history: BodyHistory[int] = read_history(first, "input", None)
    history.remember(memo, "sum", 2, 3)
    assert memo.find_prefix("sum", again) is not None
    assert memo.known["sum"].text.obj is again
    longer: BodyHistory[int] = read_history(again, "input", memo.find_prefix("sum", again))
    assert (longer.new, longer.first, longer.state) == ([3], 2, 3)


def test_a_history_that_is_not_a_list_has_no_messages() -> None:
    assert read_history(b'{"input": "text"}', "input", None).places == ()
    assert read_history(b"{}", "input", None).new == []
    assert read_message(NOTE).text == "Note of the proxy."
