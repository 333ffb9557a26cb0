from __future__ import annotations

import asyncio
import csv
import gc
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import exchange_files
from proxy.cli.transfer import open_replacement
from proxy.errors import ConfigError
from proxy.operator.exchange_table import ExchangeLine
from tests.cli.conftest import CommandRunner
from tests.postgres import drop_database, new_store_database
from tests.proxy_server import Agent, RunningProxy, make_settings, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

SESSIONS = ("one", "two", "three")
TREE: dict[str, Any] = {"policy": "thrifty", "experiment": {"control": 0.5}}


@pytest.fixture(params=["sqlite", "postgres"])
async def talked(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[RunningProxy, dict[str, Any]]]:
    """A proxy with some conversations, and the settings that name its store."""
    db = str(tmp_path / "store.sqlite3")
    if request.param == "postgres":
        db = await new_store_database(request.getfixturevalue("postgres"))
    model = ScriptedModel("Well.")
    model.usage = {"prompt_tokens": 1100, "completion_tokens": 30, "total_tokens": 1130}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, db=db, **TREE) as proxy:
        for n, session in enumerate(SESSIONS):
            agent = Agent(proxy, lines=(b"x-session-id: " + session.encode(),), more={"model": "gpt-5"})
            for turn in range(n + 1):
                await agent.say(f"Question {turn}")
        while proxy.app.store.queued:
            await asyncio.sleep(0.005)
        yield proxy, {"db": db, **TREE}
    if request.param == "postgres":
        await drop_database(db)


async def export(tree: dict[str, Any], out: Path, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "is_parquet": False,
        "since": "",
        "until": "2100-01-01",
        "tenant": "",
        "move": lambda _: None,
        **more,
    }

    def run() -> dict[str, Any]:
        with open_replacement(out) as file:
            return exchange_files.export_exchanges(make_settings(1, **tree), file, **options)

    return await asyncio.to_thread(run)


async def stats(proxy: RunningProxy, session: str) -> dict[str, Any]:
    found: dict[str, Any] = (await proxy.get(f"/api/sessions/{session}/stats")).json()
    return found


async def test_the_sums_of_a_csv_file_are_those_of_the_statistics(
    talked: tuple[RunningProxy, dict[str, Any]], tmp_path: Path
) -> None:
    proxy, tree = talked
    done = await export(tree, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert done["exchanges"] == len(lines) == 6
    assert tuple(lines[0]) == ExchangeLine.__struct_fields__
    for session in SESSIONS:
        mine = [line for line in lines if line["session"] == session]
        told = await stats(proxy, session)
        assert len(mine) == told["exchanges"]
        for name, of in (("prompt_tokens", "prompt_tokens"), ("completion_tokens", "completion_tokens")):
            assert sum(int(line[name]) for line in mine) == told[of]
        for name in ("cost", "cost_without"):
            assert sum(float(line[name]) for line in mine) == pytest.approx(told[name])
            assert told[name] > 0
    assert {line["arm"] for line in lines} <= {"control", "managed"}
    assert all(line["started_at"].endswith("Z") for line in lines)


async def test_an_export_continues_where_the_last_one_ended(
    talked: tuple[RunningProxy, dict[str, Any]], tmp_path: Path
) -> None:
    _, tree = talked
    whole = await export(tree, tmp_path / "all.csv")
    lines = (tmp_path / "all.csv").read_text().splitlines()[1:]
    middle = sorted(line.split(",")[4] for line in lines)[3]
    first = await export(tree, tmp_path / "first.csv", until=middle)
    rest = await export(tree, tmp_path / "rest.csv", since=first["until"])
    assert first["exchanges"] in (3, 4), "the middle is rounded to microseconds"
    assert first["exchanges"] + rest["exchanges"] == 6
    both = [line for name in ("first", "rest") for line in (tmp_path / f"{name}.csv").read_text().splitlines()[1:]]
    assert sorted(both) == sorted(lines)
    assert whole["exchanges"] == 6
    young = await export(tree, tmp_path / "young.csv", until="")
    assert young["exchanges"] == 0, "what may not have ended is left to the next export"


async def test_a_parquet_file_has_the_same_lines(
    talked: tuple[RunningProxy, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: see the extra `parquet`")
    proxy, tree = talked
    monkeypatch.setattr(exchange_files, "GROUP_LINES", 2)
    done = await export(tree, tmp_path / "a.parquet", is_parquet=True)
    file = parquet.ParquetFile(tmp_path / "a.parquet")
    assert file.metadata.num_row_groups > 1, "no more lines are in memory than those of a group"
    table = file.read()
    assert done["exchanges"] == table.num_rows == 6
    assert tuple(table.column_names) == ExchangeLine.__struct_fields__
    lines = table.to_pylist()
    await export(tree, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as text:
        plain = list(csv.DictReader(text))
    assert [line["exchange"] for line in lines] == [line["exchange"] for line in plain]
    started = [exchange_files.format_moment(line["started_at"].timestamp()) for line in lines]
    assert started == [line["started_at"] for line in plain]
    for session in SESSIONS:
        told = await stats(proxy, session)
        mine = [line for line in lines if line["session"] == session]
        assert sum(line["cost"] for line in mine) == pytest.approx(told["cost"])
        assert sum(line["prompt_tokens"] for line in mine) == told["prompt_tokens"]


@pytest.mark.parametrize("wrong", [{"since": "yesterday"}, {"db": ":memory:"}])
async def test_what_cannot_be_exported_is_an_error(tmp_path: Path, wrong: dict[str, str]) -> None:
    tree = {"db": str(tmp_path / "none.sqlite3")} | {k: v for k, v in wrong.items() if k == "db"}
    with pytest.raises(Exception, match=r"since|memory"):
        await export(tree, tmp_path / "a.csv", **{k: v for k, v in wrong.items() if k != "db"})
    assert list(tmp_path.iterdir()) == []


async def test_a_parquet_file_that_breaks_off_is_closed_before_its_file(
    talked: tuple[RunningProxy, dict[str, Any]], tmp_path: Path
) -> None:
    """The garbage collector would close it later, and print a traceback after the error: a warning, which fails."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: see the extra `parquet`")
    _, tree = talked

    def interrupt(_: int) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await export(tree, tmp_path / "a.parquet", move=interrupt, is_parquet=True)
    gc.collect()
    assert list(tmp_path.glob("a.parquet*")) == []


def test_times_are_read_in_any_zone() -> None:
    assert exchange_files.parse_moment("1700000000.5", "since") == 1700000000.5
    assert exchange_files.parse_moment("2023-11-14T22:13:20", "since") == 1700000000.0
    assert exchange_files.parse_moment("2023-11-15T00:13:20+02:00", "since") == 1700000000.0
    assert exchange_files.format_moment(1700000000.5) == "2023-11-14T22:13:20.500000Z"
    with pytest.raises(ConfigError, match="--until"):
        exchange_files.parse_moment("soon", "until")
    with pytest.raises(ConfigError, match="--since"):
        exchange_files.parse_moment("1e20", "since")


def test_the_command_names_the_next_beginning(shop: CommandRunner, tmp_path: Path) -> None:
    db = str(shop.world.proxy.app.settings.db)
    done = shop.json("export", "--csv", str(tmp_path / "a.csv"), "--db", db, "--until", "2100-01-01")
    assert done["exchanges"] > 0
    assert done["until"] == "2100-01-01T00:00:00.000000Z"
    following = exchange_files.parse_moment(done["next_since"], "since")
    assert time.time() - exchange_files.SETTLED_S - 60 < following < time.time(), "of the time after, nothing is sure"
    past, future = "2020-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"
    text = shop.ok("export", "--csv", str(tmp_path / "b.csv"), "--db", db, "--until", past).out
    assert " ".join(text.split()).endswith(f"the next export goes on with --since {past}")
    assert shop.json("export", "--csv", str(tmp_path / "b.csv"), "--db", db, "--since", future)["next_since"] == future
    with (tmp_path / "a.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == done["exchanges"]
    ran = shop.run("export", "talk", "--csv", str(tmp_path / "c.csv"), "--db", db)
    assert ran.code == 2
    assert json.dumps("talk")[1:-1] in ran.err


def test_a_table_goes_to_stdout_and_the_next_beginning_to_stderr(shop: CommandRunner) -> None:
    ran = shop.run("export", "--csv", "-", "--db", shop.world.proxy.app.settings.db, "--until", "2100-01-01")
    lines = list(csv.DictReader(ran.out.splitlines()))
    assert ran.err.startswith(f"context-proxy: {len(lines)} exchanges until 2100-01-01T00:00:00")
    assert (ran.code, ran.err.count("--since")) == (0, 1)
    assert not Path("-").exists()


def test_conversations_of_another_store_are_not_taken_from_the_proxy_that_runs(
    shop: CommandRunner, tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path / "conversations.jsonl"))
    for words in (("--db", str(tmp_path / "other.sqlite3")), ("--config", str(tmp_path / "a.toml"))):
        ran = shop.run("export", *out, *words)
        assert (ran.code, ran.out, "serve --db" in ran.err) == (2, "", True)
    assert "secret" not in shop.run("export", *out, "--db", "postgresql://u:secret@db.example/a").err
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_other_kind_of_file_are_refused(shop: CommandRunner, tmp_path: Path) -> None:
    for words in (("--since", "2026-11-23"), ("--csv", str(tmp_path / "a.csv"), "--out", str(tmp_path / "b"))):
        ran = shop.run("export", *words)
        assert (ran.code, ran.out, "--csv or --parquet" in ran.err) == (2, "", True)
    assert list(tmp_path.iterdir()) == []
