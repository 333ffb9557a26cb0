from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.tools import registry
from tests.proxy_server import RunningProxy, run_proxy
from tests.recorded import policies, record
from tests.recorded.play import model_on_a_socket, play, read, turns
from tests.recorded.strict import head_changed, violations

pytestmark = pytest.mark.slow

RECORDINGS = sorted(record.FOLDER.glob("*.jsonl"))
CONVERSATIONS = [conversation for path in RECORDINGS for conversation in read(path)]


async def stored(proxy: RunningProxy) -> tuple[int, int, int]:
    """(messages, sessions, requests) in the store."""
    found = await proxy.rows(
        "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM sessions), (SELECT count(*) FROM exchanges)"
    )
    return found[0][0], found[0][1], found[0][2]


def test_the_recordings_are_those_that_the_generator_makes() -> None:
    made = [json.loads(json.dumps(conversation)) for conversation in record.conversations()]
    key = lambda conversation: conversation["id"]  # noqa: E731 -- a name for a sort key, used twice
    assert sorted(made, key=key) == sorted(CONVERSATIONS, key=key)
    assert sum(path.stat().st_size for path in RECORDINGS) < 300_000


@pytest.mark.parametrize("header", ["", "x-session-id"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", policies.ALL)
async def test_nothing_is_invalid_altered_or_an_error(tmp_path: Path, policy: str, stream: bool, header: str) -> None:
    tree: dict[str, Any] = {"policy": policy, "policies_dir": policies.write(tmp_path)}
    async with model_on_a_socket() as (model, upstream), run_proxy(upstream.port, **tree) as proxy:
        played = await play(proxy, model, CONVERSATIONS, stream=stream, header=header)
        messages, sessions, requests = await stored(proxy)
    assert played.problems == []
    assert played.requests == requests == sum(len(list(turns(c))) for c in CONVERSATIONS)
    assert messages == len(played.messages), "every message is stored once, however often it was sent"
    assert sessions == len(CONVERSATIONS)
    if policy != "rolling-over_budget":  # nothing is known of the model's window
        assert played.sent < played.came
    if policy == "thrifty":
        assert played.moved < played.requests / 10, "the prefix moves seldom"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_a_state_that_the_model_writes_is_never_seen_by_the_client(policy: str, stream: bool) -> None:
    # From the first request on: these conversations come to few edits, and an answer that only calls holds no state.
    own: dict[str, Any] = {"policy": policy, "tools": {"offer": "first_request"}}
    async with model_on_a_socket(state=True) as (model, upstream), run_proxy(upstream.port, **own) as proxy:
        played = await play(proxy, model, CONVERSATIONS, stream=stream)
        states = await proxy.rows("SELECT count(*) FROM states")
        messages, _, _ = await stored(proxy)
    assert played.problems == []
    assert states == [(played.state,)]
    if policy == "rolling":  # thrifty asks seldom, and these answers hardly ever have text where it does
        assert played.state > 0
    assert messages == len(played.messages)


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path, policy: str) -> None:
    """A proxy that is restarted after each tenth request sends the same bytes upstream."""
    conversation = read(record.FOLDER / "side-by-side.jsonl")[0]
    bodies = []
    for every in (10, 1000):
        db = str(tmp_path / f"every{every}.sqlite3")
        bodies.append(await with_restarts(conversation, policy, db, every))
    assert bodies[0] == bodies[1]


async def with_restarts(conversation: dict[str, Any], policy: str, db: str, every: int) -> list[bytes]:
    steps = list(turns(conversation))
    sent: list[bytes] = []
    async with model_on_a_socket() as (model, upstream):
        for start in range(0, len(steps), every):
            async with run_proxy(upstream.port, policy=policy, db=db) as proxy:
                for history, recorded in steps[start : start + every]:
                    model.answer = recorded
                    body = {"model": "replay", "messages": history, "tools": conversation["tools"]}
                    assert (await proxy.post(body)).status == 200
                    sent.append(model.bodies[-1])
    return sent


async def test_conversations_at_once_do_not_disturb_each_other() -> None:
    """Six agents at work at the same time, none with a name, send what they send when they are alone."""
    conversation = read(record.FOLDER / "short.jsonl")[0]
    async with model_on_a_socket() as (model, upstream), run_proxy(upstream.port, policy="thrifty") as proxy:
        model.answer = {"role": "assistant", "content": "Well."}

        async def agent(name: str) -> None:
            for history, _ in turns(conversation):
                found = await proxy.post({"model": "replay", "messages": history}, key=name)
                assert found.status == 200

        await asyncio.gather(*(agent(f"sk-{n}") for n in range(6)))
        bodies = sorted(model.bodies)
        assert len(await proxy.rows("SELECT DISTINCT tenant FROM sessions")) == 6
    assert all(bodies[n : n + 6] == [bodies[n]] * 6 for n in range(0, len(bodies), 6))


def test_the_check_detects_invalid_message_orders_and_changed_heads() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    user, system = {"role": "user", "content": "u"}, {"role": "system", "content": "s"}
    assert violations([system, user, call, answer]) == []
    empty, answered = {"role": "assistant", "content": ""}, {"role": "assistant", "content": "a"}
    wrong: list[list[dict[str, Any]]] = [
        [user, answer],
        [user, call, user],
        [user, call],
        [user, call, answer, user],
        [system],
        [user, system],
        [user, empty, user],
        [user, answered],
    ]
    assert all(violations(messages) for messages in wrong)
    body = {"model": "m", "messages": [system, user], "tools": [1]}
    assert head_changed(body, body) == []
    assert head_changed(body | {"tools": [2]}, body) == ["tools"]
    assert head_changed(body | {"tools": [1, 2]}, body) == ["tools"]
    mine = json.loads(registry.join_definitions(["recall"]))
    assert head_changed(body | {"tools": [1, mine]}, body) == []
    assert head_changed(body | {"tools": [mine, 1]}, body) == ["tools"]
    assert head_changed(body | {"tools": [mine]}, body | {"tools": None}) == ["tools"]
    assert head_changed(body | {"messages": [user]}, body) == ["system prompt"]
    assert head_changed(body | {"messages": [system, {"role": "user", "content": "x"}]}, body) == ["last user message"]
