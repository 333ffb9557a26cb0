"""The policy `importance` through the running proxy: the prompt that reaches the upstream, and the stored messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.settings.load import find_shipped_file
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

SCHEDULES = pytest.mark.parametrize("schedule", ["always", "over_budget", "when_it_pays"])
STREAMS = pytest.mark.parametrize("stream", [False, True])
WORDS = "here are some plain words that say very little of any thing at all " * 4
"""61 tokens as they are estimated, about; no word in it counts."""


def wordy_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": f"{text}: {WORDS}"}


TALK = [
    wordy_message("system", "rules"),
    *(wordy_message(("user", "assistant")[n % 2], f"{n}") for n in range(20)),
    wordy_message("user", "now"),
]


@asynccontextmanager
async def serving(
    folder: Path, model: ScriptedModel, name: str, schedule: str, *, window: int | None = 1000, **tree: Any
) -> AsyncIterator[RunningProxy]:
    """The proxy with a policy that we ship under a schedule, and the model `m` with a window of so many tokens."""
    text = find_shipped_file(f"policies/{name}.toml").read_text()
    assert 'schedule = "always"' in text
    (folder / "mine.toml").write_text(
        text.replace('"always"', f'"{schedule}"').replace(f'name = "{name}"', 'name = "mine"')
    )
    models = folder / "models"
    models.write_text(f"[models.m]\nwindow = {window}\n" if window else "[models.x]\n")
    mine: dict[str, Any] = {"policies_dir": str(folder), "models_file": str(models), "policy": "mine"}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **{**mine, **tree}) as proxy:
        yield proxy


async def ask(proxy: RunningProxy, talk: list[dict[str, Any]], *, stream: bool = False, model: str = "m") -> None:
    body = {"model": model, "messages": talk} | ({"stream": True} if stream else {})
    found = await proxy.post(body, b"x-context-session: a")
    assert found.status == 200
    assert found.header("x-context-fallback") is None


async def left_out(proxy: RunningProxy) -> list[Any]:
    """The messages that the store lists as out of the branch's prompt."""
    ((tenant, session, branch),) = await proxy.rows("SELECT tenant, session, branch FROM branches")
    return await proxy.app.store.read_left_out(tenant, session, branch)


@STREAMS
async def test_d1_the_best_four_of_the_sources_worked_example_reach_the_upstream(tmp_path: Path, stream: bool) -> None:
    """70, 20, 18, 36, 34 and 60 points, and room for four: system, the second prompt and its answer, the last one."""
    model = ScriptedModel()
    talk = [wordy_message(role, "so") for role in ("system", "user", "assistant", "user", "assistant", "user")]
    for n, message in enumerate(talk):
        message["content"] += f"{n}"
    async with serving(tmp_path, model, "importance", "always", window=100) as proxy:
        await ask(proxy, talk[:1] + talk[-1:], stream=stream)
        ((size,),) = await proxy.rows("SELECT tokens_before / 2 FROM exchanges")
    for room, kept in ((4, [0, 3, 4, 5]), (3, [0, 3, 5]), (5, [0, 1, 3, 4, 5])):
        async with serving(tmp_path, model, "importance", "always", window=int(size * (room + 0.5) / 0.8)) as proxy:
            await ask(proxy, talk, stream=stream)
        assert model.last["messages"] == [talk[n] for n in kept]


@SCHEDULES
@STREAMS
async def test_d2_over_the_target_the_best_are_passed_on_unchanged(tmp_path: Path, schedule: str, stream: bool) -> None:
    model = ScriptedModel()
    talk = [dict(m) for m in TALK]
    talk[7]["content"] = f"6: the FATAL word {WORDS}"  # 46 points, 31 without it
    async with serving(tmp_path, model, "importance", schedule) as proxy:
        await ask(proxy, talk, stream=stream)
        ((before, after),) = await proxy.rows("SELECT tokens_before, tokens_after FROM exchanges")
    sent = model.last["messages"]
    assert before > 800 >= after
    assert [m for m in talk if m in sent] == sent  # in order, and not a byte of them changed
    assert [sent[0], sent[-1]] == [talk[0], talk[-1]]
    assert talk[7] in sent
    assert talk[1] not in sent
    assert talk[5] not in sent


@SCHEDULES
async def test_d2_below_the_target_the_bytes_are_the_clients(tmp_path: Path, schedule: str) -> None:
    model = ScriptedModel()
    raw = json.dumps({"model": "m", "messages": TALK[:8] + TALK[-1:], "x": 1.0}, indent=1).encode()
    async with serving(tmp_path, model, "importance", schedule) as proxy:
        await proxy.post(raw, b"x-context-session: a")
    assert model.received[0].body == raw


async def test_d2_steps_stay_whole_as_the_history_grows(tmp_path: Path) -> None:
    model = ScriptedModel("Well.")
    talk = [TALK[0], wordy_message("user", "begin")]
    async with serving(tmp_path, model, "importance", "always") as proxy:
        for n in range(16):
            ids = (f"c{n}", f"d{n}")
            talk.append(make_calls(*((i, "look") for i in ids)))
            talk += [{"role": "tool", "tool_call_id": i, "content": WORDS} for i in ids]
            await ask(proxy, talk)
            sent = model.last["messages"]
            assert sent[:2] == talk[:2]
            assert [m["role"] for m in sent[2:]] == ["assistant", "tool", "tool"] * (len(sent[2:]) // 3)
            assert sent[-3:] == talk[-3:]
        assert len(model.last["messages"]) < len(talk)


async def test_d2_system_and_last_message_are_sent_even_over_the_budget(tmp_path: Path) -> None:
    model = ScriptedModel()
    talk = [wordy_message("system", WORDS * 9), *TALK[1:5], wordy_message("user", WORDS * 9)]
    async with serving(tmp_path, model, "importance", "always") as proxy:
        await ask(proxy, talk)
    assert model.last["messages"] == [talk[0], talk[-1]]


async def test_d3_an_unknown_model_is_taken_to_have_100k_tokens(tmp_path: Path) -> None:
    model = ScriptedModel()
    talk = [*TALK[:1], *(wordy_message("user", f"{n} {WORDS * 100}") for n in range(18)), TALK[-1]]
    async with serving(tmp_path, model, "importance", "always", window=None) as proxy:
        await ask(proxy, talk, model="never heard of")
        ((before, after),) = await proxy.rows("SELECT tokens_before, tokens_after FROM exchanges")
        assert before > 80_000 >= after > 70_000
        await proxy.post({"model": "never heard of", "messages": talk}, b"x-context-policy: thrifty")
    assert model.last["messages"] == talk


@pytest.mark.parametrize(("name", "target"), [("gpt-5", 102_400), ("claude-sonnet-4-5", 160_000)])
async def test_d3_the_sources_limits_hold(tmp_path: Path, name: str, target: int) -> None:
    model = ScriptedModel()
    talk = [*TALK[:1], *(wordy_message("user", f"{n} {WORDS * 100}") for n in range(36)), TALK[-1]]
    async with serving(tmp_path, model, "importance", "always", policy="importance") as proxy:
        await ask(proxy, talk, model=name)
        ((before, after),) = await proxy.rows("SELECT tokens_before, tokens_after FROM exchanges")
    assert before > target >= after > 0.9 * target


@SCHEDULES
@STREAMS
async def test_d4_old_messages_are_replaced_by_one_sentence(tmp_path: Path, schedule: str, stream: bool) -> None:
    model = ScriptedModel()
    async with serving(tmp_path, model, "summarize", schedule) as proxy:
        await ask(proxy, TALK, stream=stream)
    sent = model.last["messages"]
    count = "Previous 10 turns: 5 user messages, 5 model responses, 0 tool calls"
    bearer = {"role": "user", "content": f"{TALK[11]['content']}\n\n{count}"}
    assert sent == [TALK[0], bearer, *TALK[12:]]


@SCHEDULES
async def test_d7_pruned_messages_are_stored_listed_and_whole(tmp_path: Path, schedule: str) -> None:
    model = ScriptedModel()
    async with serving(tmp_path, model, "importance", schedule) as proxy:
        await ask(proxy, TALK)
        found = await left_out(proxy)
        bodies = dict(await proxy.rows("SELECT key, body FROM messages"))
    sent = model.last["messages"]
    assert [json.loads(bodies[one.key]) for one in found] == [m for m in TALK if m not in sent]
    assert len(found) > 5
    assert {one.stage for one in found} == {"drop_unimportant"}
    assert all(one.reason.startswith("scores ") for one in found)


async def test_d7_messages_that_come_back_into_a_literal_prompt_are_no_longer_listed(tmp_path: Path) -> None:
    model = ScriptedModel()
    async with serving(tmp_path, model, "importance", "always") as proxy:
        await ask(proxy, TALK)
        out = len(await left_out(proxy))
        other = {"role": "assistant", "content": "Well."}
        await proxy.post({"model": "big", "messages": [*TALK, other, TALK[-1]]}, b"x-context-session: a")
        assert out > 0
        assert await left_out(proxy) == []
    assert model.last["messages"] == [*TALK, other, TALK[-1]]
