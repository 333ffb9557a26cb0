"""Fixtures of all tests: the folder of recorded traffic, and an environment without settings in it."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.faults.promises import Writer
from tests.postgres import drop_database, new_database, shared_url
from tests.selection import FAULTS, can_select, check_marks, sort_longest_first

if TYPE_CHECKING:
    from tests.faults.fork_server import ForkServer

SHARED = Path(__file__).parents[2] / "shared"
"""Recorded agent traffic. It is there only where the project is built, never in a checkout of somebody else."""


GC_THRESHOLDS = (20_000, 10, 10)
"""Thresholds of the garbage collector. Tests make a lot of objects and few cycles: with Python's own thresholds a tenth
of all processor time goes into looking for them."""


TRIES = 3
"""Runs of a test that asserts a promised time, until one is in time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-shared",
        action="store_true",
        help="a test that wants ../shared fails, not skips, where it is missing",
    )
    parser.addoption("--promises", metavar="FILE", help="write the table of promises with this run's results into FILE")


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(*GC_THRESHOLDS)
    # On a busy machine an example takes as long as it takes: no property depends on that. Examples are the same in
    # every run, so that a red test tells of the change that was made; `make fuzz` draws others.
    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="FUZZ" not in os.environ
    )
    settings.load_profile("patient")
    if config.getoption("--promises"):
        config.pluginmanager.register(Writer(Path(config.getoption("--promises"))))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test of the folder `faults` is marked as such. What asserts a promised time may try it three times, since a
    machine may stand still for seconds. A worker beside others has the longest files first."""
    for item in items:
        if FAULTS in item.path.parents:
            item.add_marker(pytest.mark.faults)
    check_marks(items)
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=TRIES - 1))
    if hasattr(config, "workerinput"):
        sort_longest_first(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file in which `-m` selects nothing is not imported."""
    expression = config.getoption("markexpr")
    if not expression or not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    return None if can_select(expression, collection_path) else True


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported objects from garbage collection, which would look at them again after every few tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Path:
    """The folder ../shared; the test is skipped where there is none."""
    if not SHARED.is_dir():
        if request.config.getoption("--require-shared"):
            pytest.fail(f"{SHARED} is not there, and --require-shared was given")
        pytest.skip("../shared is not there: it exists only where the project is built")
    return SHARED


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server that the whole run shares; each test makes databases of its own there."""
    with shared_url() as url:
        yield url


@pytest.fixture
async def database(postgres: str) -> AsyncIterator[str]:
    """The URL of an empty PostgreSQL database, dropped afterwards."""
    url = await new_database(postgres)
    yield url
    await drop_database(url)


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    """Makes served proxies, as processes of their own, without loading everything again for each."""
    from tests.faults.fork_server import ForkServer  # noqa: PLC0415  it loads the whole proxy, which most tests do not need

    made = ForkServer()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the developer's own reaches a test."""
    for name in list(os.environ):
        if name.startswith("CONTEXT_PROXY_"):
            monkeypatch.delenv(name)
