"""Requirement 8: what reads bytes of strangers, given bytes that nobody would send. Ten million with `-m long`."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.faults.fuzzing import TARGETS, Target, run

FUZZ = int(os.environ.get("FUZZ", "10000000"))
"""Executions in the long form, of all targets together."""
SEED = int(os.environ.get("FUZZ_SEED", "1"))
SHARES = {
    "sse": 0.30, "headers": 0.20, "names": 0.15, "chat": 0.10, "planner": 0.08, "relay": 0.07, "answer": 0.05,
    "blocks": 0.05,
}  # fmt: skip


def test_every_fuzz_target_gets_a_share_of_the_inputs() -> None:
    assert set(SHARES) == set(TARGETS)
    assert sum(SHARES.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_raise_or_are_read_wrongly(name: str) -> None:
    run(TARGETS[name], int(40_000 * SHARES[name]), 0)


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_raise_or_are_read_wrongly_ten_million_times(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    count = int(FUZZ * SHARES[name])
    run(TARGETS[name], count, SEED)
    record_property("measured", f"{count:,} inputs of `{name}`, 0 raised")


def test_an_input_that_raises_is_reported() -> None:
    def read(data: bytes) -> None:
        assert b"ab" not in data

    with pytest.raises(AssertionError, match=r"input \d+ of seed 3: b'"):
        run(Target(read, (b"a", b"b"), (b"c",)), 10_000, 3)
