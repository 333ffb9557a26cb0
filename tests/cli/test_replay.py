from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest
from typer.testing import CliRunner

from proxy.cli.main import app
from proxy.cli.replay import read_contenders, read_price_pairs
from proxy.context.models import Model
from proxy.context.policy import Policy
from proxy.errors import ConfigError, StoreRefused, StoreUnavailable
from proxy.store.readonly import ReadOnlyStore
from tests.postgres import drop_database, new_store_database
from tests.proxy_server import Agent, run_proxy, run_proxy_in_thread
from tests.raw_upstream import run_upstream
from tests.replay.recorded import assistant, make_line, make_run, user, write_runs
from tests.scripted_model import ScriptedModel
from tests.web.api.conftest import ProxyWithData

COMMAND = [sys.executable, "-m", "proxy.cli.main", "replay"]
POLICIES = {
    "thrifty": Policy("thrifty"),
    "rolling": Policy("rolling", schedule="always"),
    "observe": Policy("observe", mode="observe"),
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_runs(tmp_path / "runs.jsonl", make_run(25), make_run(12, name="b"))


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["replay", *map(str, arguments)], env={"COLUMNS": "120"})
    if isinstance(result.exception, Exception):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_g2_a_file_is_played_under_every_policy_and_under_none(runs: Path) -> None:
    output = invoke(runs, "--jobs", 1)
    assert "2 conversations, 41 requests: runs.jsonl (2)" in output
    for name in ("nothing", "thrifty", "rolling", "bound: results", "Least effective cost at 1.25/0.1"):
        assert name in output
    assert "observe" not in output  # it sends what doing nothing sends


def test_policies_schedules_prices_and_window_are_chosen(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    invoke(
        runs, "--policy", "rolling:all", "--policy", "thrifty", "--policy", "mask-10", "--prices", "1/0.25",
        "--prices", "2/1", "--window", 9000, "--model", "gpt-5", "--json", out, "--jobs", 1,
    )  # fmt: skip
    report = json.loads(out.read_text())
    assert [entry["name"] for entry in report["entries"]] == [
        "nothing", "rolling", "rolling:over_budget", "rolling:when_it_pays", "rolling:append_only", "thrifty", "mask-10"
    ]  # fmt: skip
    assert (report["prices"], report["window"]) == (["1/0.25", "2/1"], 9000)
    assert report["model"].startswith("gpt-5")
    assert set(report["entries"][0]["total"]["cost"]) == {"1/0.25", "2/1"}
    peaks = {entry["name"]: entry["total"]["peak"] for entry in report["entries"]}
    assert peaks["rolling:over_budget"] < peaks["nothing"]


def test_the_picture_is_drawn_and_json_can_go_to_stdout_alone(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    page = tmp_path / "out.html"
    output = invoke(runs, "--policy", "thrifty", "--json", "-", "--plot", out, "--html", page, "--jobs", 1)
    assert "<td>thrifty</td>" in page.read_text()
    assert json.loads(output)["requests"] == 41
    assert ET.fromstring(out.read_text()).tag.endswith("svg")


def test_the_same_input_gives_the_same_report_with_any_number_of_processes(runs: Path) -> None:
    one, two = (invoke(runs, "--policy", "all", "--json", "-", "--jobs", jobs) for jobs in (1, 2))
    assert one == two


def test_state_blocks_are_played_where_that_is_wanted(tmp_path: Path) -> None:
    file = write_runs(tmp_path / "chat.jsonl", [m for n in range(8) for m in (user(f"{n}?"), assistant("so"))])
    written = []
    for more in ([], ["--play-state"]):
        report = json.loads(invoke(file, "--policy", "rolling", "--json", "-", *more))
        assert report["played_state"] is bool(more)
        written.append(report["entries"][1]["total"]["written"])
    assert written[0] == 0 < written[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (make_line(user("a"), assistant("b")) + "\nnot JSON\n", "runs.jsonl:2: line = 'not JSON'"),
        ('{"id": 1, "messages": []}\n', "runs.jsonl:1: messages = '[]'"),
        (make_line(user("a")) + "\n", "nothing could be played"),
    ],
)
def test_what_cannot_be_played_ends_with_code_2_file_and_line(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    done = subprocess.run([*COMMAND, str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"), [("", "FILE = 'stdin' is not usable"), ("hello", "stdin:1: line = 'hello'"), ("[]", "'stdin'")]
)
def test_stdin_is_called_stdin_and_no_temporary_file(text: str, told: str) -> None:
    result = CliRunner().invoke(app, ["replay", "-"], input=text)
    assert told in str(result.exception)
    assert "/context-proxy-" not in str(result.exception)


def test_an_hour_of_cache_pays_where_there_are_pauses(tmp_path: Path) -> None:
    said = make_run(12)
    paid = {}
    for pause in (10, 900):
        file = tmp_path / f"{pause}.jsonl"
        file.write_text(make_line(*said, times=[n * pause for n in range(len(said))]))
        for option in ((), ("--long-cache",)):
            out = tmp_path / "out.json"
            shown = invoke(
                file, "--policy", "thrifty", "--model", "claude-opus-5-5", "--json", out, "--jobs", 1, *option
            )
            report = json.loads(out.read_text())
            assert f"cache cold after {60 if option else 5} min" in " ".join(shown.split())
            assert report["cache_s"] == (3600 if option else 300)
            paid[pause, bool(option)] = report["entries"][0]["total"]["cost"][report["prices"][0]]["paid"]
    assert paid[10, False] < paid[10, True]  # a write costs more
    assert paid[900, True] < 0.5 * paid[900, False]


def test_pings_pay_where_there_are_pauses_and_cost_where_there_are_none(tmp_path: Path) -> None:
    said = make_run(12)
    paid: dict[tuple[int | None, int], dict[str, Any]] = {}
    for pause in (None, 10, 350):
        file = tmp_path / f"{pause}.jsonl"
        times = {} if pause is None else {"times": [n * pause for n in range(len(said))]}
        file.write_text(make_line(*said, **times))
        for pings in (0, 2):
            out = tmp_path / "out.json"
            shown = invoke(
                file, "--policy", "passthrough", "--model", "claude-opus-5-5", "--json", out, "--jobs", 1,
                "--keep-alive-pings", pings,
            )  # fmt: skip
            assert ("up to 2 pings after each answer" in " ".join(shown.split())) == (pings > 0)
            report = json.loads(out.read_text())
            assert report["keep_alive_pings"] == pings
            rows = {one["name"]: one["total"] for one in report["entries"]}
            assert rows["nothing"]["pings"] == 0
            paid[pause, pings] = {**rows["passthrough"], **rows["passthrough"]["cost"][report["prices"][0]]}
    assert paid[None, 2] == paid[None, 0], "without times there are no pauses"
    assert paid[10, 2]["pings"] == 2, "nobody knows that a request is the last one"
    assert paid[10, 0]["paid"] < paid[10, 2]["paid"] < 1.2 * paid[10, 0]["paid"]
    assert paid[350, 2]["pings"] == 2 * paid[350, 2]["requests"] - 2, "the first prompt is too short for a cache"
    assert paid[350, 2]["paid"] < 0.5 * paid[350, 0]["paid"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "FILE is not given; needed: recordings, - for stdin, or --from-store"),
        (["none.jsonl"], "a file that is there"),
        (["FILE", "--policy", "nonesuch"], "one of all, baselines, nothing"),
        (["FILE", "--policy", "thrifty:soon"], "a schedule of always, over_budget, when_it_pays, append_only, all"),
        (["FILE", "--prices", "cheap"], "WRITE/READ such as 1.25/0.1"),
        (["FILE", "--prices", "0.1/1.25"], "READ at most WRITE"),
        (["FILE", "--prices", "nan/nan"], "WRITE/READ"),
        (["FILE", "--model", "gpt-5", "--long-cache"], "a model with two lifetimes"),
        (["FILE", "--json", "/nowhere/out.json"], "a file in a folder that is there"),
        (["FILE", "--html", "/tmp"], "a file in a folder that is there"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_is_played(runs: Path, arguments: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        invoke(*[str(runs) if each == "FILE" else each for each in arguments])
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_report_replaces_a_report_and_never_a_recording(runs: Path, tmp_path: Path) -> None:
    other = write_runs(tmp_path / "other.jsonl", make_run(12, name="c"))
    before = other.read_bytes()
    for option in ("--json", "--plot", "--html"):
        with pytest.raises(ConfigError, match="what is there is no report"):
            invoke("--policy", "thrifty", option, other, runs)
        assert other.read_bytes() == before
        out = tmp_path / f"out{option}"
        out.touch()
        for _ in range(2):
            invoke("--policy", "thrifty", option, out, "--jobs", 1, runs)
        assert out.stat().st_size > 1000


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="there is no database"):
        invoke("--from-store", "--db", tmp_path / "none.sqlite3")
    with pytest.raises(StoreRefused, match="a store in memory is gone"):
        invoke("--from-store", "--db", ":memory:")
    with pytest.raises(StoreRefused, match="PostgreSQL") as raised:
        invoke("--from-store", "--db", "postgresql://me:secret@127.0.0.1:9/db")
    assert "secret" not in str(raised.value)


def test_a_store_in_postgresql_is_played(postgres: str, tmp_path: Path) -> None:
    db, file = asyncio.run(new_store_database(postgres)), tmp_path / "report.json"
    try:
        with run_proxy_in_thread("demo", db=db) as proxy:
            agent = ProxyWithData(proxy)
            first = {"role": "user", "content": "hello"}
            agent.chat("stored", [first, agent.chat("stored", [first]), {"role": "user", "content": "again"}])
            invoke("--from-store", "stored", "--db", db, "--policy", "thrifty", "--jobs", "1", "--json", str(file))
    finally:
        asyncio.run(drop_database(db))
    report = json.loads(file.read_text())
    assert (report["sources"], report["requests"]) == ({db.rpartition("/")[2]: 1}, 2)


def test_a_store_without_conversations_is_named(tmp_path: Path) -> None:
    db = tmp_path / "a.sqlite3"
    with (
        run_proxy_in_thread("demo", db=str(db)),
        pytest.raises(ConfigError, match=f"db = '{db}' is not usable.*nothing"),
    ):
        invoke("--from-store", "--db", db)


def test_a_store_that_breaks_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> list[object]:
        raise StoreUnavailable("a read failed: disk I/O error.")

    monkeypatch.setattr(ReadOnlyStore, "open", broken)
    with pytest.raises(StoreRefused, match="cannot be read to its end: a read failed"):
        invoke("--from-store", "--db", tmp_path / "x.sqlite3")


def test_a_killed_worker_is_reported(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> Iterator[object]:
        yield from ()
        raise BrokenProcessPool

    monkeypatch.setattr("proxy.cli.replay.play_conversations", killed)
    result = CliRunner().invoke(app, ["replay", str(runs)])
    assert result.exit_code == 1
    assert "try a lower --jobs" in result.stderr


@pytest.mark.slow
async def test_what_the_proxy_has_stored_is_played_beside_it(tmp_path: Path, runs: Path) -> None:
    file = tmp_path / "store.sqlite3"
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, db=str(file)) as proxy:
        for name in (b"a", b"b"):
            agent = Agent(proxy, (b"x-context-session: " + name,))
            await agent.say("hello")
            await agent.say("again")
        command = [*COMMAND, "--db", str(file), "--json", "-", "--policy", "thrifty", "--from-store"]
        everything = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        one = json.loads(subprocess.run([*command, "b"], capture_output=True, check=True).stdout)
        both = json.loads(subprocess.run([*command, "b", str(runs)], capture_output=True, check=True).stdout)
    assert (everything["sources"], everything["requests"]) == ({"store.sqlite3": 2}, 4)
    assert (one["sources"], one["requests"]) == ({"store.sqlite3": 1}, 2)
    assert both["sources"] == {"runs.jsonl": 2, "store.sqlite3": 1}


def _hears() -> None:
    """A shell starts what runs in the background deaf to Ctrl-C, and its children inherit that; a terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_it_with_one_line_and_writes_nothing(tmp_path: Path, jobs: str) -> None:
    runs = write_runs(tmp_path / "runs.jsonl", *[make_run(120, name=f"n{n}_") for n in range(12)])
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [*COMMAND, str(runs), "--policy", "all:all", "--jobs", jobs, "--json", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        preexec_fn=_hears,  # noqa: PLW1509  no thread of ours runs while it is started
    )  # fmt: skip
    there = psutil.Process(process.pid)
    # Past its imports, however long they take: it reads the file, which stays open while its conversations are played.
    while str(runs) not in {file.path for file in there.open_files()}:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground hears it
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == "context-proxy: stopped; nothing was written\n"
    assert not out.exists()


def test_without_a_choice_every_policy_that_rewrites_takes_part() -> None:
    assert [c.label for c in read_contenders([], POLICIES)] == ["nothing", "thrifty", "rolling"]


def test_a_schedule_is_named_where_it_is_not_the_policys_own() -> None:
    found = read_contenders(["rolling:when_it_pays", "rolling", "rolling:always", "baselines", "nothing"], POLICIES)
    assert [c.label for c in found] == [
        "nothing", "rolling:when_it_pays", "rolling", "mask-10", "mask-10-by-15", "newest-half", "random-half"
    ]  # fmt: skip
    assert found[1].policy is not None
    assert found[1].policy.schedule == "when_it_pays"
    assert [c.label for c in read_contenders(["observe"], POLICIES)] == ["nothing", "observe"]


def test_policies_decide_by_the_first_pair() -> None:
    own = Model(w=1.25, r=0.05)
    pairs, model = read_price_pairs([], own)
    assert pairs == ((1.25, 0.05), (1.0, 0.5), (1.0, 0.25), (1.0, 0.1))
    assert model == own
    pairs, model = read_price_pairs(["1/0.5", "1.25/0.1", "1/0.5"], own)
    assert pairs == ((1.0, 0.5), (1.25, 0.1))
    assert (model.w, model.r) == (1.0, 0.5)
