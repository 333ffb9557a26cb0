"""Every call of the admin API: what makes it succeed, who may make it, and what it says where it cannot be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.web.api.calls import CALLS, Call
from tests.web.api.conftest import ApiAnswer, ProxyWithData


def those(wanted: Callable[[Call], bool]) -> list[Any]:
    """The calls that are so, each named as its route."""
    return [pytest.param(m, call, id=f"{m} {path}") for (m, path), call in CALLS.items() if wanted(call)]


EVERY = those(lambda call: True)
TEMPLATES = {"name": "tenant"}
"""Placeholders that the table calls otherwise."""
CODES = {400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 503}


def may(call: Call) -> str:
    """A key that may make the call."""
    return "cp-all-admin" if "{tenant}" in call.path else "cp-acme-admin"


def problem(got: ApiAnswer) -> None:
    """It is an error in the one shape that there is."""
    assert got.status in CODES
    error = got.json()["error"]
    assert set(error) == {"message", "type", "code", "hint"}
    assert error["message"]
    assert "Traceback" not in error["message"]


def test_every_route_has_an_entry(proxy: ProxyWithData) -> None:
    routes = set()
    for route in proxy.proxy.app.api.routes:
        path = getattr(route, "path", "")
        for name, ours in TEMPLATES.items():
            path = path.replace("{" + name + "}", "{" + ours + "}")
        routes |= {(method, path) for method in getattr(route, "methods", ()) if method != "HEAD"}
    assert routes == set(CALLS), "each route has an entry in CALLS of tests/web/api/calls.py"


@pytest.mark.parametrize(("method", "call"), EVERY)
def test_a_call_with_the_right_key_succeeds(proxy: ProxyWithData, method: str, call: Call) -> None:
    ids = dict(proxy.ids)
    if call.makes:
        ids = proxy.named(proxy.fresh()) | {"memo": proxy.memo()}
        if "{tenant}" in call.path:
            ids |= {"tenant": "doomed", "memo": proxy.memo("doomed")}
    body = call.body
    if body is not None and "ids" in body:
        body = {"ids": [ids["group"], ids["message"]]}
    got = proxy.ask(method, call.path.format(**ids), body, key=may(call))
    assert got.status == call.status, got.body
    assert got.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("method", "call"), those(lambda call: bool(call.absent)))
def test_an_unknown_object_is_404(proxy: ProxyWithData, method: str, call: Call) -> None:
    got = proxy.ask(method, proxy.fill(call.absent), call.body, key=may(call))
    assert got.status == 404, got.body
    problem(got)


@pytest.mark.parametrize(("method", "call"), those(lambda call: bool(call.bad)))
def test_bad_input_is_reported(proxy: ProxyWithData, method: str, call: Call) -> None:
    assert call.bad is not None
    path, body = call.bad
    got = proxy.ask(method, proxy.fill(path), body if body is not None else call.body)
    assert got.status in (400, 422), got.body
    problem(got)


@pytest.mark.parametrize(("method", "call"), EVERY)
def test_each_route_refuses_missing_unknown_and_unsuitable_keys(proxy: ProxyWithData, method: str, call: Call) -> None:
    """S1: no key, one that is none, a key for another plane, the read key."""
    path = proxy.fill(call.path)
    wanted = {None: 401, "cp-nobody": 401, "": 401, "cp-acme-data": 403, "cp-acme-metrics": 403}
    if not call.reads:
        wanted["cp-acme-read"] = 403
    for key, status in wanted.items():
        got = proxy.ask(method, path, call.body, key=key)
        assert got.status == status, (key, got.body)
        problem(got)
    if call.reads:
        assert proxy.ask(method, path, call.body, key="cp-acme-read").status == call.status
    bearer = {"authorization": "Bearer cp-nobody"}
    assert proxy.ask(method, path, call.body, key=None, **bearer).status == 401


@pytest.mark.parametrize(("method", "call"), those(lambda call: bool(call.names)))
def test_s4_another_tenant_finds_nothing(proxy: ProxyWithData, method: str, call: Call) -> None:
    path = proxy.fill(call.path)
    got = proxy.ask(method, path, call.body, key="cp-other-admin")
    assert got.status in (403, 404), got.body
    problem(got)
    asked = proxy.ask(method, path + ("&" if "?" in path else "?") + "tenant=acme", call.body, key="cp-other-admin")
    assert asked.status == 403, "nor by naming whose it is"


@pytest.mark.parametrize(("method", "call"), EVERY)
def test_s11_no_page_of_another_site_has_anything_from_it(proxy: ProxyWithData, method: str, call: Call) -> None:
    path = proxy.fill(call.path)
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        got = proxy.ask(method, path, call.body, **headers)
        assert got.status == 403, headers
        assert "access-control-allow-origin" not in got.headers
    if call.body is not None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            assert proxy.ask(method, path, call.body, content_type=kind).status == 415


@pytest.mark.parametrize(("method", "call"), those(lambda call: call.body is not None))
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":NaN}', b'{"context": "\\ud800"}', b"null"]
)
def test_malformed_bodies_get_an_error_and_no_fault(proxy: ProxyWithData, method: str, call: Call, body: bytes) -> None:
    got = proxy.ask(method, proxy.fill(call.path), body)
    assert got.status in (200, 400, 422), got.body
    if got.status != 200:
        problem(got)
