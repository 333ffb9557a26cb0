"""The dashboard's files over a real socket, and what must never be in them."""

from __future__ import annotations

import hashlib
import http.client
import re
from base64 import b64encode
from collections.abc import Iterator
from importlib.resources import files

import pytest

from proxy.web.dashboard.static_files import CSP, DashboardFiles
from tests.proxy_server import RunningProxy, make_key, run_proxy_in_thread

TYPES = ("text/html", "text/css", "text/javascript", "image/svg+xml", "text/plain")
ORIGIN = "http://pages.example"
VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""Files of others with their SHA-256: uPlot 1.6.32 of the npm registry, unchanged."""


@pytest.fixture(scope="module")
def proxy() -> Iterator[RunningProxy]:
    with run_proxy_in_thread("demo", keys=[make_key("cp-a", "*", "admin")], dashboard={"origins": [ORIGIN]}) as running:
        yield running


def ask(proxy: RunningProxy, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_every_file_is_served_without_a_key_and_with_every_guard(proxy: RunningProxy) -> None:
    there = DashboardFiles()
    assert {"index.html", "main.js", "base.css", "widget.js", "icon.svg"} <= set(there.contents)
    for name, body in there.contents.items():
        status, headers, got = ask(proxy, f"/dashboard/{name}")
        assert (status, got) == (200, body)
        assert headers["content-security-policy"] == CSP
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-type"].split(";")[0] in TYPES
        assert headers["cache-control"] == "no-cache"


def test_the_policy_lets_nothing_in_but_our_own_files() -> None:
    rules = dict(rule.partition(" ")[::2] for rule in CSP.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in CSP


def test_the_start_page_and_what_is_not_there(proxy: RunningProxy) -> None:
    assert ask(proxy, "/dashboard/")[2] == DashboardFiles().contents["index.html"]
    status, headers, _ = ask(proxy, "/dashboard")
    assert (status, headers["location"]) == (308, "dashboard/"), "also below the path of a reverse proxy"
    for path in ("/dashboard/none.js", "/dashboard/../web/app.py", "/dashboard/%2e%2e/app.py", "/dashboard/files.py"):
        status, headers, body = ask(proxy, path)
        assert status in (401, 404), path
        assert b"import" not in body
    assert ask(proxy, "/dashboard/", "POST")[0] == 405
    status, headers, body = ask(proxy, "/dashboard/main.js", "HEAD")
    assert (status, body, int(headers["content-length"])) == (200, b"", len(DashboardFiles().contents["main.js"]))


def test_a_browser_at_the_address_of_the_proxy_gets_to_the_dashboard_and_a_program_to_the_upstream(
    proxy: RunningProxy,
) -> None:
    page = "text/html,application/xhtml+xml,*/*;q=0.8"
    for method in ("GET", "HEAD"):
        status, headers, _ = ask(proxy, "/", method, accept=page)
        assert (status, headers["location"]) == (307, "dashboard/")
    for accept in ("*/*", "application/json"):
        assert ask(proxy, "/", accept=accept)[0] == 401, "a request of the upstream needs a key"
    assert ask(proxy, "/v1/models", accept=page)[0] == 401
    assert ask(proxy, "/", "POST", accept=page)[0] == 401


def test_a_file_that_the_browser_has_is_not_sent_again(proxy: RunningProxy) -> None:
    tag = ask(proxy, "/dashboard/main.js")[1]["etag"]
    status, headers, body = ask(proxy, "/dashboard/main.js", if_none_match=f'"other", W/{tag}')
    assert (status, body, headers["etag"]) == (304, b"", tag)
    assert ask(proxy, "/dashboard/base.css", if_none_match=tag)[0] == 200


def test_only_the_widget_is_for_pages_of_others_and_only_of_those_in_the_settings(proxy: RunningProxy) -> None:
    allowed = ask(proxy, "/dashboard/widget.js", origin=ORIGIN)[1]
    assert (allowed["access-control-allow-origin"], allowed["vary"]) == (ORIGIN, "origin")
    assert allowed["cross-origin-resource-policy"] == "cross-origin"
    assert "access-control-allow-origin" not in ask(proxy, "/dashboard/widget.js", origin="http://other.example")[1]
    for name in ("main.js", "index.html"):
        headers = ask(proxy, f"/dashboard/{name}", origin=ORIGIN)[1]
        assert "access-control-allow-origin" not in headers
        assert headers["cross-origin-resource-policy"] == "same-origin"


MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\.srcdoc|createContextualFragment|DOMParser|setHTML|"
    r"\beval\s*\(|new Function|javascript:|parseFromString|\bon[a-z]+\s*=\s*[\"']|<style|style\s*=\s*\"",
)
"""Functions that make markup or code of a text. The stylesheet and index.html have none either."""
OTHERS = re.compile(r"https?://(?!www\.w3\.org/2000/svg|proxy\.example)[a-z]")


def sources() -> list[tuple[str, str]]:
    static = files("proxy.web.dashboard").joinpath("static")
    return [(item.name, item.read_text("utf-8")) for item in static.iterdir() if item.name not in VENDORED]


def test_files_of_others_are_whole_and_the_page_loads_no_others() -> None:
    contents = DashboardFiles().contents
    assert {name: hashlib.sha256(contents[name]).hexdigest() for name in VENDORED} == VENDORED
    assert b"Permission is hereby granted" in contents["uPlot.LICENSE.txt"]
    page = contents["index.html"].decode()
    named = dict(re.findall(r'(?:src|href)="(uPlot[^"]+)" integrity="sha384-([^"]+)"', page))
    hashes = {name: b64encode(hashlib.sha384(contents[name]).digest()).decode() for name in named}
    assert named == hashes
    assert set(named) == {"uPlot.iife.min.js", "uPlot.min.css"}


@pytest.mark.parametrize("name", [name for name in VENDORED if not name.endswith(".txt")])
def test_files_of_others_make_no_markup_of_texts_either(name: str) -> None:
    text = DashboardFiles().contents[name].decode()
    assert MARKUP.findall(text) == []
    assert OTHERS.findall(text.replace("/*! https://github.com/leeoniya/uPlot", "")) == []


@pytest.mark.parametrize(("name", "text"), [pytest.param(*one, id=one[0]) for one in sources()])
def test_texts_never_become_markup_and_nothing_comes_from_elsewhere(name: str, text: str) -> None:
    assert MARKUP.findall(text) == []
    assert OTHERS.findall(text.replace("export OPENAI_BASE_URL", "")) == []
    assert text.count("\n") < 400
    if name == "index.html":
        assert re.findall(r"<script(?![^>]* src=)", text) == []


@pytest.mark.parametrize(
    "bad", ["e.innerHTML = x", "eval (x)", "document.write(x)", '<a onclick="f()">', "x.insertAdjacentHTML(", "<style>"]
)
def test_the_markup_lint_detects_each_forbidden_form(bad: str) -> None:
    assert MARKUP.search(bad)
