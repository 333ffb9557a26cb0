"""The registry of stages."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest

from proxy.context.stage import Stage
from proxy.context.stages import BUILT_IN_STAGES


@pytest.mark.parametrize("name", BUILT_IN_STAGES)
def test_every_stage_is_found_by_its_modules_name_and_says_what_it_does(name: str) -> None:
    kind = BUILT_IN_STAGES[name]
    assert kind.__module__ == f"proxy.context.stages.{name}"
    assert is_dataclass(kind)
    assert kind.__doc__
    assert isinstance(kind(), Stage)
    assert kind() == kind(), "a stage is its settings"
