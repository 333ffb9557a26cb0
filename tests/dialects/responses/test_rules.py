from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects import base
from proxy.dialects.completions import request as completions
from proxy.dialects.responses import rules
from tests import strict_responses as strict
from tests.dialects.responses.histories import Json, assistant, call, developer, histories, output, reasoning, user
from tests.dialects.responses.test_request import chat, dump, keep, read

GOOD = [developer(), user(), reasoning(), assistant("x"), call(), output(), reasoning(2), assistant("y", 2), user()]
MARKED = [{"type": "input_text", "text": "x", "prompt_cache_breakpoint": {}}] * 5


def rules_broken(body: bytes, partners: dict[str, str] | None = None) -> set[str]:
    return {line.split(" ")[0] for line in rules.find_violations(body, partners)}


@given(histories())
@settings(max_examples=60, deadline=None)
def test_a_sound_history_breaks_no_rule(items: list[Json]) -> None:
    body = dump(items)
    found = rules.find_violations(body, rules.find_partners(body))
    assert [line for line in found if not line.startswith("R16")] == []  # histories have any number of marks


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("R1", {"model": None}),
        ("R1", {"input": None}),
        ("R2", {"stream_options": {"include_obfuscation": False}}),
        ("R2", {"tool_choice": {"type": "function", "name": "none"}}),
        ("R3", {"input": [{"type": "reasoning", "id": "rs_1"}, assistant("x")]}),
        ("R3", {"input": [user(), {"type": "function_call", "call_id": "call_1", "name": "x"}, output()]}),
        ("R4", {"input": [user(), call()]}),
        ("R4", {"input": [{"type": "program", "call_id": "p", "id": "p", "code": "", "fingerprint": ""}, user()]}),
        ("R5", {"input": [user(), output()]}),
        ("R5", {"input": [user(), output(), call()]}),
        ("R5", {"input": [user(), call(), output(), output()]}),
        ("R5", {"input": [user(), call(), output() | {"type": "custom_tool_call_output"}]}),
        ("R5", {"input": [user(), {"type": "program_output", "call_id": "p"}]}),
        ("R6", {"input": [user(), reasoning()]}),
        ("R6", {"input": [user(), reasoning(), user()]}),
        ("R6", {"input": [user(), reasoning(1), reasoning(2), assistant("x")]}),
        ("R8", {"input": [user(), reasoning(1, encrypted_content=None), assistant("x")], "store": False}),
        ("R10", {"previous_response_id": "resp_9", "conversation": "conv_1"}),
        ("R11", {"input": [assistant("x"), user(), assistant("x")]}),
        ("R12", {"input": [user(), call(id="abc"), output()]}),
        ("R12", {"input": [assistant("x") | {"id": "abc"}]}),
        ("R13", {"input": [user(), call(call_id="c" * 70), output(call_id="c" * 70)]}),
        ("R14", {"input": [assistant("x", content=[{"type": "input_text", "text": "x"}])]}),
        ("R14", {"input": [user([{"type": "output_text", "text": "x"}])]}),
        ("R15", {"input": [{"type": "compaction_trigger"}, user()]}),
        ("R16", {"input": [user(MARKED)]}),
    ],
)
def test_each_rule_reports_its_violation(rule: str, change: Json) -> None:
    asked: dict[str, Any] = {"model": "m", "input": "x", "tools": [{"type": "function", "name": "shell"}]} | change
    found = rules_broken(json.dumps({k: v for k, v in asked.items() if v is not None}).encode())
    assert found - ({"R4"} if rule == "R5" else set()) == {rule}


def test_a_call_id_that_is_used_again_needs_its_output_again() -> None:
    twice = [user(), call(), output(), user(), {**call(), "id": "fc_2"}, output()]
    assert rules.find_violations(dump(twice)) == []
    assert rules_broken(dump(twice[:-1])) == {"R4"}


def test_an_item_needs_the_reasoning_it_was_made_after() -> None:
    partners = rules.find_partners(dump(GOOD))
    assert partners == {"msg_1": "rs_1", "fc_1": "rs_1", "msg_2": "rs_2"}
    without = [item for item in GOOD if item.get("id") != "rs_1"]
    assert rules_broken(dump(without), partners) == {"R7"}
    assert rules_broken(dump(without)) == set()
    bare = [{k: v for k, v in item.items() if k != "id"} for item in without]
    assert rules_broken(dump(bare), partners) == set()


def test_an_item_of_a_round_after_a_hidden_one_was_not_made_after_its_reasoning() -> None:
    """The client has two rounds as one answer; in the prompt, the calls of the proxy's tools are back between them."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e1"}
    mine, theirs = call(2), call(1)
    client = [user(), reasoning, theirs, output()]
    woven = [user(), reasoning, mine, output(2), theirs, output()]
    assert rules.find_partners(dump(client)) == {theirs["id"]: "rs_1"}
    assert rules.find_added_violations(dump(woven), dump(client)) == []
    without = [item for item in woven if item is not reasoning]
    assert {line[:2] for line in rules.find_added_violations(dump(without), dump(client))} == {"R7"}
    late = [user(), mine, output(2), theirs, output(), reasoning, call(3), output(3)]
    assert {line[:2] for line in rules.find_added_violations(dump(late), dump(client))} == {"R7"}


def test_only_what_a_plan_adds_counts() -> None:
    broken = [output(9), *GOOD]
    assert rules.find_added_violations(dump(broken), dump(broken)) == []
    assert rules.find_added_violations(dump([user(), *broken]), dump(broken)) == []
    new = rules.find_added_violations(dump([user(), output(8), *broken]), dump(broken))
    assert new == ["R5 input.1: no function_call for function_call_output call_8"]
    without = [item for item in GOOD if item.get("id") != "rs_1"]
    assert {line[:2] for line in rules.find_added_violations(dump(without), dump(GOOD))} == {"R7"}


def test_a_body_with_fewer_cache_marks_than_the_clients_breaks_no_new_rule() -> None:
    six, seven = (dump([user(MARKED), user(MARKED[:count])]) for count in (1, 2))
    assert rules.find_added_violations(six, seven) == []
    assert rules.find_added_violations(seven, six) == ["R16 input: more than 4 cache marks"]


@given(histories(), st.data())
@settings(max_examples=100, deadline=None)
def test_edits_and_whole_steps_that_leave_break_no_rule(items: list[Json], data: st.DataObject) -> None:
    request = read(items)
    messages = chat(request)
    out: list[tuple[int | None, bytes]] = []
    gone = False
    for n, raw in keep(request):
        message = messages[n or 0]
        gone = data.draw(st.booleans()) if message.role == "assistant" else gone and message.is_result
        if gone:
            continue
        if message.role in ("user", "tool") and message.text and data.draw(st.booleans()):
            out.append((n, completions.replace_text(raw, data.draw(st.sampled_from(["", "[a stub]"])))))
        else:
            out.append((n, raw))
    if data.draw(st.booleans()):
        out.append((None, completions.make_user_message("A note.")))
    body = request.write(out)
    assert rules.find_added_violations(body, request.body) == []
    sent = strict.list_items(json.loads(body))
    strict.check_pairs(sent)
    for n, item in enumerate(sent):
        if item["type"] in strict.TYPES and (item["type"] != "message" or item["role"] == "assistant"):
            strict.check_item(n, item, len(sent))


def bind(items: Any, **more: Any) -> dict[str, base.Binding]:
    return rules.trace_prompt(dump(items, **more)).bindings


def test_reasoning_is_bound_to_everything_before_it() -> None:
    before = bind(GOOD)
    assert list(before) == ["gAAA1", "gAAA2"]
    assert (before["gAAA1"].after, before["gAAA2"].after) == ("", "gAAA1")

    def broken(items: Any, **more: Any) -> list[str]:
        return base.find_broken(bind(items, **more), before)

    stubbed = [item | {"output": "[a stub]"} if "output" in item else item for item in GOOD]
    assert broken(stubbed) == ["gAAA2"]
    assert broken([developer("Other."), *GOOD[1:]]) == ["gAAA1", "gAAA2"]
    assert broken([*GOOD[:2], user("New."), *GOOD[2:]]) == ["gAAA1", "gAAA2"]
    assert broken([*GOOD[:4], *GOOD[4:6], user("New."), *GOOD[6:]]) == ["gAAA2"]
    assert broken([item for item in GOOD if item.get("id") != "rs_1"]) == []  # reasoning may leave from the front
    longer = [*GOOD, reasoning(3), assistant("z", 3), user()]
    before |= bind(longer)
    assert broken([item for item in longer if item.get("id") != "rs_2"]) == ["gAAA3"]
    assert (
        broken(GOOD, tools=[{"type": "web_search"}]) == broken(GOOD, reasoning={"effort": "low"}) == ["gAAA1", "gAAA2"]
    )
    assert broken(GOOD, text={"format": {"type": "json_object"}}) == ["gAAA1", "gAAA2"]
    assert broken([*GOOD[:-1], user("Other end.")]) == []


def test_what_is_not_compared_does_not_part_reasoning_from_its_prompt() -> None:
    before = bind(GOOD, instructions="I", tools=[])
    again: list[Json] = []
    for item in GOOD:
        made = {k: v for k, v in item.items() if k not in ("id", "status")}
        if item["type"] == "message" and isinstance(item["content"], str):
            made = {"role": item["role"], "content": [{"text": item["content"], "type": "input_text"}]}
        elif item["type"] == "message":
            made["content"] = [{"type": "output_text", "text": item["content"][0]["text"]}]
        again.append(made)
    assert bind(again) == before
    assert bind("no reasoning") == {}


def test_the_tokens_of_an_answer_are_bound_to_the_body_it_answers() -> None:
    def answered(prompt: Any, *items: Json) -> dict[str, base.Binding]:
        trace = rules.trace_prompt(dump(prompt))
        return trace.bindings | rules.trace_answer(trace, json.dumps({"role": "assistant", "wire": items}).encode())

    assert answered(GOOD[:6], *GOOD[6:8]) == bind(GOOD)
    assert answered("Do it.", reasoning(), assistant("x")) == bind([user(), reasoning(), assistant("x")])


def test_stripped_reasoning_takes_the_ids_of_what_it_led_to() -> None:
    body = json.dumps({"model": "m", "input": GOOD}, indent=1).encode()
    stripped = rules.strip_bound(body, ["gAAA1"])
    sent = json.loads(stripped)["input"]
    assert [item for item in sent if item["type"] == "reasoning"] == [GOOD[6]]
    assert sent[2] == {k: v for k, v in GOOD[3].items() if k not in ("id", "status")}
    assert sent[3] == {k: v for k, v in GOOD[4].items() if k != "id"}
    assert sent[4:] == GOOD[5:]
    assert rules.find_added_violations(stripped, body) == []
    assert rules.strip_bound(body, ["gAAA9"]) == body
    assert rules.strip_bound(dump("x"), ["gAAA1"]) == dump("x")


def test_reasoning_that_leads_to_nothing_is_removed() -> None:
    items = [user(), reasoning(1), reasoning(2), assistant("x", 2), user(), reasoning(3), user()]
    fixed = rules.remove_orphan_reasoning(dump(items))
    assert json.loads(fixed)["input"] == [user(), reasoning(2), assistant("x", 2), user(), user()]
    assert rules.remove_orphan_reasoning(fixed) == fixed


def test_a_request_whose_reasoning_leads_to_nothing_is_known() -> None:
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "a"}
    said = {"type": "message", "role": "assistant", "content": "So."}
    user = {"role": "user", "content": "A"}
    for items, is_cut in (
        ([user, thought, said, user], False),
        ([user, thought, {**thought, "encrypted_content": "b"}, said, user], True),
        ([user, thought, user], True),
    ):
        assert read(items).is_cut == is_cut
