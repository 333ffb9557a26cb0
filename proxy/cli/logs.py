"""Log lines on stderr, as JSON, or as text on a terminal: never a message's content, never a credential.

An exception is logged with its type and the place where it happened. Its text is left out: a library's error often
quotes its input, which is a client's message. For the same reason, other libraries' log lines about requests and SQL
are dropped, whatever the level that is set.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from itertools import filterfalse
from logging.handlers import RotatingFileHandler
from pathlib import Path

NOISY_LOGGERS = ("aiosqlite", "asyncio", "httpcore2", "httpx2", "uvicorn", "uvicorn.error", "uvicorn.access")
"""Loggers that write URLs, SQL values or bytes. Only their warnings are let through."""

REQUEST_LOGGER = "proxy.requests"
"""The logger that writes one line per request."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=repr)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line end."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= _read_extra(record)
        if record.exc_info and record.exc_info[0]:
            fields["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            fields["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return _ENCODER.encode(fields)


class TextFormatter(logging.Formatter):
    """Formats a record as one line for people: time, level, message, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line end."""
        fields = _read_extra(record)
        text = record.getMessage()
        if record.name == REQUEST_LOGGER:
            text = " ".join(_quote_value(fields.pop(key)) for key in ("method", "path", "status") if key in fields)
        if record.exc_info and record.exc_info[0]:
            frame = (traceback.extract_tb(record.exc_info[2]) or [None])[-1]
            fields["error"] = record.exc_info[0].__name__
            fields["at"] = f"{frame.filename}:{frame.lineno}" if frame is not None else "?"
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        line = " ".join(
            [at, record.levelname.lower(), text, *(f"{key}={_quote_value(value)}" for key, value in fields.items())]
        )
        return "".join(one if one.isprintable() else "?" for one in line)  # a name must not move a terminal's cursor


def _read_extra(record: logging.LogRecord) -> dict[str, object]:
    """The fields of `extra`."""
    values = vars(record)
    return {key: values[key] for key in filterfalse(_STANDARD.__contains__, values)}


def _quote_value(value: object) -> str:
    """Return a value as text, in quotes if it is empty or holds white space, an equals sign or a quote."""
    text = str(value)
    if text and not any(one.isspace() or one in '="' for one in text):
        return text
    return json.dumps(text, ensure_ascii=False)


MAX_FILE_BYTES = 5_000_000
"""Size of a log file at which it is renamed and a new one begun. One renamed file is kept."""


def set_up_logging(level: str, access: str = "auto", file: Path | None = None) -> None:
    """Send log records to stderr from now on, or to a file. level: debug, info, warning or error. access: json, text,
    auto, or off for no line per request."""
    handler = (
        logging.StreamHandler()
        if file is None
        else RotatingFileHandler(file, maxBytes=MAX_FILE_BYTES, backupCount=1, encoding="utf-8")
    )
    text = access == "text" or (access != "json" and (file is not None or sys.stderr.isatty()))
    # No line names them, nor the caller, and to find them out takes an eighth of the time of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # as Python's guide to logging says, under "Optimization"
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    logging.getLogger(REQUEST_LOGGER).setLevel(logging.CRITICAL if access == "off" else logging.NOTSET)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in NOISY_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(max(logging.WARNING, logging.getLogger().level))
        logger.handlers.clear()
        logger.propagate = True
