from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorded import policies
from tests.recorded.play import read
from tests.recorded.recovering import Recovered, check, missing, run_proxy_with_model, same
from tests.recorded.test_own import CONVERSATIONS
from tests.recorded.test_shared import AGENTS, OPEN

SILENT = ("passthrough", "observe")
"""Policies that leave every request as it came."""
EVERY = 8
"""Conversations of which one is played, which takes a minute for all policies."""


@pytest.mark.slow
@pytest.mark.parametrize("policy", policies.FILES)
async def test_all_that_a_policy_takes_away_can_be_read_again(tmp_path: Path, policy: str) -> None:
    pages = {"result_chars": 700}  # so that most messages need several
    async with run_proxy_with_model(tmp_path, policy, tools=pages) as (proxy, model):
        found = [await check(proxy, model, c, steps=1000, queries=15) for c in CONVERSATIONS]
    assert [one.wrong for one in found] == [[], [], []]
    assert sum(one.recalled for one in found) == sum(one.lost for one in found)
    assert (sum(one.lost for one in found) == 0) == (policy in SILENT)


@pytest.mark.full_replay
@pytest.mark.long
@pytest.mark.parametrize("policy", [name for name in policies.FILES if name not in SILENT])
async def test_texts_of_recorded_agents_can_be_recovered_too(
    shared: Path, tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few requests of each conversation, its last among them, in which most has been lost."""
    total = Recovered()
    async with run_proxy_with_model(tmp_path, policy) as (proxy, model):
        for name in AGENTS:
            for conversation in read(shared / OPEN / f"{name}.jsonl")[::EVERY]:
                found = await check(proxy, model, conversation, steps=3, queries=1)
                total.wrong += found.wrong
                for figure in ("lost", "recalled", "queried", "edits"):
                    setattr(total, figure, getattr(total, figure) + getattr(found, figure))
    with capsys.disabled():
        told = f"{total.lost} messages lost, {total.edits} edits; read again: {total.recalled} and {total.queried}"
        print(f"\n{policy}: {told} by recall and query_db")
    assert total.wrong == []
    assert total.recalled == total.lost > 0
    assert total.queried > 0


def test_the_check_detects_messages_missing_from_a_prompt() -> None:
    user, said = {"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}
    result = {"role": "tool", "tool_call_id": "c", "content": "long"}
    history = [{"role": "system", "content": "s"}, user, said, result]
    assert missing(history, history) == set()
    assert missing(history, [user, {**said, "content": "an answer\n\n[more]"}, result]) == set()
    assert missing(history, [user, said, {**result, "content": "lo"}]) == {3}
    assert missing(history, [said, result]) == {1}
    assert same(said, "an answer")
    assert not same(said, "an answer ")
    parts = [{"type": "text", "text": "skipping"}, {"type": "text", "text": "exit code 1"}]
    assert same({**result, "content": parts}, "skipping\nexit code 1")
    assert not same({**result, "content": parts}, "skippingexit code 1")
