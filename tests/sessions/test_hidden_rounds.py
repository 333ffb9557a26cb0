from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat import chain
from proxy.chat.message import Request
from proxy.dialects.completions.request import read_message, read_request, write_request
from proxy.sessions.hidden_rounds import (
    HiddenRound,
    add_tools,
    append_messages,
    decode_round,
    drop_wire,
    encode_round,
    match_rounds,
    splice_hidden_rounds,
)
from tests.conversations import assistant, call, encode_json, result, system, user

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {}}}]
OURS = b'{"type":"function","function":{"name":"recall"}},{"type":"function","function":{"name":"query_db"}}'


def asking(*calls: tuple[str, str], text: Any = None, **more: Any) -> dict[str, Any]:
    """An assistant message; `calls` are (id, name)."""
    made = [call(name, tool, '{"n": 1}') for name, tool in calls]
    return {"role": "assistant", "content": text, "tool_calls": made, **more}


def read(history: Sequence[Any], **more: Any) -> tuple[Request, list[bytes]]:
    request = read_request(encode_json({"model": "m", "messages": history, "tools": TOOLS, **more}))
    return request, chain.compute_keys("t", request.messages)


def behind(
    history: Sequence[Any], at: int, *replaces: Any, results: Sequence[Any] = (), calls: Sequence[str] = ()
) -> HiddenRound:
    """The round that stands behind the answer history[at]."""
    _, keys = read(history)
    hidden = tuple(encode_json(m) for m in replaces)
    return HiddenRound(keys[at], keys[at - 1], hidden, tuple(encode_json(m) for m in results), tuple(calls), 5.0)


def put(history: Sequence[Any], *rounds: HiddenRound, tools: bytes = b"", **more: Any) -> Any:
    """(the spliced request, its messages as values)"""
    request, keys = read(history, **more)
    by_head: dict[bytes, list[HiddenRound]] = {}
    for one in rounds:
        by_head.setdefault(one.request_tip, []).append(one)
    made = splice_hidden_rounds(request, keys, by_head, tools)
    body = write_request(made.request)
    again = read_request(body)
    # What was put together is what a reader finds in it.
    assert [m.raw for m in again.messages] == [m.raw for m in made.request.messages]
    assert again.tools == made.request.tools
    assert len(made.keys) == len(again.messages)
    return made, json.loads(body)["messages"]


ONLY_OURS = [
    asking(("a", "recall"), text="Let me look.", reasoning_content="Hm."),
    result("a", "found"),
    assistant("Let me look.It is so."),
]


def test_without_rounds_or_tools_the_request_is_unchanged() -> None:
    request, keys = read([user("Hi"), assistant("Yes."), user("So?")])
    other = HiddenRound(b"k" * 16, b"h" * 16, (b"{}",))
    for rounds in ({}, {other.request_tip: [other]}):
        made = splice_hidden_rounds(request, keys, rounds)
        assert made.request is request
        assert made.keys is keys
        assert (made.round_count, made.added_tools, made.hidden_at) == (0, b"", {})


def test_hidden_rounds_are_put_back_before_the_answer_that_they_led_to() -> None:
    history = [system(), user("Hi"), assistant("Let me look.It is so."), user("So?")]
    made, messages = put(history, behind(history, 2, *ONLY_OURS))
    assert messages == [*history[:2], *ONLY_OURS, history[3]]
    assert made.round_count == 1
    assert [m.raw for m in made.request.messages[2:5]] == [encode_json(m) for m in ONLY_OURS]


def test_the_clients_messages_keep_their_keys_and_hidden_ones_get_their_own() -> None:
    history = [user("Hi"), assistant("Let me look.It is so."), user("So?")]
    _, keys = read(history)
    made, _ = put(history, behind(history, 1, *ONLY_OURS))
    assert [made.keys[0], made.keys[3], made.keys[4]] == keys
    asked = chain.derive_next_key(keys[0], read_message(encode_json(ONLY_OURS[0])).digest)
    assert made.keys[1:3] == [asked, chain.derive_next_key(asked, read_message(encode_json(ONLY_OURS[1])).digest)]
    assert made.hidden_at == dict.fromkeys(made.keys[1:3], 5.0)


@pytest.mark.parametrize("order", ["ours first", "ours last", "between", "around"])
def test_results_of_proxy_tools_are_among_the_clients_in_the_order_of_the_calls(order: str) -> None:
    named = {
        "ours first": [("a", "recall"), ("x", "run"), ("y", "run")],
        "ours last": [("x", "run"), ("y", "run"), ("a", "recall")],
        "between": [("x", "run"), ("a", "recall"), ("b", "recall"), ("y", "run")],
        "around": [("a", "recall"), ("x", "run"), ("y", "run"), ("b", "recall")],
    }[order]
    ours = [n for n, tool in named if tool == "recall"]
    shown = asking(("x", "run"), ("y", "run"), text="Both.")
    history = [user("Hi"), shown, result("x", "1"), result("y", "2"), user("So?")]
    true = asking(*named, text="Both.", extra_content={"signature": "s"})
    one = behind(history, 1, true, results=[result(n, "of " + n) for n in reversed(ours)], calls=["x", "y"])
    made, messages = put(history, one)
    assert messages[1] == true
    assert [m["tool_call_id"] for m in messages[2:-1]] == [n for n, _ in named]
    assert messages[-1] == history[-1]
    assert len(made.hidden_at) == len(ours)


def test_hidden_rounds_may_be_followed_by_a_mixed_one() -> None:
    shown = asking(("x", "run"), text="Let me look.")
    history = [user("Hi"), shown, result("x", "1")]
    true = asking(("b", "recall"), ("x", "run"))
    one = behind(history, 1, *ONLY_OURS[:2], true, results=[result("b", "2")], calls=["x"])
    _, messages = put(history, one)
    assert messages == [history[0], *ONLY_OURS[:2], true, result("b", "2"), result("x", "1")]


def test_an_answer_that_the_client_words_in_its_own_way_is_known_by_its_place_and_its_calls() -> None:
    history = [user("Hi"), asking(("x", "run"), text="Both."), result("x", "1")]
    true = asking(("a", "recall"), ("x", "run"), text="Both.")
    one = behind(history, 1, true, results=[result("a", "2")], calls=["x"])
    reworded = [history[0], asking(("x", "run"), text="Both (said again)."), history[2]]
    assert put(reworded, one)[1] == [history[0], true, result("a", "2"), history[2]]


def test_where_the_client_has_changed_its_history_nothing_is_put_in() -> None:
    history = [user("Hi"), assistant("Let me look.It is so."), user("So?")]
    one = behind(history, 1, *ONLY_OURS)
    mixed = behind(
        [user("Hi"), asking(("x", "run")), user("So?")], 1, asking(("a", "recall"), ("x", "run")), calls=["x"]
    )
    for changed in (
        [user("Hello"), *history[1:]],  # another prompt
        [history[0], assistant("It is so."), history[2]],  # another answer
        [history[0], history[2]],  # none
        [user("Summary of all that was"), history[2]],
        [history[0], asking(("z", "run")), result("z", "1")],  # another branch, with calls of its own
    ):
        made, messages = put(changed, one, mixed)
        assert messages == changed
        assert made.round_count == 0


def test_each_of_two_answers_to_one_request_gets_its_own_hidden_rounds() -> None:
    histories = [[user("Hi"), assistant(text), user("So?")] for text in ("One.", "Two.")]
    hidden = [[asking((name, "recall")), result(name, name), h[1]] for name, h in zip("ab", histories, strict=True)]
    rounds = [behind(h, 1, *found) for h, found in zip(histories, hidden, strict=True)]
    for history, found in zip(histories, hidden, strict=True):
        assert put(history, *rounds)[1] == [history[0], *found, history[2]]


@pytest.mark.parametrize("name", ["call_0", "functions.run:0"])
@pytest.mark.parametrize("has_rounds", [False, True])
def test_of_two_answers_whose_ids_only_count_each_has_its_own_hidden_rounds(name: str, has_rounds: bool) -> None:
    """A request that is answered again, as for another run of a task, gets calls of the same ids."""
    prompt, end = user("Hi"), result(name, "1")
    histories = [
        [prompt, {**asking((name, "run")), "tool_calls": [call(name, "run", f'{{"n": {n}}}')]}, end] for n in (1, 2)
    ]
    rounds = []
    for n, history in enumerate(histories if has_rounds else histories[:1]):
        hidden = [asking((f"own{n}", "recall")), result(f"own{n}", f"found {n}"), history[1]]
        rounds.append(behind(history, 1, *hidden, calls=[name]))
    found = put(histories[1], *rounds)[1]
    assert "found 0" not in json.dumps(found)
    assert len(found) == (5 if has_rounds else 3)
    reworded = [prompt, {**histories[0][1], "content": "As the client has it."}, end]
    assert "found 0" in json.dumps(put(reworded, *rounds)[1])


@pytest.mark.parametrize(
    "order", [["model", "messages", "tools"], ["tools", "messages", "model"], ["tools", "model", "messages"]]
)
def test_added_tools_follow_the_clients_own_and_every_other_byte_stays(order: list[str]) -> None:
    history = [user("Hi", name="é\u2028"), assistant("Yes.")]
    fields = {"model": "m", "messages": history, "tools": TOOLS}
    body = json.dumps({name: fields[name] for name in order}, indent=1).encode()
    request = read_request(body)
    made = splice_hidden_rounds(request, chain.compute_keys("t", request.messages), {}, OURS)
    again = read_request(write_request(made.request))
    assert json.loads(again.tools or b"") == [*TOOLS, *json.loads(b"[" + OURS + b"]")]
    assert again.body.replace(b"," + OURS, b"") == body
    assert again.messages[0].raw == request.messages[0].raw
    assert made.request.messages is request.messages
    assert made.added_tools == OURS
    assert write_request(add_tools(splice_hidden_rounds(request, made.keys, {}), OURS).request) == again.body


def test_tools_are_joined_again_only_where_they_are_others() -> None:
    request = read_request(json.dumps({"model": "m", "messages": [user("Hi")], "tools": TOOLS}).encode())
    keys = chain.compute_keys("t", request.messages)
    first, again, other = (
        splice_hidden_rounds(request, keys, {}, tools).request.tools for tools in (OURS, OURS, OURS + b"," + OURS)
    )
    assert again is first
    assert json.loads(other or b"") == [*json.loads(first or b""), *json.loads(b"[" + OURS + b"]")]


def test_a_client_without_tools_gets_none() -> None:
    request, keys = read([user("Hi")], tools=None)
    made = splice_hidden_rounds(request, keys, {}, OURS)
    assert write_request(made.request) is request.body
    assert made.added_tools == b""


texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts, lambda one: st.lists(one, max_size=3), max_leaves=5
)


@settings(max_examples=60)
@given(
    raws=st.lists(st.dictionaries(texts, values, max_size=4), min_size=1, max_size=4), names=st.lists(texts, max_size=3)
)
def test_a_round_comes_back_from_the_store_byte_for_byte(raws: list[dict[str, Any]], names: list[str]) -> None:
    made = tuple(json.dumps(one, ensure_ascii=len(raws) % 2 == 0).encode() for one in raws)
    found = HiddenRound(b"k", b"h", made, made[:2], tuple(names), 3.0, without_tools=len(raws) > 2)
    assert decode_round(b"k", b"h", encode_round(found), 3.0) == found


def test_a_body_that_is_not_a_round_is_a_value_error() -> None:
    for wrong in (b"", b"{}", b'{"replaces": 1}', b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            decode_round(b"k", b"h", wrong, 0.0)


def test_later_messages_follow_those_that_were_sent() -> None:
    more = [encode_json(user("So?")), encode_json(assistant("é"))]
    for body in (b'{"messages":[{"role":"user"}],"n":1}', b'{"n": 1, "messages" : [ {"role":"user"} \n] }'):
        made = json.loads(append_messages(body, more))
        assert made == {"n": 1, "messages": [{"role": "user"}, user("So?"), assistant("é")]}
        assert append_messages(append_messages(body, more[:1]), more[1:]) == append_messages(body, more)
    with pytest.raises(ValueError, match="messages"):
        append_messages(b"{}", more)


def test_spliced_messages_have_the_bytes_that_the_rounds_had_sent() -> None:
    """The body of a second round and the next request begin with the same bytes."""
    history = [user("Hi")]
    request, _ = read(history)
    second = append_messages(request.body, [encode_json(m) for m in ONLY_OURS[:2]])
    later = [*history, ONLY_OURS[2], user("So?")]
    made, _ = put(later, behind(later, 1, *ONLY_OURS))
    sent = [m.raw for m in read_request(second).messages]
    assert [m.raw for m in made.request.messages[: len(sent)]] == sent


def test_answers_are_looked_for_by_the_head_of_what_they_answer() -> None:
    history = [assistant("Hello!"), user("Hi"), assistant("Yes.")]
    request, keys = read(history)
    first = HiddenRound(keys[0], b"", (encode_json(history[0]),))
    second = HiddenRound(keys[2], keys[1], (encode_json(history[2]),))
    assert match_rounds(request, keys, {b"": [first], keys[1]: [second]}) == {2: second}


def test_call_ids_that_recur_later_do_not_place_a_hidden_round_again() -> None:
    """Local servers call every first call `call_0`."""
    history = [user("Hi"), asking(("call_0", "run")), result("call_0", "1"), user("So?")]
    one = behind(history, 1, asking(("a", "recall"), ("call_0", "run")), results=[result("a", "2")], calls=["call_0"])
    later = [*history, asking(("call_0", "run"), text="Again."), result("call_0", "1")]
    made, messages = put(later, one)
    assert made.round_count == 1
    assert messages[-2:] == later[-2:]


def test_a_round_of_another_dialect_goes_out_as_chat_completions_have_it() -> None:
    raw = b'{"role":"assistant","content":"Hi.","reasoning_content":"Hm.","wire":[{"type":"thinking"}]}'
    assert drop_wire(raw) == b'{"role":"assistant","content":"Hi."}'
    own = b'{"role":"assistant","content":"\\"wire\\"","reasoning_content":"Hm."}'
    assert drop_wire(own) == own
    failed = b'{"role":"tool","tool_call_id":"c","content":"no","is_error":true}'
    assert drop_wire(failed) == b'{"role":"tool","tool_call_id":"c","content":"no"}'
