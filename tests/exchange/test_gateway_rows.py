from __future__ import annotations

from typing import Any

from proxy.exchange.gateway_rows import choose_row_policy
from tests.exchange.test_compress_rows import compress, grow, result
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


async def test_the_policy_for_rows_adds_no_text_and_offers_no_tool() -> None:
    async with run_proxy("demo") as proxy:
        policies = proxy.app.services.policies
        assert policies["thrifty"].injections
        made = choose_row_policy(proxy.app.services, policies["thrifty"])
        assert (made.name, made.injections, made.tools, made.ask) == ("thrifty", (), (), "never")
        literal = next(one for one in policies.values() if one.literal)
        assert choose_row_policy(proxy.app.services, literal).name == "thrifty"


async def test_a_context_row_that_appears_late_leaves_the_prefix_cached() -> None:
    rows: list[dict[str, Any]] = [result(turn) for turn in range(12)]
    prompt = {"role": "user", "content": "Go on."}
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await grow(proxy, rows)
        await compress(proxy, [prompt, *rows, result(12)])
        ((first, second),) = await proxy.rows(
            "SELECT group_concat(predicted), max(tokens_after) FROM (SELECT predicted, tokens_after FROM exchanges"
            " ORDER BY started_at DESC LIMIT 1)"
        )
    assert int(first) > 0.8 * second, "the user message is between rows that the provider has had"
