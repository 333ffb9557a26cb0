from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.store.in_memory import InMemoryStore
from proxy.tools.registry import TOOLS
from proxy.tools.run_tool import run_tool_call, truncate_result
from proxy.tools.tool_context import ToolContext
from tests.tools.stored_session import Call, in_memory, make_tool_context, read_error, run_call, store_messages, user


@pytest.fixture
async def context() -> AsyncIterator[ToolContext]:
    async with in_memory() as store:
        await store_messages(store, [user("hi")])
        yield make_tool_context(store)


def count(context: ToolContext, tool: str, outcome: str) -> float:
    return float(context.metrics.tools_total.labels(tool, outcome)._value.get())


@pytest.mark.parametrize(
    "arguments", ["", "  ", "{", "[]", "null", '"x"', "{}", '{"id": 5}', '{"id": "a", "page": "x"}', "\x00"]
)
async def test_arguments_that_cannot_be_used_are_a_result_that_says_so(context: ToolContext, arguments: str) -> None:
    text = read_error(await run_tool_call(Call("recall", arguments), context))
    assert "the arguments of recall cannot be used" in text
    assert "They are: id (string), page (integer, optional)." in text
    assert count(context, "recall", "refused") == 1


async def test_a_number_as_text_and_arguments_that_are_not_known_do_no_harm(context: ToolContext) -> None:
    names = await store_messages(context.store, [user("hi")])
    assert (await run_tool_call(Call("recall", f'{{"id": "{names[0]}", "page": "1", "why": "x"}}'), context)).endswith(
        "\nhi"
    )
    assert count(context, "recall", "done") == 1


@given(st.sampled_from(sorted(TOOLS)), st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_nothing_that_a_model_writes_is_raised(name: str, arguments: str) -> None:
    async def go() -> None:
        async with in_memory() as store:
            text = await run_tool_call(Call(name, arguments), make_tool_context(store, explicit=False))
            assert text

    asyncio.run(go())


async def test_a_tool_that_is_unknown_or_not_offered_is_never_run(context: ToolContext) -> None:
    for name in ("rm", "", "Recall", "__class__"):
        assert "no such tool" in read_error(await run_call(context, name))
    narrow = replace(context, offered_tools=frozenset({"recall"}))
    assert "no such tool" in read_error(await run_call(narrow, "query_db", sql="SELECT 1"))
    assert "copy it exactly" in read_error(await run_call(narrow, "recall", id="aaaaaaaaaa"))


async def test_a_store_that_is_away_is_a_result_that_says_so(context: ToolContext) -> None:
    await context.store.close()
    for name, arguments in (("recall", {"id": "aaaaaaaaaa"}), ("query_db", {"sql": "SELECT 1"}), ("describe_db", {})):
        assert "cannot be read or written" in read_error(await run_call(context, name, **arguments))
        assert count(context, name, "failed") == 1


class Broken(InMemoryStore):
    """Fails as no store should."""

    async def find_message(self, *_: Any) -> Any:
        raise KeyError("a fault of ours, with private text in it")


async def test_a_fault_of_the_proxy_is_a_result_that_gives_nothing_away() -> None:
    context = make_tool_context(Broken())
    text = read_error(await run_call(context, "recall", id="aaaaaaaaaa"))
    assert text == "recall failed. Go on without it."
    assert context.metrics.internal_errors_total.labels("tool")._value.get() == 1


class Slow(InMemoryStore):
    """Takes longer than a tool may."""

    async def find_message(self, *_: Any) -> Any:
        await asyncio.sleep(60)


async def test_a_tool_that_takes_too_long_is_ended() -> None:
    context = make_tool_context(Slow(), tools={"seconds": 0.05})
    assert "took too long" in read_error(await run_call(context, "recall", id="aaaaaaaaaa"))
    assert count(context, "recall", "limited") == 1


async def test_a_cancelled_call_is_not_answered() -> None:
    asking = asyncio.ensure_future(run_call(make_tool_context(Slow()), "recall", id="aaaaaaaaaa"))
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_no_result_is_longer_than_its_limit_or_cannot_be_sent() -> None:
    assert truncate_result("x" * 500, 500) == "x" * 500
    cut = truncate_result("x" * 501, 500)
    assert len(cut) == 500
    assert "501 characters in all" in cut
    assert truncate_result("a\ud800b", 500).encode() == b"a?b"
