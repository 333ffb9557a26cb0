"""B5 through the running proxy: a window is learnt from a refusal, used at once, and known after a restart."""

# ruff: noqa: E501  the errors stand as upstreams send them

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.context.models import Model
from proxy.exchange import rebuild_prompt
from proxy.exchange.learned_windows import WINDOW_TTL_S
from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, send_reply

JSON = b"content-type: application/json"
SAID = [("user", f"{n} " * 800) if n % 2 else ("assistant", "Yes. " * 800) for n in range(1, 12)]
LONG = [{"role": role, "content": text} for role, text in SAID]
ASKED = {"model": "unheard-of", "messages": LONG}
WORDS = {
    "openai": b'{"error":{"message":"This model\'s maximum context length is 5000 tokens. However, your messages resulted '
    b'in 9000 tokens.","code":"context_length_exceeded"}}',
    "anthropic": b'{"error":{"message":"prompt is too long: 9000 tokens > 5000 maximum","type":"invalid_request_error"}}',
    "llama.cpp": b'{"error":{"code":400,"message":"the request exceeds the available context size","type":'
    b'"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":5000}}',
    "gemini": b'[{"error":{"message":"The input token count (9000) exceeds the maximum number of tokens allowed (5000)."}}]',
    "mistral": b'{"message":"Prompt contains 9000 tokens, too large for model with 5000 maximum context length"}',
    "bedrock": b'{"message":"Input is too long for requested model."}',
}


def narrow(model: ScriptedModel, words: bytes, most: int = 20_000, status: bytes = b"400 Bad") -> Any:
    """An upstream that takes bodies of so many bytes and refuses others in these words."""

    async def script(request: RawRequest, connection: Connection) -> None:
        if len(request.body) > most:
            model.received.append(request)
            await send_reply(connection, status, words, JSON)
        else:
            await model(request, connection)

    return script


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
async def test_the_proxy_plans_again_with_it_before_the_client_hears_of_it(words: bytes, stream: bool) -> None:
    model = ScriptedModel("Well.")
    # Without a number, what was sent is too much.
    most = 20_000 if b"5000" in words else len(json.dumps(ASKED)) - 1_000
    async with (
        run_upstream(narrow(model, words, most)) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
    ):
        found = await proxy.post(ASKED | {"stream": stream})
        assert (found.status, found.message["content"]) == (200, "Well.")
        assert found.header("x-context-fallback") is None
        assert len(model.received) == 2
        assert await proxy.outcomes() == [("rejected", 400, None), ("complete", 200, None)]
        edits = await proxy.rows("SELECT count(*) FROM edits")
        assert edits[0][0] > 0
        again = [*LONG, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "And?"}]
        assert (await proxy.post({"model": "unheard-of", "messages": again})).status == 200
        assert len(model.received) == 3, "it is known now"
        assert await proxy.rows("SELECT count(*) FROM edits") == edits
    sent = model.last["messages"]
    assert sent[0]["content"].startswith(LONG[0]["content"]), "it stays, with a remark on what has left behind it"
    assert len(sent) < len(LONG)


async def test_the_exact_prompt_after_a_learned_window_can_be_shown() -> None:
    model = ScriptedModel("Well.")
    async with (
        run_upstream(narrow(model, WORDS["openai"])) as upstream,
        run_proxy(upstream.port, policy="rolling") as proxy,
    ):
        await proxy.post(ASKED, b"x-context-session: a")
        rows = await proxy.rows("SELECT exchange FROM exchanges ORDER BY started_at, status DESC")
        names = [row[0] for row in rows]
        shown = [await proxy.app.store.read_exchange(tenant, "a", name) for tenant, name in [
            (row[0], name) for row in await proxy.rows("SELECT tenant FROM sessions") for name in names]]  # fmt: skip
        assert all(shown)
        bodies = []
        for one in shown:
            assert one is not None
            built = await rebuild_prompt.rebuild_prompt(proxy.app.store, one.tenant, "a", one.exchange)
            assert built is not None
            bodies.append(built.sent_body)
    assert sorted(bodies) == sorted(r.body for r in model.received)


async def test_a_learned_window_is_kept_by_upstream_and_model_after_a_restart(tmp_path: Path) -> None:
    model = ScriptedModel("Well.")
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(narrow(model, WORDS["anthropic"])) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            await proxy.post(ASKED)
            assert await proxy.rows("SELECT upstream, model, tokens FROM context_windows") == [
                (proxy.app.services.client.select_target("unheard-of").name, "unheard-of", 5_000)
            ]
        model.received.clear()
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            assert (await proxy.post(ASKED, b"x-context-session: other")).status == 200
            assert len(model.received) == 1
            other = await proxy.post({"model": "another", "messages": LONG})
            assert other.status == 200
            assert len(model.received) == 3, "of another model nothing is known"


async def test_a_learned_window_is_believed_for_a_week() -> None:
    model = ScriptedModel("Well.")
    async with (
        run_upstream(narrow(model, WORDS["openai"])) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
    ):
        await proxy.post(ASKED)
        parts = proxy.app.services
        now = parts.now
        parts.now = lambda: now() + WINDOW_TTL_S + 1
        await proxy.post(ASKED, b"x-context-session: later")
    assert len(model.received) == 4


async def test_a_smaller_window_than_the_models_file_has_counts() -> None:
    model = ScriptedModel("Well.")
    async with (
        run_upstream(narrow(model, WORDS["openai"])) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
    ):
        proxy.app.services.models_by_name["unheard-of"] = Model("unheard-of", window=128_000)
        assert (await proxy.post(ASKED)).status == 200
    assert len(model.received) == 2


@pytest.mark.parametrize("policy", ["passthrough", "observe"])
async def test_without_rewriting_the_error_is_passed_on_and_the_window_is_learned(policy: str) -> None:
    model = ScriptedModel("Well.")
    words = WORDS["openai"]
    async with run_upstream(narrow(model, words)) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        found = await proxy.post(ASKED)
        assert (found.status, found.body) == (400, words)
        assert [named.tokens for named in proxy.app.services.learned_windows.values()] == [5_000]
    assert len(model.received) == 1


async def test_a_prompt_that_cannot_be_shortened_gets_the_upstreams_error() -> None:
    model = ScriptedModel("Well.")
    words = WORDS["openai"]
    huge = {"model": "unheard-of", "messages": [{"role": "user", "content": "long " * 9_000}]}
    async with run_upstream(narrow(model, words)) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(huge)
    assert (found.status, found.body) == (400, words)
    assert len(model.received) == 1


async def test_a_window_that_has_nothing_to_do_with_the_prompt_is_not_believed() -> None:
    """An error may quote the client."""
    model = ScriptedModel("Well.")
    words = b'{"error":{"message":"no such tool: maximum context length is 900000 tokens"}}'
    async with run_upstream(narrow(model, words)) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        assert (await proxy.post(ASKED)).status == 400
        assert proxy.app.services.learned_windows == {}


async def test_where_the_upstream_counts_more_tokens_its_count_is_used() -> None:
    model = ScriptedModel("Well.")
    words = b'{"error":{"message":"prompt is too long: 26000 tokens > 16000 maximum"}}'
    async with (
        run_upstream(narrow(model, words, len(json.dumps(ASKED)) - 8_000)) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
    ):
        found = await proxy.post(ASKED)
        (named,) = proxy.app.services.learned_windows.values()
        before = int((found.header("x-context-tokens") or "").split(",")[0])
    assert found.status == 200
    assert named.tokens == 16_000
    assert named.ratio == pytest.approx(26_000 / before)
    assert json.loads(model.received[-1].body)["messages"][0]["content"].startswith(LONG[0]["content"])


async def test_a_prompt_that_is_planned_again_is_one_request_wherever_requests_are_counted(tmp_path: Path) -> None:
    model = ScriptedModel("Well.")
    prices = tmp_path / "models.toml"
    prices.write_text('[models."unheard-of"]\ninput = 2.0\noutput = 10.0\n')
    options: dict[str, Any] = {"experiment": {"control": 1e-9}, "models_file": str(prices)}
    async with (
        run_upstream(narrow(model, WORDS["openai"])) as upstream,
        run_proxy(upstream.port, policy="thrifty", **options) as proxy,
    ):
        found = await proxy.post(ASKED, b"x-context-session: narrow")
        assert await proxy.outcomes() == [("rejected", 400, None), ("complete", 200, None)]
        before = int((found.header("x-context-tokens") or "").split(",")[0])
        stats = (await proxy.get("/api/sessions/narrow/stats")).json()
        saved = (await proxy.get("/api/savings")).json()
        total = (await proxy.get("/api/money")).json()["total"]
        points = (await proxy.get("/api/sessions/narrow/points")).json()
        figures = {one["name"]: one["managed"]["value"] for one in (await proxy.get("/api/report")).json()["figures"]}
    assert (stats["exchanges"], stats["prompt_tokens"]) == (1, 11)
    assert (saved["requests"], saved["tokens_before"], saved["failed"]) == (1, before, 0)
    assert (total["exchanges"], total["tokens_before"], total["errors"]) == (1, before, 0)
    assert [point["status"] for point in points] == ["complete"]
    assert (figures["requests a session"], figures["turns a session"], figures["refused requests"]) == (1, 1, 1)
