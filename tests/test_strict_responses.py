"""The strict upstream, driven by openai-python without a proxy: it takes what the SDK sends, and refuses the rest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.dialects.responses.histories import Json, assistant, call, output, reasoning, user
from tests.raw_upstream import run_upstream
from tests.strict_responses import Ask, Piece, Refused, Say, Search, StrictResponses, Think

TOOLS: list[Json] = [{"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}]
STEP: list[Piece] = [
    Think("I look."),
    Say("Looking."),
    Ask("shell", {"command": "ls"}),
    Ask("shell", {"command": "pwd"}),
]


@asynccontextmanager
async def client(upstream: StrictResponses) -> AsyncIterator[openai.AsyncOpenAI]:
    async with run_upstream(upstream) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as made:
            yield made


async def ask(made: openai.AsyncOpenAI, items: list[Json], *, stream: bool, **more: Any) -> Response:
    """The answer to these items, by either way of the SDK."""
    asked: Json = {"model": "gpt-6.2", "input": items, "tools": TOOLS, "store": False} | more
    asked.setdefault("include", ["reasoning.encrypted_content"])
    asked = {name: value for name, value in asked.items() if value is not None}
    responses: Any = made.responses
    found: Response
    if not stream:
        found = await responses.create(**asked)
        return found
    async with responses.stream(**asked) as events:
        async for _ in events:
            pass
        found = await events.get_final_response()
        return found


def list_output(found: Response) -> list[Json]:
    return [one.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for one in found.output]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, None])
async def test_a_tool_loop_of_the_sdk_is_taken_whole(stream: bool, store: bool | None) -> None:
    upstream = StrictResponses(*[STEP] * 4, [Think(), Search(), Say("Done.")])
    items = [user("Do it.")]
    async with client(upstream) as made:
        for _ in range(4):
            found = await ask(made, items, stream=stream, store=store)
            items += _clean(list_output(found))
            items += [
                output(0, "main.py") | {"call_id": one["call_id"]}
                for one in items
                if one.get("type") == "function_call"
            ][-2:]
        found = await ask(made, items, stream=stream, store=store)
    assert found.output_text == "Done."
    assert (upstream.refused, upstream.dropped) == ([], [])
    assert found.usage is not None
    assert found.usage.input_tokens_details.cached_tokens > 0


def _clean(items: list[Json]) -> list[Json]:
    for item in items:
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return items


async def test_reasoning_after_another_prefix_is_left_out_and_reported() -> None:
    upstream = StrictResponses(STEP, [Think("Again."), Say("Mid.")], [Say("End.")])
    items = [user("Do it.")]
    async with client(upstream) as made:
        items += _clean(list_output(await ask(made, items, stream=False)))
        items += [
            output(0, "main.py") | {"call_id": one["call_id"]} for one in items if one.get("type") == "function_call"
        ]
        items += [*_clean(list_output(await ask(made, items, stream=False))), user("Go on.")]
        edited = json.loads(json.dumps(items).replace("main.py", "[a stub]", 1))
        found = await ask(made, edited, stream=False)
        told = found.model_dump()["input_transformations"]
        assert [one["reason"] for one in told] == ["prefix_mismatch"]
        assert [reason for _, reason in upstream.dropped] == ["prefix_mismatch"]
        first = next(one for one in edited if one["type"] == "reasoning")
        edited.remove(first)
        edited = [{k: v for k, v in one.items() if k != "id"} for one in edited]
        upstream.dropped.clear()
        await ask(made, edited, stream=False)
    assert upstream.refused == []
    assert [reason for _, reason in upstream.dropped] == ["prefix_mismatch"]


async def test_a_changed_token_is_refused() -> None:
    upstream = StrictResponses([Think("a"), Say("x")])
    async with client(upstream) as made:
        items = [user(), *_clean(list_output(await ask(made, [user()], stream=False))), user()]
        items[1]["summary"] = []
        with pytest.raises(openai.BadRequestError) as told:
            await ask(made, items, stream=False)
    assert told.value.code == "invalid_encrypted_content"


async def test_a_chain_is_continued_and_an_unknown_one_refused() -> None:
    upstream = StrictResponses("One.", "Two.")
    async with client(upstream) as made:
        first = await ask(made, [user()], stream=False, store=None)
        await ask(made, [user()], stream=False, store=None, previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError) as told:
            await ask(made, [user()], stream=False, previous_response_id="resp_99")
    assert told.value.code == "previous_response_not_found"


KNOWN = [user(), reasoning(), assistant("x"), call(), output()]


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("R1", {"model": None}),
        ("R1", {"input": []}),
        ("R2", {"unknown": 1}),
        ("R2", {"temperature": 1}),
        ("R2", {"stream_options": {}, "stream": False, "input": "x"} | {"stream_options": {"a": 1}}),
        ("R2", {"tool_choice": {"type": "function", "name": "none"}}),
        ("R3", {"input": [{"type": "reasoning", "id": "rs_1"}]}),
        ("R3", {"input": [{"type": "what"}]}),
        ("R4", {"input": [user(), call()]}),
        ("R5", {"input": [user(), output()]}),
        ("R5", {"input": [user(), call(), output() | {"type": "custom_tool_call_output"}]}),
        ("R6", {"input": [user(), reasoning()]}),
        ("R6", {"input": [user(), reasoning(1), reasoning(2), assistant("x")]}),
        ("R8", {"input": [user(), {"type": "item_reference", "id": "msg_9"}, user()], "store": False}),
        ("R8", {"input": [user(), reasoning(1, encrypted_content=None), assistant("x")], "store": False}),
        ("R9", {"input": [user(), reasoning(), assistant("x")]}),
        ("R10", {"previous_response_id": "resp_9"}),
        ("R10", {"previous_response_id": "resp_9", "conversation": "conv_1"}),
        ("R11", {"input": [assistant("x"), user(), assistant("x")]}),
        ("R12", {"input": [user(), call(id="abc"), output()]}),
        ("R13", {"input": [user(), call(call_id="c" * 70), output(call_id="c" * 70)]}),
        ("R14", {"input": [assistant("x", content=[{"type": "input_text", "text": "x"}])]}),
        ("R14", {"input": [user([{"type": "output_text", "text": "x"}])]}),
        ("R15", {"input": [{"type": "compaction_trigger"}, user()]}),
        ("R16", {"input": [user([{"type": "input_text", "text": "x", "prompt_cache_breakpoint": {}}] * 5)]}),
    ],
)
def test_each_rule_is_enforced(rule: str, change: Json) -> None:
    asked: Json = {"model": "gpt-6.2", "input": "x", "tools": TOOLS} | change
    with pytest.raises(Refused) as refused:
        StrictResponses()._judge({k: v for k, v in asked.items() if v is not None})
    assert refused.value.rule == rule
    assert "error" in json.loads(refused.value.body())


async def test_an_item_without_its_reasoning_is_refused_unless_its_id_is_left_out() -> None:
    upstream = StrictResponses([Think(), Ask("shell")], "Done.")
    async with client(upstream) as made:
        found = _clean(list_output(await ask(made, [user()], stream=False)))
        result = output() | {"call_id": found[1]["call_id"]}
        with pytest.raises(openai.BadRequestError, match="without its required 'reasoning' item"):
            await ask(made, [user(), found[1], result], stream=False)
        await ask(made, [user(), {k: v for k, v in found[1].items() if k != "id"}, result], stream=False)
    assert [rule for rule, _ in upstream.refused] == ["R7"]
