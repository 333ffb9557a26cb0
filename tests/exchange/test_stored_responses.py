from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.errors import BadRequest, StoreUnavailable, Unavailable
from proxy.exchange.chains import find_tenant
from proxy.exchange.stored_responses import (
    answer_question,
    find_stored_response,
    list_input,
    make_page,
    read_question,
)
from proxy.sessions.provider_chains import KnownHistory
from tests.exchange.test_chains import ask, body
from tests.proxy_server import RawAnswer, RunningProxy, parse_answer, run_proxy
from tests.raw_upstream import run_upstream
from tests.raw_upstream import send_raw as send
from tests.strict_responses import Say, StrictResponses


async def get(proxy: RunningProxy, path: str, *lines: bytes) -> RawAnswer:
    """One GET on a connection of its own."""
    head = b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n" % path.encode()
    return parse_answer(await send(proxy.port, head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"))


KEY: list[tuple[bytes, bytes]] = [(b"authorization", b"Bearer sk-one")]


@pytest.mark.parametrize(
    ("method", "path", "part"),
    [
        ("GET", "/v1/responses/resp_1", ""),
        ("GET", "/responses/resp_1/", ""),
        ("DELETE", "/v1/responses/resp_1", ""),
        ("POST", "/v1/responses/resp_1/cancel", "/cancel"),
        ("GET", "/v1/responses/resp_1/input_items", "/input_items"),
    ],
)
def test_a_question_is_read_from_method_and_path(method: str, path: str, part: str) -> None:
    found = read_question(method, path, b"include[]=reasoning.encrypted_content&limit=3")
    assert found is not None
    assert (found.name, found.part, found.shows_tokens, found.read("limit")) == ("resp_1", part, True, "3")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses"),
        ("POST", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/other"),
        ("GET", "/v1/conversations/conv_1"),
    ],
)
def test_other_methods_and_paths_are_not_answered_from_stored_responses(method: str, path: str) -> None:
    assert read_question(method, path, b"") is None


def test_input_without_ids_gets_some_that_depend_on_what_stands_in_front() -> None:
    messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Well."}]
    raws = [json.dumps(one).encode() for one in messages]
    made: list[Any] = [json.loads(item) for item in list_input(raws, [b"a", b"b"])]
    assert made[0]["content"] == [{"type": "input_text", "text": "Hello."}]
    assert made[1]["content"] == [{"type": "output_text", "text": "Well."}]
    assert len({one["id"] for one in made}) == 2
    assert json.loads(list_input(raws[:1], [b"a"])[0]) == made[0]
    assert json.loads(list_input(raws[:1], [b"c"])[0])["id"] != made[0]["id"]


def test_pages_follow_each_other_in_both_orders() -> None:
    items = [json.dumps({"id": f"i{n}"}).encode() for n in range(5)]
    seen, after, page = [], "", dict[str, Any]()
    for _ in range(3):
        page = json.loads(make_page(items, 2, after, is_reversed=True))
        seen += [one["id"] for one in page["data"]]
        after = page["last_id"]
    assert (seen, page["has_more"], page["first_id"]) == (["i4", "i3", "i2", "i1", "i0"], False, "i0")
    assert json.loads(make_page([], 2, "", is_reversed=False))["first_id"] is None
    with pytest.raises(BadRequest):
        make_page(items, 2, "none", is_reversed=False)


async def test_a_response_that_is_not_stored_yet_is_asked_for_again_and_a_store_that_is_away_is_counted() -> None:
    async with (
        run_upstream(StrictResponses("One.", "Two.")) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
    ):
        services = proxy.app.services
        question = read_question("GET", "/v1/responses/resp_9", b"")
        assert question is not None
        assert await find_stored_response(services, KEY, None, question) is None
        tenant = find_tenant(services, KEY, None)
        held = KnownHistory("s", (), is_known=True, is_whole=True, at_provider=False)
        services.histories.put(tenant, "resp_9", held)
        with pytest.raises(Unavailable):
            await find_stored_response(services, KEY, None, question)

        async def fail(*_: Any) -> None:
            raise StoreUnavailable("away")

        services.store.read_response_name = fail  # type: ignore[method-assign,assignment]
        assert await find_stored_response(services, KEY, None, question) is None
        assert proxy.count("internal_errors_total", where="chain") == 1


async def test_a_response_that_the_provider_has_is_the_providers() -> None:
    model = StrictResponses("One.", "Two.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        first = await ask(proxy, "1")
        found = await proxy.get(f"/v1/responses/{first['id']}")
        assert (found.status, found.json()) == (200, model.known[first["id"]])
        assert proxy.count("requests_total", route="stored") == 0


async def test_a_response_that_the_provider_has_shows_nothing_of_the_proxy() -> None:
    note = "\n\n### STATE\nGoal: go on\nContext: as before\nResolved: none\nTechnical Anchors: a.txt"
    model = StrictResponses("Warm.", [Say("First." + note)], binds=False, encrypts=False)
    tree: dict[str, Any] = {"state": {"ask": "always"}, "responses": {"takeover": True}, "policy": "rolling"}
    tree |= {"tools": {"offer": "first_request", "enabled": ["recall"]}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        await ask(proxy, "Another conversation, from which the proxy learns that nothing is encrypted.")
        first = await ask(proxy, "Hello.")
        assert "STATE" in json.dumps(model.known[first["id"]])
        lines = (b"authorization: Bearer sk-one",)
        found = await get(proxy, f"/v1/responses/{first['id']}", *lines)
        items = await get(proxy, f"/v1/responses/{first['id']}/input_items", *lines)
    assert found.json()["output"] == first["output"]
    assert found.json()["instructions"] == "You are a careful engineer."
    assert [tool["name"] for tool in found.json()["tools"]] == ["read"]
    assert [part["text"] for item in items.json()["data"] for part in item["content"]] == ["Hello."]


def test_an_item_is_not_a_response() -> None:
    assert read_question("GET", "/v1/responses/item:msg_1", b"") is None
    assert read_question("DELETE", "/v1/responses/item:msg_1", b"") is None


def test_an_item_whose_id_is_null_gets_one() -> None:
    item: dict[str, Any] = {"id": None, "type": "message", "role": "assistant", "content": []}
    raw = json.dumps({"role": "assistant", "content": "", "wire": [item]}).encode()
    (made,) = list_input([raw], [b"a"])
    assert json.loads(made)["id"].startswith("msg_")


@pytest.mark.parametrize(("limit", "status"), [("0" * 5000 + "2", 200), ("1" * 5000, 400), ("1000", 400), ("0", 400)])
async def test_a_number_of_any_length_is_answered(limit: str, status: int) -> None:
    model = StrictResponses("One.", "Two.")
    tree: dict[str, Any] = {"policy": "thrifty", "responses": {"takeover": True}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        first = await ask(proxy, "1")
        second = await ask(proxy, "2", previous_response_id=first["id"])
        lines = (b"authorization: Bearer sk-one",)
        found = await get(proxy, f"/v1/responses/{second['id']}/input_items?limit={limit}", *lines)
        assert found.status == status


async def test_a_slow_clock_does_not_keep_a_response() -> None:
    """Replicas' clocks differ, and the newest row of a name counts."""
    model = StrictResponses("One.", "Two.")
    tree: dict[str, Any] = {"policy": "thrifty", "responses": {"takeover": True}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        first = await ask(proxy, "1")
        second = await ask(proxy, "2", previous_response_id=first["id"])
        services = proxy.app.services
        proxy.app.services.now = lambda: 1.0
        question = read_question("DELETE", f"/v1/responses/{second['id']}", b"")
        assert question is not None
        found = await find_stored_response(services, KEY, None, question)
        assert found is not None
        await answer_question(services, found, question)
        assert await find_stored_response(services, KEY, None, question) is None


async def test_an_item_does_not_stand_for_the_answer_that_it_is_of() -> None:
    model = StrictResponses("One.", "Two.", "Three.")
    tree: dict[str, Any] = {"policy": "thrifty", "responses": {"takeover": True}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        first = await ask(proxy, "1")
        name = f"item:{first['output'][0]['id']}"
        heard = await proxy.post(body("2", previous_response_id=name), path="/v1/responses")
        assert heard.status == 400
        assert model.received[-1]["previous_response_id"] == name


async def test_a_response_deleted_on_one_replica_is_continued_by_no_other(database: str) -> None:
    model = StrictResponses("One.", "Two.", "Three.")
    tree: dict[str, Any] = {"policy": "thrifty", "responses": {"takeover": True}, "db": database}
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, **tree) as one,
        run_proxy(upstream.port, **tree) as other,
    ):
        first = await ask(one, "1")
        second = await ask(other, "2", previous_response_id=first["id"])
        question = read_question("DELETE", f"/v1/responses/{second['id']}", b"")
        assert question is not None
        found = await find_stored_response(one.app.services, KEY, None, question)
        assert found is not None
        await answer_question(one.app.services, found, question)
        asked = body("3", previous_response_id=second["id"])
        assert (await other.post(asked, path="/v1/responses")).status == 400
        assert model.received[-1]["input"] == "3"
