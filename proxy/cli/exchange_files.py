"""`context-proxy export --parquet` and `--csv`: exchanges and their costs as a file for an analytics store.

The store is read directly, beside a proxy that serves from it: no request of an agent waits for the export.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, Protocol, get_type_hints

from msgspec.structs import astuple

from proxy.errors import ConfigError, StoreUnavailable
from proxy.operator.exchange_table import ExchangeLine, read_exchange_lines
from proxy.settings.load import Settings
from proxy.store import open_for_reports

SETTLED_S = 900.0
"""Seconds until an exchange has ended and is stored, as a rule. Younger exchanges are left to the next export."""
GROUP_LINES = 50_000
"""Lines of one row group of a Parquet file: they are in memory together."""
TIMES = ("started_at", "ended_at")


class TableWriter(Protocol):
    """Writes lines to a file."""

    def write(self, lines: Sequence[ExchangeLine]) -> None: ...
    def close(self) -> None: ...


class CsvWriter:
    """Writes lines as CSV with a head line, UTF-8. Times are in ISO 8601, missing values empty."""

    def __init__(self, file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="")
        self._csv = csv.writer(self._text, lineterminator="\n")
        self._csv.writerow(ExchangeLine.__struct_fields__)
        self._times = [ExchangeLine.__struct_fields__.index(name) for name in TIMES]

    def write(self, lines: Sequence[ExchangeLine]) -> None:
        for line in lines:
            values = list(astuple(line))
            for at in self._times:
                values[at] = None if values[at] is None else format_moment(values[at])
            self._csv.writerow(values)

    def close(self) -> None:
        """Write what is buffered; the file stays open."""
        self._text.flush()
        self._text.detach()


class ParquetWriter:
    """Writes lines as Parquet, compressed with zstd. Raises ConfigError if pyarrow is not installed."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            import pyarrow as pa  # noqa: PLC0415  an extra
            from pyarrow import parquet  # noqa: PLC0415  an extra
        except ImportError as error:
            raise ConfigError(
                "parquet", "(not installed)", 'the package: pip install "agent-context-proxy[parquet]"'
            ) from error
        kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
        hints = get_type_hints(ExchangeLine)
        fields = []
        for name in ExchangeLine.__struct_fields__:
            kind = next(kind for kind in kinds if hints[name] in (kind, kind | None))
            of = pa.timestamp("us", tz="UTC") if name in TIMES else kinds[kind]
            fields.append(pa.field(name, of, nullable=hints[name] != kind))
        self._pyarrow = pa
        self._schema = pa.schema(fields)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._lines: list[ExchangeLine] = []

    def write(self, lines: Sequence[ExchangeLine]) -> None:
        """Write lines, in groups."""
        self._lines += lines
        if len(self._lines) >= GROUP_LINES:
            self._flush()

    def _flush(self) -> None:
        columns = []
        for field, values in zip(self._schema, zip(*map(astuple, self._lines), strict=True), strict=True):
            cells: Sequence[Any] = values
            if field.name in TIMES:
                cells = [None if value is None else datetime.fromtimestamp(value, UTC) for value in values]
            elif field.type == self._pyarrow.string():
                cells = [None if value is None else _as_utf8(value) for value in values]
            columns.append(self._pyarrow.array(cells, field.type))
        self._writer.write_table(self._pyarrow.Table.from_arrays(columns, schema=self._schema))
        self._lines = []

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        if self._lines:
            self._flush()
        self._writer.close()


def _as_utf8(text: str) -> str:
    """The text without lone surrogates, which JSON can carry."""
    return text.encode("utf-8", "backslashreplace").decode()


def parse_moment(text: str, name: str) -> float:
    """Unix seconds of a time in ISO 8601 (UTC if it names no zone), or of a number of seconds. Raises ConfigError."""
    try:
        return datetime.fromtimestamp(float(text), UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(name, text, "a time in ISO 8601 or in Unix seconds", source=f"--{name}") from None


def format_moment(seconds: float) -> str:
    """A time in ISO 8601, in microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat("T", "microseconds").replace("+00:00", "Z")


def export_exchanges(
    settings: Settings,
    file: BinaryIO,
    move: Callable[[int], object],
    *,
    is_parquet: bool,
    since: str,
    until: str,
    tenant: str,
) -> dict[str, Any]:
    """Write the file, and return what was written. move: called with the number of lines. Raises ConfigError,
    StoreRefused and OSError."""
    begin = parse_moment(since, "since") if since else 0.0
    settled = time.time() - SETTLED_S
    end = parse_moment(until, "until") if until else settled
    models = settings.load_models()

    async def run() -> int:
        store = await open_for_reports(settings.db)
        count = 0
        try:
            writer: TableWriter = ParquetWriter(file) if is_parquet else CsvWriter(file)
            # Also closed if the export breaks off: pyarrow would else do it later, and report a file that is closed.
            with contextlib.closing(writer):
                async for lines in read_exchange_lines(store, models, begin, end, tenant):
                    writer.write(lines)
                    count += len(lines)
                    move(len(lines))
        finally:
            await store.close()
        return count

    try:
        count = asyncio.run(run())
    except StoreUnavailable as error:
        raise ConfigError("db", "***", f"a store that can be read ({error.message})", source="--db") from None
    # Younger exchanges may still change or be added, so the next export has those again.
    following = max(begin, min(end, settled))
    return {
        "exchanges": count,
        "since": format_moment(begin),
        "until": format_moment(end),
        "next_since": format_moment(following),
    }
