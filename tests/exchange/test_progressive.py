"""The policy `progressive` through the running proxy: the prompt that reaches the upstream at each iteration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError
from tests.context.research import make_iterations, make_step
from tests.conversations import Json, assistant, user
from tests.dialect_agents import MessagesAgent
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls
from tests.strict_messages import StrictMessages

SOURCE = "ERROR: You're repeating yourself. Take action immediately."
SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}


async def forwarded(values: list[Json], *lines: bytes, policy: str = "progressive", **tree: Any) -> list[str]:
    """The texts that reach the upstream."""
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy, **tree) as proxy:
        found = await proxy.post({"model": "m", "messages": values, "tools": [SEARCH]}, *lines)
        assert found.status == 200
        assert found.header("x-context-fallback") is None
    return model.texts()


def facts(begin: int, end: int) -> list[str]:
    return [text for n in range(begin, end) for text in (f"looking at {n}", f"result {n}")]


async def test_b1_b3_the_four_windows_reach_the_upstream() -> None:
    all_of_it = await forwarded(make_iterations(9, before=4))
    assert all_of_it[:3] == ["Be exact.", "old question 0", "old answer 0"]
    assert len(all_of_it) == 2 + 8 + 18
    moderate = await forwarded(make_iterations(14, before=4))
    talk = ["old question 2", "old answer 2", "old question 3", "old answer 3"]
    assert moderate[:-1] == ["Be exact.", *talk, "the question", *facts(0, 14)][:-1]
    aggressive = await forwarded(make_iterations(15, before=4))
    assert aggressive[:-1] == ["Be exact.", "the question", *facts(0, 15)][:-1]
    assert aggressive[-1].endswith("[15 iterations left. Complete your answer.]")
    emergency = await forwarded(make_iterations(20, before=4))
    assert emergency[:-1] == ["Be exact.", "the question", *facts(17, 20)][:-1]
    assert emergency[-1].endswith("[EMERGENCY: 10 iterations remaining. Synthesize NOW.]")


def worded(folder: Path, words: str, name: str = "mine") -> dict[str, str]:
    """Settings for `progressive` with words of one's own: lines under the countdown, the last table."""
    text = (Path(__file__).parents[2] / "config/policies/progressive.toml").read_text()
    (folder / f"{name}.toml").write_text(text.replace('"progressive"', f'"{name}"') + words)
    return {"policies_dir": str(folder), "policy": name}


async def test_b7_the_words_of_the_countdown_are_settings(tmp_path: Path) -> None:
    tree = worded(tmp_path, 'firm = "Noch <LEFT> Schritte."\ngentle = "Bitte: <LEFT>."\n')
    assert (await forwarded(make_iterations(15), **tree))[-1].endswith("\n\nNoch 15 Schritte.")
    assert (await forwarded(make_iterations(15), b"x-context-urgency: gentle", **tree))[-1].endswith("\n\nBitte: 15.")


async def test_b7_words_without_their_placeholder_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"count_down\.firm.*<LEFT>"):
        await forwarded(make_iterations(15), **worded(tmp_path, 'firm = "Hurry up."\n'))


async def test_b4_progress_is_reported_from_the_fifth_iteration_on() -> None:
    thoughts = [assistant(f"thought {n}") for n in range(4)]
    values = [user("a"), *thoughts, *make_step("search", "x"), *make_step("get_page", "y", None, "c2")]
    assert (await forwarded(values))[-1] == "y\n\n[PROGRESS: Iteration 6/30 | 2 tools used | 1 page read]"
    assert (await forwarded([user("a"), *thoughts[:2], *make_step("search", "x")]))[-1] == "x"


async def test_b2_the_header_overrides_how_many_iterations_there_may_be() -> None:
    found = await forwarded(make_iterations(16), b"x-context-max-iterations: 20")
    assert "[PROGRESS: Iteration 16/20 |" in found[-1]
    assert found[-1].endswith("[4 iterations left. Complete your answer.]")
    assert "Iteration 16/30" in (await forwarded(make_iterations(16), b"x-context-max-iterations: many"))[-1]


async def looping(proxy: RunningProxy, times: int, *lines: bytes) -> Agent:
    """An agent whose model plans and plans."""
    agent = Agent(proxy, (b"x-context-session: a", *lines))
    for n in range(times):
        await agent.say(f"Go on {n}")
    return agent


@pytest.mark.parametrize("stream", [False, True])
async def test_b5_b6_a_theme_loop_is_reported_once_and_again_when_it_has_doubled(stream: bool) -> None:
    model = ScriptedModel("I need to plan.", "Let me plan my approach.", "Planning to search.", "I plan.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream, more={"tools": [SEARCH]})
        for n in range(13):
            await agent.say(f"Go on {n}")
        assert not [m for m in agent.messages if SOURCE in (m.get("content") or "")]
    told = [n for n in range(13) if model.texts(n)[-1].endswith(SOURCE)]
    assert told == [3, 6, 12]  # after three, six and twelve thoughts


async def test_b5_loops_are_seen_in_what_has_left_the_prompt_long_ago() -> None:
    read = make_step("search", "the same", None, "r", q="x")
    values = [*make_iterations(0), *read, *make_iterations(22)[2:], *read, *read]
    found = await forwarded(values)
    assert found.count("the same") == 1  # and once with the note behind it
    assert "search was called 3 times with the same arguments" in found[-1]


async def test_b5_a_call_made_five_times_is_told_more_strongly() -> None:
    model = ScriptedModel(*[make_calls((f"call_{n:09}", "search"), q="same") for n in range(6)])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Find it")
        for _ in range(5):
            agent.brings("nothing")
            await agent.say()
    last = [model.texts(n)[-1] for n in range(6)]
    assert ["LOOP" in text for text in last] == [False, False, False, True, False, True]
    assert "has returned nothing new" in last[3], "told of what was, and not of what comes"
    assert "5 times" in last[5]


async def test_b7_a_model_may_have_its_own_boundaries_and_urgency(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text('[models.m]\n[models.m.progressive]\nemergency = 3\nresults = 1\nurgency = "gentle"\n')
    found = await forwarded(make_iterations(4, before=2), models_file=str(models))
    assert found[:-1] == ["Be exact.", "the question", "looking at 3"]
    assert found[-1].endswith("[26 iterations remaining. Please answer now with what you have found.]")


async def test_b7_a_models_table_with_an_unknown_key_stops_the_start(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text("[models.m.progressive]\nemergancy = 3\n")
    with pytest.raises(ConfigError, match="emergancy"):
        await forwarded(make_iterations(4), models_file=str(models))


async def test_b7_the_request_may_turn_urging_off() -> None:
    plans = [assistant(t) for t in ("I need to plan", "I plan", "A plan")]
    assert (await forwarded([user("a"), *plans, user("b")]))[-1].endswith(SOURCE)
    assert (await forwarded([user("a"), *plans, user("b")], b"x-context-urgency: off"))[-1] == "b"


async def test_b8_the_settings_of_the_policy_are_a_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nschedule = "always"\nask = "never"\n'
        '[[stages]]\nuse = "window_by_iteration"\nmoderate = 2\nmax_tokens = 20\n'
        '[[injections]]\nuse = "warn_of_loops"\ntheme_window = 2\nconsecutive_threshold = 2\n'
        'looping = ["waiting"]\nthemes = [{ name = "waiting", words = ["wait"] }]\n'
    )
    talk = [user("u" * 400), assistant("a" * 400), user("b"), assistant("I wait"), assistant("Waiting"), user("c")]
    found = await forwarded(talk, policy="mine", policies_dir=str(tmp_path))
    assert found[-1].endswith(SOURCE)
    long = [user("u" * 400), assistant("a" * 400), *make_iterations(2)[1:]]
    found = await forwarded(long, policy="mine", policies_dir=str(tmp_path))
    assert found == ["the question", *facts(0, 2)]


@pytest.mark.parametrize("schedule", ["over_budget", "when_it_pays"])
async def test_b3_progressive_works_with_the_other_schedules(tmp_path: Path, schedule: str) -> None:
    shipped = (Path(__file__).parents[2] / "config/policies/progressive.toml").read_text()
    text = shipped.replace('schedule = "always"', f'schedule = "{schedule}"').replace('"progressive"', '"mine"')
    (tmp_path / "mine.toml").write_text(text)
    steps = [make_calls((f"call_{n:09}", "search"), text=f"looking at {n}", q=n) for n in range(26)]
    model = ScriptedModel(*steps, "Done.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="mine", policies_dir=str(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Find it")
        for n in range(26):
            agent.brings(f"result {n} " + "x" * 2000)
            await agent.say()
        assert proxy.count("refusals_total", rule="W6") == 0
        assert {row[2] for row in await proxy.outcomes()} == {None}
    sent = [len(chat["messages"]) for chat in model.chats]
    assert sent[-1] < len(agent.messages) - 1 if schedule == "when_it_pays" else sent[-1] == len(agent.messages) - 1
    assert "EMERGENCY" in model.texts()[-1]


async def test_b5_b6_other_policies_may_warn_of_loops_and_their_prefix_stays(tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[2] / "config/policies/thrifty.toml").read_text()
    injection = (
        '\n[[injections]]\nuse = "warn_of_loops"\nkinds = ["same_call_still", "cycle", "same_call", "same_error"]\n'
    )
    (tmp_path / "mine.toml").write_text(shipped.replace('"thrifty"', '"mine"', 1) + injection)
    assert "warn_of_loops" not in [
        line.partition("=")[2].strip(' "') for line in shipped.splitlines() if line[:3] == "use"
    ]
    model = ScriptedModel(*[make_calls((f"call_{n:09}", "search"), q="same") for n in range(6)])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="mine", policies_dir=str(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Find it")
        for _ in range(5):
            agent.brings("nothing")
            await agent.say()
    assert ["LOOP" in model.texts(n)[-1] for n in range(6)] == [False, False, False, True, False, True]
    for chat in model.chats:  # the note is at the tail of one request, and not in the next
        assert chat["messages"][:-1] == agent.messages[: len(chat["messages"]) - 1]


async def test_b5_no_loop_is_reported_in_plain_chat() -> None:
    model = ScriptedModel(
        "A.", "B.", "C.", "D.", "I need to plan.", "I need to plan.", "I need to plan.", "I need to plan."
    )
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        questions = [f"And question {n}?" for n in range(9)]
        for question in questions:
            await agent.say(question)
    assert [model.texts(n)[-1] for n in range(9)] == questions


async def test_b5_answers_to_other_questions_are_not_a_loop_but_the_same_thought_again_is() -> None:
    model = ScriptedModel(
        *(
            "Paris is the capital of France; you need to book early.",
            "Ten approaches to sorting, by their cost.",
            "No.",
        ),
        *("We need to ask the weather service.", "I need to ask the weather service.", "Let me plan."),
        "Need to ask that weather service.",
        "Done.",
    )
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), more={"tools": [SEARCH]})
        for n in range(5):
            await agent.say(f"Go on {n}")
        assert [text for text in model.texts() if "LOOP" in text or SOURCE in text] == []
    same = [m for n in range(3) for m in (assistant("We need to ask the weather service."), user(f"Yes {n}."))]
    assert (await forwarded([user("a"), *same]))[-1].endswith(SOURCE)


async def test_b5_an_unchanged_status_is_not_a_loop_however_often_it_is_asked_for() -> None:
    polls = [m for n in range(8) for m in make_step("get_status", "running", "I need to wait.", f"p{n}", id=1)]
    found = await forwarded([user("Deploy it"), *make_step("deploy", "begun", None, "d"), *polls])
    assert found[-1].startswith("running\n\n[PROGRESS: ")
    assert "LOOP" not in found[-1]
    assert SOURCE not in found[-1]


PLANS = [assistant(t) for t in ("I need to plan", "Let me plan my approach", "Planning to search")]


@pytest.mark.parametrize("stream", [False, True])
async def test_b5_scenario_2_of_the_source_is_reported_where_the_last_message_is_the_assistants(stream: bool) -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        body = {"model": "m", "messages": [user("a"), *PLANS], "tools": [SEARCH], "stream": stream}
        assert (await proxy.post(body)).status == 200
    assert model.last["messages"] == [user("a"), *PLANS, user(SOURCE)]


async def test_b3_b4_windows_and_progress_are_told_there_too() -> None:
    values = [*make_iterations(20), assistant("I have looked at all of it.")]
    found = await forwarded(values)
    assert found[-1].startswith("[PROGRESS: Iteration 21/30 | 20 tools used | 0 pages read]")
    assert found[-1].endswith("[EMERGENCY: 9 iterations remaining. Synthesize NOW.]")


@pytest.mark.parametrize("more", [{"continue_final_message": True}, {"add_generation_prompt": False}, {"prefix": True}])
async def test_b5_a_message_to_continue_is_left_alone_and_the_loop_reported_with_the_next_request(
    more: dict[str, bool],
) -> None:
    model = ScriptedModel("Well.")
    last = dict(PLANS[-1], **more) if "prefix" in more else PLANS[-1]
    told = {} if "prefix" in more else more
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), more={"tools": [SEARCH]})
        agent.messages = [user("a"), *PLANS[:-1], last]
        await agent.say(None, **told)
        assert model.last["messages"] == [user("a"), *PLANS[:-1], last], "a prefix is gone on with, not answered"
        await agent.say("Go on with another thing")
        assert model.texts()[-1] == f"Go on with another thing\n\n{SOURCE}"
        await agent.say("And on with a third")
        assert SOURCE not in model.texts()[-1], "it was told once"


async def test_messages_begin_with_the_user_whatever_leaves_the_prompt() -> None:
    call = {"type": "tool_use", "name": "read", "input": {"path": "a.py"}}
    steps: list[list[Json]] = [
        [{"type": "text", "text": f"Step {n}."}, {**call, "id": f"toolu_{n}"}] for n in range(28)
    ]
    model = StrictMessages(*steps[:3], "Done.", *steps[3:], "All done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        agent = MessagesAgent(proxy, lambda name, arguments: f"{name} {arguments} " * 200)
        await agent.work("Find the fault.")
        await agent.work("Mend it.")
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert {fallback for _, _, fallback in outcomes} == {None}


async def test_calls_of_a_providers_code_are_not_sent_without_that_code() -> None:
    code = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "..."}}
    call = {"type": "tool_use", "name": "read", "input": {"path": "a.py"}}
    made = {**call, "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
    steps: list[list[Json]] = [[{**made, "id": f"toolu_{n}"}] for n in range(28)]
    steps[0].insert(0, code)
    model = StrictMessages(*steps, "All done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        await MessagesAgent(proxy, lambda name, arguments: f"{name} {arguments} " * 200).work("Find the fault.")
    assert model.refusals == []
