from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from proxy.replay import stored
from proxy.web.api import replay
from tests.web.api.conftest import ProxyWithData

ON_ONE_STORE = True

R = "/api/sessions/talk/replay"


def test_a_session_is_played_under_the_policies_that_are_asked_for(proxy: ProxyWithData) -> None:
    wanted = [{"policy": "thrifty"}, {"policy": "rolling", "schedule": "over_budget"}]
    got = proxy.ask("POST", R, {"policies": wanted, "window": 2000})
    assert got.status == 200, got.body
    report = got.json()
    assert [entry["name"] for entry in report["entries"]] == ["nothing", "thrifty", "rolling:over_budget"]
    assert (report["conversations"], report["window"]) == (1, 2000)
    assert report["requests"] > 3
    assert all(entry["total"]["failed"] == 0 for entry in report["entries"])


def test_one_is_played_at_a_time(proxy: ProxyWithData) -> None:
    body = {"policies": [{"policy": "thrifty"}]}
    with ThreadPoolExecutor(4) as threads:
        statuses = sorted(got.status for got in threads.map(lambda _: proxy.ask("POST", R, body), range(4)))
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert set(statuses) == {200, 429}


def test_a_session_that_is_too_long_is_not_read_to_its_end(
    proxy: ProxyWithData, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_branches, lengths = stored.read_branches, list[int]()

    async def read_many(*args: Any) -> AsyncIterator[Any]:
        async for conversation in read_branches(*args):
            for _ in range(10):
                lengths.append(sum(map(len, conversation.messages)))
                yield conversation

    monkeypatch.setattr(stored, "read_branches", read_many)
    whole = proxy.ask("POST", R, {"policies": [{"policy": "thrifty"}]})
    assert (whole.status, len(lengths)) == (200, 10)
    monkeypatch.setattr(replay, "MAX_BYTES", 2 * lengths[0])
    lengths.clear()
    got = proxy.ask("POST", R, {"policies": [{"policy": "thrifty"}]})
    assert (got.status, len(lengths)) == (422, 3)
    assert "too long" in got.json()["error"]["message"]
