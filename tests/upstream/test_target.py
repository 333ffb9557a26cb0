from __future__ import annotations

import pytest

from proxy.errors import ConfigError
from proxy.settings.load import Settings, UpstreamSettings
from proxy.upstream.target import Target, parse_address, read_targets


def target(base_url: str) -> Target:
    [made] = read_targets(Settings(upstreams={"t": UpstreamSettings(base_url=base_url)}))
    return made


@pytest.mark.parametrize(
    ("base", "path", "goes_to"),
    [
        ("https://h/v1", "/v1/chat/completions", b"/v1/chat/completions"),
        ("https://h/v1", "/chat/completions", b"/v1/chat/completions"),
        ("https://h/openai/v1beta/", "/v1/models", b"/openai/v1beta/models"),
        ("https://h/a//b", "//v1//models", b"/a/b//models"),
        ("https://h", "/v1/models", b"/v1/models"),
        ("https://h/", "/models", b"/models"),
        ("https://h", "/", b"/"),
        ("https://h/v1", "/v1", b"/v1"),
        ("https://h/v1", "/v1beta/x", b"/v1/v1beta/x"),
        ("https://h/v1", "/v1/a%2Fb%20c", b"/v1/a%2Fb%20c"),
        ("https://h/v1", "/v1/a b?c#d\r\né", b"/v1/a%20b%3Fc%23d%0D%0A%C3%A9"),
    ],
)
def test_a_path_goes_where_the_base_says(base: str, path: str, goes_to: bytes) -> None:
    assert parse_address(target(base)).request_target(path, b"") == goes_to
    assert parse_address(target(base)).request_target(path, b"x=%2F") == goes_to + b"?x=%2F"


@pytest.mark.parametrize(
    ("base", "host"),
    [
        ("http://h:8000/v1", b"h:8000"),
        ("https://h", b"h"),
        ("http://[::1]:80/v1", b"[::1]:80"),
        ("http://bücher.example", b"xn--bcher-kva.example"),
    ],
)
def test_the_host_header_is_the_bases_authority(base: str, host: bytes) -> None:
    assert parse_address(target(base)).host_header == host


def test_a_base_without_a_host_is_refused() -> None:
    made = target("https://h")
    with pytest.raises(ConfigError, match=r"upstreams\.t\.base_url"):
        parse_address(Target(made.name, "ftp://x", made.strategy, None, (), "", "", ""))


def test_one_upstream_setting_is_one_target_named_default() -> None:
    [made] = read_targets(Settings(upstream="http://h/v1"))
    assert (made.name, made.base_url, made.models) == ("default", "http://h/v1", ("*",))


def test_a_key_is_printed_as_stars() -> None:
    made = Target("t", "http://h", "openai", "sk-canary", ("*",), "http://u:p@x", "", "")
    assert "canary" not in repr(made)
    assert "u:p" not in repr(made)
    assert "key=***" in repr(made)
