from __future__ import annotations

import json

from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, send_reply

HELLO = {"model": "m", "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hello"}]}
JSON = b"content-type: application/json"


async def test_an_upstream_that_refuses_to_be_asked_for_usage_is_asked_once() -> None:
    """Mistral refuses the option with a 422, and tells the usage by itself."""
    model = ScriptedModel("Well.")
    asked: list[bool] = []

    async def script(request: RawRequest, connection: Connection) -> None:
        asked.append(b"stream_options" in request.body)
        if asked[-1]:
            detail = {"type": "extra_forbidden", "loc": ["body", "stream_options", "include_usage"]}
            error = {"object": "error", "message": {"detail": [detail]}, "type": "invalid_request_error"}
            await send_reply(connection, b"422 Unprocessable Entity", json.dumps(error).encode(), JSON)
        else:
            await model(request, connection)

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = [await proxy.post(HELLO | {"stream": True}, b"x-context-session: a") for _ in range(2)]
        wanted = await proxy.post(HELLO | {"stream": True, "stream_options": {"include_usage": True}})
    assert [one.status for one in found] == [200, 200]
    assert [one.header("x-context-fallback") for one in found] == [None, None]
    assert asked == [True, False, False, True, True]
    assert ["### STATE" in request.body.decode() for request in model.received] == [True, True]
    assert wanted.status == 422, "the option is the client's own"
