"""Words and figures of the dashboard: nothing is drawn that is not known, counts agree with their nouns, and text of
every script begins where its readers begin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.web.dashboard.screen import ProxyWithKeys, Screen, open_page, run_proxy_with_keys

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

ARABIC = "مرحبًا 👋🏽 هل يمكنك إصلاح اختبار test_login.py (سطر 42) قبل الإصدار v2.1؟ شكراً جزيلاً 🙏"
"""Longer than a line of a phone."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyWithKeys]:
    """With one request of a model that nobody knows, and one request in Arabic."""
    with run_proxy_with_keys(tmp_path_factory.mktemp("readable")) as made:
        made.say("unknown", "Hello.", model="our-finetune")
        made.say("arabic", ARABIC)
        yield made


def test_a_window_that_is_not_known_is_not_a_full_bar(proxy: ProxyWithKeys, screen: Screen) -> None:
    screen.go("#/", ".sessions tbody tr:has-text('unknown')")
    row = screen.page.locator(".sessions tbody tr:has-text('our-finetune')")
    assert "window not known" in row.inner_text()
    assert row.locator(".track").count() == 0
    assert screen.page.locator(".sessions tbody tr:has-text('arabic') .track").count() == 1
    screen.go("#/s/acme/unknown", ".line-title")
    assert "window is not known" in screen.page.locator(".card.broad").inner_text()
    assert screen.page.locator(".card.broad .track").count() == 0


def test_a_text_from_right_to_left_is_cut_at_its_end(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy, viewport={"width": 390, "height": 800}) as screen:
        screen.go("#/", f".first-prompt:has-text('{ARABIC[:6]}')")
        direction = "(element) => getComputedStyle(element).direction"
        assert screen.page.locator(f".first-prompt:has-text('{ARABIC[:6]}')").evaluate(direction) == "rtl"
        screen.go("#/s/acme/arabic", ".line-title")
        title = screen.page.locator(".line-title")
        assert title.evaluate(direction) == "rtl"
        cut = title.evaluate("(element) => [element.scrollWidth > element.clientWidth, element.scrollLeft]")
        assert cut == [True, 0], "the text is cut, and its beginning is in sight"
        first = title.evaluate("""(element) => {
          const range = document.createRange();
          range.setStart(element.firstChild, 0);
          range.setEnd(element.firstChild, 5);
          const [word, box] = [range.getBoundingClientRect(), element.getBoundingClientRect()];
          return word.left >= box.left - 1 && word.right <= box.right + 1;
        }""")
        assert first, "the first word is in sight"
        screen.well()


def test_counts_agree_with_their_nouns_and_none_is_not_counted(proxy: ProxyWithKeys, screen: Screen) -> None:
    screen.go("#/s/acme/arabic", ".line-title")
    card = screen.page.locator(".card:has(.label:text-is('Messages'))").inner_text()
    assert "1 group" in card
    assert "1 groups" not in card
    assert not {"0 left out", "0 shortened"} & set(card.splitlines())


def test_a_search_says_in_how_many_sessions(proxy: ProxyWithKeys, screen: Screen) -> None:
    screen.go("#/search", "input[type=search]")
    assert "Finds whole words" in screen.page.locator("main").inner_text()
    screen.go("#/search/Hello", "p:has-text('Found in')")
    assert "Found in 1 of 2 sessions." in screen.page.locator("main").inner_text()


def test_an_error_of_the_api_is_a_whole_sentence(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy, key="cp-nobody") as screen:
        screen.go("#/", "input[type=password]")
        said = screen.page.locator(".panel p").first.inner_text()
        assert said[0].isupper(), said
        assert said.endswith(".")


def test_a_tenant_is_chosen_only_where_there_are_several(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path, keys=False) as made, open_page(browser, made, key="") as screen:
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
        assert made.ask("POST", "/v1/chat/completions", body, authorization="Bearer sk-one")[0] == 200
        screen.go("#/memos", "h2:text-is('No memos')")
        assert not screen.page.locator("select").is_visible()
        assert made.ask("POST", "/v1/chat/completions", body, authorization="Bearer sk-two")[0] == 200
        screen.go("#/memos", "select")
        named = screen.page.locator("select option").all_inner_texts()
        assert len(named) == 2
        assert all(re.fullmatch("[0-9a-f]{8}…", one) for one in named), named
        screen.well()


def test_an_inserted_text_is_named_in_plain_words(proxy: ProxyWithKeys, screen: Screen) -> None:
    proxy.converse("asked")
    assert proxy.ask("POST", "/api/sessions/asked/rebuild")[0] == 200
    screen.go("#/s/acme/asked", ".inserts summary")
    assert "request for the state" in screen.page.locator(".inserts summary").inner_text()


def test_the_money_of_one_request_is_of_one_request(proxy: ProxyWithKeys, screen: Screen) -> None:
    proxy.say("once", "What is the capital of France?", model="gpt-5")
    screen.go("#/s/acme/once/costs", ".charts p.soft")
    assert "over 1 request," in screen.page.locator(".charts p.soft").inner_text()


def test_a_report_that_another_reader_waits_for_is_not_an_empty_page(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.page.route(
            "**/api/report*", lambda route: route.fulfill(status=429, json={"error": {"message": "busy"}})
        )
        screen.go("#/experiment", "p:has-text('for another reader')")


NOTE_LABELS = """
const write = CanvasRenderingContext2D.prototype.fillText;
window.labels = [];
CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
  window.labels.push(text);
  write.call(this, text, ...place);
};
"""
"""Script that collects what is written onto a canvas: the labels of the charts' axes."""


def labels(screen: Screen, place: str, wait: str) -> list[str]:
    screen.go(place, wait)
    screen.page.wait_for_timeout(200)
    return [text for text in screen.page.evaluate("window.labels") if text]


def test_a_chart_of_one_moment_has_its_time_and_steps_that_are_not_rounded(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models."priced"]\nwindow = 100000\ninput = 20.0\noutput = 60.0\n')
    with (
        run_proxy_with_keys(tmp_path, models_file=str(tmp_path / "models.toml")) as made,
        open_page(browser, made) as screen,
    ):
        screen.page.add_init_script(NOTE_LABELS)
        for n in range(2):
            made.say(f"one-{n}", "Hello.", model="priced")
        drawn = labels(screen, "#/", ".overview-chart .u-over")
        assert any(re.fullmatch(r"\d\d:\d\d", text) for text in drawn), "the time of the one step is there"
        steps = sorted({float(text[1:]) for text in drawn if text.startswith("$")})
        widths = {round(b - a, 7) for a, b in pairwise(steps)}
        assert len(widths) == 1, steps
        screen.well()


def test_requests_of_one_minute_have_no_time_twice(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.page.add_init_script(NOTE_LABELS)
        for n in range(4):
            proxy.say("quick", f"Hello {n}.")
        drawn = labels(screen, "#/s/acme/quick/latency", ".chart .u-over")
        times = [text for text in drawn if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text)]
        assert times
        assert all(one != following for one, following in pairwise(times)), drawn


def test_counts_of_tokens_have_no_label_twice(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.page.add_init_script(NOTE_LABELS)
        drawn = labels(screen, "#/s/acme/unknown/costs", ".chart:has-text('cache') .u-over")
        assert all(one != following for one, following in pairwise(drawn)), drawn


def test_the_tables_of_money_and_the_head_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    with (
        run_proxy_with_keys(tmp_path) as made,
        open_page(browser, made, viewport={"width": 390, "height": 800}) as screen,
    ):
        made.say("one", "Hello.", model="gpt-5", policy="passthrough")
        screen.go("#/money", ".plain")
        fits = "(all) => all.every((one) => one.scrollWidth <= one.clientWidth)"
        assert screen.page.locator(".scrolls").evaluate_all(fits)
        brand, end = (screen.page.locator(one).bounding_box() for one in (".brand", ".top-end"))
        assert brand is not None
        assert end is not None
        assert end["y"] < brand["y"] + brand["height"], "one line"
        screen.well()


def test_the_charts_of_a_session_s_money_are_in_rows_below_their_sum(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models."priced"]\nwindow = 100000\ninput = 20.0\noutput = 60.0\n')
    with (
        run_proxy_with_keys(tmp_path, models_file=str(tmp_path / "models.toml")) as made,
        open_page(browser, made, viewport={"width": 1280, "height": 900}) as screen,
    ):
        made.say("one", "Hello.", model="priced")
        screen.go("#/s/acme/one/costs", ".chart .u-over")
        boxes = [one.bounding_box() for one in screen.page.locator(".charts > *").all()]
        tops, heights = ([box[side] for box in boxes if box is not None] for side in ("y", "height"))
        assert len(tops) == 5
        assert tops[0] < tops[1] == tops[2] < tops[3] == tops[4]
        assert len(set(heights[1:])) == 1
        screen.well()


def test_cached_tokens_are_beside_the_prompt_that_the_provider_counted(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path) as made, open_page(browser, made) as screen:
        made.model.usage = {
            "prompt_tokens": 5100, "completion_tokens": 9, "total_tokens": 5109,
            "prompt_tokens_details": {"cached_tokens": 5000},
        }  # fmt: skip
        made.converse("talk", policy="rolling")
        made.ask("POST", f"/api/sessions/talk/groups/{made.get('/sessions/talk/groups')['items'][0]['id']}/drop")
        made.say("talk", "And now?", policy="rolling")
        screen.go("#/s/acme/talk/latency", ".events")
        assert "5.0k of 5.1k cached at the provider, " in screen.page.locator(".events").inner_text()
        screen.well()
