from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from proxy.cli import wrap
from proxy.cli.agents import AGENTS, AgentUpstream
from proxy.context.models import find_model
from proxy.errors import ConfigError, StoreRefused
from proxy.exchange.cost import compute_bill, read_meter
from proxy.settings.load import Settings
from proxy.store.sqlite_files import FileLock
from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, send_reply
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses

AGENT = Path(__file__).with_name("wrapped_agent.py")


def install(folder: Path, agent: str) -> None:
    """A program of the agent's name, which stands for it."""
    program = folder / "bin" / agent
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{sys.executable}\n" + AGENT.read_text())
    program.chmod(0o755)


def surroundings(folder: Path, **more: str) -> dict[str, str]:
    own = ("CONTEXT_", "OPENAI_", "ANTHROPIC_", "CLAUDE_", "GEMINI_", "GOOGLE_")
    mine = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    ours = {"HOME": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}", "XDG_DATA_HOME": str(folder / "data")}
    return {**mine, **ours, **more}


async def run(folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """`context-proxy wrap` as a person runs it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli.main", "wrap", *words, env=surroundings(folder, **environment),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(), 120)
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


def sums_of(store: Path) -> dict[str, Any]:
    """The figures of the store: tokens, and dollars by the meter of each row."""
    models = Settings().load_models()
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT model, tokens_before, tokens_after, meter FROM exchanges").fetchall()
    bills = [compute_bill(find_model(models, model), read_meter(meter)) for model, _, _, meter in rows]
    return {
        "requests": len(rows),
        "before": sum(row[1] for row in rows),
        "after": sum(row[2] for row in rows),
        "paid": sum(bill.paid for bill in bills if bill),
        "without": sum(bill.without_proxy for bill in bills if bill),
    }


@pytest.mark.slow
@pytest.mark.parametrize("agent", sorted(set(AGENTS) - {"claude", "codex", "opencode"}))  # these: tests/clients
async def test_an_agent_runs_behind_a_proxy_of_its_own_and_the_sums_are_the_store_s(tmp_path: Path, agent: str) -> None:
    install(tmp_path, agent)
    models = {"claude": StrictMessages, "codex": StrictResponses, "opencode": StrictResponses, "gemini": StrictGemini}
    model: Any = models.get(agent, ScriptedModel)()
    before = sorted(str(file) for file in tmp_path.rglob("*"))
    async with run_upstream(model) as upstream:
        where = f"http://127.0.0.1:{upstream.port}" + ("" if agent in ("claude", "gemini") else "/v1")
        code, out, err = await run(
            tmp_path, "--policy", "rolling", agent, "--", "--task", "a b",
            ANTHROPIC_BASE_URL=where, OPENAI_BASE_URL=where, COPILOT_PROVIDER_BASE_URL=where, OPENAI_API_KEY="k",
            GOOGLE_GEMINI_BASE_URL=where,
            OPENCODE_CONFIG_CONTENT=json.dumps({"provider": {"openai": {"options": {"baseURL": where}}}}),
        )  # fmt: skip
    assert code == 7, err
    told = json.loads(out)
    assert told["arguments"][-2:] == ["--task", "a b"]
    assert str(upstream.port) not in told["url"], "the agent asked the proxy"
    store = tmp_path / "data/context-proxy/wrap.sqlite3"
    sums = sums_of(store)
    asked = [one for one in model.received if getattr(one, "line", b"POST").startswith(b"POST")]
    assert sums["requests"] == len(asked) == 8
    left_out = sums["before"] - sums["after"]
    assert left_out > 0
    assert f"8 requests; {left_out:,} of {sums['before']:,} prompt tokens were left out" in err
    paid = re.search(r"\$([\d.]+) paid in place of about \$([\d.]+)", err)
    assert paid is not None
    assert float(paid[1]) == pytest.approx(sums["paid"], abs=1e-4)
    assert float(paid[2]) == pytest.approx(sums["without"], abs=1e-4)
    after = sorted(str(file) for file in tmp_path.rglob("*") if "/data" not in str(file))
    assert after == before, "nothing but the store and its log was written"
    assert (store.parent.stat().st_mode & 0o777, store.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.slow
async def test_a_running_proxy_that_is_named_is_used_and_a_model_without_a_price_is_said(tmp_path: Path) -> None:
    install(tmp_path, "aider")
    (tmp_path / "models.toml").write_text('[models."gpt-5"]\n')
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        unpriced = type(proxy.app.services.models[0])("gpt-5")
        proxy.app.services.models_by_name["gpt-5"] = unpriced
        address = f"http://127.0.0.1:{proxy.port}"
        code, out, err = await run(tmp_path, "--proxy", address, "aider")
        assert code == 7, err
        assert json.loads(out)["url"].startswith(address + "/")
        assert "8 requests; 0 of" in err
        assert "Dollars are unknown for 8 of the requests: no price is known for gpt-5." in err
        assert "paid in place of" not in err
        # The variable that pointed the agent there before does the same.
        code, _, err = await run(tmp_path, "aider", "--idle", OPENAI_API_BASE=proxy.url)
        assert (code, "That proxy ran already" in err, "No request of the agent" in err) == (7, True, True), err


@pytest.mark.slow
async def test_the_proxy_ends_with_wrap_however_wrap_ends(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "aider"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$OPENAI_API_BASE"\nexec sleep 60\n')
    program.chmod(0o755)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy.cli.main", "wrap", "--upstream", "demo", "aider", env=surroundings(tmp_path),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert child.stdout is not None
    port = int(re.findall(rb":(\d+)/v1", await asyncio.wait_for(child.stdout.readline(), 60))[0])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    agents = psutil.Process(child.pid).children(recursive=True)
    assert agents
    child.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(child.wait(), 60) == 128 + signal.SIGTERM
    # The proxy is a thread of wrap. Its port is not asked: a test beside this one may have been given it meanwhile.
    _, alive = await asyncio.to_thread(psutil.wait_procs, agents, 60)
    assert not alive


def shell(script: str) -> int:
    return wrap.run_agent(["/bin/sh", "-c", script], dict(os.environ))


def test_the_agent_s_exit_code_is_the_command_s() -> None:
    assert [shell("exit 0"), shell("exit 3"), shell("kill -KILL $$")] == [0, 3, 128 + 9]
    with pytest.raises(ConfigError, match="can be started"):
        wrap.run_agent(["/nonesuch"], {})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_passed_on_to_the_agent_and_the_handlers_are_restored(
    number: signal.Signals, tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    name = number.name.removeprefix("SIG")
    ready = tmp_path / "ready"
    code = shell(f"trap 'exit 42' {name}; touch {ready}; kill -{name} $PPID; sleep 5 & wait")
    assert ready.exists()
    assert code == 42
    assert signal.getsignal(number) == before


async def test_a_proxy_that_is_slow_to_tell_the_sums_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrap, "SETTLE_S", 0.05)

    async def answer(request: RawRequest, there: Connection) -> None:
        await asyncio.sleep(0.3)
        await send_reply(there, b"200 OK", b'{"queued": 0, "open_requests": 0, "requests": 3}')

    async with run_upstream(answer) as slow:
        found = await asyncio.to_thread(wrap.read_savings, f"http://127.0.0.1:{slow.port}", 0.0)
    assert found is not None
    assert found["requests"] == 3


def test_sums_are_printed_in_sentences() -> None:
    found: dict[str, Any] = {
        "requests": 1, "open_requests": 0, "tokens_before": 1000, "tokens_after": 750, "cost": 0.5, "cost_without": 2.0,
        "unpriced": 0, "without_usage": 0, "unpriced_models": [], "more": False,
    }  # fmt: skip
    assert wrap.describe_savings(found) == [
        "1 request; 250 of 1,000 prompt tokens were left out (25%).",
        "$0.5000 paid in place of about $2.00: $1.50 saved.",
    ]
    dearer = found | {"cost": 3.0}
    assert wrap.describe_savings(dearer)[1].endswith("$1.00 more than without the proxy.")
    unknown = found | {"requests": 3, "unpriced": 1, "without_usage": 1, "open_requests": 1, "unpriced_models": ["x"]}
    assert wrap.describe_savings(unknown)[1:] == [
        "Dollars are unknown for 1 of the requests: no price is known for x.",
        "Dollars are unknown for 1 of the requests: the answer reported no usage.",
        "Dollars are unknown for 1 of the requests: the answer has not ended.",
    ]
    assert wrap.describe_savings(found | {"failed": 1})[1:] == [
        "1 of the requests failed, and the agent was told why."
    ], "what has failed has no price"
    marked = wrap.describe_savings(found | {"tokens_after": 1000})
    assert marked[1].endswith("$1.50 saved by the provider's cache."), (
        "nothing was left out, and that is not the reason"
    )
    assert "not known" in wrap.describe_savings(None)[0]
    assert "No request" in wrap.describe_savings(found | {"requests": 0})[0]


def test_a_home_that_cannot_be_written_to_is_reported_with_the_variable(monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nowhere")
    with pytest.raises(StoreRefused, match="/proc/nowhere/context-proxy cannot be used") as refused:
        wrap.make_settings((), None, upstream="demo", policy=None, db=None)
    assert "XDG_DATA_HOME" in refused.value.hint
    with pytest.raises(StoreRefused, match="cannot be used"), wrap.start_proxy(Settings(db=":memory:", port=0)):
        raise AssertionError("it started")


def test_each_agent_that_runs_at_the_same_time_has_a_store_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "a").mkdir()
    first = wrap.find_free_store(tmp_path / "a")
    assert first == wrap.find_free_store(tmp_path / "a") == tmp_path / "a" / "wrap.sqlite3"
    lock = FileLock(first)
    lock.acquire()
    assert wrap.find_free_store(tmp_path / "a").name == "wrap-2.sqlite3"
    monkeypatch.setattr(wrap, "MAX_STORES", 1)
    with pytest.raises(StoreRefused, match="in use"):
        wrap.find_free_store(tmp_path / "a")
    with pytest.raises(StoreRefused, match=f"pid {os.getpid()}"), wrap.start_proxy(Settings(db=str(first), port=0)):
        raise AssertionError("it started")
    lock.release()


@pytest.mark.slow
async def test_a_proxy_that_does_not_start_says_why(tmp_path: Path) -> None:
    install(tmp_path, "aider")
    (tmp_path / "store").mkdir()
    code, out, err = await run(tmp_path, "--db", str(tmp_path / "store"), "aider")
    assert (code, out) == (2, "")
    assert "did not start: " in err
    assert "Is a directory" in err
    assert "Traceback" not in err


def test_the_agent_s_upstream_gives_way_to_the_user_s(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    own = (AgentUpstream("anthropic", "https://a.example", ("claude*",)), AgentUpstream("openai", "https://o.example"))
    made = wrap.make_settings(own, None, upstream="", policy=None, db=None)
    assert [(n, u.base_url, u.models) for n, u in made.active_upstreams.items()] == [
        ("anthropic", "https://a.example", ("claude*",)), ("openai", "https://o.example", ("*",)),
    ]  # fmt: skip
    assert (made.host, made.port, made.db) == ("127.0.0.1", 0, str(tmp_path / "context-proxy" / "wrap.sqlite3"))
    config = tmp_path / "config.toml"
    config.write_text('db = "mine.sqlite3"\n[upstreams.mine]\nbase_url = "https://m.example"\n')
    made = wrap.make_settings(own, config, upstream="", policy="rolling", db=None)
    assert ([u.base_url for u in made.active_upstreams.values()], made.db, made.policy) == (
        ["https://m.example"], "mine.sqlite3", "rolling",
    )  # fmt: skip
    made = wrap.make_settings(own, config, upstream="https://named.example", policy=None, db="x.sqlite3")
    assert ([u.base_url for u in made.active_upstreams.values()], made.db) == (["https://named.example"], "x.sqlite3")
    signed = (AgentUpstream("anthropic", "https://named.example", auth="aws"),)
    made = wrap.make_settings(signed, None, upstream="https://named.example", policy=None, db="x.sqlite3")
    assert [(u.base_url, u.auth) for u in made.active_upstreams.values()] == [("https://named.example", "aws")]
    config.write_text(f'[[keys]]\nname = "a"\nsha256 = "{"0" * 64}"\ntenant = "t"\nplane = "data"\n')
    with pytest.raises(ConfigError, match="this machine alone"):
        wrap.make_settings(own, config, upstream="", policy=None, db=None)


def test_an_address_without_a_proxy_is_refused_when_it_was_named() -> None:
    began = time.monotonic()
    assert wrap.read_overview("http://127.0.0.1:9", named=False) is None
    with pytest.raises(ConfigError, match="a running proxy without keys"):
        wrap.read_overview("http://127.0.0.1:9", named=True)
    assert time.monotonic() - began < 5
