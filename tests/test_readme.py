"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from proxy.settings import load
from proxy.web.app import make_policies
from tests.conversations import Json, assistant, look, user

README = Path(__file__).parents[1] / "README.md"


def block(language: str, holding: str) -> str:
    """The code block of the README that holds this text."""
    found = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    return str(next(code for code in found if holding in code))


def test_the_policy_and_the_stage_of_ones_own_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mystages.py").write_text(block("python", "class DropThoughts"))
    (tmp_path / "mine.toml").write_text(block("toml", 'name = "mine"'))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mystages", raising=False)
    policy = make_policies(load(None, {"policies_dir": str(tmp_path), "policy": "mine"}))["mine"]
    values: list[Json] = [
        user("a"),
        assistant("Let me think about it."),
        *[user("b"), assistant("Well.")] * 5,
        user("c"),
    ]
    (proposal,) = policy.stages[0](look(values))
    assert (proposal.index, proposal.action) == (1, "gone")
    assert policy.stages[1].big == 500  # type: ignore[attr-defined]  # the setting of the stage that we ship
