"""The dashboard as a person meets it: empty, locked, lost, by keyboard, on a phone, in the dark; and axe's opinion."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import pytest

from proxy.store.derived import NO_CONVERSATION, NO_SESSION, SpendingRow
from tests.raw_upstream import Connection, RawRequest
from tests.scripted_model import send_reply
from tests.web.dashboard.screen import ProxyWithKeys, Screen, open_page, run_proxy_with_keys

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.slow

VIEWS = {
    "#/": ".sessions",
    "#/s/acme/talk": ".line-title",
    "#/s/acme/talk/prompts": ".pair",
    "#/s/acme/talk/told": "textarea[aria-label=State]",
    "#/s/acme/talk/costs": ".chart",
    "#/s/acme/talk/latency": ".events",
    "#/s/acme/talk/settings": "h2:text-is('Data')",
    "#/money": ".chart",
    "#/experiment": "pre",
    "#/health": ".chart",
    "#/search/Prompt": ".hits",
    "#/memos": ".memo",
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyWithKeys]:
    """With one conversation, of which something is dropped, noted and remembered."""
    with run_proxy_with_keys(tmp_path_factory.mktemp("pages")) as made:
        made.converse("talk")
        made.memo("The shed was painted red.", "shed")
        group = made.get("/sessions/talk/groups")["items"][0]["id"]
        assert made.ask("POST", f"/api/sessions/talk/groups/{group}/drop")[0] == 200
        made.ask("POST", "/api/sessions/talk/notes", {"text": "Leave the lock file."})
        made.ask("POST", "/api/sessions/talk/compress")
        made.say("talk", "Go on.")
        yield made


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, from the npm registry."""
    if which("npm") is None:
        pytest.skip("npm is not there: axe-core comes from its registry")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), "axe-core@4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm could not install axe-core: {done.stderr[-300:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


RUN = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.map((one) =>
  ({ id: one.id, impact: one.impact, nodes: one.nodes.slice(0, 4).map((node) => node.html.slice(0, 160)) }))"""


def serious(screen: Screen, axe: str) -> list[Any]:
    screen.page.evaluate(axe)
    return [one for one in screen.page.evaluate(RUN) if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_serious_accessibility_violations(
    browser: Browser, proxy: ProxyWithKeys, axe: str, scheme: Any
) -> None:
    found = {}
    with open_page(browser, proxy, color_scheme=scheme, bypass_csp=True) as screen:
        for place, wait in VIEWS.items():
            screen.go(place, wait)
            if place.endswith("/talk"):
                screen.click(".line-title >> nth=1")
                screen.page.wait_for_selector(".message")
            found[place] = serious(screen, axe)
    with open_page(browser, proxy, key="", color_scheme=scheme, bypass_csp=True) as screen:
        screen.go("#/", "input[type=password]")
        found["key"] = serious(screen, axe)
    assert {place: list(told) for place, told in found.items() if told} == {}


def test_every_view_fits_every_width_and_complains_of_nothing(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        for place, width in product(VIEWS, (360, 768, 1920)):
            screen.page.set_viewport_size({"width": width, "height": 800})
            if width == 360:
                screen.go(place, VIEWS[place])
            wide = screen.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (place, width, wide)
            screen.well()


def test_on_a_phone_every_page_has_its_place_in_the_menu(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy, viewport={"width": 390, "height": 800}) as screen:
        screen.go("#/memos", ".memo")
        boxes = [one.bounding_box() for one in screen.page.locator("#pages a").all()]
        assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
        screen.well()


def test_stored_rows_are_named_in_plain_words(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/s/acme/talk/settings", "h2:text-is('Data')")
        named = screen.page.locator(".facts-list dt").all_inner_texts()
        stored = {name: count for name, count in proxy.get("/sessions/talk")["rows"].items() if count}
        assert stored.keys() >= {"exchanges", "forms", "messages"}
        assert named[:3] == ["Begun", "messages", "requests"]
        assert len(named) == 1 + len(stored)
        assert not {"forms", "exchanges", "gaps", "states"} & set(named)
        screen.well()


def test_a_search_continues_by_itself_until_something_is_found(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path) as made, open_page(browser, made) as screen:
        made.say("old", "The zebra waits.")
        for n in range(45):
            made.say(f"new-{n}", "Hello.")
        screen.go("#/search/zebra", ".hits a")
        assert screen.page.locator(".hits a").count() == 1
        screen.go("#/search/giraffe", "h2:text-is('Nothing has these words')")
        screen.well()


def tile(screen: Screen, label: str) -> str:
    return screen.page.locator(f".tiles .card:has(.label:text-is('{label}'))").inner_text()


def test_the_first_page_says_what_was_saved_and_claims_nothing_unknown(
    browser: Browser, proxy: ProxyWithKeys, tmp_path: Path
) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/", ".overview-chart .u-over")
        money = proxy.get("/money")["total"]
        assert f"{money['exchanges']} in all" in tile(screen, "Requests today")
        assert screen.page.locator("a.name:has-text('talk') + .first-prompt:has-text('Prompt number 0?')").count() == 1
        screen.well()
    (tmp_path / "models.toml").write_text('[models."priced"]\nwindow = 100000\ninput = 2.0\noutput = 10.0\n')
    tree: dict[str, Any] = {"models_file": str(tmp_path / "models.toml"), "helper": {"tenant_dollars_a_day": 1.0}}
    with run_proxy_with_keys(tmp_path, **tree) as priced:
        priced.say("unpriced", "Hello.", model="nobody-knows")
        with open_page(browser, priced) as screen:
            screen.go("#/", ".overview-chart .u-over")
            assert "unknown" in tile(screen, "Saved in all"), "the model has no price"
            assert "$" not in tile(screen, "Saved in all")
            priced.say("paid", "Hello.", model="priced")
            screen.page.wait_for_selector(".tiles .card:has(.label:text-is('Saved in all')):has-text('$')")
            total = priced.get("/money")["total"]
            assert total["cost"] > 0
            said = tile(screen, "Saved in all").replace("−", "-")
            assert "$" in said
            assert "unknown" not in said
            assert "ms" in tile(screen, "Added by the proxy")
            assert "helper" not in tile(screen, "Saved today")
            today = int(time.time() // 86400)
            places = {NO_CONVERSATION: 7.0, ("acme", NO_SESSION): 0.25}
            for place, paid in places.items():
                priced.proxy.put_beside([SpendingRow(*place, today, "summary", 1, 100, 20, paid)])
            priced.say("paid", "Hello again.", model="priced")
            screen.page.wait_for_selector(".tiles .card:has-text('helper models cost $0.25')")
            screen.well()


async def slow_down(_: RawRequest, connection: Connection) -> None:
    await send_reply(connection, b"429 Slow down", b"{}")


def test_health_counts_what_has_a_kind(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path, keys=False) as made, open_page(browser, made, key="") as screen:
        made.model.answers[:] = [slow_down]
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
        assert made.ask("POST", "/v1/chat/completions", body)[0] == 429
        screen.go("#/health", ".facts-list")
        counted = screen.page.locator("dt:text-is('upstream errors') + dd").inner_text()
        assert counted == "1", "its counter is upstream_errors.429"
        screen.well()


def test_the_chart_is_drawn_by_the_library_and_read_out_by_keys(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/s/acme/talk/prompts", ".time-line .u-over")
        screen.page.locator(".time-line .plot-box").focus()
        screen.page.keyboard.press("End")
        reading = screen.page.locator(".time-line .reading")
        last = proxy.get("/sessions/talk/points")[-1]
        assert "as the client sent it" in reading.inner_text()
        screen.page.keyboard.press("Enter")
        screen.page.wait_for_selector(f".request[aria-current][href$='{last['exchange']}']")
        screen.well()


def test_the_diff_begins_at_the_first_change_and_goes_to_the_next(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        last = proxy.get("/sessions/talk/points")[-1]["exchange"]
        screen.go(f"#/s/acme/talk/prompts/{last}", ".diff-bar")
        prompt = proxy.get(f"/sessions/talk/exchanges/{last}/prompt")
        changed = {one["index"] for one in prompt["messages"] if one["status"] != "in"}
        changed |= {one["index"] for one in prompt["inserts"]}
        assert screen.page.locator("[data-change]").count() == len(changed) > 1
        assert screen.page.locator(".changes > .pair:not([data-change])").count() == 0, "what is the same is folded"
        for n in range(2):
            screen.click("button:text-is('Next change')")
            assert screen.page.locator("[data-change]").nth(n).evaluate("(one) => one === document.activeElement")
        assert f"change 2 of {len(changed)}" in screen.page.inner_text(".diff-bar")
        screen.click(".unchanged button")
        screen.page.wait_for_selector(".unchanged .pair")
        screen.well()


def test_messages_are_searched_and_a_match_opens_its_group(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/search", ".search input")
        screen.page.fill(".search input", "Answer number")
        screen.page.keyboard.press("Enter")
        screen.page.wait_for_selector(".hits a")
        screen.click(".panel:has(h2:has-text('Prompt number 0?')) .hits a")
        screen.page.wait_for_selector(".line.open .message")
        screen.page.fill(".finder input", "Answer")
        screen.page.keyboard.press("Enter")
        screen.page.wait_for_selector(".finder .hits li button")
        screen.well()


def test_a_strip_of_hundreds_of_groups_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    history = [{"role": "system", "content": "Be brief."}]
    for n in range(400):
        history += [{"role": "user", "content": f"Number {n}?"}, {"role": "assistant", "content": f"It is {n}."}]
    phone = {"width": 390, "height": 800}
    with run_proxy_with_keys(tmp_path) as there, open_page(browser, there, viewport=phone) as screen:
        there.histories["long"] = history
        there.say("long", "And now?")
        screen.go("#/s/acme/long", ".strip .bar")
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert screen.page.locator(".strip button").count() <= 125
        edge = "[...document.querySelectorAll('.strip .bar')].every((one) => one.getBoundingClientRect().right <= 390)"
        assert screen.page.evaluate(edge)
        screen.page.locator(".strip button").last.focus()
        screen.page.keyboard.press("Home")
        tip = screen.page.wait_for_selector(".strip .tip:not([hidden])")
        assert tip is not None
        assert "Groups 1 to" in tip.inner_text()
        screen.well()
        look_through_the_changes(there, screen)


def look_through_the_changes(proxy: ProxyWithKeys, screen: Screen) -> None:
    """A long prompt is fetched in pages, as far as its changes are looked at."""
    assert proxy.ask("POST", "/api/sessions/long/window", {"groups": 2})[0] == 200
    pages: list[str] = []
    screen.page.on("request", lambda asked: pages.append(asked.url) if "/prompt?" in asked.url else None)
    screen.go("#/s/acme/long/prompts", ".diff-bar")
    changes = screen.page.locator("[data-change]")
    assert (changes.count(), len(pages)) == (40, 1)
    total = proxy.get("/sessions/long/prompt?limit=1")["changes"]
    assert total > 600
    for n in range(41):
        screen.click("button:text-is('Next change')")
        screen.page.wait_for_selector(f".diff-bar:has-text('change {n + 1} of {total}')")
    assert changes.count() == 80
    while screen.page.locator("button:has-text('Show more of the')").count():
        before = changes.count()
        screen.click("button:has-text('Show more of the')")
        screen.page.locator("[data-change]").nth(before).wait_for(state="attached")
    assert (changes.count(), len(pages)) == (total, 3)
    screen.well()


def test_the_only_change_of_a_long_prompt_is_found_with_one_request(browser: Browser, tmp_path: Path) -> None:
    history = [{"role": "system", "content": "Be brief."}]
    for n in range(400):
        history += [{"role": "user", "content": f"Number {n}?"}, {"role": "assistant", "content": f"It is {n}."}]
    with run_proxy_with_keys(tmp_path) as there, open_page(browser, there) as screen:
        there.histories["long"] = history
        there.say("long", "And now?")
        late = next(
            one for one in there.get("/sessions/long/prompt_chart")["bars"] if one["group"]["title"] == "Number 370?"
        )["group"]
        assert there.ask("POST", f"/api/sessions/long/groups/{late['id']}/drop")[0] == 200
        pages: list[str] = []
        screen.page.on("request", lambda asked: pages.append(asked.url) if "/prompt?" in asked.url else None)
        screen.go("#/s/acme/long/prompts", "[data-change]")
        assert "Number 370?" in screen.page.locator("[data-change]").first.inner_text()
        assert len(pages) == 1
        folded = screen.page.locator(".unchanged > button")
        assert folded.first.inner_text() == f"{late['first']} messages the same"
        folded.first.click()
        screen.page.wait_for_selector(".unchanged .pair >> text=Number 0?")
        assert screen.page.locator(".unchanged .pair").count() == 400
        assert folded.first.inner_text() == f"{late['first'] - 400} messages the same"
        folded.first.click()
        screen.page.wait_for_selector(".unchanged .pair >> text=Number 369?")
        assert screen.page.locator(".unchanged .pair").count() == late["first"]
        assert len(pages) == 3
        screen.well()


def test_charts_of_a_long_session_say_that_they_draw_its_newest_requests(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path) as proxy, open_page(browser, proxy) as screen:
        for n in range(202):
            proxy.say("many", f"Number {n}?")
        screen.go("#/s/acme/many/costs", ".charts > p")
        assert "over the newest 200 requests" in screen.page.inner_text(".charts > p"), "Paid so far has all 202"
        titles = screen.page.locator(".chart-title").all_inner_texts()
        assert "Dollars so far" not in titles
        assert all(title.endswith(", newest 200 requests") for title in titles)
        screen.go("#/s/acme/many/latency", ".chart-title:text-is('Time of each request, newest 200 requests')")
        screen.go("#/s/acme/many/prompts", ".chart-title:has-text(', newest 200 requests')")
        screen.well()


def test_other_policies_are_compared_on_demand(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/s/acme/talk/costs", "button:text-is('Compare policies')")
        screen.click("button:text-is('Compare policies')")
        screen.page.wait_for_selector(".compared th:text-is('thrifty')", timeout=60_000)
        assert "100 %" in screen.page.inner_text(".compared tr:has(th:text-is('nothing'))")
        screen.page.set_viewport_size({"width": 360, "height": 800})
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= 360
        screen.well()


def test_the_arms_of_an_experiment_are_compared_and_unknown_is_said(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path, experiment={"control": 0.5}) as made:
        for n in range(80):
            made.converse(f"one-{n}", prompts=1)
        report = made.get("/report")
        assert report["control_sessions"] + report["managed_sessions"] == 80
        assert min(report["control_sessions"], report["managed_sessions"]) >= 20, "fewer have no interval"
        with open_page(browser, made) as screen:
            screen.go("#/experiment", ".verdict")
            assert screen.page.inner_text(".verdict") == report["verdict"]
            assert f"{report['managed_sessions']} managed" in screen.page.inner_text(".verdict + .facts")
            assert screen.page.locator(".plain tbody tr").count() >= len(report["figures"]) == 11
            screen.page.set_viewport_size({"width": 390, "height": 800})
            screen.go("#/experiment", ".verdict")
            fits = "(one) => one.scrollWidth <= one.clientWidth"
            assert screen.page.locator(".scrolls:has(.arms)").evaluate(fits)
            assert screen.page.locator(".arms .interval").count()
            # A difference that is larger than the scale has its bar at the edge.
            for name, edge in (("--low", "100%"), ("--wide", "0%")):
                move = f"(all) => all.forEach((one) => one.style.setProperty('{name}', '{edge}'))"
                screen.page.locator(".arms .interval").evaluate_all(move)
            assert screen.page.locator(".scrolls:has(.arms)").evaluate(fits)
            assert screen.page.locator(".interval.known").count() == sum(one["known"] for one in report["figures"])
            screen.well()


def test_a_reverse_proxy_may_give_the_dashboard_a_path(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path) as empty, open_page(browser, empty) as screen:
        asked: list[str] = []

        def strip(route: Route) -> None:
            asked.append(route.request.url)
            route.continue_(url=route.request.url.replace("/context/", "/"))

        screen.page.route("**/context/**", strip)
        root = f"http://127.0.0.1:{empty.proxy.port}/context"
        screen.page.goto(f"{root}/dashboard/")
        screen.page.wait_for_selector(f".code:has-text('OPENAI_BASE_URL={root}/v1')")
        assert f"{root}/api/me" in asked
        screen.well()


def test_an_empty_store_says_how_to_point_an_agent_at_it(browser: Browser, tmp_path: Path) -> None:
    with run_proxy_with_keys(tmp_path, keys=False) as empty, open_page(browser, empty, key="") as screen:
        screen.go("#/", "h2:text-is('Nothing yet')")
        assert f"OPENAI_BASE_URL=http://127.0.0.1:{empty.proxy.port}/v1" in screen.page.inner_text("main")
        screen.go("#/memos", "h2:text-is('No memos')")
        screen.go("#/money", "h2:text-is('No request in this time')")
        screen.well()


def test_without_a_key_one_is_asked_for_and_a_wrong_one_is_reported(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy, key="") as screen:
        screen.go("#/", "input[type=password]")
        screen.page.fill("input[type=password]", "cp-nobody")
        screen.page.keyboard.press("Enter")
        screen.page.wait_for_selector("h2:text-is('That key does not open this')")
        screen.page.fill("input[type=password]", "cp-admin")
        screen.page.keyboard.press("Enter")
        screen.page.wait_for_selector(".sessions")
        screen.click("button:text-is('Forget key')")
        screen.page.wait_for_selector("input[type=password]")
        assert screen.page.evaluate("[sessionStorage.length, localStorage.length]") == [0, 0]


def test_a_read_key_shows_all_and_offers_no_action(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy, key="cp-read") as screen:
        for place, wait in VIEWS.items():
            screen.go(place, wait)
            words = ("Drop", "Remove", "Pin", "Compress", "Prune", "Set", "Add note", "Edit", "Delete session")
            for word in words:
                assert screen.page.locator(f"main button:text-is('{word}')").count() == 0, (place, word)
        assert "may look only" in screen.page.inner_text(".top")
        screen.well()


def test_unknown_pages_and_sessions_are_reported(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        for place, title in (("#/nowhere", "There is no such page"), ("#/s/acme/nobody", "Not here")):
            screen.go(place, f"h2:text-is('{title}')")
            assert screen.page.locator("h1").count() == 1
        screen.click("a:text-is('All sessions')")
        screen.page.wait_for_selector(".sessions")


def test_a_lost_connection_is_reported_and_restored(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/", ".sessions")
        screen.context.set_offline(True)
        screen.page.wait_for_selector(".lost", timeout=60_000)
        assert screen.page.locator(".sessions").count() == 1, "what was shown stays"
        screen.context.set_offline(False)
        screen.page.wait_for_selector(".lost", state="detached", timeout=60_000)


def rows(count: int) -> str:
    return f".sessions tbody:has(tr:nth-child({count})):not(:has(tr:nth-child({count + 1})))"


@pytest.mark.parametrize("status", [0, 503])
@pytest.mark.parametrize("part", ["prompt", "stats", "points"])
def test_a_request_that_failed_once_is_repeated(browser: Browser, proxy: ProxyWithKeys, part: str, status: int) -> None:
    with open_page(browser, proxy) as screen:

        def fail_once(route: Route) -> None:
            if failed:
                route.continue_()
                return
            failed.append(route.request.url)
            if status:
                route.fulfill(status=status, json={"error": {"message": "The store is busy."}})
            else:
                route.abort()

        failed: list[str] = []
        screen.page.route(f"**/api/sessions/talk/{part}?*", fail_once)
        screen.go("#/s/acme/talk/prompts", ".pair")
        screen.page.wait_for_selector(".time-line .chart", timeout=60_000)
        screen.page.wait_for_selector(".cards .figure", timeout=60_000)
        assert len(failed) == 1
        assert screen.page.locator(".panel:has-text('That did not work')").count() == 0
        screen.complaints.clear()  # the browser reports the answer that failed


def test_the_list_of_sessions_is_paged_searched_and_filtered(browser: Browser, proxy: ProxyWithKeys) -> None:
    for n in range(27):
        proxy.say(f"many-{n}", "Hello.")
    with open_page(browser, proxy) as screen:
        screen.go("#/", ".sessions")
        assert screen.page.locator(".sessions tbody tr").count() == 25
        screen.click("button:text-is('Show more')")
        screen.page.wait_for_selector(rows(28))
        screen.page.fill("input[type=search]", "many-2")
        screen.page.wait_for_selector(rows(8))
        screen.page.get_by_label("Policy").select_option("rolling")
        screen.page.wait_for_selector("h2:text-is('No session fits')")
        screen.well()


def test_a_new_session_appears_in_the_open_list(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/", ".sessions")
        proxy.say("comes-later", "Hello.")
        screen.page.wait_for_selector("a.name:has-text('comes-later')", timeout=60_000)


def test_the_strip_works_with_keys_alone_and_tells_why(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy) as screen:
        screen.go("#/s/acme/talk", ".strip .bar")
        screen.page.locator(".strip button").last.focus()
        screen.page.keyboard.press("Home")
        tip = screen.page.wait_for_selector(".strip .tip:not([hidden])")
        assert tip is not None
        assert "dropped by the operator" in tip.inner_text()
        assert screen.page.locator(".strip button[tabindex='0']").count() == 1
        screen.page.keyboard.press("Enter")
        screen.page.wait_for_selector(".line.open .message")
        assert "Prompt number 0?" in screen.page.inner_text(".line.open")
        screen.page.keyboard.press("Escape")
        assert screen.page.locator(".strip .tip:not([hidden])").count() == 0
        screen.page.hover(".strip .piece.out")
        screen.page.wait_for_selector(".strip .tip:has-text('dropped by the operator')")
        screen.well()


def test_the_colours_can_be_switched_and_stay(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy, color_scheme="light") as screen:
        screen.go("#/", ".sessions")
        paper = "getComputedStyle(document.body).backgroundColor"
        light = screen.page.evaluate(paper)
        screen.click("button:text-is('Dark')")
        dark = screen.page.evaluate(paper)
        assert dark != light
        screen.go("#/money", "button:text-is('Light')")
        assert screen.page.evaluate(paper) == dark
        screen.well()


def test_reduced_motion_switches_all_transitions_off(browser: Browser, proxy: ProxyWithKeys) -> None:
    with open_page(browser, proxy, reduced_motion="reduce") as screen:
        screen.go("#/s/acme/talk", ".toolbar")
        moving = (
            "[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).transitionDuration !== '0s').length"
        )
        assert screen.page.evaluate(moving) == 0


def test_a_request_that_never_ended_is_not_running_for_ever(browser: Browser, tmp_path: Path) -> None:
    ended = threading.Event()

    async def wait(_: RawRequest, connection: Connection) -> None:
        while not ended.is_set():
            await asyncio.sleep(0.05)
        await send_reply(connection, b"500 Late", b"{}")

    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
    with run_proxy_with_keys(tmp_path) as made, open_page(browser, made) as screen:
        made.model.answers[:] = [wait]
        asker = threading.Thread(target=made.ask, args=("POST", "/v1/chat/completions", body, "cp-data"))
        asker.start()
        try:
            screen.go("#/", ".sessions .flag:text-is('running')")
            # As if the proxy had been killed and started again: its lock of the database is newer than the request.
            later = time.time() + 60
            os.utime(tmp_path / "a.sqlite3.lock", (later, later))
            screen.go("#/", ".sessions .flag:text-is('end not stored')")
            assert screen.page.locator(".flag:text-is('running')").count() == 0
            address = screen.page.locator(".sessions a.name").first.get_attribute("href")
            screen.go(f"{address}/prompts", "text=end not stored")
            screen.well()
        finally:
            ended.set()
            asker.join(30)


def test_a_prompt_that_is_over_its_budget_is_marked(proxy: ProxyWithKeys, screen: Screen) -> None:
    proxy.say("tight", "[pin] " + "word " * 3_000, max_tokens=127_500)
    screen.go("#/", ".sessions .flag.bad:has-text('over budget')")
    proxy.histories.pop("tight")
