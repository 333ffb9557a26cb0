from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.completions.request import read_message
from proxy.dialects.responses.stream import make_error_event
from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import ClientEcho, RelayOptions
from proxy.stream.responses_relay import ResponsesRelay
from tests.response_events import (
    USAGE,
    Json,
    custom_call,
    event,
    events,
    message,
    response,
    text_part,
    thinking,
    tool_call,
    web_search,
)
from tests.stream.responses_rounds import (
    BLOCK,
    OURS,
    answer_of,
    check_copies,
    check_numbers,
    pieces,
    read_events,
    read_with_sdk,
    relay_round,
    relay_rounds,
    send_back,
)

ENDS = (b"completed", b"incomplete", b"failed")
PLAIN = response(thinking(1, "I think."), message(2, "Hello, you."), tool_call(3, "shell", '{"a":1}'), web_search(4))
STATED = response(thinking(1), message(2, f"Hello, you.\n\n{BLOCK}"), tool_call(3, "shell"))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 10**6])
def test_a_stream_without_edits_is_passed_on_unchanged_with_its_end_kept_back(size: int) -> None:
    stream = events(PLAIN)
    relay = ResponsesRelay()
    out = b"".join([relay.feed(part) for part in pieces(b"".join(stream), size)])
    assert (out, relay.terminal) == (b"".join(stream[:-1]), stream[-1])
    assert relay.end() == b""
    assert answer_of(relay).digest == send_back(PLAIN["output"]).digest
    assert (relay.answer.id, relay.answer.model, relay.answer.finish_reasons) == (
        "resp_1",
        "gpt-6.2",
        {0: "tool_calls"},
    )
    assert not relay.answer.is_truncated


def test_bytes_are_relayed_at_once_except_a_possible_end_event() -> None:
    relay = ResponsesRelay()
    stream = b"".join(events(PLAIN)[:-1])
    for end in range(len(stream)):
        data = relay.feed(stream[end : end + 1])
        begun = stream[: end + 1].rpartition(b"\n\n")[2]
        assert data or any((b"event: response." + name).startswith(begun) for name in ENDS)


def test_unchanged_events_keep_their_bytes_also_where_edits_may_come() -> None:
    stream = events(PLAIN)
    for how in ({"withheld": HEADINGS}, {"hidden_tools": OURS}, {"echo": ClientEcho(b"null")}):
        out, relay = relay_round(stream, **how)
        assert out == b"".join(stream)
        assert relay.terminal == stream[-1]


@pytest.mark.parametrize("made", [PLAIN, STATED], ids=["plain", "stated"])
def test_a_stream_cut_anywhere_gives_the_same_bytes_and_answer(made: Json) -> None:
    whole = b"".join(events(made))
    wanted, first = relay_round([whole], withheld=HEADINGS, hidden_tools=OURS)
    for at in range(0, len(whole), 7):
        out, relay = relay_round([whole[:at], whole[at:]], withheld=HEADINGS, hidden_tools=OURS)
        assert out == wanted
        assert relay.answer.build_message() == first.answer.build_message()


def test_a_state_block_is_withheld_from_all_copies() -> None:
    part = text_part(f"Hello, you.\n\n{BLOCK}", logged=3)
    out, relay = relay_round(events(response(message(1, part), tool_call(2, "shell"))), withheld=HEADINGS)
    output = check_copies(check_numbers(out))
    assert output[0]["content"][0]["text"] == "Hello, you."
    assert "".join(one["token"] for one in output[0]["content"][0]["logprobs"]) == "Hello, yo"
    assert b"STATE" not in out
    assert b"Goal" not in out
    assert relay.blocks == [BLOCK.partition("\n")[2]]
    assert read_with_sdk(out).output_text == "Hello, you."
    assert answer_of(relay).digest == send_back(output).digest
    kept = read_message(relay.build_round_message() or b"")
    assert kept.text == "Hello, you."


def test_a_message_that_is_only_a_state_block_is_left_out() -> None:
    made = response(thinking(1), message(2, BLOCK), tool_call(3, "shell"))
    out, relay = relay_round(events(made), withheld=HEADINGS)
    assert [item["id"] for item in check_copies(check_numbers(out))] == ["rs_1", "fc_3"]
    assert [item.id for item in read_with_sdk(out).output] == ["rs_1", "fc_3"]
    assert len(relay.blocks) == 1
    assert json.loads(relay.build_round_message() or b"")["wire"] == [made["output"][0], made["output"][2]]


def test_state_goes_back_where_reasoning_is_bound_to_it_or_has_nothing_else_after_it() -> None:
    for made in (
        response(message(1, BLOCK), thinking(2), tool_call(3, "recall")),
        response(thinking(1), message(2, BLOCK)),
    ):
        _, relay = relay_round(events(made), withheld=HEADINGS, hidden_tools=OURS)
        assert json.loads(relay.build_round_message() or b"")["wire"] == made["output"]


def test_a_part_that_is_only_a_state_block_is_left_out_of_its_message() -> None:
    made = response(message(1, "One.", BLOCK, "Two."))
    out, relay = relay_round(events(made), withheld=HEADINGS)
    output = check_copies(check_numbers(out))
    assert [part["text"] for part in output[0]["content"]] == ["One.", "Two."]
    assert answer_of(relay).digest == send_back(output).digest


def test_an_empty_message_and_a_refusal_pass() -> None:
    refusal = {"type": "refusal", "refusal": "I can not."}
    stream = events(response(message(1, ""), message(2, refusal), message(3, "Well.", refusal)))
    out, relay = relay_round(stream, withheld=HEADINGS)
    assert out == b"".join(stream)
    assert answer_of(relay).digest == send_back(check_copies(read_events(out))).digest


def test_annotations_after_a_cut_move_and_those_in_it_leave() -> None:
    block = "### REFLECTION\nI go on.\n"
    text = f"One.\n\n{block}\n## Two [x]"
    at, inside = text.index("[x]"), text.index("I go on")
    notes = [
        {"type": "url_citation", "url": "u", "title": "t", "start_index": n, "end_index": n + 3}
        for n in (at, inside, 0)
    ]
    made = response(message(1, text_part(text, annotations=notes)))
    out, relay = relay_round(events(made), withheld=("### STATE", "### REFLECTION"))
    found = check_numbers(out)
    part = check_copies(found)[0]["content"][0]
    assert relay.other_blocks
    assert "REFLECTION" not in part["text"]
    assert [part["text"][note["start_index"] : note["end_index"]] for note in part["annotations"]] == ["[x]", "One"]
    added = [one["annotation"] for one in found if one["type"] == "response.output_text.annotation.added"]
    assert added == part["annotations"]


def test_a_hidden_round_leaves_no_trace() -> None:
    first = response(thinking(1), tool_call(2, "recall", '{"id":"x"}'))
    second = response(thinking(3), message(4, "Found."), tool_call(5, "shell"), number=2)
    out, relay = relay_rounds([first, second])
    found = check_numbers(out)
    output = check_copies(found)
    assert [item["id"] for item in output] == ["rs_1", "rs_3", "msg_4", "fc_5"]
    assert {one["response"]["created_at"] for one in found if "response" in one} == {first["created_at"]}
    assert b"recall" not in out
    assert found[-1]["response"]["usage"] == {
        **USAGE, "output_tokens": 14, "output_tokens_details": {"reasoning_tokens": 6}, "total_tokens": 114,
    }  # fmt: skip
    assert [item.id for item in read_with_sdk(out).output] == [item["id"] for item in output]
    assert answer_of(relay).digest == send_back(output).digest
    assert relay.answer.usage is not None
    assert (relay.answer.usage.prompt, relay.answer.usage.completion, relay.answer.usage.cached) == (100, 14, 64)
    assert relay.round_usage is not None
    assert (relay.round_usage.completion, relay.shown_calls) == (7, 1)


def test_the_message_of_a_round_that_continues_is_whole_except_for_its_state() -> None:
    first = response(
        thinking(1, "So."), message(2, f"I look.\n\n{BLOCK}"), tool_call(3, "recall"), tool_call(4, "query_db")
    )
    data, relay = relay_rounds([first], withheld=HEADINGS)
    assert relay.goes_on
    assert relay.terminal == b""
    assert b"completed" not in b"".join(one for one in data.split(b"\n") if one.startswith(b"event"))
    assert [(call.id, call.name) for call in relay.hidden_calls] == [("call_3", "recall"), ("call_4", "query_db")]
    wire = json.loads(relay.build_round_message() or b"")["wire"]
    assert wire[1]["content"][0]["text"] == "I look."
    assert [wire[0], *wire[2:]] == [first["output"][0], *first["output"][2:]]


def test_a_mixed_round_ends_the_answer_and_names_the_hidden_calls() -> None:
    made = response(tool_call(1, "shell"), tool_call(2, "recall"), custom_call(3, "patch", "*** x"))
    out, relay = relay_rounds([made])
    assert [item["id"] for item in check_copies(check_numbers(out))] == ["fc_1", "ctc_3"]
    assert ([call.id for call in relay.hidden_calls], relay.goes_on, relay.shown_calls) == (["call_2"], False, 2)
    assert answer_of(relay).digest == send_back([made["output"][0], made["output"][2]]).digest


def test_an_answer_may_be_ended_although_it_would_continue() -> None:
    first = response(message(1, "I look."), tool_call(2, "recall"))
    out, relay = relay_rounds([first])
    out += relay.end_answer() + relay.terminal
    assert [item["id"] for item in check_copies(check_numbers(out))] == ["msg_1"]
    assert (relay.goes_on, relay.answer.is_done, relay.answer.finish_reasons) == (False, True, {0: "stop"})


def test_calls_that_interleave_are_distinguished() -> None:
    made = response(tool_call(1, "recall"), tool_call(2, "shell"))
    stream = events(made, 1)
    head, tail = stream[:2], stream[-1:]
    by_item: dict[int, list[bytes]] = {}
    for one in stream[2:-1]:
        by_item.setdefault(json.loads(one.split(b"data: ")[1])["output_index"], []).append(one)
    mixed = [one for pair in zip(*by_item.values(), strict=True) for one in pair]
    numbered = [
        event(value.pop("type"), n, **{k: v for k, v in value.items() if k != "sequence_number"})
        for n, value in enumerate(json.loads(one.split(b"data: ")[1]) for one in [*head, *mixed, *tail])
    ]
    out, relay = relay_round(numbered, hidden_tools=OURS)
    assert [item["id"] for item in check_copies(check_numbers(out))] == ["fc_2"]
    assert [call.id for call in relay.hidden_calls] == ["call_1"]


def test_a_call_waits_for_its_name() -> None:
    for name, shown in (("recall", 0), ("shell", 1)):
        stream = events(response(tool_call(1, name)))
        begun = json.loads(stream[2].split(b"data: ")[1])
        begun["item"]["name"] = ""
        stream[2] = event(begun.pop("type"), begun.pop("sequence_number"), **begun)
        out, relay = relay_round(stream, hidden_tools=OURS)
        assert relay.shown_calls == shown
        if shown:
            assert [one["type"] for one in read_events(out)] == [one["type"] for one in read_events(b"".join(stream))]
        else:
            assert relay.goes_on
            assert b"fc_1" not in out


def test_a_call_in_a_namespace_is_the_clients() -> None:
    stream = events(response(tool_call(1, "recall", namespace="theirs")))
    out, relay = relay_round(stream, hidden_tools=OURS)
    assert (out, relay.goes_on) == (b"".join(stream), False)


@pytest.mark.parametrize("fault", [{"call_id": ""}, {"call_id": None}])
def test_hidden_calls_that_cannot_be_answered_end_the_answer(fault: Json) -> None:
    out, relay = relay_rounds([response(message(1, "x"), tool_call(2, "recall") | fault)])
    assert [item["id"] for item in check_copies(check_numbers(out))] == ["msg_1"]
    assert (relay.goes_on, relay.hidden_calls) == (False, [])


def test_an_incomplete_answer_runs_no_hidden_call() -> None:
    made = response(
        message(1, "x"), tool_call(2, "recall"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}
    )
    out, relay = relay_rounds([made])
    assert (relay.goes_on, relay.hidden_calls, relay.answer.finish_reasons) == (False, [], {0: "length"})
    assert read_events(out)[-1]["type"] == "response.incomplete"
    assert [item["id"] for item in check_copies(check_numbers(out))] == ["msg_1"]


def test_a_state_block_that_was_cut_off_is_withheld_too() -> None:
    cut = message(1, "Hi.\n\n### STATE\nGoal: go on\nCont", status="incomplete")
    out, relay = relay_round(events(response(cut, status="incomplete")), withheld=HEADINGS)
    assert check_copies(check_numbers(out))[0]["content"][0]["text"] == "Hi."
    assert relay.blocks == ["Goal: go on\nCont"]


def test_text_that_waits_is_dropped_if_calls_of_the_client_follow_later() -> None:
    first = response(thinking(1), message(2, "I recall."), thinking(3), tool_call(4, "recall"))
    for second, wanted in (
        (response(message(5, "Now."), tool_call(6, "shell"), number=2), ["rs_1", "rs_3", "msg_5", "fc_6"]),
        (response(thinking(5), message(6, "Done."), number=2), ["rs_1", "msg_2", "rs_3", "rs_5", "msg_6"]),
    ):
        out, relay = relay_rounds([first, second], hold_text=True)
        output = check_copies(check_numbers(out))
        assert [item["id"] for item in output] == wanted
        assert answer_of(relay).digest == send_back(output).digest
    out, relay = relay_rounds([first], hold_text=True)
    assert "I recall." not in out.decode()
    other = ResponsesRelay(RelayOptions(hidden_tools=OURS, hold_text=True), previous=relay)
    other.drop_held_text()
    rest = b"".join([other.feed(one) for one in events(response(message(5, "Other."), number=2))])
    output = check_copies(check_numbers(out + rest + other.terminal))
    assert [item["id"] for item in output] == ["rs_1", "rs_3", "msg_5"]


def test_events_repeat_the_request_as_the_client_knows_it() -> None:
    tools = [{"type": "function", "name": "shell"}, {"type": "function", "name": "recall"}]
    made = response(message(1, "x"), instructions="Theirs. Ours.", tools=tools)
    out, _ = relay_round(events(made), hidden_tools=OURS, echo=ClientEcho(b'"Theirs."'))
    found = check_numbers(out)
    for one in found:
        if "response" in one:
            assert (one["response"]["instructions"], one["response"]["tools"]) == ("Theirs.", tools[:1])


def test_a_server_without_event_lines_or_with_an_end_marker_is_relayed_too() -> None:
    stream = [one.partition(b"\n")[2] for one in events(STATED)]
    done = b"data: [DONE]\n\n"
    for size in (1, 9, 10**6):
        relay = ResponsesRelay()
        out = b"".join([relay.feed(part) for part in pieces(b"".join([*stream, done]), size)])
        assert (out, relay.terminal) == (b"".join(stream[:-1]), stream[-1] + done)
        relay = ResponsesRelay(RelayOptions(withheld=HEADINGS))
        out = b"".join([relay.feed(part) for part in pieces(b"".join([*stream, done]), size)])
        assert b"STATE" not in out + relay.terminal
        assert relay.terminal.endswith(done)


def test_keepalive_comments_and_unknown_events_pass() -> None:
    stream = events(PLAIN)
    stream[3:3] = [b": keepalive\n\n", event("response.new", 3, what=1)]
    numbered = [*stream[:5]]
    for n, one in enumerate(stream[5:], 4):
        value = json.loads(one.split(b"data: ")[1])
        kind = value.pop("type")
        numbered.append(event(kind, n, **{k: v for k, v in value.items() if k != "sequence_number"}))
    out, _ = relay_round(numbered, withheld=HEADINGS, hidden_tools=OURS)
    assert out == b"".join(numbered)


@pytest.mark.parametrize("how", [{}, {"withheld": HEADINGS}, {"hidden_tools": OURS}])
def test_a_stream_that_breaks_off_is_truncated(how: Json) -> None:
    stream = b"".join(events(response(message(1, "Hello, you, there."), tool_call(2, "shell"))))
    for at in range(0, len(stream) - 2, 13):
        out, relay = relay_round([stream[:at]], **how)
        assert relay.answer.is_truncated
        if how:
            assert stream.startswith(out.rpartition(b"event: response.output_text.delta")[0]) or not how
            assert not out or out.endswith(b"\n\n")
        else:
            assert stream.startswith(out)
    out, relay = relay_round([stream[:-1]], **how)
    assert not relay.answer.is_truncated


def test_held_text_is_passed_on_when_a_stream_breaks_off() -> None:
    stream = events(response(message(1, "Hi.\n\n### STA")), 4)
    cut = next(n for n, one in enumerate(stream) if b"output_text.done" in one)
    out, relay = relay_round(stream[:cut], withheld=HEADINGS)
    assert "".join(one["delta"] for one in read_events(out) if "delta" in one) == "Hi.\n\n### STA"
    assert relay.answer.text == "Hi.\n\n### STA"


def test_an_error_and_a_failure_are_reported() -> None:
    out, relay = relay_round([*events(PLAIN)[:3], make_error_event("no", "server_error", 3)], withheld=HEADINGS)
    assert (relay.answer.error, relay.answer.is_truncated) == ("no", True)
    assert read_events(out)[-1]["error"]["message"] == "no"
    failed = response(status="failed", error={"code": "server_error", "message": "Broken."}, usage=None)
    stream = events(failed)
    out, relay = relay_round(stream, withheld=HEADINGS)
    assert out == b"".join(stream)
    assert (relay.answer.error, relay.answer.is_truncated, relay.answer.finish_reasons) == ("Broken.", False, {})


def test_a_later_round_that_fails_before_any_output_is_not_the_end() -> None:
    failed = response(number=2, status="failed", error={"code": "server_error", "message": "Broken."}, usage=None)
    out, relay = relay_rounds([response(tool_call(1, "recall")), failed])
    assert (relay.answer.is_truncated, relay.terminal, relay.goes_on) == (True, b"", False)
    assert [one["type"] for one in read_events(out)] == ["response.created", "response.in_progress"]
    out, relay = relay_rounds([response(message(9, "x"), tool_call(1, "recall")), failed])
    assert read_events(out)[-1]["type"] == "response.failed"
    assert not relay.answer.is_truncated


def test_items_that_only_the_final_event_has_are_read_from_it() -> None:
    made = response(message(1, f"Hi.\n\n{BLOCK}"), tool_call(2, "recall"), tool_call(3, "shell"))
    stream = events(made)
    out, relay = relay_round([*stream[:2], stream[-1]], withheld=HEADINGS, hidden_tools=OURS)
    output = read_events(out)[-1]["response"]["output"]
    assert [item["id"] for item in output] == ["msg_1", "fc_3"]
    assert output[0]["content"][0]["text"] == "Hi."
    assert (len(relay.blocks), [call.id for call in relay.hidden_calls]) == (1, ["call_2"])
    assert answer_of(relay).digest == send_back(output).digest


def test_an_event_that_is_too_large_marks_the_answer_as_capped_and_shows_nothing_hidden() -> None:
    made = response(tool_call(1, "recall", json.dumps({"q": "x" * 3000})), message(2, "Hi."))
    out, relay = relay_round(events(made, 10**6), hidden_tools=OURS, limit=2000)
    assert relay.answer.is_capped
    assert (relay.goes_on, relay.hidden_calls) == (False, [])
    assert b"xxx" not in out


TEXTS = st.sampled_from(
    ["", "Hi.", "One.\n\nTwo.", f"Well.\n\n{BLOCK}", BLOCK, "### STATE", "```\n### STATE\n```\n", "\n\n"]
)


@st.composite
def answers(draw: st.DrawFn, number: int) -> Json:
    items: list[Json] = []
    for n in range(number * 10, number * 10 + draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 5))
        if kind == 0:
            items.append(thinking(n, *draw(st.lists(st.just("I think."), max_size=2))))
        elif kind == 1:
            parts = [
                text_part(text, logged=draw(st.sampled_from([0, 4])))
                for text in draw(st.lists(TEXTS, min_size=1, max_size=3))
            ]
            items.append(message(n, *parts))
        elif kind == 2:
            items.append(tool_call(n, draw(st.sampled_from(["recall", "query_db"])), '{"a": "b"}'))
        elif kind == 3:
            items.append(tool_call(n, "shell", '{"command": ["ls"]}'))
        else:
            items.append(web_search(n) if kind == 4 else custom_call(n, "patch", "*** Begin"))
    return response(*items, number=number)


@given(answers(1), answers(2), st.integers(1, 200), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_rounds_cut_anywhere_give_one_sound_answer(
    first: Json, second: Json, size: int, withhold: bool, hold: bool
) -> None:
    how: dict[str, Any] = {"withheld": HEADINGS if withhold else (), "hold_text": hold}
    out, relay = relay_rounds([first, second], **how)
    again, other = relay_rounds([first, second], size=size, **how)
    assert (again, other.answer.build_message()) == (out, relay.answer.build_message())
    if relay.goes_on:
        out += relay.end_answer() + relay.terminal
    found = check_numbers(out)
    output = check_copies(found)
    assert [item.id for item in read_with_sdk(out).output] == [item["id"] for item in output]
    assert not any(item.get("name") in OURS for item in output)
    assert not withhold or b"Technical Anchors" not in out
    if output:
        assert answer_of(relay).digest == send_back(output).digest
    else:
        assert relay.answer.build_message() is None
