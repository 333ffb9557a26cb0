"""A Chromium for each file of the dashboard's tests; without it they are skipped, and say so.

Not one for all: Playwright keeps an event loop running in the thread that it was started in, and until it ends no test
that is a coroutine can run there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.web.dashboard.screen import CHROMIUM, FLAGS, ProxyWithKeys, Screen, open_page, run_proxy_with_keys

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: Debian's package chromium has it")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyWithKeys]:
    with run_proxy_with_keys(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def screen(browser: Browser, proxy: ProxyWithKeys) -> Iterator[Screen]:
    with open_page(browser, proxy) as made:
        yield made
        made.well()
