"""The servers of a benchmark besides the proxy, each in its own process: a fake upstream, and a bare pass-through.

    python tests/benchmarks/servers.py upstream | bare UPSTREAM_PORT [FILE]

Each prints `port N` once it listens on 127.0.0.1. FILE: the file for the probe of the event loop.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import sniffio
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from tests.benchmarks import upstream_answers
from tests.benchmarks.event_loop_probe import EventLoopProbe

CHAT_PATH = "/v1/chat/completions"
CALL_ID_PREFIX = "call_bench_"
"""The beginning of the ids of calls. A number of 8 digits follows: that of the newest call in the history, plus one."""
CHUNKS = 100
"""Pieces of text in a stream."""
_ASKS_FOR_STREAM = re.compile(rb'"stream": ?true')
_GAP = re.compile(rb'"seed": ?(\d+)')


def make_answer_message(number: int) -> dict[str, Any]:
    """Return the message of an answer, by its number. It calls a tool, as most answers of agents' models do."""
    arguments = '{"command": "sed -n 1,+40p src/module.py"}'
    call = {
        "id": f"{CALL_ID_PREFIX}{number:08}",
        "type": "function",
        "function": {"name": "run", "arguments": arguments},
    }
    return {"role": "assistant", "content": "Let me look at the next file.", "tool_calls": [call]}


def join_stream_text() -> str:
    """Return the whole text of a stream."""
    return "".join(f"word {n} " for n in range(CHUNKS))


def _make_answer(path: str, body: bytes) -> bytes:
    at = body.rfind(CALL_ID_PREFIX.encode())
    number = int(body[at + len(CALL_ID_PREFIX) : at + len(CALL_ID_PREFIX) + 8]) + 1 if at >= 0 else 0
    prompt = len(body) // 4
    if path in upstream_answers.WRITERS:
        return upstream_answers.WRITERS[path](make_answer_message(number), prompt)
    usage = {"prompt_tokens": prompt, "completion_tokens": 30, "total_tokens": prompt + 30}
    usage |= {"prompt_tokens_details": {"cached_tokens": prompt * 9 // 10 // 128 * 128}}  # type: ignore[dict-item]
    choice = {"index": 0, "message": make_answer_message(number), "finish_reason": "tool_calls"}
    known = {"id": "chatcmpl-bench", "object": "chat.completion", "created": 1, "model": "gpt-5-mini"}
    return json.dumps({**known, "choices": [choice], "usage": usage}).encode()


def _format_chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    known = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini"}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**known, "choices": [choice]}).encode() + b"\n\n"


STREAM = [
    _format_chunk({"role": "assistant", "content": ""}),
    *[_format_chunk({"content": f"word {n} "}) for n in range(CHUNKS)],
    _format_chunk({}, "stop"),
    b"data: [DONE]\n\n",
]
STREAMS = {
    CHAT_PATH: STREAM,
    **{path: make([f"word {n} " for n in range(CHUNKS)]) for path, make in upstream_answers.STREAMS.items()},
}


async def serve_upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a body or with a stream of 100 chunks. The request's `seed` is the time until the body or between
    two chunks, in milliseconds."""
    if scope["type"] != "http":
        return
    parts, more = [], True
    while more:
        received = await receive()
        parts.append(received.get("body", b""))
        more = received.get("more_body", False)
    body = b"".join(parts)
    ends = body[:600] + body[-600:]  # gateways write a body again, with its members in another order
    found = _GAP.search(ends)
    gap = int(found[1]) / 1000 if found else 0
    if _ASKS_FOR_STREAM.search(ends):
        await _send_stream(send, STREAMS.get(scope["path"], STREAM), gap)
        return
    if gap:
        await asyncio.sleep(gap)
    answer = _make_answer(scope["path"], body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def _send_stream(send: Any, chunks: Sequence[bytes], gap: float) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await asyncio.sleep(gap)
    await send({"type": "http.response.body", "body": b""})


def create_bare_app(upstream_port: int) -> Any:
    """Return a pass-through of FastAPI and httpx and nothing else, as one would write it in ten minutes."""
    # If sniffio is missing, httpcore tries to import it with every request, which costs a third of the measured time.
    assert sniffio.current_async_library is not None
    app = FastAPI()
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{upstream_port}", timeout=60)

    def add_route(path: str) -> None:
        @app.post(path)
        async def chat(request: Request) -> StreamingResponse:
            headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
            asked = client.build_request("POST", path, content=await request.body(), headers=headers)
            answer = await client.send(asked, stream=True)
            kept = {k: v for k, v in answer.headers.items() if k not in ("transfer-encoding", "connection")}
            return StreamingResponse(answer.aiter_raw(), answer.status_code, kept)

    for path in STREAMS:
        add_route(path)
    return app


class AnnouncingServer(uvicorn.Server):
    """A server that prints its port once it listens."""

    async def startup(self, sockets: Any = None) -> None:
        if len(sys.argv) > 3:
            EventLoopProbe(Path(sys.argv[3])).start()
        await super().startup(sockets)
        print("port", self.servers[0].sockets[0].getsockname()[1], flush=True)


def main() -> None:
    """Run the server that the arguments name."""
    app = serve_upstream if sys.argv[1] == "upstream" else create_bare_app(int(sys.argv[2]))
    given: dict[str, Any] = {"log_level": "warning", "access_log": False, "loop": "uvloop", "http": "httptools"}
    AnnouncingServer(uvicorn.Config(app, host="127.0.0.1", port=0, **given)).run()


if __name__ == "__main__":
    main()
