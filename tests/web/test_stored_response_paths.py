"""Responses whose chain was taken over, as a client asks for them by their ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.exchange.test_chains import body
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
TAKES: Json = {"policy": "thrifty", "responses": {"takeover": True}}


@asynccontextmanager
async def client_of(proxy: RunningProxy, key: str = "sk-one") -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=proxy.url, api_key=key, max_retries=0) as client:
        yield client


async def make_chain(client: Any) -> tuple[Any, Any]:
    """Two responses: the provider knows the first alone."""
    first = await client.responses.create(**body("Find the fault."))
    call = next(item for item in first.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "its text"}
    return first, await client.responses.create(**body([result], previous_response_id=first.id))


def make_model() -> StrictResponses:
    return StrictResponses([Think("Hm."), Say("I look."), Ask("read", {"path": "a.py"})], [Think(), Say("Done.")])


async def test_a_response_that_only_the_proxy_has_is_the_one_that_was_given(tmp_path: Path) -> None:
    model = make_model()
    tree = {**TAKES, "db": str(tmp_path / "a")}
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **tree) as proxy, client_of(proxy) as client:
            first, second = await make_chain(client)
            assert second.id not in model.known
            found = await client.responses.retrieve(second.id)
            assert found.output == second.output
            for name in ("id", "object", "status", "model", "instructions", "store", "error", "parallel_tool_calls"):
                assert getattr(found, name) == getattr(second, name), name
            assert found.output_text == "Done."
            assert (found.usage.input_tokens, found.usage.output_tokens) == (
                second.usage.input_tokens, second.usage.output_tokens,
            )  # fmt: skip
            assert [tool.name for tool in found.tools] == ["read"]
            assert found.output[0].encrypted_content is None
            shown = await client.responses.retrieve(second.id, include=["reasoning.encrypted_content"])
            assert shown.output[0].encrypted_content
            assert proxy.count("requests_total", route="stored", status="200") == 2
            heard = await proxy.post(b"", path=f"/v1/responses/{first.id}/cancel")
            assert heard.error["message"] == "Cannot cancel a synchronous response.", "the provider's own answer"
            assert heard.header("x-context-chain") is None
        async with run_proxy(upstream.port, **tree) as proxy, client_of(proxy) as client:
            again = await client.responses.retrieve(second.id)
            assert again == found, "another process says the same"


async def test_the_input_of_a_response_is_listed_in_pages_with_ids_that_last() -> None:
    async with (
        run_upstream(make_model()) as upstream,
        run_proxy(upstream.port, **TAKES) as proxy,
        client_of(proxy) as client,
    ):
        _, second = await make_chain(client)
        listed: list[Any] = [one async for one in client.responses.input_items.list(second.id, order="asc")]
        assert [one.type for one in listed] == [
            "message", "reasoning", "message", "function_call", "function_call_output",
        ]  # fmt: skip
        assert listed[0].content[0].text == "Find the fault."
        assert listed[4].output == "its text"
        names = [one.id for one in listed]
        assert [name.split("_")[0] for name in names] == ["msg", "rs", "msg", "fc", "fco"]
        paged = [one.id async for one in client.responses.input_items.list(second.id, limit=2)]
        assert paged == names[::-1], "the newest first, three pages"
        third = await client.responses.create(**body("And?", previous_response_id=second.id))
        later = [one.id async for one in client.responses.input_items.list(third.id, order="asc", limit=100)]
        assert later[:5] == names
        assert later[5:7] == [item.id for item in second.output]
        page = await client.responses.input_items.list(second.id, limit=5)
        assert not page.has_more
        for wrong in ({"limit": 0}, {"limit": 101}, {"after": "msg_none"}, {"order": "up"}):
            with pytest.raises(openai.BadRequestError, match="Invalid '"):
                await client.responses.input_items.list(second.id, **wrong)


async def test_a_deleted_response_is_gone_on_every_replica_and_its_session_stays(tmp_path: Path) -> None:
    model = make_model()
    tree = {**TAKES, "db": str(tmp_path / "a")}
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **tree) as proxy, client_of(proxy) as client:
            first, second = await make_chain(client)
            await client.responses.delete(second.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(second.id)
            with pytest.raises(openai.BadRequestError, match="not found"):
                await client.responses.create(**body("And?", previous_response_id=second.id))
            await client.responses.delete(first.id)
            assert first.id not in model.known, "the provider was told too"
        async with run_proxy(upstream.port, **tree) as proxy, client_of(proxy) as client:
            for name in (first.id, second.id):
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(name)
            assert (await proxy.rows("SELECT count(*) FROM messages"))[0][0] >= 4


async def test_unsupported_questions_are_refused_in_openais_form() -> None:
    async with (
        run_upstream(make_model()) as upstream,
        run_proxy(upstream.port, **TAKES) as proxy,
        client_of(proxy) as client,
        client_of(proxy, "sk-two") as other,
    ):
        _, second = await make_chain(client)
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await client.responses.cancel(second.id)
        with pytest.raises(openai.BadRequestError, match="in the background"):
            await client.responses.retrieve(second.id, stream=True)
        for ask in (other.responses.retrieve, other.responses.delete, other.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await ask(second.id)
        assert (await client.responses.retrieve(second.id)).id == second.id, "another tenant has deleted nothing"
