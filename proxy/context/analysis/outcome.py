"""The outcome of a tool call, found in its result: succeeded, failed, or unknown.

The activity record, the stubs of shortened results, the iteration records and the loop rules use it. A wrong
"succeeded" is the worst answer, so unknown is the default. Success needs the exit code of all that ran, or the summary
of a known runner, and a result without a reported failure. Three modules find the evidence: `result_lines` (fields of
an object), `outcome_lines` (lines of known runners) and `tool_messages` (sentences).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from proxy.chat.message import Message, checkpoint
from proxy.context.analysis import outcome_lines, output_wrappers, result_lines, runner_patterns, tool_messages
from proxy.context.analysis.outcome_lines import HEAD_LINES, MAX_LAST_LINES, MAX_SUMMARIES, TAIL_LINES, OutcomeLines
from proxy.context.analysis.output_wrappers import MAX_LINE_CHARS, SHORT_LINE_CHARS, has_content, strip_line
from proxy.context.analysis.result_lines import ResultLines, states_error, unwrap_result
from proxy.context.analysis.shell_commands import MAX_STORED_CHARS, PLAIN_CALL, ShellCommand

Verdict = Literal["succeeded", "failed", "unknown"]

_OF_AN_EDIT = re.compile(r"appl|edit|repla|patch|hunk|chang", re.IGNORECASE)
_FILTER = re.compile(r"(?<!\|)\|&?\s*(?!tee\b|cat\b|ts\b)\w")
"""A pipe into a program that may show a part of its input."""

_PRINTS_CODE = re.compile(r"\$\?|PIPESTATUS|pipestatus|LASTEXITCODE|ERRORLEVEL|\$status\b|\A\Z", re.IGNORECASE)
"""A variable with the exit code of the command in front, or a call whose command is not known."""
_CHECK_CHARS = 200
"""Characters above which a line is no report on a check of a script."""
_LOG_LEVEL = re.compile(r"(?:ERROR|FATAL|FAIL(?:ED|URE)?)\b")
"""The beginning of a line of a log, which a shown file may have. Programs that show a file begin with their name."""


class ToolOutcome(msgspec.Struct, frozen=True):
    """The outcome of a call, and the evidence. A line is given by its index in `result_lines.read_lines(message)`."""

    verdict: Verdict = "unknown"
    exit_code: int | None = None
    """The exit code, if the result shows it."""
    timed_out: bool = False
    code_lines: tuple[int, ...] = ()
    """The lines that show the code."""
    summary_lines: tuple[int, ...] = ()
    """The lines in which a runner reports the outcome."""
    failure_lines: tuple[int, ...] = ()
    """The first lines on each failure."""
    unfinished_lines: tuple[int, ...] = ()
    """The lines that say that the command still ran, or that it was stopped."""
    kept_lines: tuple[int, ...] = ()
    """The lines that a shortened result must not lose, in order."""
    first_line: int | None = None
    """The first line with content."""


def read_outcome(
    message: Message, command: ShellCommand = PLAIN_CALL, lines: Sequence[str] | None = None
) -> ToolOutcome:
    """Return the outcome of the call whose result this message is. command: see `shell_commands.parse_call`. lines: its
    `read_lines`, where the caller has them."""
    return message.derive(
        lambda m: _read(unwrap_result(m.text, is_error=states_error(m), lines=lines), command), ("outcome", command)
    )


def _read(given: ResultLines, command: ShellCommand) -> ToolOutcome:
    rows = given.lines
    first = next((n for n, line in enumerate(rows[:HEAD_LINES]) if has_content(strip_line(line))), None)
    if command.kind == "call":
        return _read_call_outcome(given, first, edits=command.edits_file)
    is_look = command.kind == "look"
    if is_look and given.is_object and not given.is_wrapper:
        given = given._replace(code=None, failed=None)  # it is what the command shows, of another run
    may_print_code = len(command.text) >= MAX_STORED_CHARS or _PRINTS_CODE.search(command.text) is not None
    code, shown = result_lines.find_exit_code(given, is_shown=is_look, may_print_code=may_print_code)
    if command.prints_code and not code:
        code = result_lines.find_echoed_code(rows) or code
    tail = outcome_lines.find_last_lines(rows, MAX_LAST_LINES if command.kind == "run" else 1)
    if is_look:
        return _read_look_outcome(given, command, code, shown, tail, first)
    return _read_run_outcome(given, command, code, shown, tail, first)


def _read_run_outcome(
    given: ResultLines, command: ShellCommand, code: int | None, shown: list[int], tail: list[int], first: int | None
) -> ToolOutcome:
    """Return the outcome of a command that does something: by its exit code, and the lines that report its outcome."""
    rows = given.lines
    found = outcome_lines.find_outcome_lines(rows, set(shown))
    final = found.final
    last = strip_line(rows[final]) if final is not None else ""
    patterns = runner_patterns.compile_patterns()
    state = output_wrappers.find_state(rows, [*tail, *([] if first is None else [first])])
    timed_out = code == 124 or bool(state.timeouts)
    ends_badly = bool(last) and (
        patterns.error.match(last) is not None
        or final in found.failed[-1:]
        or outcome_lines.ends_block(rows, final, patterns.traceback)
    )
    ends_badly = ends_badly and not outcome_lines.ends_block(rows, final, patterns.ignored_error)
    # A search that finds nothing is no failure.
    found_none = code in command.answer_codes or (code is None and given.failed is True and bool(command.answer_codes))
    nothing_found = found_none and not found.failed
    verdict = _judge_run(command, code, found, timed_out=timed_out, ends_badly=ends_badly, given=given.failed)
    if (nothing_found and not timed_out) or (verdict == "succeeded" and len(rows) > HEAD_LINES + TAIL_LINES):
        verdict = "unknown"
    if verdict == "succeeded" and (
        state.unfinished
        or outcome_lines.ran_no_tests(rows, found)
        or outcome_lines.lacks_end(rows)
        or patterns.trial_command.search(command.core)
    ):
        verdict = "unknown"
    proven = code == 0 and command.exit_code_proves
    checks = [] if verdict == "unknown" else _find_failed_checks(rows, found, command)
    doubtful = verdict == "succeeded" and (bool(checks) if proven else _reports_error(rows, found, command))
    if doubtful:
        verdict = "unknown"
    suspicious = doubtful or verdict == "failed" or bool(found.failed) or ends_badly
    failures = (outcome_lines.find_failure_lines(rows, patterns) if suspicious else ()) or state.timeouts
    if doubtful or verdict == "failed":  # the lines of a script's own form, where the runners' forms leave room
        failures = tuple(sorted({*failures, *checks[: max(0, outcome_lines.MAX_FAILURES - len(failures))]}))
    passed = (found.passed or found.part)[-1:]
    # A line of words after the one that proves the success often has the counts.
    words = [n for n in found.words[-1:] if not passed or n > passed[0]]
    summary = found.failed[-MAX_SUMMARIES:] + found.failed[:1] if found.failed else passed + words
    keep = sorted({*shown, *summary, *failures, *tail, *state.unfinished})
    return ToolOutcome(
        verdict,
        exit_code=code,
        timed_out=timed_out,
        code_lines=tuple(shown),
        # A run that failed otherwise, for example by its exit code, may have printed a success before.
        summary_lines=tuple(sorted(set(summary))) if verdict != "failed" or found.failed else (),
        failure_lines=failures,
        unfinished_lines=state.unfinished,
        kept_lines=tuple(keep),
        first_line=first,
    )


def _judge_run(
    command: ShellCommand,
    code: int | None,
    found: OutcomeLines,
    *,
    timed_out: bool,
    ends_badly: bool,
    given: bool | None,
) -> Verdict:
    if code:
        return "failed"
    if timed_out or given:
        return "failed"
    if command.shown_text and (found.has_success or not _names_runner(command)) and (found.failed or ends_badly):
        return "unknown"  # the failure may be that of another run, whose output the command shows
    if found.failed:
        # The exit code of all that ran contradicts: a program prints such lines itself, or hides its code.
        return "unknown" if code == 0 and command.exit_code_proves and command.text else "failed"
    if ends_badly:
        return "unknown" if code == 0 and command.exit_code_proves else "failed"
    if code == 0 and command.exit_code_proves:
        return "succeeded"
    passed = bool(found.passed) or (not command.output_cut and bool(found.part or found.last))
    if not passed or runner_patterns.compile_patterns().repeating_command.search(command.text):
        return "unknown"
    # The total may be that of another run, whose output the command shows below its own.
    if command.shown_text == "after":
        return "unknown"
    # Of a script's output a filter may show the last total alone, and hide one that failed.
    if _FILTER.search(command.text) and not _names_runner(command):
        return "unknown"
    # A script may go on after the run that it started, and not pass on its failure.
    if command.text and not found.ends_last and not (command.output_cut or _ends_with_runner(command)):
        return "unknown"
    # Of several commands, the success of one proves nothing of the others. The exception is a chain of `&&`, which
    # stops at a failure, with the success at its end.
    chained = command.exit_code_proves or _is_chain(command)
    proven = chained and found.ends_well and _ends_with_runner(command)
    return "succeeded" if command.is_single or proven else "unknown"


def _ends_with_runner(command: ShellCommand) -> bool:
    """True if the last command of a chain is a runner or starts one, so that the success at the end is its own."""
    patterns = runner_patterns.compile_patterns()
    last = command.core.rpartition("&&")[2].strip()
    return bool(patterns.runner_command.match(last) or patterns.starting_command.match(last))


def _names_runner(command: ShellCommand) -> bool:
    """True if a runner is named in the command, or starts it: then the total in its output is its own."""
    return _ends_with_runner(command) or bool(runner_patterns.compile_patterns().runner_command.search(command.core))


def _is_chain(command: ShellCommand) -> bool:
    """True if all that ran was joined by `&&`, with at most a pipe after the last command.

    That the last command ran proves the success of the ones before it. The text is on one line, so each command has to
    be exactly one part of it.
    """
    text = command.text.replace("2>&1", "")
    parts = [part.strip() for part in text.split("&&")]
    if len(text) >= MAX_STORED_CHARS or any(sign in "".join(parts) for sign in (";", "&", "||", "$(", "`", "<<")):
        return False
    runs = command.core.split(" && ")
    parts[-1] = parts[-1].partition("|")[0].strip()
    return [part for part in parts if part in runs] == runs


def _find_failed_checks(rows: Sequence[str], found: OutcomeLines, command: ShellCommand) -> list[int]:
    """Return the lines in which a script reports, below the last success of a runner, that a check of its own failed.

    The exit code of such a script is often 0 all the same. That of a runner decides alone: its tests print such lines.
    """
    patterns = runner_patterns.compile_patterns()
    if command.is_single and patterns.runner_command.match(command.core):
        return []
    lines: list[int] = []
    for n in range(found.success + 1, len(rows)):
        checkpoint()
        if len(rows[n]) <= _CHECK_CHARS and patterns.failed_check_words.search(rows[n]):
            bare = strip_line(rows[n])
            if patterns.failed_check.match(bare) and not patterns.harmless.match(bare):
                lines.append(n)
    return lines


def _reports_error(rows: Sequence[str], found: OutcomeLines, command: ShellCommand) -> bool:
    """True if a line reports an error that is not the runner's own.

    Lines before the summary of a command that is a runner come from tests that passed. A script may print an error
    anywhere.
    """
    patterns = runner_patterns.compile_patterns()
    start = 0
    if command.is_single and patterns.runner_command.match(command.core):
        start = found.success + 1
    logged = False
    for line in rows[start:]:
        checkpoint()
        begins = strip_line(line[:MAX_LINE_CHARS])[:SHORT_LINE_CHARS]
        if not begins:
            continue
        if patterns.console_line.match(begins):
            logged = True
        elif not line[:1].isspace():
            logged = False
        if logged or patterns.harmless.match(begins):
            continue
        if patterns.error.match(begins) or patterns.detail.match(begins) or patterns.broken_end.match(begins):
            return True
    return False


def _read_look_outcome(
    given: ResultLines, command: ShellCommand, code: int | None, shown: list[int], tail: list[int], first: int | None
) -> ToolOutcome:
    """Return the outcome of a command that only shows. The shown text is not an outcome itself."""
    rows = given.lines
    error = runner_patterns.compile_patterns().error
    filled = [n for n, line in enumerate(rows) if has_content(strip_line(line))] if len(rows) <= 8 else []
    starts = [strip_line(rows[n]) for n in filled]
    only_errors = bool(filled) and all(
        error.match(start) and tool_messages.SAYS_NO.search(start) and not _LOG_LEVEL.match(start) for start in starts
    )
    if command.asks_another:
        only_errors = only_errors or any(map(tool_messages.CLIENT_FAILED.match, (*starts[:1], *starts[-1:])))
    failures = tuple(filled[:2]) if only_errors or ((code or given.failed) and filled) else ()
    verdict: Verdict = "unknown"
    has_failed = code not in (None, 0, *command.answer_codes) or (given.failed and not command.answer_codes)
    if has_failed or (only_errors and code != 0):
        verdict = "failed"
    elif code == 0 and command.exit_code_proves and not only_errors and not any(map(error.match, starts)):
        verdict = "succeeded"
    return ToolOutcome(
        verdict,
        exit_code=code,
        code_lines=tuple(shown),
        failure_lines=failures,
        kept_lines=tuple(sorted({*shown, *failures, *tail})),
        first_line=first,
    )


def _read_call_outcome(given: ResultLines, first: int | None, *, edits: bool) -> ToolOutcome:
    """Return the outcome of a tool that runs no command.

    The call failed if its result is a message of failure, or reports a failure in a field.
    """
    rows = given.lines
    beginning = strip_line(rows[first])[:SHORT_LINE_CHARS] if first is not None else ""
    brief = not given.is_object and sum(map(len, rows)) <= tool_messages.MAX_MESSAGE_CHARS
    may_begin = brief or (edits and not given.is_object) or "<tool_use_error>" in beginning
    is_shown = first is not None and tool_messages.SHOWN_LINE.match(rows[first].lstrip()[:MAX_LINE_CHARS]) is not None
    begins = may_begin and not is_shown and tool_messages.begins_with_failure(beginning)
    says_no = brief and not is_shown and tool_messages.says_no(beginning)
    timed_out = brief and output_wrappers.is_timeout(beginning)
    unchanged = edits and not given.is_object and tool_messages.reports_no_change(rows, beginning)
    stated = True if given.is_refusal else given.failed
    failed = stated if stated is not None else (begins or says_no or timed_out or unchanged or None)
    if given.zero_counts and not failed:
        # An edit without a change has failed. An update without a change may have found the right state already.
        failed = True if edits and not given.dry_run and any(map(_OF_AN_EDIT.search, given.zero_counts)) else None
    elif given.code:
        failed = True
    done = not given.zero_counts and (failed is False or given.code == 0)
    verdict: Verdict = "failed" if failed else "succeeded" if done else "unknown"
    keep: tuple[int, ...] = () if first is None or verdict != "failed" else (first,)
    if first is not None and keep and tool_messages.HEADING.fullmatch(beginning):
        keep = (*outcome_lines.find_next_lines(rows, first, 1),) or keep
    counted = result_lines.find_zero_counts(rows, given.zero_counts) if given.zero_counts else ()
    return ToolOutcome(
        verdict,
        exit_code=given.code,
        timed_out=timed_out,
        summary_lines=counted,
        failure_lines=keep,
        kept_lines=tuple(sorted({*keep, *counted})),
        first_line=first,
    )
