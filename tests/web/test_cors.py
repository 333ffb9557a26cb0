from __future__ import annotations

from typing import Any

import pytest

from proxy.errors import Forbidden, WrongHost, WrongType
from proxy.settings.load import Settings
from proxy.web.cors import BrowserRules, build_cors_headers, build_preflight_headers

BROWSERS = BrowserRules(
    Settings.model_validate({"dashboard": {"hosts": ["Box.lan"], "origins": ["https://wiki.example:8443"]}})
)


def scope(method: str = "GET", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "headers": named}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "192.168.1.9", "a.localhost", "box.lan:80"]
)
def test_local_host_names_and_addresses_are_accepted(host: str) -> None:
    BROWSERS.check_host(scope(host=host))


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "box.lan.evil", "127.1", "xlocalhost"]
)
def test_s11_a_name_that_its_owner_can_point_at_us_is_not(host: str) -> None:
    with pytest.raises(WrongHost):
        BROWSERS.check_host(scope(host=host))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "0.0.0.0:8080", "[::]:8080", "[::ffff:127.0.0.1]:80", "[::ffff:7f00:1]:80"]
)
def test_s11_an_address_for_which_browsers_do_not_tell_the_site_is_not_ours(host: str) -> None:
    for allow_short in (False, True):
        with pytest.raises(WrongHost):
            BROWSERS.check_host(scope(host=host), allow_short=allow_short)


def test_s11_an_address_is_the_proxys_where_it_was_told_to_listen_there() -> None:
    BrowserRules(Settings.model_validate({"host": "0.0.0.0"})).check_host(scope(host="0.0.0.0:8080"))


def test_a_machines_own_name_will_do_for_chat() -> None:
    BROWSERS.check_host(scope(host="workstation:8080"), allow_short=True)
    with pytest.raises(WrongHost):
        BROWSERS.check_host(scope(host="workstation.evil:8080"), allow_short=True)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost"},
        {"origin": "https://wiki.example"},
        {"origin": "https://wiki.example:8443.evil.example"},
        {"origin": "file://"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "origin": "http://localhost:8080"},
        {"sec_fetch_site": "anything new"},
    ],
)
def test_s11_a_page_of_another_site_asks_in_vain(headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        BROWSERS.check_origin(scope(host="localhost:8080", **headers))


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://localhost:8080"}, {"sec_fetch_site": "none"}, {"sec_fetch_site": "same-origin"}],
)
def test_the_proxys_own_page_and_clients_that_are_not_browsers_are_allowed(headers: dict[str, str]) -> None:
    assert BROWSERS.check_origin(scope(host="localhost:8080", **headers)) is None


def test_an_allowed_origin_may_ask_and_may_read_the_answer() -> None:
    found = BROWSERS.check_origin(
        scope(host="localhost:8080", origin="https://wiki.example:8443", sec_fetch_site="cross-site")
    )
    assert found == b"https://wiki.example:8443"
    assert dict(build_cors_headers(found))[b"access-control-allow-origin"] == found
    assert b"x-context-key" in dict(build_preflight_headers())[b"access-control-allow-headers"]
    assert b"access-control-allow-credentials" not in dict(build_preflight_headers()) | dict(build_cors_headers(found))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_s11_a_form_changes_nothing(method: str, kind: str) -> None:
    with pytest.raises(WrongType):
        BROWSERS.check_content_type(scope(method, **({"content_type": kind} if kind else {})))


def test_json_is_json_and_reading_or_deleting_needs_none() -> None:
    BROWSERS.check_content_type(scope("POST", content_type="Application/JSON; charset=utf-8"))
    BROWSERS.check_content_type(scope("POST", content_type="application/x-ndjson"))
    BROWSERS.check_content_type(scope("GET"))
    BROWSERS.check_content_type(scope("DELETE"))
    with pytest.raises(WrongType):
        BROWSERS.check_content_type(scope("DELETE", content_length="3"))
