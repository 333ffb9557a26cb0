"""The rules that Google refuses a request by."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from proxy.dialects.gemini.rules import find_added_violations, find_violations, sign_calls
from tests.dialects.gemini.drawn import bodies

Json = dict[str, Any]
PROMPT: Json = {"role": "user", "parts": [{"text": "Go."}]}


def call(name: str = "ls", **more: Any) -> Json:
    return {"functionCall": {"name": name, "args": {}}, **more}


def model_turn(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def results(*names: str) -> Json:
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {}}} for name in names]}


def find(*contents: Json, **more: Any) -> list[str]:
    found = find_violations(json.dumps({"contents": list(contents), **more}).encode())
    return [line.split()[0] for line in found]


@settings(max_examples=30)
@given(bodies())
def test_bodies_of_clients_break_no_rule(body: bytes) -> None:
    assert find_violations(body) == []


@pytest.mark.parametrize(
    ("rule", "contents"),
    [
        ("G1", []),
        ("G2", [{"role": "system", "parts": [{"text": "x"}]}, PROMPT]),
        ("G3", [model_turn(call()), results("ls")]),
        ("G4", [PROMPT, model_turn(call(), call()), results("ls")]),
        ("G4", [PROMPT, model_turn(call()), PROMPT]),
        ("G5", [PROMPT, model_turn({"text": "x"}), results("ls")]),
        ("G5", [results("ls")]),
        ("G6", [PROMPT, model_turn(call()), results("other")]),
        ("G7", [PROMPT, {"role": "model", "parts": []}, PROMPT]),
        ("G7", [{"role": "user", "parts": [{"text": ""}]}]),
        ("G7", [PROMPT, model_turn({"thoughtSignature": "x"}), PROMPT]),
        ("G8", [PROMPT, model_turn(call(thoughtSignature="x")), results("ls"), model_turn(call()), results("ls")]),
        ("G10", [PROMPT, model_turn({"text": "x"})]),
    ],
)
def test_each_rule_reports_its_own_violation_only(rule: str, contents: list[Json]) -> None:
    assert set(find(*contents)) == {rule}


def test_only_the_newest_turn_needs_its_signatures() -> None:
    old = [PROMPT, model_turn(call()), results("ls"), model_turn({"text": "Done."})]
    assert find(*old, PROMPT, model_turn(call(thoughtSignature="x"), call()), results("ls", "ls")) == []
    assert find(*old, PROMPT, model_turn(call(), call(thoughtSignature="x")), results("ls", "ls")) == ["G8"]
    assert find(PROMPT, model_turn(call()), results("ls")) == []  # a model that signs nothing


def test_functions_are_declared_once() -> None:
    one = {"functionDeclarations": [{"name": "f"}]}
    assert find(PROMPT, tools=[one, {"function_declarations": [{"name": "f"}]}]) == ["G9"]
    assert find(PROMPT, tools=[one, {"googleSearch": {}}]) == []


def test_a_request_to_be_counted_is_judged_inside() -> None:
    body = json.dumps({"generateContentRequest": {"contents": [model_turn(call()), results("ls")]}}).encode()
    assert [line.split()[0] for line in find_violations(body)] == ["G3"]
    assert find_violations(b"[]") == ["G1 the body is no object"]


def test_the_clients_own_breaches_are_allowed() -> None:
    broken = json.dumps({"contents": [model_turn(call()), results("ls")]}).encode()
    worse = json.dumps({"contents": [model_turn(call()), results("ls"), model_turn(call()), PROMPT]}).encode()
    assert find_added_violations(broken, broken) == []
    assert [line.split()[0] for line in find_added_violations(worse, broken)] == ["G4"]


def test_hidden_calls_of_a_model_that_does_not_sign_are_allowed_after_one_that_does() -> None:
    signed = [PROMPT, model_turn(call(thoughtSignature="x")), results("ls"), model_turn({"text": "Done."}), PROMPT]
    client, hidden = [model_turn(call()), results("ls")], [model_turn(call("recall")), results("recall")]
    made = [json.dumps({"contents": [*signed, *more]}).encode() for more in (hidden + client, client, [])]
    assert find_added_violations(made[0], made[1]) == []
    assert [line.split()[0] for line in find_added_violations(made[0], made[2])] == ["G8", "G8"]


def test_the_first_call_of_each_step_of_the_newest_turn_is_signed_where_it_is_not() -> None:
    result = {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "x"}}}]}
    steps = [model_turn({"text": "So."}, call(), call()), result, model_turn(call(thoughtSignature="abc")), result]
    body = json.dumps({"contents": [PROMPT, *steps, PROMPT, *steps], "tools": []}).encode()
    made = json.loads(sign_calls(body))
    assert made["contents"][:6] == json.loads(body)["contents"][:6]
    assert made["contents"][6]["parts"][1:] == [call(thoughtSignature="skip_thought_signature_validator"), call()]
    assert made["contents"][7:] == json.loads(body)["contents"][7:]
    assert sign_calls(sign_calls(body)) == sign_calls(body)
