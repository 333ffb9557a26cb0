"""One question, one answer, its price: and every way in which none comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.chat.tokens import PER_MESSAGE, estimate_text_tokens
from proxy.context.models import Model
from proxy.helper.helper_client import (
    EmbeddingAnswer,
    HelperAnswer,
    HelperClient,
    HelperEndpoint,
    embed_texts,
    pick_credential_headers,
)
from proxy.upstream.client import UpstreamClient
from tests.raw_upstream import Connection, RawRequest, Script, Upstream, run_upstream
from tests.scripted_model import ScriptedModel, send_reply
from tests.upstream.conftest import make_client

PRICED = Model("mini", input=2.0, output=10.0, w=1.0, r=0.1)
TYPE = b"content-type: application/json"


@asynccontextmanager
async def asker(script: Script, timeout_s: float = 2.0) -> AsyncIterator[tuple[HelperClient, Upstream]]:
    async with run_upstream(script) as upstream, make_client(upstream.port) as client:
        yield (
            HelperClient(HelperEndpoint(client, client.targets[0], timeout_s), "mini", PRICED, max_tokens=100),
            upstream,
        )


def says(status: bytes, body: bytes, *lines: bytes) -> Script:
    async def script(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, status, body, TYPE, *lines)

    return script


async def test_a_question_is_one_user_message_and_its_answer_has_a_price() -> None:
    model = ScriptedModel("A summary.")
    model.usage = {
        "prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050,
        "prompt_tokens_details": {"cached_tokens": 400},
    }  # fmt: skip
    async with asker(model) as (one, _):
        told = await one.ask("What \ud800happened?", [(b"authorization", b"Bearer sk-one")])
    assert (told.outcome, told.text, told.prompt_tokens, told.completion_tokens) == ("answered", "A summary.", 1000, 50)
    assert told.dollars == pytest.approx(((600 + 40) * 2 + 50 * 10) / 1e6)
    assert model.last == {
        "model": "mini",
        "messages": [{"role": "user", "content": "What ?happened?"}],
        "max_tokens": 100,
    }
    (request,) = model.received
    assert request.line == b"POST /v1/chat/completions HTTP/1.1"
    assert request.all(b"authorization") == [b"Bearer sk-one"]
    assert {name.lower() for name, _ in request.headers} == {
        *(b"host", b"content-type", b"accept", b"authorization", b"accept-encoding", b"content-length"),
    }


async def test_tokens_that_are_not_reported_are_estimated() -> None:
    async def silent(_: RawRequest, connection: Connection) -> None:
        body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 390}}]}
        await send_reply(connection, b"200 OK", json.dumps(body).encode(), TYPE)

    async with asker(silent) as (one, _):
        told = await one.ask("y" * 3900, [])
    asked, said = estimate_text_tokens("y" * 3900) + PER_MESSAGE, estimate_text_tokens("x" * 390)
    assert (told.outcome, told.prompt_tokens, told.completion_tokens) == ("answered", asked, said)
    assert told.dollars == pytest.approx((asked * 2 + said * 10) / 1e6)
    assert told.dollars <= one.estimate_max_cost("y" * 3900), "what was reserved is enough"


@pytest.mark.parametrize(
    ("script", "outcome", "paid"),
    [
        (says(b"500 No", b"{}"), "failed", False),
        (says(b"429 Slowly", b"{}"), "refused", False),
        (says(b"302 Away", b"", b"location: /"), "failed", False),
        (says(b"200 OK", b'{"error":{"message":"no","code":"x"}}'), "failed", False),
        (says(b"200 OK", b"no JSON at all"), "garbage", True),
        (says(b"200 OK", b'{"choices":[]}'), "garbage", True),
        (says(b"200 OK", b"[" * 100_000), "garbage", True),
        (says(b"200 OK", b"\x1f\x8b", b"content-encoding: gzip"), "garbage", True),
        (says(b"200 OK", b" " * (5 << 20)), "garbage", True),
        (
            says(b"200 OK", b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"length"}]}'),
            "cut",
            True,
        ),
    ],
)
async def test_whatever_comes_back_is_an_outcome_and_is_asked_once(script: Script, outcome: str, paid: bool) -> None:
    async with asker(script) as (one, upstream):
        told = await one.ask("q", [])
        assert len(upstream.requests) == 1
    assert told.outcome == outcome
    assert bool(told.dollars) is paid


async def test_a_slow_answer_is_given_up_and_taken_for_paid() -> None:
    async def slow(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with asker(slow, timeout_s=0.1) as (one, upstream):
        told = await one.ask("q", [])
        assert await upstream.none_open()
    assert told == HelperAnswer("timeout", dollars=one.estimate_max_cost("q"))


async def test_an_answer_that_drips_is_given_up_as_well() -> None:
    async def drip(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await connection.chunk(b" ")
            await asyncio.sleep(0.02)

    async with asker(drip, timeout_s=0.15) as (one, _):
        assert (await one.ask("q", [])).outcome == "timeout"


async def test_a_broken_answer_and_a_closed_port_are_distinguished() -> None:
    async def breaks(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await connection.reset()

    async with asker(breaks) as (one, _):
        assert (await one.ask("q", [])).outcome == "broken"
    async with make_client(1) as client:
        closed = HelperClient(HelperEndpoint(client, client.targets[0], 2), "mini", PRICED, max_tokens=100)
        assert await closed.ask("q", []) == HelperAnswer("unreachable")


async def test_the_newer_name_of_the_limit_is_learnt_from_one_refusal() -> None:
    async def strict(request: RawRequest, connection: Connection) -> None:
        if "max_tokens" in json.loads(request.body):
            error = b'{"error":{"message":"Unsupported: \'max_tokens\'. Use \'max_completion_tokens\' instead."}}'
            await send_reply(connection, b"400 Bad Request", error, TYPE)
        else:
            await ScriptedModel("Yes.")(request, connection)

    async with asker(strict) as (one, upstream):
        assert [(await one.ask("q", [])).text for _ in range(3)] == ["Yes."] * 3
        assert len(upstream.requests) == 4


async def test_a_server_that_refuses_both_names_is_asked_twice_at_most() -> None:
    async with asker(says(b"400 No", b"max_tokens and max_completion_tokens are unknown")) as (one, upstream):
        assert [(await one.ask("q", [])).outcome for _ in range(2)] == ["refused"] * 2
        assert len(upstream.requests) == 3


def test_only_credentials_are_taken_from_a_client() -> None:
    headers = [(b"Authorization", b"a"), (b"cookie", b"b"), (b"x-api-key", b"c"), (b"x-context-session", b"s")]
    assert pick_credential_headers(headers) == [(b"Authorization", b"a"), (b"x-api-key", b"c")]


async def embedded(client: UpstreamClient, texts: list[str]) -> EmbeddingAnswer:
    return await embed_texts(HelperEndpoint(client, client.targets[0], 2), "small", PRICED, texts, [])


def data(*rows: tuple[int, Any], **more: Any) -> Script:
    body = {"data": [{"index": n, "embedding": vector} for n, vector in rows], **more}
    return says(b"200 OK", json.dumps(body).encode())


async def test_vectors_come_in_the_order_of_their_texts() -> None:
    script = data((1, [0.5, 1]), (0, [0, -1e-3]), usage={"prompt_tokens": 1000, "total_tokens": 1000})
    async with run_upstream(script) as upstream, make_client(upstream.port) as client:
        made = await embedded(client, ["a", "b\ud800"])
        assert upstream.requests[0].line == b"POST /v1/embeddings HTTP/1.1"
        assert json.loads(upstream.requests[0].body) == {"model": "small", "input": ["a", "b?"]}
    assert (made.outcome, made.vectors, made.prompt_tokens) == ("answered", ((0.0, -1e-3), (0.5, 1.0)), 1000)
    assert made.dollars == pytest.approx(0.002)


async def test_a_large_batch_is_read_beside_the_loop() -> None:
    script = data(*((n, [n + 0.123456789] * 400) for n in range(60)))
    async with run_upstream(script) as upstream, make_client(upstream.port) as client:
        made = await embedded(client, ["text"] * 60)
    assert [vector[0] for vector in made.vectors] == [n + 0.123456789 for n in range(60)]
    assert made.prompt_tokens == 60 * estimate_text_tokens("text")


@pytest.mark.parametrize(
    "script",
    [
        data((0, [1.0])),
        data((0, [1.0]), (0, [1.0])),
        data((0, [1.0]), (2, [1.0])),
        data((0, [1.0]), (1, [1.0, 2.0])),
        data((0, []), (1, [])),
        data((0, "AACAPw=="), (1, "AACAPw==")),
        data((0, [1e300]), (1, [1.0])),
        says(b"200 OK", b'{"data":[{"index":0,"embedding":[NaN]},{"index":1,"embedding":[1]}]}'),
        says(b"200 OK", b'{"error":{}}'),
    ],
)
async def test_vectors_that_do_not_fit_their_texts_are_garbage(script: Script) -> None:
    async with run_upstream(script) as upstream, make_client(upstream.port) as client:
        assert await embedded(client, ["a", "b"]) == EmbeddingAnswer("garbage")


async def test_no_vectors_where_the_upstream_has_none() -> None:
    async with (
        run_upstream(says(b"404 Not Found", b"max_completion_tokens")) as upstream,
        make_client(upstream.port) as client,
    ):
        assert await embedded(client, ["a"]) == EmbeddingAnswer("refused")
