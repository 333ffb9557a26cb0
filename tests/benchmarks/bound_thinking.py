"""Let a thinking model work for 70 steps, under each policy and schedule, in each wire format that binds reasoning.

    python tests/benchmarks/bound_thinking.py [--policies thrifty,rolling] [--steps 70] [--keep]

As the providers do, the upstreams refuse or drop reasoning that follows another prompt than the one it was made for.
`--keep` writes the table into docs/concepts/bound-reasoning.md. The exit status is 1 if a request failed, or if
reasoning was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from proxy.context.policy import ScheduleName
from tests.benchmarks.closed_loop import ROOT, list_policies
from tests.dialect_agents import MessagesAgent, ResponsesAgent, ThinkingAgent
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses, Think
from tests.strict_thinking import StrictThinking

PAGE = ROOT / "docs" / "concepts" / "bound-reasoning.md"
BEGIN, END = "<!-- bound-thinking -->", "<!-- /bound-thinking -->"
WIRES = ("messages", "responses", "completions")
STEPS = 70
STEPS_A_PROMPT = 10
"""Calls of the model before it answers a prompt of its user."""
FILES = 7
"""Files that the agent reads again and again."""

Json = dict[str, Any]
Agent = MessagesAgent | ResponsesAgent | ThinkingAgent
Upstream = StrictMessages | StrictResponses


@dataclass(frozen=True)
class Run:
    """The figures of one run."""

    policy: str
    wire: str
    is_stream: bool
    requests: int
    failed: int
    """Requests whose client got an error."""
    refused: int
    """Requests that the upstream refused, even if the client did not notice."""
    dropped: int
    """Pieces of reasoning that the client sent and the model did not get."""
    before: int
    sent: int
    """Tokens of all prompts, as the client sent them and as they went out."""

    @property
    def is_whole(self) -> bool:
        """True if nothing failed and nothing was lost."""
        return not (self.failed or self.refused or self.dropped)


def read_file(n: int) -> str:
    """The content of the file that the n-th step reads. It changes in one line with every third reading."""
    which, version = n % FILES, n // FILES // 3
    lines = [f"def function_{which}_{line}(argument): return argument * {line}" for line in range(120)]
    return "\n".join([f"def changed_{version}(argument): return argument", *lines])


def make_answers(steps: int) -> list[list[Json]]:
    """Return the blocks of a model that thinks before each call, and answers its user after `STEPS_A_PROMPT` calls."""
    made: list[list[Json]] = []
    for n in range(steps):
        path = f"src/part_{n % FILES}.py"
        call = {"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": path}}
        made.append([{"type": "thinking", "thinking": f"I read {path} again: {n}."}, call])
        if n % STEPS_A_PROMPT == STEPS_A_PROMPT - 1:
            said = {"type": "text", "text": f"Done so far: {n}."}
            made.append([{"type": "thinking", "thinking": f"That is enough: {n}."}, said])
    return made


def _make_items(blocks: Sequence[Json]) -> list[Think | Say | Ask]:
    return [
        Think(one["thinking"]) if one["type"] == "thinking"
        else Say(one["text"]) if one["type"] == "text"
        else Ask(one["name"], one["input"])
        for one in blocks
    ]  # fmt: skip


async def run_work(
    policy: str, wire: str, *, is_stream: bool, steps: int = STEPS, named: str | None = None, **tree: Any
) -> Run:
    """Let one agent work through a proxy; return its figures. named: the name of the policy in the result."""
    answers = make_answers(steps)
    model: Upstream
    if wire == "responses":
        model = StrictResponses(*[_make_items(one) for one in answers])
    else:
        model = (StrictMessages if wire == "messages" else StrictThinking)(*answers)
    count = iter(range(steps))

    def read(name: str, arguments: Json) -> str:
        return read_file(next(count))

    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy, **tree) as proxy:
        agent: Agent
        if wire == "responses":
            agent = ResponsesAgent(proxy, read, stream=is_stream)
        else:
            thinking = {"thinking": {"type": "adaptive"}}
            agent = (MessagesAgent if wire == "messages" else ThinkingAgent)(
                proxy, read, stream=is_stream, more=thinking
            )
        failed = 0
        try:
            for n in range(steps // STEPS_A_PROMPT):
                await agent.work(f"Look at part {n}, and mend what is broken.")
        except AssertionError:  # an error that the client saw ends its work
            failed = 1
        counts = [one.header("x-context-tokens") or "0, 0" for one in agent.heard]
    sizes = [tuple(map(int, one.split(","))) for one in counts]
    return Run(
        policy=named or policy,
        wire=wire,
        is_stream=is_stream,
        requests=len(agent.heard),
        failed=failed,
        refused=len(model.refused if isinstance(model, StrictResponses) else model.refusals),
        dropped=_count_dropped(model),
        before=sum(one[0] for one in sizes),
        sent=sum(one[1] for one in sizes),
    )


def _count_dropped(model: Upstream) -> int:
    """Count pieces of reasoning that the upstream left out, or that the last answered prompt did not contain."""
    there: int
    if isinstance(model, StrictResponses):
        there = sum(one.get("type") == "reasoning" for one in model.received[-1]["input"])
        return len(model.dropped) + len(model.received) - 1 - there
    there = json.dumps(model.bodies[-1]["messages"]).count('"signature"')
    return len(model.dropped) + len(model.bodies) - 1 - there


def write_schedules(folder: Path) -> Iterator[str]:
    """Write a copy of `thrifty` with each schedule into a folder of policies. Yield the names of the copies."""
    text = (ROOT / "config" / "policies" / "thrifty.toml").read_text()
    for schedule in get_args(ScheduleName):
        name = f"thrifty-{schedule.replace('_', '-')}"
        changed = text.replace('name = "thrifty"', f'name = "{name}"')
        changed = changed.replace('schedule = "when_it_pays"', f'schedule = "{schedule}"')
        (folder / f"{name}.toml").write_text(changed)
        yield name


def list_bound_policies() -> list[str]:
    """All policies that ship."""
    return [*list_policies(), "observe", "chat"]


def make_table(runs: Sequence[Run]) -> str:
    """One line per policy: the share of tokens saved in each wire format, and the failures in all of them."""
    lines = [
        "| Policy | "
        + " | ".join(f"Saved, {one}" for one in WIRES)
        + " | Requests | Errors | Refused | Reasoning lost |"
    ]
    lines.append("|---" * (len(WIRES) + 5) + "|")
    for policy in dict.fromkeys(run.policy for run in runs):
        found = [run for run in runs if run.policy == policy]
        shares = [_describe_saved([run for run in found if run.wire == wire]) for wire in WIRES]
        counts = [sum(getattr(run, name) for run in found) for name in ("requests", "failed", "refused", "dropped")]
        lines.append(f"| `{policy}` | " + " | ".join([*shares, *map(str, counts)]) + " |")
    return "\n".join(lines)


def _describe_saved(runs: Sequence[Run]) -> str:
    before = sum(run.before for run in runs)
    return f"{1 - sum(run.sent for run in runs) / before:.1%}" if before else ""


def keep_table(table: str, page: Path = PAGE) -> None:
    """Write the table between its markers."""
    front, _, rest = page.read_text().partition(BEGIN)
    _, _, end = rest.partition(END)
    page.write_text(f"{front}{BEGIN}\n\n{table}\n\n{END}{end}")


async def run_all(policies: Sequence[str], wires: Sequence[str], steps: int) -> list[Run]:
    """Run each policy, and `thrifty` with each schedule, in each wire format, with and without streaming."""
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        schedules = list(write_schedules(Path(folder)))
        for policy in [*policies, *(schedules if "thrifty" in policies else ())]:
            for wire in wires:
                for is_stream in (False, True):
                    run = await run_work(policy, wire, is_stream=is_stream, steps=steps, policies_dir=folder)
                    print(json.dumps(asdict(run)), file=sys.stderr, flush=True)
                    runs.append(run)
    return runs


def main() -> int:
    """Run the work; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(list_bound_policies()))
    parser.add_argument("--wires", default=",".join(WIRES))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    policies = list(dict.fromkeys(asked.policies.split(",")))
    runs = asyncio.run(run_all(policies, asked.wires.split(","), asked.steps))
    table = make_table(runs)
    print(table)
    if asked.keep:
        keep_table(table)
    return 0 if all(run.is_whole for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
