"""The servers beside the proxy, each a process of its own: a fake upstream, and a bare pass-through.

    python tests/benchmarks/servers.py upstream | bare UPSTREAM_PORT [FILE]

Each prints `port N` once it listens on 127.0.0.1. FILE: where to tell how long the event loop was held.
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

from tests.benchmarks import answers
from tests.benchmarks.probe import Probe

CHAT_PATH = "/v1/chat/completions"
CALL = "call_bench_"
"""What ids of calls begin with. A number of 8 digits follows, one more than that of the newest call in the history."""
CHUNKS = 100
"""Pieces of text in a stream."""
_ASKED = re.compile(rb'"stream": ?true')
_GAP = re.compile(rb'"seed": ?(\d+)')


def message(number: int) -> dict[str, Any]:
    """What the upstream says as its answer number so many: it calls a tool, as agents' models do nearly always."""
    arguments = '{"command": "sed -n 1,+40p src/module.py"}'
    call = {"id": f"{CALL}{number:08}", "type": "function", "function": {"name": "run", "arguments": arguments}}
    return {"role": "assistant", "content": "Let me look at the next file.", "tool_calls": [call]}


def told() -> str:
    """The text that a stream adds up to."""
    return "".join(f"word {n} " for n in range(CHUNKS))


def _answer(path: str, body: bytes) -> bytes:
    at = body.rfind(CALL.encode())
    number = int(body[at + len(CALL) : at + len(CALL) + 8]) + 1 if at >= 0 else 0
    prompt = len(body) // 4
    if path in answers.WRITERS:
        return answers.WRITERS[path](message(number), prompt)
    usage = {"prompt_tokens": prompt, "completion_tokens": 30, "total_tokens": prompt + 30}
    usage |= {"prompt_tokens_details": {"cached_tokens": prompt * 9 // 10 // 128 * 128}}  # type: ignore[dict-item]
    choice = {"index": 0, "message": message(number), "finish_reason": "tool_calls"}
    known = {"id": "chatcmpl-bench", "object": "chat.completion", "created": 1, "model": "gpt-5-mini"}
    return json.dumps({**known, "choices": [choice], "usage": usage}).encode()


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    known = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-mini"}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**known, "choices": [choice]}).encode() + b"\n\n"


STREAM = [
    _chunk({"role": "assistant", "content": ""}),
    *[_chunk({"content": f"word {n} "}) for n in range(CHUNKS)],
    _chunk({}, "stop"),
    b"data: [DONE]\n\n",
]
STREAMS = {
    CHAT_PATH: STREAM,
    **{path: make([f"word {n} " for n in range(CHUNKS)]) for path, make in answers.STREAMS.items()},
}


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, with a body or a stream of 100 chunks; `seed`: how many milliseconds these are apart."""
    if scope["type"] != "http":
        return
    parts, more = [], True
    while more:
        received = await receive()
        parts.append(received.get("body", b""))
        more = received.get("more_body", False)
    body = b"".join(parts)
    ends = body[:600] + body[-600:]  # gateways write a body anew, in an order of their own
    if _ASKED.search(ends):
        gap = _GAP.search(ends)
        await _stream(send, STREAMS.get(scope["path"], STREAM), int(gap[1]) / 1000 if gap else 0)
        return
    answer = _answer(scope["path"], body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


async def _stream(send: Any, chunks: Sequence[bytes], gap: float) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await asyncio.sleep(gap)
    await send({"type": "http.response.body", "body": b""})


def bare(upstream_port: int) -> Any:
    """FastAPI and httpx, and nothing else: what one would write in ten minutes."""
    # Without it httpcore tries to import it with every request, which costs a third of all that is measured here.
    assert sniffio.current_async_library is not None
    app = FastAPI()
    client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{upstream_port}", timeout=60)

    def pass_on(path: str) -> None:
        @app.post(path)
        async def chat(request: Request) -> StreamingResponse:
            headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
            asked = client.build_request("POST", path, content=await request.body(), headers=headers)
            answer = await client.send(asked, stream=True)
            kept = {k: v for k, v in answer.headers.items() if k not in ("transfer-encoding", "connection")}
            return StreamingResponse(answer.aiter_raw(), answer.status_code, kept)

    for path in STREAMS:
        pass_on(path)
    return app


class Telling(uvicorn.Server):
    """Prints its port once it listens."""

    async def startup(self, sockets: Any = None) -> None:
        if len(sys.argv) > 3:
            Probe(Path(sys.argv[3])).start()
        await super().startup(sockets)
        print("port", self.servers[0].sockets[0].getsockname()[1], flush=True)


def main() -> None:
    """Serve what the arguments name."""
    app = upstream if sys.argv[1] == "upstream" else bare(int(sys.argv[2]))
    given: dict[str, Any] = {"log_level": "warning", "access_log": False, "loop": "uvloop", "http": "httptools"}
    Telling(uvicorn.Config(app, host="127.0.0.1", port=0, **given)).run()


if __name__ == "__main__":
    main()
