"""Log lines as JSON on stderr, one object a line: never a message's content, never a credential.

An exception is told by its type and by where it happened. Its text is left out, since the text of a library's
error often quotes what it choked on, and that is a client's message. What other libraries log of requests and SQL
goes no further for the same reason, whatever the level.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime

TALKATIVE = ("aiosqlite", "asyncio", "uvicorn", "uvicorn.error", "uvicorn.access")
"""Loggers that say URLs, SQL values or bytes; only their warnings are let through."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class Line(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, and what was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line without its end."""
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[0]:
            told["error"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            told["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(told, ensure_ascii=False, default=repr)


def set_up(level: str) -> None:
    """Send what is logged from now on to stderr. level: debug, info, warning or error."""
    handler = logging.StreamHandler()
    handler.setFormatter(Line())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in TALKATIVE:
        logger = logging.getLogger(name)
        logger.setLevel(max(logging.WARNING, logging.getLogger().level))
        logger.handlers.clear()
        logger.propagate = True
