from __future__ import annotations

import logging
from pathlib import Path

import pytest

from proxy.store.base import GapRow
from proxy.store.gap_file import FILE_SIZE, MAX_LOGGED, GapFile, log_gaps


def gap(number: int, session: str = "one") -> GapRow:
    return GapRow("t", session, f"x{number}", 10, "disk full", float(number), 2)


def test_what_is_kept_is_found_by_the_next_one_and_the_file_never_grows(tmp_path: Path) -> None:
    file = GapFile(tmp_path / "db")
    assert file.open() == []
    assert file.path.stat().st_size == FILE_SIZE
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.write_gaps([gap(1), gap(2)])
    assert file.path.stat().st_size == FILE_SIZE
    again = GapFile(tmp_path / "db")
    assert again.open() == [gap(1), gap(2)]
    again.write_gaps([gap(3)])
    last = GapFile(tmp_path / "db")
    assert last.open() == [gap(3)]
    last.remove()
    assert not file.path.exists()


def test_more_than_there_is_room_for_is_added_up(tmp_path: Path) -> None:
    file = GapFile(tmp_path / "db")
    file.open()
    gaps = [gap(n, "s" * 100) for n in range(2000)]
    file.write_gaps(gaps)
    found = GapFile(tmp_path / "db").open()
    assert 100 < len(found) < 2000
    assert file.path.stat().st_size == FILE_SIZE
    assert (found[-1].session, sum(g.items for g in found), sum(g.bytes for g in found)) == ("", 4000, 20000)


def test_what_somebody_has_written_into_it_is_passed_over_in_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = GapFile(tmp_path / "db")
    file.path.write_bytes(b"nonsense\n{}\n\x00\n")
    assert file.open() == []
    assert [record.getMessage() for record in caplog.records] == [
        f"3 lines of the file of gaps {file.path} cannot be read"
    ]


def test_a_file_that_was_never_opened_is_left_alone(tmp_path: Path) -> None:
    file = GapFile(tmp_path / "db")
    file.path.write_bytes(b"another process's")
    file.remove()
    assert file.path.exists()


def test_the_log_says_whose_it_was_and_adds_up_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    log_gaps([gap(n) for n in range(MAX_LOGGED + 3)])
    assert len(caplog.records) == MAX_LOGGED + 1
    assert "2 items of session one of t, 10 bytes (disk full)" in caplog.text
    assert "6 items of 3 more gaps" in caplog.text
