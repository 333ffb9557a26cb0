from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.cli import reference
from proxy.cli.reference import FALLBACKS, LIMITS, REQUEST_HEADERS, RESPONSE_HEADERS, WEBHOOK_HEADERS, list_limits
from proxy.exchange.fallback import REASON_TEXTS, FallbackReason
from proxy.settings.load import Settings
from proxy.web.auth import KEY_HEADER

PROXY = Path(__file__).parents[2] / "proxy"
SOURCES = {path: path.read_text("utf-8") for path in PROXY.rglob("*.py") if path.name != "reference.py"}
OPTION = re.compile(r"options\.get\(\"([a-z-]+)\"")


def named(rows: tuple[tuple[str, str], ...]) -> set[str]:
    return {row[0].partition(":")[0] for row in rows}


def test_every_header_of_the_proxy_in_the_code_is_in_a_table_and_each_in_a_table_is_in_the_code() -> None:
    everything = "".join(SOURCES.values())
    used = set(re.findall(r"[\"`](x-context-[a-z-]+)", everything))
    used |= {f"x-context-{name}" for name in OPTION.findall(everything)}
    tables = named(REQUEST_HEADERS) | named(RESPONSE_HEADERS) | named(WEBHOOK_HEADERS)
    assert used == {name for name in tables if name.startswith("x-context-")}
    assert KEY_HEADER.decode() in named(REQUEST_HEADERS)
    assert "x-should-retry" in named(RESPONSE_HEADERS)
    assert b"x-should-retry" in SOURCES[PROXY / "web" / "error_responses.py"].encode()


def test_every_reason_with_which_code_gives_a_request_back_is_a_reason_and_the_reverse() -> None:
    found = set[str]()
    for text in SOURCES.values():
        found |= set(re.findall(r"NotManaged\(\"([a-z_]+)\"", text))
        found |= set(re.findall(r"unmanaged_reason=\"([a-z_]+)\"", text))
        found |= {FallbackReason[name].value for name in re.findall(r"FallbackReason\.([A-Z_]+)", text)}
    found |= {"rule ID", "error"}
    assert found == {reason.value for reason in FallbackReason}
    assert list(REASON_TEXTS) == list(FallbackReason)


def test_a_limit_shows_the_default_of_each_setting_that_it_names() -> None:
    bounds = {what: bound for what, bound, _ in list_limits()}
    assert bounds["chat request body"] == f"`limits.body_mb` ({Settings().limits.body_mb})"
    assert bounds["tries of a webhook"] == "`webhooks[].tries` (5)"


def test_a_limit_whose_setting_is_gone_is_an_error() -> None:
    with pytest.raises(KeyError):
        reference.add_defaults("`limits.never_was`")


def test_every_bound_of_the_settings_is_in_the_table() -> None:
    told = "".join(limit.bound for limit in LIMITS) + "".join(text for _, text in FALLBACKS)
    waits = {"commit_wait_ms"}  # a wait that ends with `x-context-persist`, no bound on what is held
    for name in type(Settings().limits).model_fields.keys() - waits:
        assert f"`limits.{name}`" in told
