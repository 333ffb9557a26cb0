"""Every policy under every schedule, streaming and not, on a sample of each recorded file: nothing is invalid, nothing
altered, nothing an error. The scorer of ../shared says so, through the running proxy. Asked for with `-m full_replay`.

The model's window is smaller than most of the conversations, so that each policy has a reason to act and no prompt may
stay as it came.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.recorded import policies
from tests.recorded.play import read
from tests.recorded.test_shared import AGENTS, OPEN, Rows, assert_sound, files, run, score

pytestmark = [pytest.mark.full_replay, pytest.mark.long]

FILES = (*AGENTS, "rhelm")
SAMPLES = 3
MESSAGES = 40
"""Of each conversation in a sample, from its beginning."""
WINDOW = 8_000
UNTOUCHED = ("observe", "passthrough")


@pytest.fixture(scope="module")
def samples(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Rows]]:
    """Folders with two conversations of each file, others in each folder, and what they come to without a proxy."""
    found = []
    for number in range(SAMPLES):
        folder = tmp_path_factory.mktemp("sample")
        for name in FILES:
            all_ = read(shared / OPEN / f"{name}.jsonl")
            two = [all_[at % len(all_)] for at in (number, number + SAMPLES)]
            lines = [json.dumps({**one, "messages": one["messages"][:MESSAGES]}) for one in two]
            (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        found.append((folder, run(shared, folder / "rows.json", "--direct", *files(folder, *FILES))))
    return found


WAYS = [
    pytest.param(policy, stream, marks=[pytest.mark.again] if (index + stream) % 2 else [])
    for index, policy in enumerate(policies.MATRIX)
    for stream in (False, True)
]
"""Each policy with and without streams. CI takes one of the two in turn, since a plan does not depend on it."""


@pytest.mark.parametrize(("policy", "stream"), WAYS)
def test_no_policy_under_any_schedule_breaks_a_thing(
    shared: Path, tmp_path: Path, samples: list[tuple[Path, Rows]], policy: str, stream: bool
) -> None:
    folder, direct = samples[(policies.MATRIX.index(policy) + stream) % SAMPLES]
    rows = score(shared, tmp_path, policy, FILES, *["--stream"] * stream, data=folder, window=WINDOW)
    assert_sound(rows)
    prompt, whole = rows["TOTAL"]["prompt"], direct["TOTAL"]["prompt"]
    assert prompt == whole if policy.startswith(UNTOUCHED) else prompt < 0.95 * whole


@pytest.mark.parametrize("policy", ["hierarchical", "summarize"])
def test_answers_of_a_helper_model_break_nothing(
    shared: Path, tmp_path: Path, samples: list[tuple[Path, Rows]], policy: str
) -> None:
    helper = {"upstream": "default", "model": "summarizer"}  # the scorer plays that one as well
    rows = score(shared, tmp_path, policy, FILES, "--stream", data=samples[0][0], window=WINDOW, helper=helper)
    total = rows["TOTAL"]
    assert {key: total[key] for key in ("invalid", "altered", "errors")} == {"invalid": 0, "altered": 0, "errors": 0}
    assert total["upstream_calls"] > total["steps"], "it was asked"
