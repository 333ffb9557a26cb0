from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.script import FINISH_MARK, MAX_CALLS, Json, SchemaFiller, ScriptedTurn, take_turn


def tool(name: str, description: str = "", *required: str, **properties: Json) -> Json:
    for one in required:
        properties.setdefault(one, {"type": "string"})
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


READ = tool("read_file", "Read a file of the workspace", "path")
RUN = tool("run_command", "Run a shell command", "command")
WRITE = tool("write_file", "Write a file", "path", "content")
WEATHER = tool("get_weather", "The current weather in a city", "city")
ALL = [READ, RUN, WRITE, WEATHER]


def ask(*messages: str | Json, **more: Any) -> ScriptedTurn:
    """Strings are what the user says."""
    said = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    return take_turn({"messages": said, **more})


def called(*names: str) -> list[Json]:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    results = [{"role": "tool", "tool_call_id": name, "content": f"{name} says 42"} for name in names]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def calls(turn: ScriptedTurn) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments if call.custom else json.loads(call.arguments)) for call in turn.calls]


def test_a_tool_that_fits_is_called_and_then_answered_from() -> None:
    question = "What is the weather in San Francisco, CA?"
    assert calls(ask(question, tools=ALL)) == [("get_weather", {"city": "San Francisco, CA"})]
    turn = ask(question, *called("get_weather"), tools=ALL)
    assert turn.calls == ()
    assert "get_weather says 42" in turn.text


def test_a_long_description_does_not_outdo_a_name() -> None:
    wordy = tool("query", "What is asked in a city, the weather of San Francisco too, in SQL", "sql")
    assert calls(ask("What is the weather in San Francisco?", tools=[wordy, WEATHER]))[0][0] == "get_weather"


AGENT = tool("Agent", "Launch an agent for a task of the conversation", "prompt")


def test_reminders_are_not_prompts_and_an_agent_is_started_only_where_it_is_named() -> None:
    woken = "<system-reminder>\n[NOTIFICATION] The agent has ended. Read its task.\n</system-reminder>\n"
    assert ask(woken, tools=[AGENT, READ]).calls == (), "or it would be woken by its own agent, without end"
    assert ask(woken + "Hello!", tools=[AGENT, READ]).calls == ()
    assert "NOTIFICATION" not in ask(woken + "Hello!").text
    assert calls(ask(woken + "Read docs/index.md.", tools=[AGENT, READ])) == [("read_file", {"path": "docs/index.md"})]
    assert ask("Look for a task of the conversation.", tools=[AGENT]).calls == ()
    assert calls(ask("Start the agent for it.", tools=[AGENT, READ]))[0][0] == "Agent"


@pytest.mark.parametrize("said", ["Hello!", "thanks", "Why is the sky blue?", ""])
def test_small_talk_and_plain_questions_call_nothing(said: str) -> None:
    assert ask(said, tools=[READ, WRITE]).calls == ()


def test_without_tools_the_user_is_quoted() -> None:
    assert "“Look something up”" in ask("Look something up").text


def test_two_tools_that_are_named_are_called_together_unless_that_is_forbidden() -> None:
    said = "Please use read_file and get_weather for “Oslo”"
    assert [name for name, _ in calls(ask(said, tools=ALL))] == ["read_file", "get_weather"]
    assert [name for name, _ in calls(ask(said, tools=ALL, parallel_tool_calls=False))] == ["read_file"]


def test_the_demo_calls_tools_in_the_order_that_was_asked_for() -> None:
    said = "Read the file src/main.py, then use run_command to list the rest"
    assert calls(ask(said, tools=ALL)) == [("read_file", {"path": "src/main.py"})]
    assert calls(ask(said, *called("read_file"), tools=ALL)) == [("run_command", {"command": "ls"})]
    assert ask(said, *called("read_file"), *called("run_command"), tools=ALL).calls == ()


def test_a_tool_that_writes_is_only_called_by_its_name_and_never_on_a_file_of_the_users() -> None:
    assert ask("Write me a haiku about main.py", tools=ALL).calls == ()
    assert ask("Delete everything", tools=[tool("delete_all", "Delete everything")]).calls == ()
    [(name, arguments)] = calls(ask("Use write_file on main.py", tools=ALL))
    assert (name, arguments["path"]) == ("write_file", "demo.txt")


@pytest.mark.parametrize("parameter", ["command", "cmd", "script", "bash"])
def test_a_command_is_harmless_whatever_the_prompt_says(parameter: str) -> None:
    shell = tool("shell", "Run a command", parameter)
    assert calls(ask("Run `rm -rf /` with shell", tools=[shell])) == [("shell", {parameter: "ls"})]


def test_tool_choice_is_obeyed() -> None:
    assert ask("Use read_file", tools=ALL, tool_choice="none").calls == ()
    assert len(ask("Hello!", tools=ALL, tool_choice="required").calls) == 1
    named = {"type": "function", "function": {"name": "write_file"}}
    assert [name for name, _ in calls(ask("Hello!", tools=ALL, tool_choice=named))] == ["write_file"]
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert [name for name, _ in calls(ask("Hello!", tools=ALL, tool_choice=choice))] == ["get_weather"]
    allowed["mode"] = "auto"
    assert ask("Hello!", tools=ALL, tool_choice=choice).calls == ()


def test_a_custom_tool_gets_text() -> None:
    custom = {"type": "custom", "custom": {"name": "grep", "description": "Search"}}
    assert calls(ask("Use grep for 'needle'", tools=[custom])) == [("grep", "needle")]


def test_an_agent_that_waits_for_a_finishing_command_gets_it_after_the_first_step() -> None:
    bash = tool("bash", "Run a command", "command")
    said = f"Fix the bug. When you are done, run: echo {FINISH_MARK}"
    assert calls(ask(said, tools=[bash])) == [("bash", {"command": "ls"})]
    assert calls(ask(said, *called("bash"), tools=[bash])) == [("bash", {"command": f"echo {FINISH_MARK}"})]


def test_a_state_block_ends_an_answer_where_one_is_asked_for_and_never_a_call() -> None:
    system: Json = {"role": "system", "content": "End with a ### STATE block."}
    assert ask(system, "Hello!").text.count("\n### STATE\n") == 1
    assert "### STATE" not in ask("Hello!").text
    assert ask(system, "Use read_file", tools=ALL).text == ""


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 3),
        ({"type": "number", "minimum": 10}, 10),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["null", "string"]}, "cats"),
        ({"enum": ["dogs", "cats"]}, "cats"),
        ({"enum": ["x", "y"]}, "x"),
        ({"const": 7}, 7),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [3, 3]),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"const": "there"}}}, "there"),
        ({"$ref": "#/$defs/none"}, "cats"),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 3}),
        ({}, "cats"),
        ([], "cats"),
    ],
)
def test_a_schema_is_filled_with_what_the_prompt_offers(schema: Any, value: object) -> None:
    root = schema if isinstance(schema, dict) else {}
    assert SchemaFiller("Tell me 3 jokes about 'cats'", root).make_value(schema, "text", 0) == value


def test_a_schema_that_contains_itself_ends() -> None:
    schema: Json = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert json.dumps(SchemaFiller("x", schema).make_value(schema, "", 0)).count("next") <= 9


def test_json_is_answered_where_json_is_wanted() -> None:
    said = "A joke about cats as JSON with 'setup' and 'punchline' keys"
    assert set(json.loads(ask(said, response_format={"type": "json_object"}).text)) == {"setup", "punchline"}
    assert isinstance(json.loads(ask("hi", response_format={"type": "json_object"}).text), dict)
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": READ["function"]["parameters"]}}
    assert json.loads(ask("of a.txt", response_format=wanted).text) == {"path": "a.txt"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        "role",
        "content",
        "tool_calls",
        "tools",
        "tool_choice",
        "response_format",
        "type",
        "function",
        "name",
        "parameters",
        "properties",
        "required",
        "enum",
        "custom",
        "allowed_tools",
        "json_schema",
        "schema",
    ]
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)


@given(st.lists(OBJECTS, min_size=1, max_size=4), OBJECTS)
def test_nothing_that_is_json_makes_it_fail(messages: list[Json], request_: Json) -> None:
    turn = take_turn({**request_, "messages": messages})
    assert len(turn.calls) <= MAX_CALLS
    assert turn == take_turn({**request_, "messages": messages})


@given(OBJECTS, st.text(max_size=30))
def test_the_scripted_model_fills_any_json_schema(schema: Json, prompt: str) -> None:
    json.dumps(SchemaFiller(prompt, schema).make_value(schema, "x", 0))
