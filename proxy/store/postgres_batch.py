"""A batch of rows as one call of a server function: one round trip, whatever tables the rows belong to.

The function holds the statements of `encode.py` in their order, each in a loop over its rows. Its text is made from
those statements, and its name ends with a hash of the text. So replicas of different versions may run side by side,
each with its own function; a function takes a few KB and stays.

All values of a batch go in five arrays, one for each type, in the order in which the function reads them. A call is a
transaction of its own: the sessions' locks are taken first, and each statement then sees what was committed before.
"""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import asyncpg

from proxy.store import encode
from proxy.store.base import Row
from proxy.store.full_text_search import IndexRow
from proxy.store.postgres_schema import MIGRATION_LOCK

Values = tuple[list[str | None], list[bytes | None], list[int | None], list[float | None], list[bool | None]]
"""The values of a batch by type, as `_TYPES` lists them."""

_TYPES: dict[type, tuple[int, str]] = {
    str: (0, "text"),
    bytes: (1, "bytea"),
    int: (2, "bigint"),
    float: (3, "double precision"),
    bool: (4, "boolean"),
}
"""Place among the arrays, and name in PostgreSQL. Every value of a statement has one of these types or is NULL."""
_SAMPLES: dict[type, Any] = {str: "", bytes: b"", int: 0, float: 0.0, bool: False}
_PLACEHOLDER = re.compile(r"\$(\d+)")
_INSERTED_VALUES = re.compile(r"VALUES \((.*)\)\s+ON CONFLICT", re.DOTALL)

Pair = tuple[str, Callable[[Any], tuple[Any, ...]]]
"""A statement, and the arguments of a row."""


@dataclass(frozen=True, slots=True)
class BatchStatement:
    """One statement of the function: its text, the place of each argument's type, and the arguments of a row."""

    text: str
    places: tuple[int, ...]
    arguments: Callable[[Any], tuple[Any, ...]]


@cache
def list_batch_statements() -> dict[type, tuple[BatchStatement, ...]]:
    """The statements of each row type that a batch may have, in the order of execution. Rows that index or remove other
    rows are no part of a batch."""
    return {
        row_type: tuple(
            BatchStatement(
                text, tuple(_TYPES[type(value)][0] for value in arguments(_make_sample(row_type))), arguments
            )
            for text, arguments in (_limit_to_session(pairs) if row_type in encode.ROWS_OF_SESSIONS else pairs)
        )
        for row_type, pairs in encode.STATEMENTS.items()
        if row_type is not IndexRow
    }


def _limit_to_session(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The statements and arguments of a row, of which the first one inserts it only if its session is stored. The
    tenant and the session are two more arguments at its end."""
    (insert, arguments), *others = pairs
    count = len(_PLACEHOLDER.findall(insert))
    where = f"EXISTS (SELECT 1 FROM sessions s WHERE s.tenant = ${count + 1} AND s.session = ${count + 2})"  # noqa: S608  numbers of ours
    text = _INSERTED_VALUES.sub(lambda found: f"SELECT {found.group(1)}\nWHERE {where}\nON CONFLICT", insert)
    return [(text, lambda row: (*arguments(row), row.tenant, row.session)), *others]


def _make_sample(row_type: type) -> Any:
    """A row with a value of the right type in each field: its arguments show the types of a statement's arguments."""
    return row_type(*(_SAMPLES[_find_type(hint)] for hint in get_type_hints(row_type).values()))


def _find_type(hint: Any) -> type:
    """The type of a field's values; of an optional field, the type of those that are there."""
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return next(_find_type(one) for one in get_args(hint) if one is not type(None))
    found: type = hint
    return found


def encode_batch(rows: Sequence[Row]) -> tuple[list[int], Values]:
    """(number of rows of each statement, the values) of rows. Raises KeyError for rows of other types."""
    statements = list_batch_statements()
    by_type: dict[type, list[Row]] = {}
    for row in rows:
        by_type.setdefault(type(row), []).append(row)
    if not by_type.keys() <= statements.keys():
        raise KeyError(next(iter(by_type.keys() - statements.keys())).__name__)
    counts: list[int] = []
    values: Values = ([], [], [], [], [])
    for row_type, several in statements.items():
        alike = by_type.get(row_type, ())
        for statement in several:
            counts.append(len(alike))
            for row in alike:
                for place, value in zip(statement.places, statement.arguments(row), strict=True):
                    values[place].append(value)
    return counts, values


def _write_loop(number: int, statement: BatchStatement) -> str:
    """The loop of the function over the rows of one statement."""
    seen = [0] * len(_TYPES)
    slots = []
    for place in statement.places:
        seen[place] += 1
        slots.append(f"values_{place}[at_{place} + {seen[place]}]")
    body = _PLACEHOLDER.sub(lambda found: slots[int(found.group(1)) - 1], statement.text.strip())
    steps = "".join(f" at_{place} := at_{place} + {count};" for place, count in enumerate(seen) if count)
    return f"    FOR row_number IN 1 .. counts[{number}] LOOP\n{body};\n{steps}\n    END LOOP;\n"


@cache
def build_function() -> tuple[str, str]:
    """(name, statement that creates it) of the function."""
    several = [one for pairs in list_batch_statements().values() for one in pairs]
    loops = "".join(_write_loop(number, one) for number, one in enumerate(several, 1))
    arrays = ", ".join(f"values_{place} {name}[]" for place, name in _TYPES.values())
    declared = " ".join(f"at_{place} integer := 0;" for place, _ in _TYPES.values())
    text = f"""(locks bigint[], counts bigint[], {arrays}) RETURNS void LANGUAGE plpgsql AS $batch$
#variable_conflict use_column
DECLARE {declared}
BEGIN
    PERFORM pg_advisory_xact_lock(place) FROM unnest(locks) AS place;
{loops}END $batch$"""
    name = f"context_proxy_write_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
    return name, f"CREATE OR REPLACE FUNCTION {name}{text}"


async def prepare_function(connection: Any) -> Any:
    """The prepared call of the function; it is created if the database does not have it. connection: asyncpg's."""
    name, text = build_function()
    call = f"SELECT {name}($1, $2, $3, $4, $5, $6, $7)"
    try:
        return await connection.prepare(call)
    except asyncpg.UndefinedFunctionError:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(text)
        return await connection.prepare(call)
