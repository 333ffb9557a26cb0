"""The marker of the long replay, which `.ci/run` and a developer ask for by name."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full_replay: all of ../shared through the proxy, -m full_replay")
    config.addinivalue_line("markers", "again: a full replay of what other tests show on a sample; CI leaves it out")
