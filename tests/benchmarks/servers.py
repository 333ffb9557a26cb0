"""The servers of the benchmarks, each a process of its own: a fake upstream, a bare pass-through, the proxy.

    servers.py upstream | bare UPSTREAM_PORT | proxy UPSTREAM_PORT DB

Each prints `port N` once it listens on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from proxy.settings import load
from proxy.web.app import create_app

CALL_ID = "call_benchmark_0001"
MESSAGE = {
    "role": "assistant",
    "content": "Let me look at the next file.",
    "tool_calls": [
        {
            "id": CALL_ID,
            "type": "function",
            "function": {"name": "run", "arguments": '{"command": "sed -n 1,+40p src/module.py"}'},
        }
    ],
}
"""What the upstream answers, always."""
ANSWER = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
).encode()
CHUNKS = 100


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    body = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
    return (
        b"data: "
        + json.dumps({**body, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()
        + b"\n\n"
    )


STREAM = [
    _chunk({"role": "assistant", "content": ""}),
    *[_chunk({"content": f"word {n} "}) for n in range(CHUNKS)],
    _chunk({}, "stop"),
    b"data: [DONE]\n\n",
]


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, with a body or with a stream of 100 chunks."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if b'"stream": true' in body[-400:]:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for chunk in STREAM:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})
        return
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def bare(upstream_port: int) -> Any:
    """FastAPI and httpx, and nothing else: what one would write in ten minutes."""
    app = FastAPI()
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{upstream_port}", timeout=60)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
        asked = client.build_request("POST", "/v1/chat/completions", content=await request.body(), headers=headers)
        answer = await client.send(asked, stream=True)
        kept = {k: v for k, v in answer.headers.items() if k not in ("transfer-encoding", "connection")}
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept)

    return app


def proxy(upstream_port: int, db: str) -> Any:
    """The proxy with everything on: the default policy, SQLite with full durability, metrics and logs."""
    return create_app(load(None, {"upstream": f"http://127.0.0.1:{upstream_port}/v1", "db": db}))


class Telling(uvicorn.Server):
    """Prints its port once it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print("port", self.servers[0].sockets[0].getsockname()[1], flush=True)


def main() -> None:
    """Serve what the arguments name."""
    kind = sys.argv[1]
    app = (
        upstream
        if kind == "upstream"
        else bare(int(sys.argv[2]))
        if kind == "bare"
        else proxy(int(sys.argv[2]), sys.argv[3])
    )
    loop = "uvloop" if kind != "bare" else "auto"
    Telling(
        uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="warning", access_log=False, loop=loop, http="httptools"
        )
    ).run()


if __name__ == "__main__":
    main()
