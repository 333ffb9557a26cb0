"""Conversations of one credential that begin alike: runs of one task, users behind one key, steps that are tried again.

Nothing that the model wrote in one of them may be in a prompt of another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.sessions.given_answer import GivenAnswer
from tests.conversations import assistant, make_message, result, user
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import make_calls, send_completion

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
SAME_STEPS = 3
"""Steps that all runs have in common."""


class NotingModel:
    """Ends each answer with a STATE block that names the run. The first calls of all runs are the same.

    prompts: (run, text of the prompt) of each request."""

    def __init__(self) -> None:
        self.prompts: list[tuple[str, str]] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        run, step = (request.all(name)[0].decode() for name in (b"x-run", b"x-step"))
        text = request.body.decode()
        self.prompts.append((run, text))
        path = f"file{step}.py" if int(step) < SAME_STEPS else f"{run}_{step}.py"
        note = f"\n\n### STATE\nGoal: plan of {run}\nContext: {run} goes its way" if "### STATE" in text else ""
        answer = make_calls((f"call_same{step}step", "read"), path=path, text=f"I look.{note}")
        if not json.loads(request.body).get("tools"):
            answer = {"role": "assistant", "content": f"Hello, I am here.{note}"}
        await send_completion(connection, answer, USAGE)

    def find_strangers(self) -> list[tuple[str, str]]:
        """(run, another run that its prompt names) of all prompts."""
        return [(run, other) for run, text in self.prompts for other in re.findall(r"run\d", text) if other != run]


TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]


class Run:
    """One run of a task, as its client has it."""

    def __init__(self, proxy: RunningProxy, name: str, *lines: bytes, own_ids: bool = False, **more: Any) -> None:
        self.agent = Agent(proxy, lines, messages=[user("Find the fault.")], more=more or {"tools": TOOLS})
        self.name, self.own_ids, self.step = name, own_ids, 0
        self.sessions: list[str] = []

    async def ask(self) -> dict[str, Any]:
        lines = [f"x-{name}: {value}".encode() for name, value in (("run", self.name), ("step", self.step))]
        answer = await self.agent.send(*lines)
        assert answer.status == 200, answer.body
        self.sessions.append(answer.session)
        return answer.message

    def take(self, message: dict[str, Any]) -> None:
        call = message["tool_calls"][0]
        if self.own_ids:
            call["id"] = f"{self.name}_own_id_{self.step}"
            call["function"]["arguments"] = call["function"]["arguments"].replace('": "', '": "./')
        self.agent.messages += [message, result(call["id"], f"The text of step {self.step}.")]
        self.step += 1


async def test_runs_of_one_task_in_turn_have_a_session_each() -> None:
    """The first run holds more of the second one's messages than the second one's own session."""
    model = NotingModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        runs = [Run(proxy, f"run{n}") for n in range(3)]
        for run in runs:
            for _ in range(SAME_STEPS + 3):
                run.take(await run.ask())
        assert model.find_strangers() == []
        assert [len(set(run.sessions)) for run in runs] == [1, 1, 1]
        assert len({run.sessions[0] for run in runs}) == 3
        assert await proxy.rows("SELECT DISTINCT kind FROM branches") == [("main",)]


@pytest.mark.parametrize("policy", ["rolling", "thrifty"])
async def test_runs_of_one_task_side_by_side_do_not_read_each_others_notes(policy: str) -> None:
    """They may change places: nothing but their notes on the same answers tells them apart."""
    model, state = NotingModel(), {"ask": "always"}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy, state=state) as proxy:
        runs = [Run(proxy, f"run{n}") for n in range(4)]
        for order in ((0, 1, 2, 3), (3, 1, 2, 0), (1, 0, 3, 2), (2, 3, 0, 1), (0, 2, 1, 3), (3, 2, 1, 0)):
            for n in order:
                runs[n].take(await runs[n].ask())
        assert model.find_strangers() == []
        assert "Goal: plan of run0" in model.prompts[-1][1], "its own, of the answers that it alone has"
        assert len({session for run in runs for session in run.sessions}) == 4


@pytest.mark.parametrize("own_ids", [False, True])
@pytest.mark.parametrize("line", [b"x-session-id: s", b"x-context-session: s"])
async def test_runs_under_one_name_do_not_read_each_others_notes(line: bytes, own_ids: bool) -> None:
    model = NotingModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        runs = [Run(proxy, f"run{n}", line, own_ids=own_ids) for n in range(3)]
        rounds = [runs] * (SAME_STEPS + 3) if own_ids else [[run] for run in runs for _ in range(SAME_STEPS + 3)]
        for together in rounds:
            answers = [await run.ask() for run in together]
            for run, answer in zip(together, answers, strict=True):
                run.take(answer)
        assert model.find_strangers() == []


async def test_runs_that_an_agent_names_stay_in_their_sessions_though_their_answers_are_reworded() -> None:
    model = NotingModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        runs = [Run(proxy, f"run{n}", b"x-session-id: s%d" % n) for n in range(2)]
        for run in runs:
            for _ in range(SAME_STEPS + 2):
                run.take(await run.ask() | {"content": "As the client has it."})
        assert model.find_strangers() == []
        assert [set(run.sessions) for run in runs] == [{"s0"}, {"s1"}]


@pytest.mark.parametrize("live_branches", [1, 1000])
async def test_runs_that_an_agent_names_stay_in_their_sessions_though_only_another_is_in_memory(
    live_branches: int,
) -> None:
    model = NotingModel()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="rolling", limits={"live_branches": live_branches}) as proxy,
    ):
        runs = [Run(proxy, f"run{n}", b"x-session-id: s%d" % n) for n in range(3)]
        for _ in range(SAME_STEPS):
            for run in runs:
                run.take(await run.ask())
        assert model.find_strangers() == []
        assert [set(run.sessions) for run in runs] == [{"s0"}, {"s1"}, {"s2"}]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("how", "live_branches"),
    [("system", 1), ("system", 1000), ("user", 1000)],  # memory alone has the values of `user`
)
async def test_users_behind_one_key_who_begin_alike_keep_their_sessions(
    how: str, live_branches: int, first: int
) -> None:
    model = NotingModel()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="rolling", limits={"live_branches": live_branches}) as proxy,
    ):
        runs = [Run(proxy, f"run{n}", **{"user": f"end user {n}"} if how == "user" else {"n": 1}) for n in range(3)]
        for run in runs:
            if how == "system":
                run.agent.messages.insert(0, {"role": "system", "content": f"You talk to {'abc'[int(run.name[-1])]}."})
            run.agent.messages.append(await run.ask())
        for run in (runs[first], runs[2], runs[1 - first]):
            run.agent.messages.append(user("Go on"))
            run.agent.messages.append(await run.ask())
        assert model.find_strangers() == []
        assert [len(set(run.sessions)) for run in runs] == [1, 1, 1]


def begin_run(proxy: RunningProxy, n: int, how: str) -> Run:
    """A conversation whose client says with each request who its user is, or has a system prompt of its own."""
    run = Run(proxy, f"run{n}", **{"user": f"end user {n}"} if how == "user" else {"n": 1})
    if how == "system":
        run.agent.messages.insert(0, {"role": "system", "content": f"You talk to {'abc'[n]}."})
    return run


@pytest.mark.parametrize("reworded", [False, True])
@pytest.mark.parametrize("how", ["system", "user"])
async def test_a_user_who_is_new_to_the_proxy_continues_no_conversation_of_others_that_begin_alike(
    how: str, reworded: bool
) -> None:
    """Two others had the same answer to the same greeting. The newcomer had it past the proxy."""
    model = NotingModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        runs = [begin_run(proxy, n, how) for n in range(3)]
        for run in runs[:2]:
            run.agent.messages.append(await run.ask())
        runs[2].agent.messages.append(runs[0].agent.messages[-1])
        for run in (runs[2], *runs[:2]):
            if reworded:
                text = run.agent.messages[-1]["content"]
                run.agent.messages[-1] = assistant(f"{text} I am the newest model.")
            run.agent.messages.append(user("Go on"))
            await run.ask()
        assert model.find_strangers() == []
        assert [len(set(run.sessions)) for run in runs] == [1, 1, 1]
        assert len({run.sessions[-1] for run in runs}) == 3


@pytest.mark.parametrize("how", ["system", "user", "nothing"])
@pytest.mark.parametrize("left", ["restart", "eviction"])
async def test_users_who_begin_alike_read_no_notes_of_each_other_though_their_sessions_have_left_memory(
    tmp_path: Path, how: str, left: str
) -> None:
    """The store has no value of `user`. Where nothing tells two conversations apart, they may change places."""
    model = NotingModel()
    tree: dict[str, Any] = {"db": str(tmp_path / "c.db"), "policy": "rolling"}
    tree["limits"] = {"live_branches": 1 if left == "eviction" else 1000}
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **tree) as proxy:
            runs = [begin_run(proxy, n, how) for n in range(3)]
            for run in runs:
                run.agent.messages += [await run.ask(), user("Go on")]
            if left == "eviction":
                for run in runs:
                    await run.ask()
        if left == "restart":
            async with run_proxy(upstream.port, **tree) as proxy:
                for run in runs:
                    run.agent.proxy = proxy
                    await run.ask()
    assert model.find_strangers() == []
    assert how != "system" or [len(set(run.sessions)) for run in runs] == [1, 1, 1]


@pytest.mark.parametrize("steps", [1, 2, SAME_STEPS])
async def test_a_run_that_goes_on_after_a_restart_reads_no_note_of_a_run_that_is_further(
    tmp_path: Path, steps: int
) -> None:
    """Both have the same answers so far. The notes of the first of these are of two conversations, too."""
    model = NotingModel()
    tree: dict[str, Any] = {"db": str(tmp_path / "c.db"), "policy": "rolling"}
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **tree) as proxy:
            runs = [Run(proxy, f"run{n}") for n in range(2)]
            for run, count in zip(runs, (steps, SAME_STEPS + 2), strict=True):
                for _ in range(count):
                    run.take(await run.ask())
        assert model.find_strangers() == []
        async with run_proxy(upstream.port, **tree) as proxy:
            for run in reversed(runs):
                run.agent.proxy = proxy
                await run.ask()
    assert model.find_strangers() == []


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
async def test_an_answer_that_the_user_has_written_anew_is_a_fork_without_the_models_note(
    line: tuple[bytes, ...],
) -> None:
    model = NotingModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        run = Run(proxy, "run1", *line, n=1)
        run.agent.messages += [await run.ask(), user("Go on")]
        run.agent.messages += [await run.ask() | {"content": "No: I will do it in another way."}, user("Do so")]
        run.name = "run2"
        await run.ask()
        assert "Goal: plan" in model.prompts[1][1]
        assert await proxy.rows("SELECT kind FROM branches ORDER BY created_at") == [("main",), ("fork",)]


CALLS = make_calls(("call_Zk3vQ8xLbT", "read"), path="a.py")


@pytest.mark.parametrize(
    ("given", "returned", "is_other"),
    [
        (CALLS, make_calls(("own", "write")), True),
        (CALLS, make_calls(("own", "read"), path="b.py"), False),
        (CALLS, assistant("I call read."), False),
        (assistant("Yes."), assistant(" Yes. "), False),
        (assistant("Yes."), assistant("No."), True),
        (assistant("It is there, in the vault."), assistant("It is there, in the vault. Sources: 1"), False),
        (assistant("It is there, in the vault."), assistant("Never mind."), True),
        (assistant("It is there, in the vault."), CALLS, False),
    ],
)
def test_an_answer_is_plainly_another_one_by_its_tools_or_its_text(
    given: dict[str, Any], returned: dict[str, Any], is_other: bool
) -> None:
    assert GivenAnswer.remember(make_message(given)).is_contradicted_by(make_message(returned)) is is_other
