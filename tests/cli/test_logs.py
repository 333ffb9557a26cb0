from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from proxy.cli.logs import NOISY_LOGGERS, REQUEST_LOGGER, JsonFormatter, TextFormatter, set_up_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging as it was, since it belongs to the whole process."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in NOISY_LOGGERS}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def line(record: logging.LogRecord) -> dict[str, object]:
    told: dict[str, object] = json.loads(JsonFormatter().format(record))
    return told


def test_a_record_is_one_line_of_json_with_its_extras(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info")
    logging.getLogger("proxy.x").info("read %d rows", 3, extra={"session": "s\n1"})
    (written,) = capsys.readouterr().err.splitlines()
    told = json.loads(written)
    assert told.pop("time").endswith("+00:00")
    assert told == {"level": "info", "logger": "proxy.x", "message": "read 3 rows", "session": "s\n1"}


def test_an_exception_is_logged_by_type_and_place_but_not_by_its_text() -> None:
    try:
        raise ValueError("canary: what a client wrote")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "x.py", 1, "failed", (), (ValueError, error, error.__traceback__)
        )
    told = line(record)
    assert told["error"] == "ValueError"
    assert "test_logs.py" in str(told["at"])
    assert "canary" not in json.dumps(told)


def test_what_other_libraries_say_of_requests_and_sql_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("debug")
    for name in NOISY_LOGGERS:
        logging.getLogger(name).info("canary")
    logging.getLogger("proxy.x").debug("ours")
    assert [json.loads(text)["message"] for text in capsys.readouterr().err.splitlines()] == ["ours"]


def test_records_below_the_log_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("error")
    logging.getLogger("proxy.x").warning("no")
    logging.getLogger("uvicorn.error").error("yes")
    assert [json.loads(text)["message"] for text in capsys.readouterr().err.splitlines()] == ["yes"]


def test_a_terminal_gets_text_and_a_pipe_json_unless_one_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"method": "POST", "path": "/v1/x", "status": 200, "session": "s\x1b[31m", "ms": 1.5}
    for access, terminal, text in (
        ("auto", True, True), ("auto", False, False), ("json", True, False), ("text", False, True),
        ("off", False, None),
    ):  # fmt: skip
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal, raising=False)
        set_up_logging("info", access)
        logging.getLogger(REQUEST_LOGGER).info("request", extra=told)
        written = capsys.readouterr().err
        if text is None:
            assert written == ""
        elif text:
            assert written[9:] == "info POST /v1/x 200 session=s?[31m ms=1.5\n"
        else:
            assert json.loads(written)["path"] == "/v1/x"
    logging.getLogger(REQUEST_LOGGER).setLevel(logging.NOTSET)


def test_an_exception_in_text_is_its_type_and_place() -> None:
    try:
        raise ValueError("canary: what a client wrote")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "x.py", 1, "failed", (), (ValueError, error, error.__traceback__)
        )
    said = TextFormatter().format(record)
    assert "error failed error=ValueError at=" in said
    assert "canary" not in said


def test_a_value_in_text_cannot_look_like_another_one() -> None:
    forged = 'a status=200 session="b"'
    record = logging.makeLogRecord({"name": REQUEST_LOGGER, "levelname": "INFO", "method": "POST", "path": "/v1/x y=z",
                                    "status": 401, "session": forged, "tenant": "", "why": "a=b", "plain": "a-b/c:d",
                                    "tab": "a\tb\u2003c", "list": ["x"]})  # fmt: skip
    said = TextFormatter().format(record)[9:]
    assert said == (
        r'info POST "/v1/x y=z" 401 session="a status=200 session=\"b\"" tenant="" why="a=b" plain=a-b/c:d'
        r' tab="a\tb?c"'
        " list=['x']"
    )
