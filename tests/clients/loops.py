"""A loop of 25 steps for real clients: the model's side, the tool, and what a run through the proxy must have in common
with a run without it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]

STEPS = 25
POLICIES = ("thrifty", "rolling", "observe")
PROMPT = "Find the fault."
FINAL = "All done: the fault is in file2.py."
LISTING = "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(1, 160))
BOUND = (
    "signature",
    "encrypted_content",
    "reasoningEncryptedContent",
    "id",
    "response_id",
    "created_at",
    "completed_at",
    "usage",
)
"""Members that depend on the prompt as it was sent, and on the time."""
RESPONSES_TOOL: Json = {
    "type": "function", "name": "read", "description": "Read a file.", "strict": False,
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}  # fmt: skip
"""The tool, as a client of Responses defines it."""


@dataclass
class FileTool:
    """The client's own tool, and the calls of it."""

    read_paths: list[str] = field(default_factory=list)

    def read(self, path: str) -> str:
        """Return the content of a file; each third step reads the same file again."""
        self.read_paths.append(path)
        return f"{LISTING}\n# {path}"


@dataclass
class Run:
    """All that a client has of one run."""

    final: str
    """The text that it returned to its caller."""
    transcript: Any
    """Its own history, as JSON."""
    file_tool: FileTool


StrictModel = StrictMessages | StrictResponses | StrictGemini
"""An upstream that refuses what its provider refuses."""
Client = Callable[[str, bool], Awaitable[Run]]
"""A whole run, from the base URL of an upstream (without `/v1`) and whether the answers are streamed."""


def make_path(n: int) -> Json:
    """The arguments of the call in step n."""
    return {"path": f"file{n % 3}.py"}


def make_messages_model(tool: str = "read", make_arguments: Callable[[int], Json] = make_path) -> StrictMessages:
    """A model of Messages that works for 25 steps."""
    steps: list[list[Json]] = [
        [
            {"type": "thinking", "thinking": f"I look at file {n}."},
            {"type": "text", "text": f"Step {n}."},
            {"type": "tool_use", "id": f"toolu_{n:04}", "name": tool, "input": make_arguments(n)},
        ]
        for n in range(STEPS)
    ]
    return StrictMessages(*steps, [{"type": "text", "text": FINAL}])


def make_responses_model(tool: str = "read", make_arguments: Callable[[int], Json] = make_path) -> StrictResponses:
    """A model of Responses that works for 25 steps."""
    steps: list[list[Any]] = [
        [Think(f"file {n}"), Say(f"Step {n}."), Ask(tool, make_arguments(n))] for n in range(STEPS)
    ]
    return StrictResponses(*steps, [Think(), Say(FINAL)])


def make_gemini_model(tool: str, make_arguments: Callable[[int], Json]) -> StrictGemini:
    """A model of Gemini that works for 25 steps."""
    steps: list[list[Json]] = [
        [
            {"text": f"I look at file {n}.", "thought": True},
            {"text": f"Step {n}."},
            {"functionCall": {"name": tool, "args": make_arguments(n)}},
        ]
        for n in range(STEPS)
    ]
    return StrictGemini(*steps, FINAL)


def find_refusals(model: StrictModel) -> list[Any]:
    """The requests that a strict upstream has refused, and the reasoning that it has dropped."""
    if isinstance(model, StrictGemini):
        return list(model.refusals)
    refused: list[Any] = list(model.refusals if isinstance(model, StrictMessages) else model.refused)
    return [*refused, *model.dropped]


def list_prompts(model: StrictModel) -> list[Any]:
    """The messages or items of each conversation request that a strict upstream was sent."""
    if isinstance(model, StrictMessages):
        return [body["messages"] for body in model.bodies]
    if isinstance(model, StrictGemini):
        return [body["contents"] for body in model.bodies]
    return [body.get("input") for body in model.received]


def drop_bound(value: Any) -> Any:
    """A transcript without the members that differ from run to run."""
    if isinstance(value, list):
        return [drop_bound(one) for one in value]
    if isinstance(value, dict):
        return {name: drop_bound(one) for name, one in value.items() if name not in BOUND}
    return value


async def check_client(
    client: Client,
    make_model: Callable[[], StrictModel],
    policy: str | Sequence[str],
    folder: Path,
    *,
    stream: bool,
    is_managed: bool = True,
    is_repeatable: bool = True,
    **more: Json,
) -> None:
    """Run a client without the proxy, and with it under each policy. more: further settings of the proxy.

    is_managed: False if the provider holds the history, so that the proxy only passes it on. is_repeatable: False if
    two runs of the client without the proxy differ in their prompts, by random names and times.
    """
    model = make_model()
    async with run_upstream(model) as upstream:
        direct = await client(f"http://127.0.0.1:{upstream.port}", stream)
    assert find_refusals(model) == [], "the client alone breaks no rule"
    assert direct.final == FINAL
    assert direct.file_tool.read_paths == [f"file{n % 3}.py" for n in range(STEPS)]
    plain = list_prompts(model)
    for one in [policy] if isinstance(policy, str) else policy:
        model = make_model()
        tree: Json = {"policy": one, "db": str(folder / f"{one}.sqlite3"), **more}
        async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
            managed = await client(f"http://127.0.0.1:{proxy.port}", stream)
            outcomes = await proxy.outcomes()
            sessions = await proxy.rows("SELECT count(DISTINCT session) FROM branches")
        assert find_refusals(model) == []
        assert managed.final == direct.final
        assert managed.file_tool.read_paths == direct.file_tool.read_paths
        assert drop_bound(managed.transcript) == drop_bound(direct.transcript)
        assert "x-context" not in json.dumps(managed.transcript, default=str)
        before, after = (sum(map(len, map(json.dumps, prompts))) for prompts in (plain, list_prompts(model)))
        name = getattr(client, "__name__", type(client).__name__)
        print(f"{name} | {one} | stream={stream} | {before} | {after} | saved {1 - after / before:.0%}")
        if one == "observe" and not is_repeatable:
            assert 0.95 < after / before < 1.05
        elif one == "observe" or not is_managed:
            assert drop_bound(list_prompts(model)) == drop_bound(plain)
        else:
            assert after < before, "something is saved"
        if is_managed:
            assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
            assert sessions == [(1,)], "one conversation is one session"
