"""What planning costs: processor time of `rewrite` by policy and length of the conversation, caches warm.

    python tests/benchmarks/planning.py [--json OUT] [--plot OUT.svg] [--policy NAME ...]

A conversation of an agent with one tool grows to each length (2,000 characters a message); what is measured is the
next request of it, with every message known, as it comes again and again: the median of 15 runs. The aim is 4 ms for
400 messages of 800 KB, and linear growth to 4,000.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from proxy.chat import key
from proxy.chat.message import Request
from proxy.chat.tokens import Weigh, estimate
from proxy.context.pipeline import rewrite
from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.context.session import Session
from proxy.exchange.reading import MessageCache
from proxy.settings import load
from proxy.web.app import make_policies

LENGTHS = (10, 40, 100, 400, 1000, 4000)
RUNS = 15
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
Row = dict[str, Any]


def history(messages: int) -> list[Row]:
    """An agent that reads a new file with every step."""
    found: list[Row] = [
        {"role": "system", "content": "You are careful."},
        {"role": "user", "content": "Mend the build."},
    ]
    for step in range((messages - 2) // 2):
        call = {"id": f"call_{step:09}", "type": "function"}
        inner = {"name": "read_file", "arguments": json.dumps({"path": f"src/module_{step}.py", "why": "x" * 1700})}
        lines = (f"{n}\tdef handler_{step}_{n}(request): return process_{n}(request)" for n in range(36))
        found.append({"role": "assistant", "content": "Next.", "tool_calls": [{**call, "function": inner}]})
        found.append({"role": "tool", "tool_call_id": call["id"], "content": "\n".join(lines)})
    return found


def measure(policy: Policy, messages: int) -> float:
    """Milliseconds of processor time for one more request of a conversation of that length."""
    cache, weigh, model = MessageCache(1 << 30), Weigh(estimate), Model(window=200_000)
    values, session = history(messages), Session()
    # The request before, whose edits and prompt are remembered, and the one that is measured.
    request, keys, session = _step(cache, values[:-2], session, policy, model, weigh)
    request, keys, session = _step(cache, values, session, policy, model, weigh)
    taken = []
    for _ in range(RUNS):
        began = time.process_time()
        rewrite(request, session, policy, model, 2.0, weigh=weigh, keys=keys)
        taken.append((time.process_time() - began) * 1000)
    return statistics.median(taken)


def _step(
    cache: MessageCache, values: list[Row], session: Session, policy: Policy, model: Model, weigh: Weigh
) -> tuple[Request, list[bytes], Session]:
    request, _ = cache.request(json.dumps({"model": "bench", "messages": values}).encode())
    keys = key.chain("bench", request.messages)
    plan = rewrite(request, session, policy, model, 1.0, weigh=weigh, keys=keys)
    return request, keys, session.after_sending(plan, 1.0)


def plot(rows: list[Row]) -> str:
    """Milliseconds against messages, both logarithmic, a line a policy."""

    names = list(dict.fromkeys(row["policy"] for row in rows))

    def x(messages: int) -> float:
        return 60 + 520 * math.log10(messages / LENGTHS[0]) / math.log10(LENGTHS[-1] / LENGTHS[0])

    def y(ms: float) -> float:
        return 340 - 300 * math.log10(max(ms, 0.01) / 0.01) / 4

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 390" font-family="sans-serif" font-size="12">',
        '<rect width="760" height="390" fill="white"/>',
    ]
    for ms in (0.01, 0.1, 1, 10, 100):
        out.append(f'<line x1="60" x2="580" y1="{y(ms):.0f}" y2="{y(ms):.0f}" stroke="#ddd"/>')
        out.append(f'<text x="52" y="{y(ms) + 4:.0f}" text-anchor="end">{ms:g} ms</text>')
    out += [f'<text x="{x(n):.0f}" y="360" text-anchor="middle">{n:,}</text>' for n in LENGTHS]
    out.append('<text x="320" y="380" text-anchor="middle">messages</text>')
    for n, name in enumerate(names):
        colour = COLOURS[n % len(COLOURS)]
        points = " ".join(f"{x(r['messages']):.1f},{y(r['ms']):.1f}" for r in rows if r["policy"] == name)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="592" y="{60 + 18 * n}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    """Measure, print a table, write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", nargs="*")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    args = parser.parse_args()
    policies = make_policies(load(None, {}))
    names = args.policy or [name for name in policies if policies[name].mode == "rewrite"]
    rows: list[Row] = []
    for name in names:
        rows += [{"policy": name, "messages": n, "ms": round(measure(policies[name], n), 3)} for n in LENGTHS]
        told = "  ".join(f"{r['messages']}: {r['ms']:.2f}" for r in rows if r["policy"] == name)
        print(f"{name:14} ms by messages  {told}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    if args.plot:
        Path(args.plot).write_text(plot(rows))


if __name__ == "__main__":
    main()
