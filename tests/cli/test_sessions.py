from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from proxy.cli.main import app
from proxy.cli.remote import shorten_tenant
from proxy.cli.sessions import TENANT_COLUMN
from proxy.cli.terminal import print_table
from tests.cli.conftest import CommandRunner
from tests.proxy_server import run_proxy_in_thread


def test_sessions_are_listed_used_last_first(shop: CommandRunner) -> None:
    name = shop.fresh()
    assert shop.json("sessions", "list")[0]["session"] == name
    assert [row["session"] for row in shop.json("sessions", "search", name)] == [name]
    assert name in shop.ok("sessions", "list").out
    assert shop.json("sessions", "list", "--days", "0") == []
    assert "no session" in shop.ok("sessions", "search", "nobody is called so").out


def test_the_tenant_of_a_session_is_shown_where_there_are_several(shop: CommandRunner) -> None:
    assert "tenant" not in shop.ok("sessions", "list").out
    assert "tenant" in shop.ok("sessions", "list", key="cp-all-read").out


HASH = "0123456789abcdef" * 2


def test_a_tenant_that_is_a_hash_is_short_on_a_terminal_and_whole_in_a_pipe(
    shop: CommandRunner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [shorten_tenant("acme"), shorten_tenant(HASH)] == ["acme", "01234567…"]
    print_table([{"tenant": HASH}], (TENANT_COLUMN,))
    assert HASH in capsys.readouterr().out
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes stdout for a terminal
    print_table([{"tenant": HASH}], (TENANT_COLUMN,))
    assert HASH not in (shown := capsys.readouterr().out)
    assert "01234567…" in shown


def test_the_beginning_of_a_hash_names_its_tenant(tmp_path: Path) -> None:
    with run_proxy_in_thread("demo", db=str(tmp_path / "a.sqlite3")) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        for name in ("one", "two"):
            headers = {
                "authorization": f"Bearer sk-{name}",
                "x-context-session": name,
                "content-type": "application/json",
            }
            body = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
            assert httpx2.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code == 200
        run = partial(CliRunner().invoke, app, env={"CONTEXT_PROXY_URL": url})
        rows = json.loads(run(["sessions", "list", "--json"]).stdout)
        assert {row["session"] for row in rows} == {"one", "two"}
        for row in rows:
            assert re.fullmatch("[0-9a-f]{32}", row["tenant"])
            for given in (row["tenant"], shorten_tenant(row["tenant"]), row["tenant"][:8]):
                found = json.loads(run(["sessions", "list", "--tenant", given, "--json"]).stdout)
                assert [one["session"] for one in found] == [row["session"]], given
        for command in (["sessions", "list"], ["export", "--out", str(tmp_path / "all.jsonl")]):
            for nobody in ("00000000", "nosuch"):
                ran = run([*command, "--tenant", nobody])
                assert (ran.exit_code, f"no tenant '{nobody}' has a session" in ran.stderr) == (1, True), ran.output
        assert not (tmp_path / "all.jsonl").exists(), "an empty file would be taken for a backup"


def test_a_question_that_nobody_answers_names_the_option(shop: CommandRunner) -> None:
    for words in (("messages", "remove", "talk", "x"), ("memos", "delete", "x"), ("sessions", "delete", "talk")):
        ran = shop.run(*words, given="")
        assert (ran.code, ran.out.strip()) == (2, ""), ran
        assert "--yes" in ran.err
        assert "Aborted" not in ran.err
    assert shop.json("sessions", "show", "talk")["session"] == "talk"


def test_a_session_is_shown_with_its_branches(shop: CommandRunner) -> None:
    found = shop.json("sessions", "show", "talk")
    assert found["session"] == "talk"
    told = shop.ok("sessions", "show", "talk").out
    assert "1 branch\n" in told
    assert found["branches"][0]["branch"] in told
    assert "as the policy says" in told


def test_session_settings_are_set_shown_and_unset(shop: CommandRunner) -> None:
    name = shop.fresh()
    shop.ok("sessions", "settings", name, "--window", "3", "--urgency", "firm", "--policy", "thrifty")
    assert shop.json("sessions", "settings", name) == {"policy": "thrifty", "window": 3, "urgency": "firm"}
    found = shop.json("sessions", "settings", name, "--unset", "window", "--unset", "urgency")
    assert found == {"policy": "thrifty", "window": -1} or found == {"policy": "thrifty"}
    shop.ok("context", "prune", name)
    assert "prune" in shop.ok("sessions", "settings", name).out


@pytest.mark.parametrize("wrong", [("--policy", "nonesuch"), ("--unset", "nonesuch"), ("--window", "-2")])
def test_what_cannot_be_set_is_an_error(shop: CommandRunner, wrong: tuple[str, str]) -> None:
    ran = shop.run("sessions", "settings", "talk", *wrong)
    assert (ran.code, ran.out) == (2, ""), ran
    assert ran.err


def test_a_session_is_deleted_only_after_a_confirmation(shop: CommandRunner) -> None:
    name = shop.fresh()
    assert shop.run("sessions", "delete", name, given="n\n").code == 1
    assert shop.json("sessions", "show", name)["session"] == name
    ran = shop.run("sessions", "delete", name, given="y\n")
    assert ran.code == 0, ran
    assert "nothing of it is left" in ran.out
    assert shop.run("sessions", "show", name).code == 1


@pytest.mark.parametrize("what", ["branches", "requests", "iterations", "summaries"])
def test_what_was_recorded_of_a_session_is_listed(shop: CommandRunner, what: str) -> None:
    found = shop.json("sessions", what, "talk")
    told = shop.ok("sessions", what, "talk").out
    assert isinstance(found, list)
    if what == "requests":
        assert found[0]["exchange"] in told
    if what == "branches":
        assert found[0]["branch"] in told
        assert "newest" in told


LISTS = (
    ("sessions", "list"), ("sessions", "show", "talk"), ("groups", "list", "talk"), ("messages", "list", "talk"),
    ("stats",), ("stats", "talk"),
)  # fmt: skip


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_a_list_fits_a_terminal_and_is_whole_and_plain_in_a_pipe(shop: CommandRunner, words: tuple[str, ...]) -> None:
    # rich takes stdout for a terminal then, without colours
    seen = shop.ok(*words, TTY_COMPATIBLE="1", NO_COLOR="1").out
    assert "─" in seen
    piped = shop.ok(*words).out
    assert not set("─\x1b") & set(piped)
    assert not [line for line in piped.splitlines() if line != line.rstrip()]


def test_what_a_terminal_cuts_is_whole_in_a_pipe(shop: CommandRunner) -> None:
    long = "One long message. " * 20
    name = shop.world.fresh()
    shop.ok("add", name, long)
    assert "…" in shop.ok("notes", "list", name, TTY_COMPATIBLE="1").out
    assert long.strip() in shop.ok("notes", "list", name).out


def test_no_color_takes_the_colours_out_of_a_terminal(shop: CommandRunner) -> None:
    words = ("groups", "list", "talk")
    assert "\x1b[32m" in shop.run(*words, TTY_COMPATIBLE="1", TERM="xterm").out
    plain = shop.run(*words, TTY_COMPATIBLE="1", TERM="xterm", NO_COLOR="1").out
    assert not re.findall(r"\x1b\[[0-9;]*[34]\d[0-9;]*m", plain)


@pytest.mark.parametrize(
    ("words", "list_"),
    [
        (("messages", "show", "talk", "nonesuch"), "messages"),
        (("context", "show", "talk", "--request", "nonesuch"), "requests"),
        (("context", "show", "talk", "--branch", "nonesuch"), "branches"),
        (("notes", "withdraw", "talk", "nonesuch"), "notes"),
        (("groups", "show", "talk", "nonesuch"), "groups"),
    ],
)
def test_an_unknown_id_is_an_error_that_names_the_list_to_look_into(
    shop: CommandRunner, words: tuple[str, ...], list_: str
) -> None:
    ran = shop.run(*words)
    assert (ran.code, ran.err.strip().endswith(f"List its {list_}.")) == (1, True), ran.err
