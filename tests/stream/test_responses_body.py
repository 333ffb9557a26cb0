from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.completions.request import read_message
from proxy.notes.state_block import HEADINGS
from proxy.stream import responses_body as body_rules
from proxy.stream.answer_relay import ClientEcho
from proxy.stream.completions_body import may_call
from tests.response_events import USAGE, Json, message, response, text_part, thinking, tool_call
from tests.stream.responses_rounds import BLOCK, OURS, read_events, relay_rounds, send_back
from tests.stream.test_responses_relay import answers


def dump(value: Json) -> bytes:
    return json.dumps(value, indent=1).encode()


STATED = response(thinking(1), message(2, f"Hello.\n\n{BLOCK}"), message(3, BLOCK), tool_call(4, "shell"))


def test_blocks_leave_a_body_and_all_else_stays() -> None:
    visible, blocks = body_rules.remove_blocks(dump(STATED))
    wanted = [STATED["output"][0], message(2, "Hello."), STATED["output"][3]]
    assert json.loads(visible) == STATED | {"output": wanted}
    assert [block.body for block in blocks] == [BLOCK.partition("\n")[2]] * 2
    plain = dump(response(message(1, "The state of it.")))
    assert body_rules.remove_blocks(plain) == (plain, [])
    assert body_rules.remove_blocks(b"### STATE") == (b"### STATE", [])


def test_log_probabilities_and_annotations_are_cut_alike() -> None:
    notes = [{"type": "file_citation", "index": 3, "file_id": "f"}]
    part = text_part(f"Hello.\n\n{BLOCK}", logged=4, annotations=notes)
    visible, _ = body_rules.remove_blocks(dump(response(message(1, part))))
    found = json.loads(visible)["output"][0]["content"][0]
    assert [one["token"] for one in found["logprobs"]] == ["Hell"]
    assert found["annotations"] == notes


def test_a_round_is_read_with_its_hidden_calls() -> None:
    made = response(message(1, "I look."), tool_call(2, "recall", '{"id":"x"}'))
    assert may_call(dump(made), OURS)
    assert not may_call(dump(STATED), OURS)
    found = body_rules.read_round(dump(made), OURS)
    assert [(call.id, call.name, call.arguments) for call in found.hidden_calls] == [("call_2", "recall", '{"id":"x"}')]
    assert (found.goes_on, found.shown_calls) == (True, 0)
    assert found.message is not None
    assert json.loads(found.message)["wire"] == made["output"]
    assert found.usage is not None
    assert found.usage.completion == 7


@pytest.mark.parametrize(
    ("made", "ours", "shown"),
    [
        (response(tool_call(1, "shell"), tool_call(2, "recall")), 1, 1),
        (response(tool_call(1, "shell")), 0, 1),
        (response(tool_call(1, "recall"), status="incomplete"), 0, 0),
        (response(tool_call(1, "recall"), tool_call(1, "query_db")), 0, 0),
        (response(tool_call(1, "recall") | {"call_id": None}), 0, 0),
    ],
)
def test_a_round_that_ends_the_answer_does_not_go_on(made: Json, ours: int, shown: int) -> None:
    found = body_rules.read_round(dump(made), OURS)
    assert (len(found.hidden_calls), found.shown_calls, found.goes_on) == (ours, shown, False)


def test_rounds_are_one_body_for_the_client() -> None:
    rounds = [
        response(thinking(1), message(2, "I look."), tool_call(3, "recall")),
        response(message(4, "Found."), tool_call(5, "shell"), tool_call(6, "recall"), number=2),
    ]
    joined = json.loads(body_rules.join_rounds([dump(one) for one in rounds], OURS))
    assert [item["id"] for item in joined["output"]] == ["rs_1", "msg_2", "msg_4", "fc_5"]
    assert (joined["id"], joined["created_at"]) == ("resp_1", rounds[0]["created_at"])
    assert joined["usage"] == USAGE | {
        "output_tokens": 14, "output_tokens_details": {"reasoning_tokens": 6}, "total_tokens": 114,
    }  # fmt: skip
    assert body_rules.join_rounds([dump(STATED)], OURS) == dump(STATED)
    assert body_rules.join_rounds([dump(rounds[0]), b"no json"], OURS) == b"no json"


@given(answers(1), answers(2), st.booleans())
@settings(max_examples=80, deadline=None)
def test_a_body_and_a_stream_give_the_same_answer(first: Json, second: Json, withhold: bool) -> None:
    out, relay = relay_rounds([first, second], withheld=HEADINGS if withhold else ())
    if relay.goes_on:
        out += relay.end_answer() + relay.terminal
    bodies: list[bytes] = []
    blocks: list[str] = []
    for made in (first, second):
        body = dump(made)
        if withhold:
            body, found = body_rules.remove_blocks(body)
            blocks += [block.body for block in found]
        bodies.append(body)
        if not body_rules.read_round(body, OURS).goes_on:
            break
    joined = body_rules.join_rounds(bodies, OURS)
    last = read_events(out)[-1]["response"]
    assert json.loads(joined) == last
    assert relay.blocks == blocks
    answer = body_rules.read_answer(joined)
    raw = answer.build_message()
    assert (raw is None) == (not last["output"])
    if raw is not None:
        assert read_message(raw).digest == send_back(last["output"]).digest
    assert answer.usage == relay.answer.usage


def test_a_body_repeats_the_request_as_the_client_knows_it() -> None:
    tools = [{"type": "function", "name": "recall"}, {"type": "web_search"}]
    made = response(message(1, "x"), tools=tools, instructions="Theirs. Ours.")
    found = json.loads(body_rules.restore_echo(dump(made), OURS, ClientEcho(b"null")))
    assert found == made | {"tools": tools[1:], "instructions": None}
    plain = dump(response(message(1, "x")))
    assert body_rules.restore_echo(plain, OURS, ClientEcho()) is plain


def test_members_that_come_twice_are_set_too() -> None:
    assert json.loads(body_rules.set_members(b'{"a":1,"a":2,"b":3}', {"a": b"[4]", "c": b"5"})) == {"a": [4], "b": 3}
