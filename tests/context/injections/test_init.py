"""The registry of injections."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest

from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.stage import Injection


@pytest.mark.parametrize("name", BUILT_IN_INJECTIONS)
def test_every_injection_is_found_by_its_modules_name_and_says_what_it_does(name: str) -> None:
    kind = BUILT_IN_INJECTIONS[name]
    assert kind.__module__ == f"proxy.context.injections.{name}"
    assert is_dataclass(kind)
    assert kind.__doc__
    assert isinstance(kind(), Injection)
