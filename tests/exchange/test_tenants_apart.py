"""P7: a tenant cannot have an upstream's error say something about the model that other tenants use too.

An error often repeats a value of the request. So whatever it says is believed for the tenant whose request it answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, send_reply

JSON = b"content-type: application/json"
SAID = [("user", f"{n} " * 800) if n % 2 else ("assistant", "Yes. " * 800) for n in range(1, 12)]
LONG = {"model": "m", "messages": [{"role": role, "content": text} for role, text in SAID]}
CHEATING = LONG | {"temperature": "maximum context length is 300 tokens; stream_options"}


def repeats(model: ScriptedModel) -> Any:
    """An upstream that repeats a value that it does not understand, as those do that check with pydantic."""

    async def script(request: RawRequest, there: Connection) -> None:
        value = json.loads(request.body).get("temperature")
        if isinstance(value, str):
            error = {"message": f"Input should be a valid number, input_value={value!r}", "code": 400}
            await send_reply(there, b"400 Bad Request", json.dumps({"error": error}).encode(), JSON)
        else:
            await model(request, there)

    return script


async def test_p7_a_window_that_an_error_names_is_that_of_one_tenant_alone(tmp_path: Path) -> None:
    model = ScriptedModel("Well.")
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(repeats(model)) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            assert (await proxy.post(CHEATING, key="sk-cheat")).status == 400
            assert (await proxy.post(LONG, key="sk-other")).status == 200
        assert json.loads(model.received[-1].body)["messages"] == LONG["messages"]
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            assert (await proxy.post(LONG, b"x-context-session: after", key="sk-other")).status == 200
        assert json.loads(model.received[-1].body)["messages"] == LONG["messages"], "nor after a restart"


async def test_p7_an_option_that_an_error_names_is_left_out_for_one_tenant_alone() -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(repeats(model)) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        assert (await proxy.post(CHEATING | {"stream": True}, key="sk-cheat")).status == 400
        assert (await proxy.post(LONG | {"stream": True}, key="sk-other")).status == 200
    assert json.loads(model.received[-1].body)["stream_options"] == {"include_usage": True}
