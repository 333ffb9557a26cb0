"""`wrap`, `doctor` and `replay` with the coding agents themselves, as a person runs them.

Each agent has its own settings, which lead to a scripted upstream, and works through a loop of 25 tool calls. What
`wrap` says at the end is what the store holds. What the agent wrote down of its session is what `replay` reads.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from proxy.replay.read import count_requests, read_conversations
from tests.cli.test_wrap import sums_of
from tests.clients.loops import FINAL, PROMPT, STEPS, Json, find_refusals, make_messages_model, make_responses_model
from tests.clients.node import install, make_environment, make_work, run_client
from tests.clients.test_codex import MODEL as CODEX_MODEL
from tests.clients.test_opencode import MODELS, make_model
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import send_reply
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses

pytestmark = [pytest.mark.clients, pytest.mark.slow]

OPENCODE_MODEL = MODELS["anthropic"]


@dataclass(frozen=True)
class Agent:
    """An agent as its package installs it. configure: writes its settings into home and work for the address of an
    upstream, and returns its variables."""

    name: str
    programs: str
    arguments: tuple[str, ...]
    make_model: Callable[[], StrictMessages | StrictResponses]
    configure: Callable[[Path, Path, str], dict[str, str]]
    recordings: str = ""
    """Its session files below the home folder, where `replay` reads them."""


def make_command(name: str, n: int) -> Json:
    return {name: f"cat file{n % 3}.py"} | ({"description": "Print a file"} if name == "command" else {})


def configure_claude(home: Path, work: Path, base: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": "sk-ant-any", "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }  # fmt: skip


def configure_codex(home: Path, work: Path, base: str) -> dict[str, str]:
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text(f'openai_base_url = "{base}/v1"\n')
    return {"CODEX_API_KEY": "sk-any"}


def configure_opencode(home: Path, work: Path, base: str) -> dict[str, str]:
    model = {"name": "m", "tool_call": True, "limit": {"context": 200_000, "output": 32_000}}
    provider = {"options": {"baseURL": f"{base}/v1", "apiKey": "sk-any"}, "models": {OPENCODE_MODEL: model}}
    config: Json = {
        "model": f"anthropic/{OPENCODE_MODEL}", "small_model": f"anthropic/{OPENCODE_MODEL}", "autoupdate": False,
        "share": "disabled", "permission": {"bash": "allow"}, "provider": {"anthropic": provider},
    }  # fmt: skip
    (work / "opencode.json").write_text(json.dumps(config))
    return dict.fromkeys(
        ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD",
         "OPENCODE_DISABLE_DEFAULT_PLUGINS"), "1",
    )  # fmt: skip


AGENTS = (
    Agent(
        "claude", ".bin", ("-p", PROMPT, "--allowedTools", "Bash", "--model", "claude-opus-5-5"),
        partial(make_messages_model, "Bash", partial(make_command, "command")), configure_claude,
        ".claude/projects/*/*.jsonl",
    ),
    Agent(
        "codex", ".bin", ("exec", "--skip-git-repo-check", "-s", "danger-full-access", "-m", CODEX_MODEL, PROMPT),
        partial(make_responses_model, "exec_command", partial(make_command, "cmd")), configure_codex,
        ".codex/sessions/*/*/*/*.jsonl",
    ),
    Agent(
        "opencode", "opencode-linux-x64/bin", ("run", PROMPT),
        partial(make_model, "anthropic", thinks=True), configure_opencode,
    ),
)  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_the_sums_at_the_end_are_the_store_s_and_the_agent_s_own_record_can_be_replayed(
    agent: Agent, tmp_path: Path
) -> None:
    programs = install() / "node_modules" / agent.programs
    if not (programs / agent.name).exists():
        pytest.skip(f"{agent.name}'s package is for another machine")
    home, work = tmp_path / "home", make_work(tmp_path)
    environment = make_environment(home)
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    ours = (sys.executable, "-m", "proxy.cli.main")
    model = agent.make_model()

    async def answer(request: RawRequest, connection: Connection) -> None:
        if request.line.startswith(b"GET /api/"):  # whether a proxy stands at this address is asked first
            await send_reply(connection, b"404 Not Found", b"{}")
        else:
            await model(request, connection)

    async with run_upstream(answer) as upstream:
        base = f"http://127.0.0.1:{upstream.port}"
        environment |= agent.configure(home, work, base)
        kept = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        out, err = await run_client(
            *ours, "wrap", agent.name, "--", *agent.arguments, folder=work, environment=environment
        )
        looked, _ = await run_client(
            *ours, "doctor", "--upstream", "demo", "--json", folder=work, environment=environment
        )
    assert FINAL in out
    assert find_refusals(model) == []
    sums = sums_of(home / ".local/share/context-proxy/wrap.sqlite3")
    assert sums["requests"] >= STEPS + 1
    left_out = sums["before"] - sums["after"]
    assert left_out > 0
    assert f"{sums['requests']} requests; {left_out:,} of {sums['before']:,} prompt tokens were left out" in err
    paid = re.search(r"\$([\d.]+) paid in place of about \$([\d.]+)", err)
    assert paid is not None, err
    assert [float(paid[1]), float(paid[2])] == pytest.approx([sums["paid"], sums["without"]], abs=5e-3)
    own = [file for file, text in kept.items() if base.encode() in text]
    assert all(base in file.read_text() for file in own), "the agent's settings lead where they led"
    found = {one["about"]: one for one in json.loads(looked)["findings"]}
    assert base in found[agent.name]["text"]
    if agent.name != "claude":  # behind a base URL that is not Anthropic's, Claude Code loses something, which is said
        assert (found[agent.name]["status"], found[agent.name]["remedy"]) == (
            "good",
            f"context-proxy wrap {agent.name}",
        )
    if agent.recordings:
        [file] = home.glob(agent.recordings)
        [recorded] = read_conversations(file)
        assert count_requests([file]) == STEPS + 1
        assert FINAL in recorded.messages[-1].decode()
