"""What the proxy costs: processor time a request, beside a minimal FastAPI + httpx pass-through, in one run.

    python tests/benchmarks/overhead.py [--rounds 5] [--requests 200] [--json OUT]

Both stand in front of the same fake upstream, one after the other, in interleaved rounds. Processor time is
read from /proc (user and system, all threads), so that neither the driver's nor the upstream's counts, and the
median over the rounds is told with the ratio in the same run: these machines are shared, absolute times mean little.

`agent`: one conversation that grows by a call and its result with every request, as agents send it. `same`: the same
body again and again, each time a new conversation to the proxy, which stores it whole: the worst case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")
Row = dict[str, float | str]
Message = dict[str, Any]


def conversation(messages: int, size: int, seed: str, answer: Message) -> list[Message]:
    """`messages` messages of an agent with one tool, about `size` bytes as JSON."""
    found: list[Message] = [
        {"role": "system", "content": "You are a careful engineer. " * 4},
        {"role": "user", "content": f"Please find out why the build fails {seed}."},
    ]
    each = max(20, (size - 400) // max(1, (messages - 2) // 2) - 280)
    step = 0
    while len(found) < messages:
        found += turn(step, each, seed, answer)
        step += 1
    return found[:messages] if messages > 2 else found


def turn(step: int, size: int, seed: str, answer: Message) -> list[Message]:
    """The upstream's answer, which calls a tool, and a result of about `size` characters."""
    line = (
        f"src/module_{step}.py:{step}: def handler_{step}{seed}(request, response): return process(request, {step})\n"
    )
    return [
        answer,
        {
            "role": "tool",
            "tool_call_id": answer["tool_calls"][0]["id"],
            "content": (line * (size // len(line) + 1))[:size],
        },
    ]


TOOLS = [
    {
        "type": "function",
        "function": {"name": "run", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}},
    }
]


def bodies(kind: str, size: int, requests: int, seed: str, answer: Message) -> list[bytes]:
    """The bodies of one round."""
    count = 120 if size > 10_000 else 2
    if kind == "same" or count == 2:
        messages = conversation(count, size, seed, answer)
        if count == 2:
            messages[1]["content"] = "x" * max(10, size - 400)
        return [json.dumps({"model": "bench", "messages": messages, "tools": TOOLS}).encode()] * requests
    messages = conversation(count, size, seed, answer)
    made = []
    for step in range(requests):
        made.append(json.dumps({"model": "bench", "messages": messages, "tools": TOOLS}).encode())
        messages = [*messages, *turn(1000 + step, 400, seed, answer)]
    return made


@contextmanager
def server(*arguments: str) -> Iterator[tuple[int, int]]:
    """(pid, port) of a server that prints `port N` once it listens."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)  # our own files
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("port "):
                yield process.pid, int(line.split()[1])
                return
        raise SystemExit(f"{arguments} did not start")
    finally:
        process.terminate()
        process.wait(10)


def cpu(pid: int) -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


HEAD = (
    b"POST %b HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer sk-bench\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)


async def drive(port: int, bodies: list[bytes], path: str = "/v1/chat/completions") -> float:
    """Send the bodies one after the other on one connection; seconds that it took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.perf_counter()
    for body in bodies:
        writer.write(HEAD % (path.encode(), len(body)))
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        lowered = head.lower()
        if b"content-length:" in lowered:
            length = int(lowered.split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        else:
            while size := int((await reader.readline()).strip() or b"0", 16):
                await reader.readexactly(size + 2)
            await reader.readline()
    took = time.perf_counter() - began
    writer.close()
    return took


async def asked(port: int) -> Message:
    """What the fake upstream always answers: histories are made of it, so the proxy finds its own answers there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD % (b"/v1/chat/completions", 2) + b"{}")
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
    writer.close()
    message: Message = json.loads(body)["choices"][0]["message"]
    return message


def measure(
    servers: dict[str, tuple[int, int]], kind: str, size: int, rounds: int, requests: int, answer: Message
) -> list[Row]:
    """Microseconds a request of each server, medians of interleaved rounds."""
    found: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name, (pid, port) in servers.items():
            sent = bodies(kind, size, requests + 1, f"{name[0]}{kind[0]}{number}", answer)
            asyncio.run(drive(port, sent[:1]))  # a conversation's first request is a case of its own: `same`
            before = cpu(pid)
            asyncio.run(drive(port, sent[1:]))
            if number:  # the first round warms up
                found[name].append((cpu(pid) - before) / requests * 1e6)
    base = statistics.median(found["pass-through"])
    return [
        {
            "case": f"{size // 1000} KB, {kind}",
            "server": name,
            "us": round(statistics.median(us)),
            "ratio": round(statistics.median(us) / base, 2),
        }
        for name, us in found.items()
    ]


def main() -> None:
    """Run it all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--json", help="write the rows here")
    args = parser.parse_args()
    rows: list[Row] = []
    own = str(HERE / "servers.py")
    with (
        tempfile.TemporaryDirectory() as folder,
        server(own, "upstream") as (_, up),
        server(own, "bare", str(up)) as bare,
        server(own, "proxy", str(up), f"{folder}/bench.sqlite3") as proxy,
    ):
        answer = asyncio.run(asked(up))
        servers = {"pass-through": bare, "context-proxy": proxy}
        for kind, size in (("same", 1000), ("agent", 200_000), ("same", 200_000)):
            rows += measure(servers, kind, size, args.rounds, args.requests, answer)
    for row in rows:
        print(f"{row['case']:18} {row['server']:14} {row['us']:>7} us  {row['ratio']:.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
