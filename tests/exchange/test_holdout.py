"""The control arm: who is in it, what it sends, and how it is named."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.exchange.exchange_rows import SentTexts
from proxy.exchange.holdout import choose_arm
from tests.proxy_server import Agent, RawAnswer, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls


def test_the_share_of_the_control_arm_is_the_one_that_is_set() -> None:
    drawn = [choose_arm(0.25, "salt", "tenant", f"session-{n}") for n in range(4000)]
    assert 0.22 < drawn.count("control") / 4000 < 0.28
    assert set(drawn) == {"control", "managed"}


@given(st.text(), st.text(), st.text())
def test_an_arm_is_the_same_in_each_process_and_grows_with_the_share(salt: str, tenant: str, session: str) -> None:
    arms = [choose_arm(share, salt, tenant, session) for share in (0.0, 1e-9, 0.3, 0.6, 1.0)]
    assert arms == [choose_arm(share, salt, tenant, session) for share in (0.0, 1e-9, 0.3, 0.6, 1.0)]
    assert arms[0] == ""
    assert arms[4] == "control"
    assert arms[1:] == sorted(arms[1:], reverse=True), "who is in the arm at a small share is in it at a larger one"


async def work(proxy: RunningProxy, name: str) -> list[RawAnswer]:
    """A session with twenty calls of a tool; every answer as it was heard."""
    agent = Agent(proxy, (b"x-context-session: " + name.encode(),), more={"tools": [TOOL]})
    heard = [await agent.say("Look around.")]
    for n in range(20):
        agent.brings("\n".join(f"row {n}-{k} of a listing with words in it" for k in range(150)))
        heard.append(await agent.say())
    return heard


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.slow
async def test_the_control_arm_is_sent_unchanged_and_is_named() -> None:
    model = ScriptedModel(*(make_calls((f"call_{n:06}", "look"), at=n) for n in range(200)))
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, experiment={"control": 0.5}, policy="rolling") as proxy,
    ):
        first = await proxy.post({"model": "m", "messages": [{"role": "user", "content": "Hi."}]})
        assert first.header("x-context-arm") in ("control", "managed")
        heard: dict[str, list[tuple[str | None, str | None]]] = {}
        for name in [f"s{n}" for n in range(6)]:
            answers = await work(proxy, name)
            heard[name] = [(one.header("x-context-arm"), one.header("x-context-tokens")) for one in answers]
        for arms in heard.values():
            assert len({arm for arm, _ in arms}) == 1, "a session stays in its arm"
        assert {arms[0][0] for arms in heard.values()} == {"control", "managed"}
        for arms in heard.values():
            before, after = map(int, (arms[-1][1] or "").split(","))
            assert (before == after) == (arms[0][0] == "control")
        (line,) = [one for one in await proxy.app.store.list_sessions(None) if one.session == "s0"]
        rows = await proxy.app.store.read_exchanges(line.tenant, "s0")
        texts = [msgspec.json.decode(one.inserts, type=SentTexts) for one in rows]
        assert {one.arm for one in texts} == {heard["s0"][0][0]}
        assert sum(one.prompted for one in texts) == 1


async def test_a_request_that_names_its_policy_is_in_no_arm() -> None:
    async with (
        run_upstream(ScriptedModel("One.", "Two.", "Three.")) as upstream,
        run_proxy(upstream.port, experiment={"control": 1.0}, policy="thrifty") as proxy,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
        named = await proxy.post(body, b"x-context-policy: rolling", b"x-context-session: a")
        unknown = await proxy.post(body, b"x-context-policy: gone", b"x-context-session: b")
        assert (named.header("x-context-arm"), unknown.header("x-context-arm")) == (None, "control")
    async with run_upstream(ScriptedModel("One.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        assert (await proxy.post(body)).header("x-context-arm") is None, "no experiment is set"
    async with (
        run_upstream(ScriptedModel("One.")) as upstream,
        run_proxy(upstream.port, experiment={"control": 1.0}, policy="observe") as proxy,
    ):
        assert (await proxy.post(body)).header("x-context-arm") is None, "nothing is rewritten in either arm"
