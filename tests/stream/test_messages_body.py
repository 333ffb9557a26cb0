"""An answer in one body gives the client what the same answer gives as a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.completions.request import read_message
from proxy.dialects.messages.blocks import make_assistant_message
from proxy.notes.state_block import HEADINGS
from proxy.stream.completions_body import may_call
from proxy.stream.messages_answer import MessagesAnswer
from proxy.stream.messages_body import join_rounds, read_round, remove_blocks
from tests.stream.messages_rounds import HIDDEN, call, make, own_call, read, run, stream, text, think
from tests.stream.round_relays import read_canonical
from tests.strict_messages import Block

STATE = "### STATE\nGoal: ship it\nContext: a test\nResolved: nothing"
NOTED = f"Reading on.\n\n{STATE}"


def _body(*blocks: Block, **options: Any) -> bytes:
    return json.dumps(make(*blocks, **options), indent=1).encode()


def test_a_body_without_blocks_stays_the_same_bytes() -> None:
    body = _body(think(), text("A state of things."), call("a"))
    assert remove_blocks(body) == (body, [])
    assert join_rounds([body], HIDDEN) == body


def test_state_leaves_the_text_and_nothing_else_changes() -> None:
    body = _body(think(), text(NOTED), call("a"))
    visible, blocks = remove_blocks(body)
    assert visible == body.replace(json.dumps(NOTED).encode(), b'"Reading on."')
    assert [block.body for block in blocks] == [STATE.removeprefix("### STATE\n")]


def test_a_text_block_with_only_a_state_block_is_removed() -> None:
    visible, blocks = remove_blocks(_body(text(STATE), call("a")))
    assert [block["type"] for block in json.loads(visible)["content"]] == ["tool_use"]
    assert len(blocks) == 1


def test_a_block_that_was_cut_off_counts_at_the_end_of_a_cut_answer_alone() -> None:
    cut = text("Reading on.\n\n### STATE\nGoal: sh")
    assert remove_blocks(_body(cut))[1] == []
    assert len(remove_blocks(_body(cut, stop_reason="max_tokens"))[1]) == 1
    assert remove_blocks(_body(cut, call("a"), stop_reason="max_tokens"))[1] == []


def test_a_body_that_only_python_reads_is_served_too() -> None:
    odd = b'{"id":"a","id":"m","content":[{"type":"text","text":%b},{"type":"tool_use","id":"o","name":"recall"}]}'
    body = odd % json.dumps(NOTED).encode()
    visible, blocks = remove_blocks(body)
    assert json.loads(visible)["content"][0]["text"] == "Reading on."
    assert len(blocks) == 1
    joined = json.loads(join_rounds([body, body], HIDDEN))
    assert [block["type"] for block in joined["content"]] == ["text", "text"]


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b'{"content":"### STATE"}', b'{"content":[1,"### STATE"]}'])
def test_a_body_that_is_not_an_answer_stays(body: bytes) -> None:
    assert remove_blocks(body) == (body, [])
    assert join_rounds([body], HIDDEN) == body
    assert not read_round(body, HIDDEN).goes_on


def test_a_round_tells_what_it_asks_for() -> None:
    assert may_call(_body(own_call("o")), HIDDEN)
    assert not may_call(_body(call("a")), HIDDEN)
    found = read_round(_body(think(), text(" "), own_call("o", q=1)), HIDDEN)
    assert found.goes_on
    assert [(one.id, one.name, json.loads(one.arguments)) for one in found.hidden_calls] == [("o", "recall", {"q": 1})]
    assert read_canonical(found.message)[2] == ["o"]
    assert found.message is not None
    assert [one["type"] for one in json.loads(found.message)["wire"]] == ["thinking", "tool_use"], "no empty text"
    mixed = read_round(_body(own_call("o"), call("a")), HIDDEN)
    assert (mixed.goes_on, mixed.shown_calls, len(mixed.hidden_calls)) == (False, 1, 1)
    for body in (
        _body(own_call("o"), stop_reason="max_tokens"),
        _body(own_call("o"), own_call("o")),
        _body(own_call("")),
    ):
        assert read_round(body, HIDDEN).hidden_calls == []


def test_rounds_are_one_body_with_the_first_ones_head_and_all_output_tokens() -> None:
    first = make(think(), text("Hm."), own_call("o"), input_tokens=100, output_tokens=10)
    last = make(text("So."), own_call("p"), call("a"), input_tokens=200, output_tokens=20) | {
        "id": "msg_9",
        "model": "other",
    }
    made = json.loads(join_rounds([json.dumps(one).encode() for one in (first, last)], HIDDEN))
    assert [block["type"] for block in made["content"]] == ["thinking", "text", "text", "tool_use"]
    assert (made["id"], made["model"], made["stop_reason"]) == ("msg_1", "claude-opus-5-5", "tool_use")
    assert (made["usage"]["input_tokens"], made["usage"]["output_tokens"]) == (200, 30)
    alone = json.loads(join_rounds([_body(text("x"), own_call("o"))], HIDDEN))
    assert ([block["type"] for block in alone["content"]], alone["stop_reason"]) == (["text"], "end_turn")


def test_the_answer_is_recognised_when_the_client_sends_it_back() -> None:
    body = _body(think(), text("Hm."), call("a"))
    message = MessagesAnswer.from_body(body).build_message()
    assert message is not None
    resent = make_assistant_message([json.dumps(one).encode() for one in json.loads(body)["content"]]).chat
    assert read_message(message).digest == read_message(resent).digest


BLOCKS = st.lists(
    st.sampled_from(
        [think(), text("Hm. "), text(NOTED), text(STATE), call("a"), call("b"), own_call("o"), own_call("p")]
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda block: str(block.get("id") or id(block)),
)


@given(st.lists(BLOCKS, min_size=1, max_size=3))
def test_a_body_and_a_stream_give_one_answer(rounds: list[list[Block]]) -> None:
    bodies, streams = [], []
    for blocks in rounds:
        visible, _ = remove_blocks(_body(*blocks))
        bodies.append(visible)
        streams.append(stream(*blocks))
        if not read_round(visible, HIDDEN).goes_on:
            break
    found = json.loads(join_rounds(bodies, HIDDEN))
    out, relay = run(streams, withheld=HEADINGS, hidden_tools=HIDDEN, stop=read_round(bodies[-1], HIDDEN).goes_on)
    message = read(out)
    assert found["content"] == message["content"]
    for name in ("id", "model", "stop_reason"):
        assert found[name] == message[name]
    assert found["usage"] == {name: message["usage"][name] for name in found["usage"]}
    assert relay.answer.usage == MessagesAnswer.from_body(json.dumps(found).encode()).usage
