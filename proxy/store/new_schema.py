"""The statements that give a new SQLite file the schema of all migrations, with most renames left out.

SQLite reads and checks its whole schema again for each renamed column: 3 ms, and 45 of the 55 ms of all migrations. A
file that holds no table yet is therefore given the last names at once. A rename that a view or a trigger may depend on
stays. The schema is the same as that of the migrations one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_RENAMED_COLUMN: Final = r"ALTER TABLE (\w+) RENAME COLUMN (\w+) TO (\w+)"
_RENAMED_TABLE: Final = r"ALTER TABLE (\w+) RENAME TO (\w+)"
_SUBJECT: Final = r"\s*(?:CREATE TABLE|CREATE (?:UNIQUE )?INDEX \w+ ON|ALTER TABLE)\s+(\w+)\b(?!.*\bREFERENCES\b)"
"""The beginning of a statement that is about one table alone, which is the group."""
_ROWS: Final = r"\s*(?:INSERT|UPDATE|DELETE)\b"
"""The beginning of a statement about rows."""
_SOURCE: Final = r"\b(?:UPDATE|FROM|JOIN)\s+(\w+)"
"""A table whose rows a statement reads or changes."""


def fold_renames(statements: Iterable[str]) -> list[str]:
    """Return the statements with the names that renames give later, and without these renames. They have the same
    effect on a database without tables."""
    kept: list[str] = []
    for statement in statements:
        if re.match(_ROWS, statement) and _has_no_rows(statement, kept):
            continue
        words = " ".join(statement.split())
        folded = None
        if renamed := re.fullmatch(_RENAMED_COLUMN, words):
            folded = _replace_word(kept, *renamed.groups())
        elif renamed := re.fullmatch(_RENAMED_TABLE, words):
            table, new = renamed.groups()
            folded = _replace_word(kept, table, table, new)
        kept = [*kept, statement] if folded is None else folded
    return kept


def _has_no_rows(statement: str, statements: Iterable[str]) -> bool:
    """Return True if a statement is about rows of the tables made so far: a new file has none. A statement that makes
    its rows of nothing, as that of the journal's slots does, is needed."""
    tables = {subject[1] for each in statements if (subject := re.match(_SUBJECT, each, re.DOTALL)) is not None}
    return not tables.isdisjoint(re.findall(_SOURCE, statement))


def _replace_word(statements: list[str], table: str, old: str, new: str) -> list[str] | None:
    """Return the statements with a word replaced in those about a table. Return None if none of them makes the table,
    or if a view or another statement names both."""
    if not any(re.match(rf"\s*CREATE TABLE {table}\b", statement) for statement in statements):
        return None
    replaced = []
    for statement in statements:
        subject = re.match(_SUBJECT, statement, re.DOTALL)
        if subject is None and re.search(rf"\b{table}\b", statement) and re.search(rf"\b{old}\b", statement):
            return None
        about = subject is not None and subject[1] == table
        replaced.append(re.sub(rf"\b{old}\b", new, statement) if about else statement)
    return replaced
