from __future__ import annotations

import statistics
import time
from hashlib import sha256
from typing import Any

import pytest

from proxy.errors import Forbidden, Unauthorized
from proxy.settings.load import Settings
from proxy.web.api_keys import ANY_PLANE, LOCAL_CALLER, ApiKeys, Caller

DATA = frozenset({"data"})
ADMIN = frozenset({"admin"})


def entry(key: str, tenant: str = "acme", plane: str = "data") -> dict[str, str]:
    return {
        "name": f"{tenant}-{plane}".replace("*", "all"),
        "sha256": sha256(key.encode()).hexdigest(),
        "tenant": tenant,
        "plane": plane,
    }


def keys(*entries: dict[str, str], upstream: str = "http://127.0.0.1:9/v1", **more: Any) -> ApiKeys:
    named = {} if more else {"upstream": upstream}
    return ApiKeys(Settings.model_validate({"keys": list(entries), **named, **more}))


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http", "headers": list(headers)}


@pytest.mark.parametrize("field", ["name", "tenant", "plane"])
def test_there_is_no_caller_without_a_name_a_tenant_and_a_plane(field: str) -> None:
    with pytest.raises(ValueError, match="somebody"):
        Caller(**({"name": "n", "tenant": "t", "plane": "p"} | {field: ""}))


def test_without_keys_whoever_is_let_in_belongs_to_no_tenant() -> None:
    found = keys()
    assert not found
    assert found.admit_caller(scope((b"x-context-key", b"anything")), DATA) is LOCAL_CALLER
    assert (LOCAL_CALLER.one_tenant, LOCAL_CALLER.plane) == (None, ANY_PLANE)


def test_a_key_is_its_tenants_and_leaves_the_request() -> None:
    request = scope((b"a", b"1"), (b"x-context-key", b"cp-one"), (b"authorization", b"Bearer sk-upstream"))
    found = keys(entry("cp-one")).admit_caller(request, DATA)
    assert (found.name, found.one_tenant, found.plane) == ("acme-data", "acme", "data")
    assert request["headers"] == [(b"a", b"1"), (b"authorization", b"Bearer sk-upstream")]


def test_a_key_for_every_tenant_is_bound_to_none() -> None:
    found = keys(entry("cp-all", "*", "admin")).admit_caller(scope((b"x-context-key", b"cp-all")), ADMIN)
    assert (found.tenant, found.one_tenant) == ("*", None)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-context-key", b"")],
        [(b"x-context-key", b"cp-other")],
        [(b"x-context-key", b"cp-one\x00")],
        [(b"x-context-key", b"\xff\xfe")],
        [(b"x-context-key", "cp-öne".encode())],
        [(b"x-context-key", sha256(b"cp-one").hexdigest().encode())],
        [(b"x-context-key", b"cp-one"), (b"x-context-key", b"cp-two")],
        [(b"authorization", b"Bearer sk-upstream")],
        [(b"cookie", b"x-context-key=cp-one")],
    ],
)
def test_what_is_no_key_lets_nobody_in(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthorized):
        keys(entry("cp-one"), entry("cp-two", "other")).admit_caller(scope(*headers), DATA)


@pytest.mark.parametrize("header", [b"authorization", b"api-key", b"x-api-key"])
@pytest.mark.parametrize("form", [b"cp-one", b"Bearer cp-one", b"bearer  cp-one "])
def test_a_key_of_ours_never_stays_in_a_header_for_the_upstream(header: bytes, form: bytes) -> None:
    request = scope((b"x-context-key", b"cp-one"), (header, form))
    keys(entry("cp-one")).admit_caller(request, DATA)
    assert request["headers"] == []
    alone = scope((header, form))
    with pytest.raises(Unauthorized, match="x-context-key"):
        keys(entry("cp-one")).admit_caller(alone, DATA, from_authorization=False)
    assert alone["headers"] == [], "nor where it lets nobody in"


def test_authorization_holds_our_key_where_an_upstream_has_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-own")
    own = {"main": {"base_url": "http://127.0.0.1:9/v1", "api_key_env": "UPSTREAM_KEY"}}
    request = scope((b"authorization", b"Bearer cp-one"))
    assert keys(entry("cp-one"), upstreams=own).admit_caller(request, DATA, from_authorization=False).tenant == "acme"
    assert request["headers"] == []
    demo = keys(entry("cp-one"), upstream="demo")
    assert (
        demo.admit_caller(scope((b"authorization", b"Bearer cp-one")), DATA, from_authorization=False).tenant == "acme"
    )


def test_a_key_opens_its_own_plane_alone() -> None:
    every = {plane: entry(f"cp-{plane}", "acme", plane) for plane in ("data", "admin", "read", "metrics")}
    found = keys(*every.values())
    for plane in every:
        request = (b"x-context-key", f"cp-{plane}".encode())
        assert found.admit_caller(scope(request), frozenset({plane})).plane == plane
        for other in set(every) - {plane}:
            with pytest.raises(Forbidden) as caught:
                found.admit_caller(scope(request), frozenset({other}))
            assert f"cp-{plane}" not in str(caught.value)


def test_s13_how_long_a_check_takes_tells_nothing_of_the_key() -> None:
    """The median of many checks of a key that shares nothing with one of ours, and of one that shares all but its end.
    The bound is four times the microsecond that is promised."""
    real = "cp-" + "a" * 43
    found = keys(*(entry(f"{real}{n}", f"t{n}") for n in range(50)))
    tried = {"far": b"zz-" + b"q" * 43 + b"7", "near": real.encode() + b"x", "ours": real.encode() + b"7"}
    took: dict[str, list[int]] = {name: [] for name in tried}
    for _ in range(20_000):
        for name, presented in tried.items():
            began = time.perf_counter_ns()
            found.find_key(presented)
            took[name].append(time.perf_counter_ns() - began)
    median = {name: statistics.median(values) for name, values in took.items()}
    assert abs(median["far"] - median["near"]) < 4_000, median
    assert abs(median["far"] - median["ours"]) < 4_000, median
