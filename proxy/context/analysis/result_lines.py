"""The lines of a result, and the outcome that a JSON object states next to them.

Some tools wrap the output of a command in an object with its exit code; others answer with fields such as `success`,
`errors`, or a count of what they changed. The fields are evidence, and `outcome` weighs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Message
from proxy.context.analysis import output_wrappers
from proxy.context.analysis.outcome_lines import MAX_SUMMARIES
from proxy.context.analysis.output_wrappers import MAX_LINE_CHARS
from proxy.context.analysis.shell_commands import DRY_RUN
from proxy.context.analysis.tool_messages import MAX_MESSAGE_CHARS

_COUNTER = re.compile(
    r"(?:num|number|total|count|n|rows?|files?|lines?|edits?|hunks?|records?|documents?|items?)?(?:of)?"
    r"(?P<what>matched|matches|found|applied|updated?|updates|modified|modifications|changed|changes|replaced|replacements"
    r"|inserted|upserted|created|deleted|removed|affected|written|edited|edits|saved|patched)(?:count|rows?|files?|lines?)?"
)
"""A field that counts the changes of a call, in lower case and without the separators of its words."""
_SEEN_ONLY = re.compile(r"match|found", re.IGNORECASE)
_CODES = ("exit_code", "exitCode", "exit_status", "exitStatus", "returncode", "return_code", "returnCode", "code")
_EXIT_CODES = frozenset(_CODES) - {"code"}
_OUTPUTS = ("output", "stdout", "stderr", "text", "result", "content", "logs", "message", "error")
_REASONS = ("reason", "message", "detail", "details")
_SUCCESS = ("success", "ok", "succeeded")
_FAILURES = (
    "failed", "failures", "errors", "failed_count", "failedCount", "failure_count", "error_count", "errorCount",
    "rejected",
)  # fmt: skip
"""Members that count or list what has failed."""
_ANSWERS = ("result", "data", "body", "response")
"""Members that hold the answer of a server."""
_HTTP_STATUS = ("status", "statusCode", "status_code", "http_status")
_ANSWERED = ("body", "headers", "response", "statusText", "content", "text")
"""Members that accompany the status of HTTP: without one, a status may be that of any record."""
_BESIDE_ERRORS = frozenset(("errors", "message", "code", "type", "title", "extensions", *_HTTP_STATUS))
"""Members that an answer has in addition to its errors. With any other one, the errors may be what was asked for."""
_MAX_PARSED_CHARS = 400_000
"""Maximum number of characters of a result that is parsed as JSON, if it does not have too many values."""


class ResultLines(NamedTuple):
    lines: Sequence[str]
    code: int | None = None
    failed: bool | None = None
    """The exit code and the failure that a JSON object states next to its output."""
    inside: bool = False
    """The lines are those of the outputs in such an object."""
    is_object: bool = False
    """The result is a JSON object."""
    is_wrapper: bool = False
    """The object has the output of a command and its code, or the client itself says how the call ended."""
    zero_counts: tuple[str, ...] = ()
    """Fields that count changes, if all counts are 0."""
    dry_run: bool = False
    """The object says that no change was intended."""
    is_refusal: bool = False
    """The object holds the answer of a server that reports a failure."""


def states_error(message: Message) -> bool:
    """True if the client says in the member `is_error` that the call failed, as Messages has it."""
    return b'"is_error"' in message.raw and json_spans.read_value(message.raw, "is_error") == b"true"


def read_lines(message: Message) -> Sequence[str]:
    """Return the lines of a result to which an outcome's indices refer.

    If the result is a JSON object in which some tools wrap outputs, the lines are those of the outputs. The lines are
    not stored with the message, because that would double its size.
    """
    return split_lines(message.text) if message.text[:200].lstrip()[:1] == "{" else message.text.splitlines()


def split_lines(text: str) -> Sequence[str]:
    """Return the lines of a result's text."""
    return unwrap_result(text).lines


def unwrap_result(text: str, *, is_error: bool = False, lines: Sequence[str] | None = None) -> ResultLines:
    """Return the lines of a result's text, with the outcome that it states. is_error: the client says that the call
    failed. lines: the lines of the text, where the caller has them."""
    start = text[:200].lstrip()[:1]
    if start == "{" and len(text) <= _MAX_PARSED_CHARS:
        try:
            value = decode_embedded(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found = _read_object_lines(_find_run(value) or value, text)
            return found._replace(failed=True, is_wrapper=True) if is_error else found
    return ResultLines(text.splitlines() if lines is None else lines, failed=True if is_error else None)


def _find_run(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the object within an answer that has the output of a command and its exit code; None if there is none."""
    held = (inner for name in _ANSWERS if isinstance(inner := value.get(name), dict))
    return next(
        (inner for inner in held if isinstance(inner.get("stdout"), str) and not _EXIT_CODES.isdisjoint(inner)), None
    )


def _read_object_lines(value: Mapping[str, Any], text: str) -> ResultLines:
    """Return the lines of the outputs in an object, if an output has several lines; else those of its text."""
    metadata = value.get("metadata")
    codes = [
        v
        for holder in (value, metadata)
        if isinstance(holder, dict)
        for k in _CODES
        if (v := _as_integer(holder.get(k))) is not None
    ]
    # A lone `code` may be anything (an HTTP status, an id): it counts only if there is an output too.
    has_output = any(isinstance(value.get(name), str) for name in ("output", "stdout", "stderr"))
    code = codes[0] if codes and (has_output or "code" not in value) else None
    status = value.get("status")
    # The status and the error may be those of the requested object, which has an id. A call that failed gives a reason.
    is_call = not isinstance(status, str) or "id" not in value
    reason = status in ("failed", "failure") and any(value.get(k) for k in _REASONS)
    stated = is_call and (value.get("error") or status == "error" or reason)
    failed = True if stated or value.get("isError") is True or value.get("is_error") is True else None
    failed = _read_success(value) if failed is None else failed
    nothing = _find_zero_count_fields(value)
    plain = ResultLines(
        text.splitlines(), code, failed, is_object=True, is_wrapper=has_output,
        zero_counts=nothing, dry_run=any(value.get(name) for name in DRY_RUN), is_refusal=_is_refusal(value),
    )  # fmt: skip
    if text.count("\n") > 3:
        return plain  # the object itself is printed over several lines
    found: list[str] = []
    for name in _OUTPUTS:
        if isinstance(inner := value.get(name), str):
            found += inner.splitlines()
    if not found or (len(found) < 2 and not has_output):
        if not nothing or len(text) <= MAX_MESSAGE_CHARS:
            return plain
        counted = msgspec.json.encode(dict.fromkeys(nothing, 0)).decode()  # a long line would be cut in its middle
        return plain._replace(lines=[counted, *plain.lines])
    rest = {k: v for k, v in value.items() if k not in _OUTPUTS or not isinstance(v, str)}
    head = [msgspec.json.encode(rest).decode()] if rest else []
    return plain._replace(lines=[*head, *found], inside=True)


def _read_success(value: Mapping[str, Any]) -> bool | None:
    """Return False if a field states success, True if it denies it, None without such a field.

    None too if another field has failures beside it: a part of what was asked for is not done."""
    stated = (value[name] for name in _SUCCESS if isinstance(value.get(name), bool))
    failed = next((not one for one in stated), None)
    return None if failed is False and any(value.get(name) for name in _FAILURES) else failed


def _is_refusal(value: Mapping[str, Any]) -> bool:
    """True if an object holds the answer of a server that reports a failure.

    The answer has an HTTP status of failure, errors in place of data, or a field that denies success."""
    answers = [inner for name in _ANSWERS if isinstance(inner := value.get(name), dict)]
    if any(_read_success(inner) or inner.get("isError") is True for inner in answers):
        return True
    if any(name in value for name in _ANSWERED) and any(
        400 <= (_as_integer(value.get(name)) or 0) < 600 for name in _HTTP_STATUS
    ):
        return True
    holders = (holder for holder in (value, *answers) if holder.get("errors"))
    return any(
        not any(_is_filled(inner) for name, inner in one.items() if name not in _BESIDE_ERRORS) for one in holders
    )


def _is_filled(value: object) -> bool:
    """True if a value has content: GraphQL answers null for each field that it could not find."""
    return any(inner is not None for inner in value.values()) if isinstance(value, dict) else bool(value)


def _find_zero_count_fields(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that count changes, at the top or one level below; empty if one is not 0."""
    counts: dict[str, int] = {}
    for holder in (value, *value.values()):
        for name, number in holder.items() if isinstance(holder, dict) else ():
            found = _COUNTER.fullmatch(re.sub(r"[\W_]+", "", str(name)[:40]).lower())
            if found is not None and (count := _as_integer(number)) is not None:
                counts[name] = count
    done = [count for name, count in counts.items() if not _SEEN_ONLY.search(name)]
    return tuple(name for name, count in counts.items() if not count) if done and not any(done) else ()


def _as_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def find_exit_code(given: ResultLines, *, is_shown: bool, may_print_code: bool) -> tuple[int | None, list[int]]:
    """Return the exit code and the lines that show it. is_shown: see `find_exit_codes`. may_print_code: the command may
    print a code itself.

    A code other than 0 has priority over 0 if the command prints it. Else a program may have printed that of another
    one, and it is not known which code is that of the command.
    """
    rows = given.lines
    found = output_wrappers.find_exit_codes(rows, is_shown=is_shown)
    codes = {given.code, *(code for code, _ in found)} - {None}
    if 0 in codes and len(codes) > 1 and not may_print_code:
        return None, [n for _, n in found]
    if given.code is not None and (given.code or not found):
        return given.code, [n for _, n in found] or ([0] if given.inside else _find_code_lines(rows))
    if not found:
        return None, []
    return next((code for code, _ in found if code), 0), [n for _, n in found]


def find_echoed_code(rows: Sequence[str]) -> int | None:
    """Return the number alone on the last line of an output, above the lines of a wrapper; None if there is none.

    A shell that prints the exit code of the command before writes such a line."""
    for row in reversed(rows[-8:]):
        line = output_wrappers.strip_line(row)
        if line.isdecimal():
            return int(line) if len(line) <= 3 else None
        if output_wrappers.has_content(line):
            return None
    return None


def _find_code_lines(rows: Sequence[str]) -> list[int]:
    return [n for n, line in enumerate(rows) if any(f'"{name}"' in line for name in _CODES)][:1]


def find_zero_counts(rows: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """Return the lines that show these fields with the value 0."""
    field = re.compile(rf'"(?:{"|".join(map(re.escape, names))})"\s*:\s*0(?![\d.])')
    return tuple(n for n, row in enumerate(rows) if len(row) <= MAX_LINE_CHARS and field.search(row))[:MAX_SUMMARIES]
