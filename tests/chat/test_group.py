from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat import chain
from proxy.chat.group import (
    Step,
    find_last_user,
    is_beside_results,
    is_observation,
    join_steps,
    split_groups,
    split_steps,
)
from tests.conversations import Json, assistant, make_messages, make_request, result, system, user

TALKS = st.lists(st.sampled_from("suoacrb"), max_size=12)
REMINDER = "<system-reminder>\nKeep the list of tasks.\n</system-reminder>\n"
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]

SAMPLES = {
    "smolagents": ("Thought: I look.\nCode:\n```py\nprint(1)\n```<end_code>", "Observation:\nExecution logs:\n1"),
    "smolagents tools": ("Calling tools:\n[{'id': 'call_1'}]", "Call id: call_1\nObservation:\n1"),
    "smolagents error": ("Calling tools:\n[{'id': 'call_1'}]", "Error:\nno such tool\nNow let's retry"),
    "smolagents xml": ("Thought: I look.\n<code>\nprint(1)\n</code>", "Observation:\nExecution logs:\n1"),
    "react": ("Thought: I look.\nAction: search[x]", "Observation: nothing"),
    "react, langchain": ("Action: search\nAction Input: x", "Observation: nothing"),
    "mini-swe-agent": ("THOUGHT: I look.\n\n```bash\nls\n```", "<returncode>0</returncode>\n<output>\na\n</output>"),
    "openhands": ("<execute_bash>\nls\n</execute_bash>", "OBSERVATION:\na"),
    "openhands functions": ("<function=bash>\n<parameter=command>ls</parameter>", "EXECUTION RESULT of [bash]:\na"),
    "cline": ("<read_file>\n<path>a</path>\n</read_file>", "[read_file for 'a'] Result:\nx"),
    "cline, an edit": ("<apply_diff>\n<path>a</path>\n</apply_diff>\n", "[apply_diff for 'a'] Result:\nx"),
    "swe-agent": ("I look.\n```\nls\n```", "a.py\n(Open file: n/a)\n(Current directory: /w)\nbash-$"),
    "swe-agent, no output": ("Go on.\n```\nsend x\n```", "\n(Interactive session: connect host 1)\nbash-$ "),
    "gptme": ("I look.\n\n```shell\nls\n```\n", "<system>\nRan command: `ls`\n\n```stdout\na\n```\n</system>"),
    "gptme, python": ("I look.\n```ipython\n1\n```", "<system>Executed code block.\n\n```result\n1\n```</system>"),
    "json": ('{"action": "search", "input": "x"}', "Result: nothing"),
    "hermes": ('<tool_call>{"name": "x"}</tool_call>', "<tool_response>\n1\n</tool_response>"),
}


def list_step_ranges(*values: Json) -> list[tuple[int, int]]:
    return [(s.start, s.end) for s in split_steps(make_messages(*values))]


def list_group_ranges(*values: Json, observation: str = "") -> list[tuple[int, int, int]]:
    talk = make_messages(*values)
    pattern = re.compile(observation) if observation else None
    return [(g.start, g.prompt_end, g.end) for g in split_groups(talk, chain.compute_keys("t", talk), pattern)]


def test_a_call_and_its_result_are_one_step() -> None:
    assert list_step_ranges(user("a"), assistant(None, "1"), result("1", "x"), assistant("b")) == [
        (0, 1),
        (1, 3),
        (3, 4),
    ]


def test_parallel_calls_and_all_their_results_are_one_step() -> None:
    talk = (assistant("t", "1", "2", "3"), result("2", "x"), result("1", "y"), result("3", "z"), user("b"))
    assert list_step_ranges(*talk) == [(0, 4), (4, 5)]


def test_reused_call_ids_are_paired_by_where_they_stand() -> None:
    twice = (assistant(None, "1"), result("1", "x"))
    assert list_step_ranges(*twice, *twice, user("a"), *twice) == [(0, 2), (2, 4), (4, 5), (5, 7)]


def test_an_answer_that_continues_with_another_one_joins_its_step() -> None:
    more = {"continues": True}
    talk = [user("a"), assistant("so"), assistant("on", "1") | more, result("1", "x"), system(), assistant("b") | more]

    def join(values: list[Json]) -> list[tuple[int, int]]:
        asked = make_request(values)
        return [(s.start, s.end) for s in join_steps(asked, split_steps(asked.messages))]

    assert join(talk) == [(0, 1), (1, 6)]
    assert join(talk[:4]) == [(0, 1), (1, 4)]
    assert join([talk[0], talk[2], *talk[3:]]) == [(0, 1), (1, 5)], "what it goes on with is not there"
    assert join([user("a"), assistant("so"), user("b")]) == [(0, 1), (1, 2), (2, 3)]


def test_calls_without_an_answer_at_the_end_are_a_step_of_their_own() -> None:
    assert list_step_ranges(user("a"), assistant(None, "1")) == [(0, 1), (1, 2)]
    assert list_step_ranges(user("a"), assistant(None, "1", "2"), result("1", "x")) == [(0, 1), (1, 3)]


def test_a_result_without_a_call_stands_alone() -> None:
    assert list_step_ranges(result("1", "x"), result("2", "y"), assistant("b"), result("3", "z")) == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    ]


def test_a_message_between_call_and_result_ends_the_step() -> None:
    assert list_step_ranges(assistant(None, "1"), user("wait"), result("1", "x")) == [(0, 1), (1, 2), (2, 3)]


def test_function_calls_of_the_old_kind_are_steps_too() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "run", "arguments": "{}"}}
    assert list_step_ranges(call, {"role": "function", "name": "run", "content": "x"}) == [(0, 2)]


def test_a_group_is_a_prompt_and_all_that_it_caused() -> None:
    talk = (user("a"), assistant(None, "1"), result("1", "x"), assistant("b"), user("c"), assistant("d"))
    assert list_group_ranges(*talk) == [(0, 1, 4), (4, 5, 6)]


def test_user_messages_in_a_row_are_one_prompt() -> None:
    assert list_group_ranges(user("a"), user("b"), assistant("c"), user("d"), user("e")) == [(0, 2, 3), (3, 5, 5)]


def test_a_system_message_between_them_does_not_part_them() -> None:
    assert list_group_ranges(user("a"), system("x"), user("b"), assistant("c")) == [(0, 3, 4)]


def test_messages_before_the_first_prompt_belong_to_its_group() -> None:
    talk = (system("x"), assistant("Welcome!"), user("a"), assistant("b"), user("c"))
    assert list_group_ranges(*talk) == [(0, 3, 4), (4, 5, 5)]


def test_the_id_of_a_group_is_that_of_its_first_user_message() -> None:
    talk = make_messages(system("x"), assistant("Welcome!"), user("a"), assistant("b"), user("c"), user("d"))
    keys = chain.compute_keys("t", talk)
    assert [g.id for g in split_groups(talk, keys)] == [chain.public_id(keys[2]), chain.public_id(keys[4])]


def test_a_conversation_without_a_prompt_is_one_group() -> None:
    assert list_group_ranges(assistant("a"), result("1", "x")) == [(0, 0, 2)]
    assert list_group_ranges(system("a")) == [(0, 1, 1)]
    assert split_groups([], []) == []


def test_user_messages_that_are_really_tool_output_open_no_group() -> None:
    talk = (user("fix it"), assistant("run: ls"), user("OBSERVATION:\na.py"), assistant("done"), user("thanks"))
    assert list_group_ranges(*talk) == [(0, 1, 2), (2, 3, 4), (4, 5, 5)]
    assert list_group_ranges(*talk, observation="^OBSERVATION:") == [(0, 1, 4), (4, 5, 5)]


def test_a_prompt_right_after_tool_output_opens_a_group() -> None:
    talk = (user("fix it"), assistant("run: ls"), user("OBSERVATION:\na.py"), user("stop that"))
    assert list_group_ranges(*talk, observation="^OBSERVATION:") == [(0, 1, 3), (3, 4, 4)]


KINDS = st.sampled_from(
    [
        system(),
        user("a"),
        user("OBS b"),
        assistant("b"),
        assistant(None, "1"),
        assistant("c", "1", "2"),
        result("1", "x"),
        user(REMINDER),
    ]
)


@given(st.lists(KINDS, max_size=12))
def test_steps_and_groups_cover_every_message_once_and_no_group_cuts_a_step(values: list[Json]) -> None:
    talk = make_messages(*values)
    parts = split_steps(talk)
    assert [n for s in parts for n in range(s.start, s.end)] == list(range(len(talk)))
    found = split_groups(talk, chain.compute_keys("t", talk), re.compile("^OBS"))
    assert [n for g in found for n in range(g.start, g.end)] == list(range(len(talk)))
    starts = {s.start for s in parts}
    assert {g.start for g in found} <= starts
    assert all(g.start <= g.prompt_end <= g.end for g in found)
    assert len({g.id for g in found}) == len(found)
    assert all(s == Step(s.start, s.end) and s.end > s.start for s in parts)


@given(TALKS, st.integers(0, 12), st.sampled_from([None, "^o"]))
def test_a_known_prefix_is_continued_from(roles: list[str], front: int, observation: str | None) -> None:
    makers = {
        "s": system(),
        "u": user("a"),
        "o": user("o"),
        "a": assistant("t"),
        "c": assistant(None, "1"),
        "r": result("1", "x"),
        "b": user(REMINDER),
    }
    talk = make_messages(*(makers[role] for role in roles))
    keys = chain.compute_keys("t", talk)
    pattern = re.compile(observation) if observation else None
    known = talk[:front]
    assert split_steps(talk, split_steps(known)) == split_steps(talk)
    assert split_groups(talk, keys, pattern, split_groups(known, keys, pattern)) == split_groups(talk, keys, pattern)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_message_of_a_framework_after_an_action_is_an_observation(name: str) -> None:
    action, brought = SAMPLES[name]
    for text in (brought, [{"type": "text", "text": brought}]):
        assert is_observation(make_messages(user("a"), assistant(action), user(text)), 2)
    assert is_observation(make_messages(user("a"), assistant(action), system(), user(brought)), 3)


@pytest.mark.parametrize("name", SAMPLES)
def test_an_action_or_an_output_alone_is_no_observation(name: str) -> None:
    action, brought = SAMPLES[name]
    assert not is_observation(make_messages(user("a"), assistant(action), user("Thanks, and now the other one.")), 2)
    assert not is_observation(make_messages(user("a"), assistant("It is done."), user(brought)), 2)
    assert not is_observation(make_messages(user(brought)), 0)
    assert not is_observation(make_messages(user("a"), assistant(action), user("Wait."), user(brought)), 3)
    assert not is_observation(make_messages(user("a"), assistant(action), assistant(brought)), 2)


@pytest.mark.parametrize("text", ["Error: it does not compile", "Output:\n3\nwhich is wrong", "Result: it works"])
def test_a_message_of_a_person_after_code_is_not_an_observation(text: str) -> None:
    values: list[Json] = [user("How do I sort?"), assistant("Like this:\n```python\nsorted(x)\n```"), user(text)]
    assert not is_observation(make_messages(*values), 2)


def test_behind_a_real_call_results_have_a_role_of_their_own() -> None:
    values = [user("a"), assistant("Action: x", "c1"), result("c1", "y"), user("Observation: z")]
    assert not is_observation(make_messages(*values), 3)


def test_each_of_two_observations_in_a_row_is_recognised() -> None:
    values = make_messages(user("a"), assistant("Action: x"), user("Observation: y"), user("Observation: z"))
    assert [is_observation(values, n) for n in range(4)] == [False, False, True, True]


def test_patterns_of_the_settings_count_wherever_they_stand() -> None:
    assert is_observation(make_messages(user("bash-$ ls")), 0, re.compile(r"^bash-\$"))
    assert not is_observation(make_messages(assistant("bash-$ ls")), 0, re.compile(r"^bash-\$"))


@pytest.mark.parametrize(
    "text", [" " * 1_000_000, "\t" * 1_000_000, "call id: 1\n" + " " * 1_000_000, "\n" * 1_000_000]
)
def test_a_message_of_blanks_is_read_in_linear_time(text: str) -> None:
    """With a pattern that gives blanks back it would take hours, with the interpreter locked."""
    assert not is_observation(make_messages(user(text), assistant(text), user(text)), 2)
    assert not is_observation(make_messages(user("a"), assistant(text), user("Observation: a")), 2)


BESIDE = {
    "a reminder": REMINDER,
    "two reminders": [{"type": "text", "text": REMINDER}, {"type": "text", "text": REMINDER}],
    "a picture": PICTURE,
    "a reminder with a picture": [{"type": "text", "text": REMINDER}, *PICTURE],
    "the state of the editor": "<ide_opened_file>The user opened a.py.</ide_opened_file>",
    "Cline's details": '<environment_details id="1">\n# Time\n12:00\n</environment_details>',
}


@pytest.mark.parametrize("content", BESIDE.values(), ids=BESIDE)
def test_text_that_a_client_adds_to_results_belongs_to_their_step(content: object) -> None:
    talk = (user("a"), assistant(None, "1"), result("1", "x"), user(content), assistant(None, "2"), result("2", "y"))
    assert list_step_ranges(*talk) == [(0, 1), (1, 4), (4, 6)]
    assert list_group_ranges(*talk) == [(0, 1, 6)]
    assert is_beside_results(make_messages(*talk), 3)
    assert find_last_user(make_messages(*talk)) == 0


SPOKEN = {
    "words": "Stop, look at b.py.",
    "words behind a reminder": REMINDER + "Stop, look at b.py.",
    "words with a picture": [{"type": "text", "text": "Like this."}, *PICTURE],
    "a reminder that is not closed": "<system-reminder>\nKeep the list of tasks.",
    "a message in a reminder": "<system-reminder>\nThe user sent a new message while you were working:\nStop.\n"
    "</system-reminder>",
    "a tag of the user": "<task>Look at b.py.</task>",
    "nothing": "",
}


@pytest.mark.parametrize("content", SPOKEN.values(), ids=SPOKEN)
def test_a_user_message_after_results_opens_a_group(content: object) -> None:
    talk = (user("a"), assistant(None, "1"), result("1", "x"), user(content), assistant(None, "2"), result("2", "y"))
    assert list_step_ranges(*talk) == [(0, 1), (1, 3), (3, 4), (4, 6)]
    assert list_group_ranges(*talk) == [(0, 1, 3), (3, 4, 6)]
    assert find_last_user(make_messages(*talk)) == 3


@pytest.mark.parametrize("content", [REMINDER, PICTURE])
def test_without_results_before_it_a_reminder_or_a_picture_is_a_prompt(content: object) -> None:
    assert list_group_ranges(user("a"), assistant("b"), user(content), assistant("c")) == [(0, 1, 2), (2, 3, 4)]
    assert list_group_ranges(user(content), assistant("b")) == [(0, 1, 2)]
    assert find_last_user(make_messages(user("a"), assistant("b"), user(content))) == 2


def test_a_system_message_does_not_part_a_reminder_from_its_results() -> None:
    talk = (user("a"), assistant(None, "1"), result("1", "x"), system(), user(REMINDER), assistant("b"))
    assert list_group_ranges(*talk) == [(0, 1, 6)]
    assert list_step_ranges(*talk) == [(0, 1), (1, 3), (3, 4), (4, 5), (5, 6)]


def test_the_last_user_among_tool_output() -> None:
    talk = make_messages(user("a"), assistant("b"), user("OBS"))
    assert (find_last_user(talk), find_last_user(talk, [False, False, True])) == (2, 0)
    assert find_last_user(make_messages(assistant("b"))) == -1


@pytest.mark.parametrize("text", ["<system-reminder>" * 20_000, "<system-reminder></system-reminder>" * 10_000])
def test_many_reminders_are_read_in_linear_time(text: str) -> None:
    assert not is_beside_results(make_messages(user(text)), 0)
