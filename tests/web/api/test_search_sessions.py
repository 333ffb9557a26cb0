from __future__ import annotations

from typing import Any

import pytest

from tests.web.api.conftest import ProxyWithData


def search(proxy: ProxyWithData, word: str) -> tuple[list[Any], int]:
    """The sessions that all pages of a search have, and how many were looked at. A busy machine makes short pages."""
    items, looked, place = [], 0, f"/api/search?q={word}"
    while place:
        got = proxy.ask("GET", place).json()
        items += got["items"]
        looked += got["looked"]
        place = f"/api/search?q={word}&cursor={got['next']}" if got["next"] else ""
    return items, looked


def test_a_page_of_a_search_ends_when_its_time_is_over(proxy: ProxyWithData, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        proxy.converse(f"slow-{name}")
    monkeypatch.setattr("proxy.web.api.search_sessions.SEARCH_S", -1.0)
    first = proxy.ask("GET", "/api/search?q=nobodysaidthisword").json()
    assert (first["items"], first["looked"]) == ([], 1)
    assert first["next"]
    assert search(proxy, "nobodysaidthisword")[1] >= 3


def test_a_search_goes_through_the_sessions_of_the_tenant(proxy: ProxyWithData) -> None:
    proxy.converse("searched")
    said = proxy.ask("GET", "/api/sessions/searched/messages?role=user").json()["items"][0]
    word = max(said["text"].split(), key=len).strip(".,?!")
    items, looked = search(proxy, word)
    (hit,) = [one for one in items if one["session"] == "searched"]
    assert hit["title"]
    assert all(word.lower() in match["text"].lower() for match in hit["matches"][:1])
    assert said["group"] in {match["group"] for match in hit["matches"]}
    assert {one["tenant"] for one in items} == {"acme"}
    assert looked >= len(items)
    assert search(proxy, "nobodysaidthisword") == ([], looked)
    assert proxy.ask("GET", "/api/search").status == 422
