from __future__ import annotations

import re

import pytest

from proxy.chat.observation import is_observation
from tests.conversations import Json, assistant, messages, result, system, user

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
    "json": ('{"action": "search", "input": "x"}', "Result: nothing"),
    "hermes": ('<tool_call>{"name": "x"}</tool_call>', "<tool_response>\n1\n</tool_response>"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_frameworks_bring_behind_an_action_is_an_observation(name: str) -> None:
    action, brought = SAMPLES[name]
    for text in (brought, [{"type": "text", "text": brought}]):
        assert is_observation(messages(user("a"), assistant(action), user(text)), 2)
    assert is_observation(messages(user("a"), assistant(action), system(), user(brought)), 3)


@pytest.mark.parametrize("name", SAMPLES)
def test_neither_alone_is_one(name: str) -> None:
    action, brought = SAMPLES[name]
    assert not is_observation(messages(user("a"), assistant(action), user("Thanks, and now the other one.")), 2)
    assert not is_observation(messages(user("a"), assistant("It is done."), user(brought)), 2)
    assert not is_observation(messages(user(brought)), 0)
    assert not is_observation(messages(user("a"), assistant(action), user("Wait."), user(brought)), 3)
    assert not is_observation(messages(user("a"), assistant(action), assistant(brought)), 2)


@pytest.mark.parametrize("text", ["Error: it does not compile", "Output:\n3\nwhich is wrong", "Result: it works"])
def test_what_people_write_behind_code_is_theirs(text: str) -> None:
    values: list[Json] = [user("How do I sort?"), assistant("Like this:\n```python\nsorted(x)\n```"), user(text)]
    assert not is_observation(messages(*values), 2)


def test_behind_a_real_call_results_have_a_role_of_their_own() -> None:
    values = [user("a"), assistant("Action: x", "c1"), result("c1", "y"), user("Observation: z")]
    assert not is_observation(messages(*values), 3)


def test_two_in_a_row_are_both() -> None:
    values = messages(user("a"), assistant("Action: x"), user("Observation: y"), user("Observation: z"))
    assert [is_observation(values, n) for n in range(4)] == [False, False, True, True]


def test_patterns_of_the_settings_count_wherever_they_stand() -> None:
    assert is_observation(messages(user("bash-$ ls")), 0, re.compile(r"^bash-\$"))
    assert not is_observation(messages(assistant("bash-$ ls")), 0, re.compile(r"^bash-\$"))
