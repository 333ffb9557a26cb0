from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from proxy.context.models import Model
from proxy.context.plan import Proposal
from proxy.context.policy import Policy
from proxy.context.stage import Stage, When
from proxy.context.view import View
from proxy.replay import work as module
from proxy.replay.play import Contender, LengthHistory, ReplaySettings
from proxy.replay.read import RecordedConversation
from proxy.replay.work import play_conversations
from proxy.settings.policy_files import find_own_classes, read_policy_file
from tests.replay.recorded import assistant, make_conversation, make_run, user
from tests.settings.test_policy_files import write

MATCH = ReplaySettings(
    (Contender("nothing"), Contender("mask-10", None, "mask-10")), Model(tokenizer="estimate"), ((1.0, 0.1),)
)


def runs(count: int = 12) -> Iterator[RecordedConversation]:
    return (make_conversation(*make_run(12, name=f"n{n}_"), source=f"{n}") for n in range(count))


def test_little_work_is_done_here_and_starts_nothing() -> None:
    before = multiprocessing.active_children()
    with closing(play_conversations(runs(2), MATCH, 8)) as played:
        assert [one.source for one in played] == ["0", "1"]
        assert multiprocessing.active_children() == before


def test_many_processes_find_what_one_finds_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = list(play_conversations(runs(), MATCH, 1))
    monkeypatch.setattr(module, "MIN_PARALLEL_BYTES", 0)
    assert list(play_conversations(runs(), MATCH, 2)) == alone
    assert [one.source for one in alone] == [str(n) for n in range(12)]


def test_conversations_are_read_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_PARALLEL_BYTES", 0)
    read = 0

    def counted() -> Iterator[RecordedConversation]:
        nonlocal read
        for one in runs(40):
            read += 1
            yield one

    with closing(play_conversations(counted(), MATCH, 2)) as played:
        next(played)
        assert read <= 2 + module.READ_AHEAD * 2 + 1


def test_a_stage_of_a_file_beside_its_policy_works_in_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = read_policy_file(write(tmp_path))
    assert find_own_classes([policy])
    match = ReplaySettings((Contender("nothing"), Contender("mine", policy)), MATCH.model, MATCH.prices)
    alone = list(play_conversations(runs(), match, 1))
    monkeypatch.setattr(module, "MIN_PARALLEL_BYTES", 0)
    assert list(play_conversations(runs(), match, 2)) == alone


@dataclass(frozen=True, slots=True)
class Dawdle(Stage):
    """A stage that never ends."""

    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> list[Proposal]:
        while True:
            pass


def test_the_workers_end_when_reading_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_PARALLEL_BYTES", 0)
    before = set(multiprocessing.active_children())
    slow = ReplaySettings(
        (Contender("nothing"), Contender("slow", Policy("slow", (Dawdle(),)))), MATCH.model, MATCH.prices
    )

    def two_then_ctrl_c() -> Iterator[RecordedConversation]:
        yield from (make_conversation(user("a"), assistant("b")) for _ in range(4))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), closing(play_conversations(two_then_ctrl_c(), slow, 2)) as played:
        list(played)
    assert set(multiprocessing.active_children()) <= before


def test_a_conversation_knows_the_lengths_of_earlier_ones_with_the_same_tools() -> None:
    tools = b'[{"type":"function","function":{"name":"grep"}}]'
    history = LengthHistory()
    for n, (steps, has_tools, earlier) in enumerate(
        [(3, True, ()), (5, False, ()), (4, True, (5,)), (2, True, (5, 6))]
    ):
        run = make_conversation(*make_run(steps, name=f"n{n}_"), source="s")
        run = replace(run, id=f"{n}", tools=tools if has_tools else None)
        assert history.list_earlier(run) == earlier
