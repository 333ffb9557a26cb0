"""Figures of the house, as docs/development/architecture-and-floors.md has them: `python -m tests.house_figures`.

They are read from the source with ast, but for the files that one request enters: these are traced while a conversation
of 42 messages goes through the application, in its third request.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2

from proxy.settings.load import Settings
from proxy.web.app import create_app
from tests.house import House, no_module_name_occurs_twice, read
from tests.raw_upstream import Connection, RawRequest, run_upstream

ROOT = Path(__file__).parents[1]
MADE = {"Turn": "turn", "Branch": "branch", "View": "view"}
"""The values of a request, and the name that the code gives one."""


def count_fields(house: House, name: str) -> tuple[int, int]:
    """(the fields of a class, those of them that any function assigns after the object was made)"""
    found = (node for each in house.modules.values() for node in ast.walk(each.tree))
    made = next(node for node in found if isinstance(node, ast.ClassDef) and node.name == name)
    fields = {
        node.target.id for node in made.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    frozen = any("frozen=True" in ast.unparse(each) for each in made.decorator_list)
    written = set[str]()
    for module in () if frozen else house.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and node.attr in fields:
                owner = ast.unparse(node.value)
                inside = owner == "self" and node in set(ast.walk(made))
                written |= {node.attr} if inside or owner.rpartition(".")[2] == MADE[name] else set()
    return len(fields), len(written)


def count_ways_back(house: House) -> int:
    """Places from which the client's own request goes out in the place of a plan: those that increment the counter."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "inc"
        and "fallbacks_total" in ast.unparse(node.func)
        for module in house.modules.values()
        for node in ast.walk(module.tree)
    )  # fmt: skip


def count_parameters(house: House) -> int:
    """The parameters of `rewrite`."""
    found = (node for each in house.modules.values() for node in ast.walk(each.tree))
    rewrite = next(node for node in found if isinstance(node, ast.FunctionDef) and node.name == "rewrite")
    return len(rewrite.args.args) + len(rewrite.args.kwonlyargs)


class Trace:
    """The files of the package that are entered, and the number of changes from one file to another, by thread."""

    def __init__(self) -> None:
        self.files = Counter[str]()
        self.switches = 0
        self._last: dict[int, str] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(f"{ROOT}/proxy/"):
            self.files[file] += 1
            self.switches += self._last.get(threading.get_ident()) != file
            self._last[threading.get_ident()] = file


async def answer(_: RawRequest, connection: Connection) -> None:
    message = {"role": "assistant", "content": "answer " + "word " * 40}
    body = json.dumps(
        {
            "id": "x", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101},
        }
    ).encode()  # fmt: skip
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    await connection.send(head + body)


async def trace_request() -> Trace:
    """The third request of a session, with 42 messages. The two before it are not traced."""
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be brief."}]
    for number in range(20):
        messages += [
            {"role": "user", "content": f"question {number} " + "word " * 40},
            {"role": "assistant", "content": "answer " + "word " * 40},
        ]
    messages.append({"role": "user", "content": "last"})
    trace = Trace()
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(run_upstream(answer))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        base = f"http://127.0.0.1:{upstream.port}/v1"
        app = create_app(Settings(db=f"{folder}/db", upstreams={"default": {"base_url": base}}))  # type: ignore[dict-item]
        received, sent = asyncio.Queue[Any](), asyncio.Queue[Any]()
        life = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}}, received.get, sent.put))
        await received.put({"type": "lifespan.startup"})
        assert (await sent.get())["type"] == "lifespan.startup.complete"
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for count in (38, 40, len(messages)):
                if count == len(messages):
                    threading.setprofile(trace)
                    sys.setprofile(trace)
                told = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages[:count]})
                assert told.status_code == 200, told.text
        sys.setprofile(None)
        threading.setprofile(None)
        await received.put({"type": "lifespan.shutdown"})
        await life
    return trace


def main() -> None:
    house, trace = read(ROOT), asyncio.run(trace_request())
    lines = sum(module.lines for module in house.modules.values())
    rows = {
        "files that one plain request enters": len(trace.files),
        "switches from file to file": trace.switches,
        "module names that occur twice, but pairs of a command and its routes": len(no_module_name_occurs_twice(house)),
        "fields of `Turn` / `Branch` / `View`": " / ".join(str(count_fields(house, each)[0]) for each in MADE),
        "of these, written after the object was made": " / ".join(str(count_fields(house, each)[1]) for each in MADE),
        "parameters of `rewrite`": count_parameters(house),
        "places that count a fallback": count_ways_back(house),
        "lines, files in proxy/": f"{lines:,} in {len(house.modules)}",
        "lines of the README": len((ROOT / "README.md").read_text("utf-8").splitlines()),
    }
    print("\n".join(f"{name}: {value}" for name, value in rows.items()))


if __name__ == "__main__":
    main()
