"""The widget on a page of another origin, which may ask because the settings say so."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.web.dashboard.screen import ProxyWithKeys, Screen, list_whole_results, open_page, run_proxy_with_keys

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PAGE = """<!doctype html><html lang="en"><title>Elsewhere</title><link rel="icon" href="data:,">
<script src="{url}widget.js"></script>
<script src="{url}widget.js"></script>
<context-manager-widget session="{session}" key="{key}" always></context-manager-widget></html>"""


@contextmanager
def pages() -> Iterator[tuple[int, dict[str, str]]]:
    """Another server: its port, and what it serves."""
    served: dict[str, str] = {}

    class Serve(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = served.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serve)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[int, dict[str, str]]]:
    with pages() as made:
        yield made


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, elsewhere: tuple[int, dict[str, str]]) -> Iterator[ProxyWithKeys]:
    origins = [f"http://127.0.0.1:{elsewhere[0]}"]
    with run_proxy_with_keys(tmp_path_factory.mktemp("widget"), dashboard={"origins": origins}) as made:
        made.converse("talk")
        yield made


@contextmanager
def show_widget(
    browser: Browser,
    proxy: ProxyWithKeys,
    elsewhere: tuple[int, dict[str, str]],
    session: str = "talk",
    key: str = "cp-admin",
    host: str = "127.0.0.1",
) -> Iterator[Screen]:
    port, served = elsewhere
    served["/"] = PAGE.format(url=proxy.url, session=session, key=key)
    with open_page(browser, proxy, key="") as screen:
        screen.page.goto(f"http://{host}:{port}/")
        screen.page.wait_for_selector("context-manager-widget .box")
        yield screen


def test_d8_the_widget_shows_how_full_the_session_is(
    browser: Browser, proxy: ProxyWithKeys, elsewhere: tuple[int, dict[str, str]]
) -> None:
    with show_widget(browser, proxy, elsewhere, key="cp-read") as screen:
        screen.page.wait_for_selector("context-manager-widget .stats")
        stats = proxy.get("/sessions/talk/stats")
        text = screen.page.inner_text("context-manager-widget .box")
        assert f"{stats['sent']:,}" in text
        assert str(stats["items"]) in text
        status = screen.page.evaluate("document.querySelector('context-manager-widget').getStatus()")
        assert status["state"] == "active"
        assert status["primaryMetric"] == f"{stats['sent']:,} tokens"
        assert status["secondaryMetric"].endswith("% used")
        assert status["message"] == "Healthy"
        assert status["lastActivity"] > 0
        descriptor = screen.page.evaluate("customElements.get('context-manager-widget').widget")
        assert descriptor == {
            "element": "context-manager-widget", "displayName": "Context Manager", "icon": "🧠",
            "category": "intelligence", "updateInterval": 3000,
        }  # fmt: skip
        screen.well()


def test_the_widget_refreshes_every_three_seconds_until_it_leaves_the_page(
    browser: Browser, proxy: ProxyWithKeys, elsewhere: tuple[int, dict[str, str]]
) -> None:
    count = """
        window.asked = 0; window.timers = new Set();
        const [fetch_, set, clear] = [window.fetch, window.setInterval, window.clearInterval];
        window.fetch = (...given) => { asked += 1; return fetch_(...given); };
        window.setInterval = (task, ms) => { const made = set(task, ms); timers.add(`${made}:${ms}`); return made; };
        window.clearInterval = (timer) => {
            timers.forEach((one) => one.startsWith(`${timer}:`) && timers.delete(one));
            clear(timer);
        };
    """
    port, served = elsewhere
    served["/"] = PAGE.format(url=proxy.url, session="talk", key="cp-read")
    with open_page(browser, proxy, key="") as screen:
        screen.page.add_init_script(count)
        screen.page.goto(f"http://127.0.0.1:{port}/")
        screen.page.wait_for_function("window.asked >= 3", timeout=60_000)
        assert [one.split(":")[1] for one in screen.page.evaluate("[...timers]")] == ["3000"], "defined and begun once"
        screen.page.evaluate("window.kept = document.querySelector('context-manager-widget'); kept.remove()")
        assert screen.page.evaluate("timers.size") == 0
        asked = screen.page.evaluate("asked")
        screen.page.wait_for_timeout(3500)
        assert screen.page.evaluate("asked") == asked
        screen.page.evaluate("document.body.append(kept)")
        screen.page.wait_for_function(f"window.asked > {asked}")
        assert screen.page.evaluate("timers.size") == 1
        screen.well()


def test_d8_the_button_really_prunes_the_next_prompt(
    browser: Browser, proxy: ProxyWithKeys, elsewhere: tuple[int, dict[str, str]]
) -> None:
    before = list_whole_results(proxy.say("talk", "Go on."), "talk")
    with show_widget(browser, proxy, elsewhere) as screen:
        screen.page.evaluate("addEventListener('toast:success', (event) => { window.told = event.detail.message; })")
        screen.click("context-manager-widget .prune-btn")
        screen.page.wait_for_selector("context-manager-widget .toast")
        assert screen.page.evaluate("window.told") == "The next request is pruned."
        screen.well()
    assert len(list_whole_results(proxy.say("talk", "And on."), "talk")) < len(before)


def test_a_read_key_does_not_prune_and_says_so(
    browser: Browser, proxy: ProxyWithKeys, elsewhere: tuple[int, dict[str, str]]
) -> None:
    with show_widget(browser, proxy, elsewhere, key="cp-read") as screen:
        screen.click("context-manager-widget .prune-btn")
        toast = screen.page.wait_for_selector("context-manager-widget .toast.bad")
        assert toast is not None
        assert "is for read" in toast.inner_text()
        assert "force" not in proxy.get("/sessions/talk/settings")


def test_a_page_whose_origin_is_not_in_the_settings_is_told_nothing(
    browser: Browser, proxy: ProxyWithKeys, elsewhere: tuple[int, dict[str, str]]
) -> None:
    with show_widget(browser, proxy, elsewhere, host="localhost") as screen:
        banner = screen.page.wait_for_selector("context-manager-widget .banner")
        assert banner is not None
        assert "may not ask it" in banner.inner_text()
        assert screen.page.locator("context-manager-widget .stats").count() == 0
        assert screen.page.evaluate("document.querySelector('context-manager-widget').getStatus().state") == "error"


def test_a_full_context_is_warned_of(
    browser: Browser, proxy: ProxyWithKeys, elsewhere: tuple[int, dict[str, str]]
) -> None:
    with show_widget(browser, proxy, elsewhere) as screen:
        screen.page.wait_for_selector("context-manager-widget .stats")
        warned = """() => {
            const one = document.querySelector("context-manager-widget");
            Object.assign(one._stats, { needs_pruning: true, utilisation: 0.93 });
            one.render();
            const [box, cards] = [one.shadowRoot, one.shadowRoot.querySelectorAll(".card.warning")];
            return [one.getStatus(), cards.length, box.querySelector(".banner").textContent];
        }"""
        status, cards, banner = screen.page.evaluate(warned)
        assert (status["state"], status["message"], status["secondaryMetric"]) == (
            "warning",
            "Needs pruning",
            "93% used",
        )
        assert cards == 2
        assert "pruning recommended" in banner
        screen.well()
