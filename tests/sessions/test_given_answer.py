"""Answers that clients return in their own words, and others that only look alike."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.chat.message import Message
from proxy.sessions.given_answer import MIN_ID_CHARS, MIN_TEXT_CHARS, REMEMBERED_CHARS, GivenAnswer
from tests.conversations import assistant, make_message, result, user
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

ID = "call_Zk3vQ8xLbT"
TEXT = "The deploy key lives in the second vault."


def calling(*ids: str, text: str = "") -> Message:
    return make_message(assistant(text, *ids))


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (calling(ID), calling(ID, text="I read it.")),
        (calling(ID, ID + "2"), calling(ID)),
        (calling(ID), make_message(assistant(f"I called run with {ID}."))),
        (make_message(assistant(TEXT)), make_message(assistant(f"  {TEXT} And more."))),
        (make_message(assistant(f"Let me think. {TEXT}")), make_message(assistant(TEXT))),
        (make_message(assistant("x" * REMEMBERED_CHARS + TEXT)), make_message(assistant(f"Hm. {TEXT}"[4:]))),
        (
            calling("call_3", "call_4", text="I look."),
            calling("call_tc-pgwgrrhg0jo_0", "tc-yx1fijoghsi", text="I look."),
        ),
        (calling(ID), calling("callZk3vQ")),
        (calling("functions.write:0/Zk3vQ"), calling("functions_write_0_Zk3vQ")),
        (calling("functions.run:0", text=TEXT), calling("functions.run:0")),
        (calling("functions.run:0", text=f"<think>Hm.</think> {TEXT}"), calling("functions.run:0", text=TEXT)),
        (calling("functions.run:0", text="Yes."), calling("functions.run:0", text="Yes.\n")),
        (calling(ID, text=TEXT), calling("gemini_0011223344556677", text=TEXT)),
        (calling("gemini_0011223344556677"), calling("0b6f9a52-33c1-4f0e-9a55-6f4b7b1f3c21")),
    ],
    ids=[
        "a text with the calls",
        "one call left",
        "calls as text",
        "a text behind",
        "no thoughts",
        "its end alone",
        "own ids for counters",
        "a cut id",
        "a cleaned id",
        "a counter without the text",
        "a counter without thoughts",
        "a counter after a short text",
        "an id left out",
        "an id where there was none",
    ],
)
def test_a_returned_answer_is_recognised(given: Message, returned: Message) -> None:
    assert GivenAnswer.remember(given).is_reworded_in(returned)


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (calling(ID), calling(ID, "call_of_another")),
        (calling(ID), calling("call_of_another")),
        (calling(ID), calling("callZk3v")),
        (calling(ID), calling("callZk3vQ", text="I read it.")),
        (calling(ID), calling("gemini_0011223344556677", text="I read it.")),
        (calling("functions.run:0"), calling("functions.run:0", text="I read it.")),
        (calling("functions.run:0", text=TEXT), calling("functions.run:0", text="Another text that is long enough.")),
        (calling("functions.run:0"), calling("functions.run:0", "functions.run:1")),
        (calling("c" * (MIN_ID_CHARS - 1)), calling("c" * (MIN_ID_CHARS - 1), text="I read it.")),
        (make_message(assistant(TEXT)), make_message(user(TEXT))),
        (calling(ID), make_message(result(ID, "text"))),
        (make_message(assistant("y" * (MIN_TEXT_CHARS - 1))), make_message(assistant("y" * (MIN_TEXT_CHARS - 1)))),
        (make_message(assistant(TEXT)), make_message(assistant("Another text that is long enough."))),
    ],
    ids=[
        "another call",
        "another id",
        "cut too short",
        "a cut id and a text",
        "an id left out and a text",
        "a counter",
        "a counter after another text",
        "a counter more",
        "a short id",
        "of the user",
        "a result",
        "a short text",
        "another text",
    ],
)
def test_a_different_answer_is_not_recognised(given: Message, returned: Message) -> None:
    assert not GivenAnswer.remember(given).is_reworded_in(returned)


def test_little_of_a_long_answer_is_remembered() -> None:
    found: Any = GivenAnswer.remember(make_message(assistant("a" * 10_000 + "b" * 10_000)))
    assert (found.head, found.tail) == ("a" * REMEMBERED_CHARS, "b" * REMEMBERED_CHARS)


def answer(n: int) -> dict[str, Any]:
    return make_calls((f"call_Zk{n}vQ8xLbT", "read"), path=f"file{n}.py")


@pytest.mark.parametrize("form", ["tool-{}-Wq7rTz", "call_{}"])
async def test_a_client_that_gives_calls_other_ids_and_arguments_has_one_session_from_its_second_request_on(
    form: str,
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the fault."}]
    sessions = []
    async with run_upstream(ScriptedModel(*map(answer, range(6)))) as upstream, run_proxy(upstream.port) as proxy:
        for n in range(6):
            sessions.append((await proxy.post({"model": "m", "messages": messages})).session)
            own = form.format(n)
            messages += [make_calls((own, "read"), path=f"./file{n}.py"), result(own, f"line {n}")]
    assert len(set(sessions)) == 2
    assert len(set(sessions[1:])) == 1


@pytest.mark.parametrize("tools", [["write"], ["read", "read"]])
async def test_another_call_than_the_answer_begins_a_session_where_no_answer_is_known(tools: list[str]) -> None:
    messages = [{"role": "user", "content": "Find the fault."}, make_calls(("own", "read")), result("own", "line 0")]
    async with run_upstream(ScriptedModel(*map(answer, range(2)))) as upstream, run_proxy(upstream.port) as proxy:
        first = (await proxy.post({"model": "m", "messages": messages})).session
        messages += [make_calls(*((f"id{n}", tool) for n, tool in enumerate(tools)))]
        messages += [result(f"id{n}", "done") for n in range(len(tools))]
        assert (await proxy.post({"model": "m", "messages": messages})).session != first
