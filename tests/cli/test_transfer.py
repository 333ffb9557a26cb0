from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import CommandRunner
from tests.contrib.test_std_slop import slop_file
from tests.proxy_server import make_key, run_proxy_in_thread
from tests.web.api.conftest import ProxyWithData


def test_what_is_exported_is_imported_again(shop: CommandRunner, tmp_path: Path) -> None:
    name = shop.fresh()
    file = tmp_path / "talks.jsonl"
    assert shop.json("export", name, "--out", str(file))["conversations"] == 1
    assert "1 conversation written to" in shop.ok("export", name, "--out", str(file)).out
    assert file.stat().st_mode & 0o077 == 0
    assert shop.ok("export", name).out == file.read_text()
    assert "1 was there already" in shop.ok("import", str(file)).out
    talk = json.loads(file.read_text())
    copied = tmp_path / "copy.jsonl"
    copied.write_text(json.dumps({**talk, "session": name + "-copy"}) + "\n")
    found = shop.json("import", str(copied))
    assert (found["conversations"], found["messages"]) == (1, len(talk["messages"]))
    assert [g["title"] for g in shop.groups(name + "-copy")] == [g["title"] for g in shop.groups(name)]


def test_all_of_a_tenant_is_exported_and_of_no_other(shop: CommandRunner) -> None:
    lines = [json.loads(line)["session"] for line in shop.ok("export").out.splitlines()]
    assert "talk" in lines
    assert "theirs" not in lines


def test_a_line_that_cannot_be_read_keeps_no_other_out(shop: CommandRunner, tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    good = [{"session": f"good-{n}", "messages": [{"role": "user", "content": "Hello"}]} for n in (1, 2)]
    file.write_text(f"{json.dumps(good[0])}\n\nno JSON\n{json.dumps(good[1])}\n")
    ran = shop.run("import", str(file))
    assert ran.code == 1
    assert "odd.jsonl:3: " in ran.err
    assert "2 conversations with 2 messages imported, 1 refused" in ran.out
    assert shop.json("sessions", "show", "good-2")
    assert "odd.jsonl:3: this is not a JSON object" in ran.err


def test_a_file_of_another_kind_is_not_told_line_by_line(shop: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no JSON\n" * 30)
    ran = shop.run("import", str(tmp_path / "notes.txt"))
    told = ran.err.splitlines()
    assert (ran.code, len(told)) == (1, 21)
    assert told[-1] == "context-proxy: 10 more were refused; --json lists all of them."
    assert len(json.loads(shop.run("import", str(tmp_path / "notes.txt"), "--json").out)["refused"]) == 30


def test_conversations_without_a_name_have_that_of_their_line(shop: CommandRunner, tmp_path: Path) -> None:
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in ("Nameless", "Another", "Third")]
    file, other = tmp_path / "nameless.jsonl", tmp_path / "other.jsonl"
    file.write_text("\n".join(lines[:2]))
    other.write_text(lines[2])
    first, second = shop.json("import", str(file))["sessions"]
    assert (first[:11], second[:11]) == ("imported-1-", "imported-2-")
    (third,) = shop.json("import", str(other))["sessions"]
    assert third.startswith("imported-1-")
    assert third != first, "the same line of another file is another conversation"
    assert shop.json("import", str(file))["already_there"] == 2


def test_lines_come_from_stdin_too(shop: CommandRunner) -> None:
    line = json.dumps({"session": "piped", "messages": [{"role": "user", "content": "Hello"}]})
    assert shop.json("import", "-", given=line)["sessions"] == ["piped"]


def test_a_database_of_std_slop_comes_in_with_all_that_it_kept(shop: CommandRunner, tmp_path: Path) -> None:
    ran = shop.run("import", str(slop_file(tmp_path)), "--json")
    assert ran.code == 0, ran
    found = ran.json()
    assert (found["conversations"], found["memos"], found["sessions"]) == (2, 2, ["work", "other"])
    statuses = [g["status"] for g in shop.groups("work")]
    assert statuses == ["out", "dropped", "in"] or statuses == ["in", "dropped", "in"]
    assert "Goal: read all" in shop.json("state", "show", "work")["text"]
    assert shop.json("scratchpad", "show", "work")["text"] == "- [ ] read c"
    assert shop.json("sessions", "settings", "work")["window"] == 2
    assert shop.json("memos", "list", "--text", "make 4")[0]["tags"] == ["build"]
    again = shop.run("import", str(tmp_path / "slop.db"), "--json").json()
    assert (again["conversations"], again["already_there"]) == (0, 2)
    assert len(shop.json("memos", "list", "--text", "make 4")) == 1


@pytest.mark.parametrize("words", [("import", "nonesuch.jsonl"), ("export", "talk", "--out", "/nonesuch/a")])
def test_missing_files_are_an_error(shop: CommandRunner, words: tuple[str, ...]) -> None:
    ran = shop.run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "nonesuch" in ran.err


def test_an_export_that_fails_leaves_what_was_there(shop: CommandRunner, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("before")
    assert shop.run("export", "nonesuch", "--out", str(file)).code == 1
    assert [one.name for one in tmp_path.iterdir()] == ["a.jsonl"]
    assert file.read_text() == "before"


def test_s4_what_is_not_a_regular_file_stays_what_it_is(shop: CommandRunner, tmp_path: Path) -> None:
    name = shop.fresh()
    wanted = shop.ok("export", name).out
    fifo, heard = tmp_path / "fifo", list[str]()
    os.mkfifo(fifo)
    reading = threading.Thread(target=lambda: heard.append(fifo.read_text()), daemon=True)
    reading.start()
    shop.json("export", name, "--out", str(fifo))
    reading.join(5)
    assert heard == [wanted]
    assert fifo.is_fifo()
    null = tmp_path / "null"
    null.symlink_to("/dev/null")
    shop.json("export", name, "--out", str(null))
    assert null.is_symlink()
    assert Path("/dev/null").is_char_device()


def test_s4_a_link_stays_and_what_it_points_to_is_written(shop: CommandRunner, tmp_path: Path) -> None:
    name = shop.fresh()
    for there in (True, False):
        folder = tmp_path / str(there)
        (folder / "real").mkdir(parents=True)
        if there:
            (folder / "real" / "talk").write_text("old")
        link = folder / "link"
        link.symlink_to(Path("real") / "talk")
        shop.json("export", name, "--out", str(link))
        assert link.is_symlink()
        assert (folder / "real" / "talk").read_text() == shop.ok("export", name).out
        assert sorted(each.name for each in folder.rglob("*")) == ["link", "real", "talk"]


def test_a_refused_import_says_what_to_do(tmp_path: Path) -> None:
    with run_proxy_in_thread("demo", db=str(tmp_path / "a.sqlite3"), keys=[make_key("cp-all", "*", "admin")]) as proxy:
        line = json.dumps({"id": "talk", "messages": [{"role": "user", "content": "Hello"}]})
        ran = CommandRunner(ProxyWithData(proxy)).run("import", "-", key="cp-all", given=line)
    assert ran.code == 1
    assert "name the tenant with --tenant" in ran.err.replace("\n", " ")


def test_an_import_without_a_tenant_is_refused_once_and_not_line_by_line(shop: CommandRunner, tmp_path: Path) -> None:
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps({"id": "talk", "messages": [{"role": "user", "content": "Hello"}]}) + "\nodd\n" * 9)
    ran = shop.run("import", str(file), key="cp-all-admin")
    assert ran.code == 1
    assert ran.err.count("several tenants") == 1
    assert "--tenant" in ran.err
