"""A browser on the dashboard of a running proxy, an agent behind it, and what the agent's upstream got."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.notes.memo_matching import Memo
from proxy.tools import stored_memos
from tests.proxy_server import RunningProxy, make_key, run_proxy_in_thread
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

NOTE_TOASTS = """() => {
  const toasts = document.getElementById('toasts');
  toasts.replaceChildren();
  window.toasted = [];
  if (window.toastNoter) window.toastNoter.disconnect();
  window.toastNoter = new MutationObserver((all) => {
    for (const one of all) for (const made of one.addedNodes) window.toasted.push([made.innerText, made.className]);
  });
  window.toastNoter.observe(toasts, { childList: true });
}"""
"""Script that collects the text and the class of each toast from now on."""

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WATCH = """
window.reports = [];
addEventListener("securitypolicyviolation", (event) => reports.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


def make_result(call: str) -> str:
    """The result of a call: long, and unlike any other."""
    lines = (f"line {n} of {call}, with words that nobody needs to read twice" for n in range(120))
    return "\n".join([f"Result of {call}", *lines])


def list_whole_results(sent: str, session: str) -> list[str]:
    """The calls of a conversation whose results upstream got in full."""
    made = [f"{session}-{n}-{k}" for n in range(3) for k in range(2)]
    return [call for call in made if json.dumps(make_result(call))[1:-1] in sent]


@contextmanager
def run_upstream_in_thread(model: ScriptedModel) -> Iterator[int]:
    """The model on a port, in a thread of its own."""
    began, end, port = threading.Event(), asyncio.Event(), 0
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        nonlocal port
        async with run_upstream(model) as upstream:
            port = upstream.port
            began.set()
            await end.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert began.wait(10)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(10)
        loop.close()


@dataclass
class ProxyWithKeys:
    """The proxy, its upstream, and conversations through it."""

    proxy: RunningProxy
    model: ScriptedModel
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}/dashboard/"

    def ask(self, method: str, path: str, body: Any = None, key: str = "cp-admin", **headers: str) -> tuple[int, bytes]:
        """One call of the proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port, timeout=30)
        try:
            named = {"x-context-key": key, "content-type": "application/json"}
            named |= {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, None if body is None else json.dumps(body), named)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, body = self.ask("GET", f"/api{path}")
        assert status == 200, body
        return json.loads(body)

    def say(self, session: str, text: str | None = None, policy: str = "", **more: Any) -> str:
        """The agent says something, resends all it has, and keeps the answer; what upstream got, as one text."""
        messages = self.histories.setdefault(session, [{"role": "system", "content": "Be brief."}])
        if text is not None:
            messages.append({"role": "user", "content": text})
        headers = {"x_context_session": session} | ({"x_context_policy": policy} if policy else {})
        body = {"model": "demo", "messages": messages, **more}
        status, answer = self.ask("POST", "/v1/chat/completions", body, key="cp-data", **headers)
        assert status == 200, answer
        messages.append(json.loads(answer)["choices"][0]["message"])
        for call in messages[-1].get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": make_result(call["id"])})
        return json.dumps(self.model.last["messages"], ensure_ascii=False)

    def converse(self, session: str, prompts: int = 3, policy: str = "") -> None:
        """Prompts, each with two calls and their results, then an answer."""
        for n in range(prompts):
            made = [make_calls((f"{session}-{n}-{k}", "look"), text=f"Looking {n}.{k}", at=n) for k in range(2)]
            self.model.answers[:] = [*made, f"Answer number {n}.", "Well."]
            self.say(session, f"Prompt number {n}?", policy)
            self.say(session, None, policy)
            self.say(session, None, policy)

    def memo(self, content: str, *tags: str) -> str:
        """A memo that is in the store."""
        memo = Memo(f"memo-{tags[0]}", content, tags, "", 1.0, 1.0)
        self.proxy.put_beside([stored_memos.make_memo_row("acme", memo)])
        return memo.id


@contextmanager
def run_proxy_with_keys(folder: Path, *, keys: bool = True, **tree: Any) -> Iterator[ProxyWithKeys]:
    """A proxy with keys of each plane (cp-data, cp-admin, cp-read) of one tenant, acme."""
    model = ScriptedModel("Well.")
    planes = ("data", "admin", "read")
    if keys:
        tree["keys"] = [make_key(f"cp-{plane}", "acme", plane) for plane in planes]
    with (
        run_upstream_in_thread(model) as port,
        run_proxy_in_thread(port, **({"db": str(folder / "a.sqlite3"), "policy": "thrifty"} | tree)) as proxy,
    ):
        yield ProxyWithKeys(proxy, model)


@dataclass
class Screen:
    """A page and all that it complained about."""

    page: Page
    context: BrowserContext
    stage: ProxyWithKeys
    complaints: list[str] = field(default_factory=list)

    def go(self, place: str, wait: str) -> None:
        """To a place of the dashboard; `wait`: what has to be there."""
        self.page.goto("about:blank")
        self.page.goto(self.stage.url + place)
        self.page.wait_for_selector(wait, timeout=60_000)

    def click(self, selector: str) -> None:
        self.page.locator(selector).first.click(timeout=60_000)

    def press(self, selector: str) -> str:
        """Click, and wait for what is said about it. Toasts are noted as they come: a busy machine may look for one
        only when it has left."""
        self.page.evaluate(NOTE_TOASTS)
        self.click(selector)
        until = time.monotonic() + 60
        while not (toasted := self.page.evaluate("window.toasted")):  # the page's own policy forbids wait_for_function
            assert time.monotonic() < until, "nothing is said"
            self.page.wait_for_timeout(50)
        said, kind = toasted[0]
        assert "bad" not in kind, said
        return str(said)

    def well(self) -> None:
        """Nothing went wrong on the page so far."""
        assert self.complaints == []
        assert self.page.evaluate("window.reports || []") == []


@contextmanager
def open_page(browser: Browser, stage: ProxyWithKeys, key: str = "cp-admin", **options: Any) -> Iterator[Screen]:
    """A page of its own, with a key in it."""
    context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    try:
        page = context.new_page()
        screen = Screen(page, context, stage)
        page.on("console", lambda m: screen.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: screen.complaints.append(str(error)))
        page.add_init_script(WATCH)
        if key:
            page.add_init_script(f"location.host && sessionStorage.setItem('context-proxy-key', {json.dumps(key)})")
        yield screen
    finally:
        context.close()
