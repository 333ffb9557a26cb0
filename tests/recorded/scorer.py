"""The scorer of ../shared as a module: each run of it as a program would read its vocabulary and count texts anew."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@cache
def load_scorer(shared: Path) -> ModuleType:
    """The module, with one counter of tokens for all runs in this process. The counter depends on the text alone.

    Its rows have another figure, `plain@W/R`: the cost of doing nothing, to which it tells the other costs in relation.
    """
    spec = importlib.util.spec_from_file_location("replay_score", shared / "replay" / "replay_score.py")
    assert spec is not None
    assert spec.loader is not None
    scorer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scorer)
    with pytest.MonkeyPatch.context() as patch:
        # It sets this to a folder of its own where it is not set; nobody else is to read from there.
        patch.setenv("TIKTOKEN_CACHE_DIR", "")
        del os.environ["TIKTOKEN_CACHE_DIR"]
        tokens = scorer.Tokens()
    vars(scorer)["Tokens"] = lambda: tokens
    make_row = scorer.Score.row

    def make_full_row(score: Any) -> dict[str, Any]:
        plain = {f"plain@{pair}": round(cost) for pair, _, _, _, cost, _ in score.costs()}
        return {**make_row(score), **plain}

    scorer.Score.row = make_full_row
    return scorer
