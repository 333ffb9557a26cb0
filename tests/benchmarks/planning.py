"""What planning costs: processor time of `rewrite` by policy and length of the conversation, caches warm.

    python tests/benchmarks/planning.py [--json OUT] [--plot OUT.svg] [--policy NAME ...]

A conversation of an agent with one tool grows to each length (2,000 characters a message); what is measured is the
next request of it, with every message known, as it comes again and again: the median of 15 runs. The model's window
grows along and is always too small, so that every policy has to act. The aim is 4 ms for 400 messages of 800 KB, and
linear growth to 4,000.
"""

from __future__ import annotations

import argparse
import json
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
from proxy.replay.plot import STYLE, Axis
from proxy.settings import load
from proxy.web.app import make_policies

LENGTHS = (10, 40, 100, 400, 1000, 4000)
RUNS = 15
AIM = 4
WINDOW = 250
"""Tokens a message that the model has room for; one has 380."""
TITLE = "What planning costs: processor time by policy and length of the conversation"
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
    cache, weigh, model = MessageCache(1 << 30), Weigh(estimate), Model(window=messages * WINDOW)
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
    """Milliseconds against messages, both by ratio: a line a policy; its slope is 1 where it grows as they do."""
    names = list(dict.fromkeys(row["policy"] for row in rows))
    x = Axis(LENGTHS[0], LENGTHS[-1], 64, 584, LENGTHS, log=True)
    y = Axis(0.01, 100, 344, 44, (0.01, 0.1, 1, 10, 100), log=True)
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 400" width="760" height="400" role="img">',
        f"<title>{TITLE}</title><style>{STYLE}</style>",
        '<rect class="bg" width="760" height="400"/>',
        f'<text class="title" x="16" y="26">{TITLE}</text>',
    ]
    for ms in y.ticks:
        out.append(f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{y.at(ms):.0f}" y2="{y.at(ms):.0f}"/>')
        out.append(f'<text class="soft" x="56" y="{y.at(ms) + 4:.0f}" text-anchor="end">{ms:g} ms</text>')
    out += [f'<text class="soft" x="{x.at(n):.0f}" y="364" text-anchor="middle">{n:,}</text>' for n in x.ticks]
    out.append('<text x="324" y="386" text-anchor="middle">messages of 2,000 characters</text>')
    aim = f"{x.at(400) - 5:.1f} {y.at(AIM) - 5:.1f}"
    out.append(f'<path class="bound" d="M{aim}h10v10h-10z"><title>the aim: {AIM} ms for 400</title></path>')
    for n, name in enumerate(names):
        colour = COLOURS[n % len(COLOURS)]
        points = " ".join(f"{x.at(r['messages']):.1f},{y.at(r['ms']):.1f}" for r in rows if r["policy"] == name)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="596" y="{60 + 18 * n}" style="fill: {colour}">{escape(name)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def table(rows: list[Row]) -> str:
    """A line a policy: milliseconds by messages, and how many times as long ten times as many messages take."""
    head = "".join(f"{n:>9,}" for n in LENGTHS)
    lines = [f"{'ms by messages':16}{head}   4,000 / 400"]
    for name in dict.fromkeys(row["policy"] for row in rows):
        ms = {row["messages"]: row["ms"] for row in rows if row["policy"] == name}
        lines.append(f"{name:16}" + "".join(f"{ms[n]:9.2f}" for n in LENGTHS) + f"{ms[4000] / ms[400]:14.1f}")
    return "\n".join(lines)


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
    print(table(rows))
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    if args.plot:
        Path(args.plot).write_text(plot(rows))


if __name__ == "__main__":
    main()
