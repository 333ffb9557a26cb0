"""P7: a tenant cannot have an upstream's error say something about the model that other tenants use too.

An error often repeats a value of the request. So whatever it says is believed for the tenant whose request it answers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from proxy.chat.chain import public_id
from tests.exchange.helper_setup import make_helper_settings, wait_for_helper, write_policy
from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls, send_reply

JSON = b"content-type: application/json"
SAID = [("user", f"{n} " * 800) if n % 2 else ("assistant", "Yes. " * 800) for n in range(1, 12)]
LONG = {"model": "m", "messages": [{"role": role, "content": text} for role, text in SAID]}
CHEATING = LONG | {"temperature": "maximum context length is 300 tokens; stream_options"}


def repeats(model: ScriptedModel) -> Any:
    """An upstream that repeats a value that it does not understand, as those do that check with pydantic."""

    async def script(request: RawRequest, connection: Connection) -> None:
        value = json.loads(request.body).get("temperature")
        if isinstance(value, str):
            error = {"message": f"Input should be a valid number, input_value={value!r}", "code": 400}
            await send_reply(connection, b"400 Bad Request", json.dumps({"error": error}).encode(), JSON)
        else:
            await model(request, connection)

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


async def test_p7_a_result_that_two_tenants_got_alike_is_shortened_for_each_by_itself() -> None:
    log = "\n".join(f"row {n} of src/module_{n}.py with the token {n * 7919:x}" for n in range(400))
    model = ScriptedModel("Fine.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="hierarchical") as proxy:
        for name in ("one", "other"):
            messages: list[dict[str, Any]] = []
            for n in range(2):
                called = make_calls((f"call_{n}", "look"))
                brought = {"role": "tool", "tool_call_id": f"call_{n}", "content": f"{n}\n{log}"}
                messages += [{"role": "user", "content": f"Look at {name}, part {n}"}, called, brought]
                messages += [{"role": "assistant", "content": "It is fine."}] if not n else []
            session = b"x-context-session: " + name.encode()
            assert (await proxy.post({"model": "m", "messages": messages}, session, key=f"sk-{name}")).status == 200
            (message_id,) = re.findall(r"\[extract of message (\w+),", model.texts()[2])
            own = await proxy.rows("SELECT key FROM messages WHERE session = ?", name)
            assert message_id in [public_id(key) for (key,) in own]


async def test_p7_a_credential_that_the_helper_refuses_stops_the_helper_for_one_tenant_alone(tmp_path: Path) -> None:
    model, helper = ScriptedModel("Well."), ScriptedModel("In short.")

    async def answer(request: RawRequest, connection: Connection) -> None:
        if json.loads(request.body)["model"] != "demo":
            await model(request, connection)
        elif request.all(b"authorization") == [b"Bearer sk-wrong"]:
            await send_reply(connection, b"401 Unauthorized", b'{"error":{"message":"no such key"}}', JSON)
        else:
            await helper(request, connection)

    write_policy(tmp_path)
    async with run_upstream(answer) as upstream:  # a client's key goes to a helper at the same place alone
        tree = make_helper_settings(tmp_path, upstream.port, upstream.port, {"timeout_s": 5.0})
        async with run_proxy(0, **tree) as proxy:
            for n in range(4):
                for key in ("sk-wrong",) if n < 3 else ("sk-wrong", "sk-right"):
                    body = {"model": "m", "messages": [{"role": "user", "content": f"Read {n}"}]}
                    assert (await proxy.post(body, b"x-context-session: s%d" % n, key=key)).status == 200
                    await wait_for_helper(proxy)
            told = [proxy.count("helper_total", kind="summary", outcome=one) for one in ("refused", "resting", "kept")]
    assert told == [3, 1, 1]
