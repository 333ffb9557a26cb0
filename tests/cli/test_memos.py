from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Shop


def test_a_memo_is_listed_shown_mended_and_deleted(shop: Shop) -> None:
    memo = shop.world.memo()
    assert memo in [one["memo"] for one in shop.json("memos", "list", "--text", "PostgreSQL 14")]
    assert memo in shop.ok("memos", "list").out
    assert "lacks a function" in shop.ok("memos", "show", memo).out
    shop.ok("memos", "edit", memo, "--text", "The tests need PostgreSQL 15, since 14 is slow.", "--tag", "db")
    found = shop.json("memos", "show", memo)
    assert (found["tags"], "15" in found["content"]) == (["db"], True)
    assert shop.run("memos", "delete", memo, given="n\n").code == 1
    shop.ok("memos", "delete", memo, "--yes")
    assert shop.run("memos", "show", memo).code == 1


def test_memos_of_no_project_are_told_from_all(shop: Shop) -> None:
    shop.world.memo()
    assert shop.json("memos", "list", "--project", "")
    assert shop.json("memos", "list", "--project", "other") == []


def test_memos_are_written_a_line_each(shop: Shop, tmp_path: Path) -> None:
    memo = shop.world.memo()
    lines = shop.ok("memos", "export").out.splitlines()
    assert memo in [json.loads(line)["memo"] for line in lines]
    file = tmp_path / "memos.jsonl"
    assert shop.json("memos", "export", "--out", str(file)) == {"file": str(file), "memos": len(lines)}
    assert file.read_text().splitlines() == lines
