"""Calls that a model writes as a program: Codex's `exec` gets JavaScript that calls the real tools.

`const r = await tools.exec_command({cmd: "pytest -q", workdir: "/w"}); text(r.output)` is a run of `pytest -q`. Nothing
is executed: the arguments are read where they stand as literals, and a program that calls several tools is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from proxy.chat.json_spans import decode_string

MAX_PROGRAM_CHARS: Final = 200_000
"""Characters above which a program is not read."""
CALL_MARK: Final = "tools."
"""The beginning of a call in a program."""
_CALL = re.compile(r"\btools\.(\w{1,64})\(\s{0,8}")
_LITERAL = r"""\"(?:\\.|[^"\\\n])*+"|'(?:\\.|[^'\\\n])*+'|`(?:\\.|[^`\\])*+`"""
_TEXT = re.compile(rf"(?<!\\)(?:{_LITERAL})", re.DOTALL)
"""A text in a program. None begins with an escaped quote: a row of those would be read to its end from each of them."""
_MEMBER = re.compile(
    rf"""(?:"(\w{{1,64}})"|(?<!\w)(\w{{1,64}}))\s{{0,8}}:\s{{0,8}}({_LITERAL}|-?\d{{1,18}}|true\b|false\b)""", re.DOTALL
)
_QUOTE_OR_ESCAPE = re.compile(r'\\.|"', re.DOTALL)
PATCH_BEGIN: Final = "*** Begin Patch"
"""The first line of a patch."""
_CONSTANTS: Final = {"true": True, "false": False}


def read_program_call(program: str) -> Mapping[str, Any] | None:
    """Return the arguments of the one tool that a program calls: texts, numbers and booleans. A patch that is in a
    constant of its own is the argument `patch`. None for a text that is no such program, or calls several tools."""
    if len(program) > MAX_PROGRAM_CHARS:
        return None
    calls = list(_CALL.finditer(program))
    if len(calls) != 1:
        return None
    given = program[calls[0].end() :]
    if given.startswith("{"):
        members = {one[1] or one[2]: _read_value(one[3]) for one in _MEMBER.finditer(given)}
        return {name: value for name, value in members.items() if value is not None}
    patch = next(
        (text for one in _TEXT.finditer(program) if PATCH_BEGIN in one[0] and (text := _read_value(one[0]))), None
    )
    return None if patch is None else {"patch": patch}


def _read_value(literal: str) -> str | int | bool | None:
    """Return the value of a literal of JavaScript; None for a text with escapes that JSON does not have."""
    if literal[0] not in "\"'`":
        return _CONSTANTS[literal] if literal in _CONSTANTS else int(literal)
    if literal[0] != '"':
        inner = literal[1:-1].replace(f"\\{literal[0]}", literal[0])
        if literal[0] == "`" and "${" in inner:
            return None
        literal = '"' + _QUOTE_OR_ESCAPE.sub(_escape_quote, inner.replace("\n", "\\n")) + '"'
    return decode_string(literal.encode("utf-8", "replace"))


def _escape_quote(found: re.Match[str]) -> str:
    return '\\"' if found[0] == '"' else found[0]
