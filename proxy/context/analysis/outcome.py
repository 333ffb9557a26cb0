"""The outcome of a tool call, found in its result: succeeded, failed, or unknown.

The activity record, the stubs of shortened results, the iteration records and the loop rules use it. A wrong
"succeeded" is the worst answer, so unknown is the default. Success needs the exit code of all that ran, or the summary
of a known runner, and a result without a reported failure. The runners are a table (`runners`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Message
from proxy.context.analysis import outcome_lines, output_wrappers, runner_patterns
from proxy.context.analysis.outcome_lines import HEAD_LINES, MAX_LAST_LINES, TAIL_LINES, OutcomeLines
from proxy.context.analysis.output_wrappers import MAX_LINE_CHARS, SHORT_LINE_CHARS, has_content, strip_line
from proxy.context.analysis.shell_commands import DRY_RUN, MAX_STORED_CHARS, PLAIN_CALL, ShellCommand

Verdict = Literal["succeeded", "failed", "unknown"]

MAX_FAILURES = 8
"""Maximum number of failures whose first lines stay: half from the front, half from the end."""
MAX_FAILURE_CHARS = 1600
"""Maximum number of characters of these lines."""
MAX_SUMMARIES = 3
"""Number of summary lines that stay: the last ones."""

_CALL_FAILED = re.compile(
    r"\W*(?:<tool_use_error>|(?-i:E[A-Z]{3,}: )|\[?(?:tool |mcp |api )?(?:error|exception|fatal|failed|failure)\b"
    r"(?! (?:handling|analysis|rates?|reports?|budgets?|correction|logs?|types?|summary)\b|[\w ]{0,20}: ?(?:0|none)\b)"
    r"|[\w.]*[a-z](?:Error|Exception)\b|Traceback \(|"
    r"(?:could not|cannot|can't|unable to|failed to|invalid)\s|canceling statement due to |an error occurred\b"
    r"|(?:HTTP(?:/[\d.]+)?(?: error)?:? )?[45]\d\d:? (?:Bad Request|Unauthori[sz]ed|Forbidden|Not Found|Gone\b"
    r"|Conflict\b|Unprocessable|Too Many Requests|Internal Server|Bad Gateway|Service Unavailable|Gateway Time)"
    r"|(?:fehler|erreur|errore|erro|fout|fel|feil|fejl|virhe|b\u0142\u0105d|chyba|hiba|eroare|hata|kesalahan|galat|l\u1ed7i"
    r"|\u043e\u0448\u0438\u0431\u043a\u0430|\u043f\u043e\u043c\u0438\u043b\u043a\u0430|\u03c3\u03c6\u03ac\u03bb\u03bc\u03b1"
    r"|\u05e9\u05d2\u05d9\u05d0\u05d4|\u062e\u0637\u0623|\u062e\u0637\u0627|\u0924\u094d\u0930\u0941\u091f\u093f"
    r"|\u9519\u8bef|\u932f\u8aa4|\u30a8\u30e9\u30fc|\uc624\ub958)\s?[:\uff1a])",
    re.IGNORECASE,
)
"""The beginning of the result of a failed call; the last alternatives are `error:` in other languages."""
_HEADING = re.compile(r"\W*(?:error|exception|failed|failure)\W*", re.IGNORECASE)
"""A line that only says that the call failed: the reason is the next one."""
_SAYS_NO = re.compile(
    r"\b(?<!\b0 )(?<!\bno )"
    r"(?:not found|does not exist|doesn't exist|no such|denied|has not been|doesn't want|rejected|no changes"
    r"|not unique|no match|failed|not allowed|timed out)\b(?![\w ]{0,20}: *0\b)",
    re.IGNORECASE,
)
FOREIGN_NEGATIONS = (
    r"\b(?:nicht|keine?\w?|fehler\w*|verweigert|abgelehnt|ung\u00fcltig\w*|erreur|\u00e9chec|\u00e9chou\w*|impossible|aucune?"
    r"|introuvable|pas|fall[ao\u00f3]\w*|ning\u00fan\w*|ninguna?|denegad\w*|imposible|erro|falh\w*|nenhuma?|n\u00e3o|errore"
    r"|nessun\w*|negat\w*|impossibile|non|niet|geen|mislukt|nie|brak|inte|ikke|ei|nem|tidak|gagal|kh\u00f4ng"
    r"|\u043e\u0448\u0438\u0431\w*|\u043d\u0435|\u043d\u0435\u0442|\u043e\u0442\u043a\u0430\u0437\w*)\b"
    r"|\u9519\u8bef|\u932f\u8aa4|\u5931\u8d25|\u5931\u6557|\u62d2\u7edd|\u62d2\u7d55|\u62d2\u5426|\u65e0\u6cd5|\u7121\u6cd5|[\u672a\u6ca1\u6c92\u4e0d]"
    r"|\u30a8\u30e9\u30fc|\u307e\u305b\u3093|\u3067\u304d\u306a|\uc624\ub958|\uc2e4\ud328|\uac70\ubd80|\uc5c6"
)
"""Words of other languages with which a tool reports that it has not done what it was asked for."""
_AGAINST = re.compile(
    r"\b(?<!\b0 )(?:not|never|cannot|unable|errors?|faults?|invalid|fail\w*|reject\w*|den(?:y|ied)|refus\w*|cancel\w*"
    r"|abort\w*|forbidden|unauthori[sz]ed|unavailable|unreachable|undeliver\w*|blocked|timeout|timed|pending|queued"
    r"|exceeded|unstable|unexpected(?:ly)?)\b(?!\W{1,4}(?:0|null|none|false)\b|\W{1,4}[\[{]\s*[\]}])"
    r"|n['\u2019]t\b|[\u274c\u2717\u2718\u26d4]|" + FOREIGN_NEGATIONS,
    re.IGNORECASE,
)
"""A word in a short message of a tool with which it is not known that the call has succeeded."""
OTHER_SCRIPT = re.compile(r"[\u0370-\u03ff\u0530-\u1cff]")
"""A letter of a script in which these words are not known, from Greek and Hebrew to Thai."""
PATH_WORD = re.compile(r"(?<!\S)\S*\w[./\\]\w\S*")
"""A word that may be a path: its parts say nothing about a call. Looked for from the word's beginning alone, it takes
linear time."""
SHOWN_LINE = re.compile(
    r"\d+(?:\u2192|\t|\|)|\S*[\w/]\.\w+:\d+:|\W{0,2}\d{4}-\d\d-\d\d[T ]\d\d:|[IWEF]\d{4} \d\d:\d\d:"
    r"|[\w.-]+ +\| |\[\s*\{"
)
"""The beginning of a numbered line of a file, a hit of a search, a line of a log, a row of a table, or a JSON list."""
_SECOND_SENTENCE = re.compile(r"[.!] [A-Z].*")
_DONE = re.compile(
    r"(?i)\b(?:has been (?:updated|created|edited|written)|successfully)\b"
    r"|\A\W*(?:added|booked|created|moved|posted|saved|scheduled|sent|submitted|updated|uploaded)\b"
)
_EDIT_FAILED = re.compile(
    r"\W*(?:(?:no|0|none) (?:\w+ ){0,2}(?:changes?|edits?|replacements?|matches|occurrences|hunks?|files?)\b"
    r"(?! (?:failed|left))"
    r"|(?:successfully )?(?:applied|replaced|changed|made) (?:0|no|none)\b"
    r"|E[A-Z]{3,}: |(?:lint\w*|syntax|parse|parsing|validation|patch) errors?\b"
    r"|[1-9]\d* out of \d+ hunks? failed|hunk #\d+ failed"
    r"|(?:(?:the|your|this|proposed|requested|last) )*"
    r"(?:edit|patch|change|diff|update|replacement|insertion|file|hunk)(?:e?s)?"
    r" (?:(?:could|can|was|were|is|are|has|have|did|does|do|will)(?: not|n't|not)\b"
    r"|(?:(?:was|were|has|have|is|are) )?(?:been )?"
    r"(?:failed|rejected|reverted|refused|denied|discarded|introduced new)\b)"
    r"|(?:(?:the|your|provided) )*(?:strings?|text|snippet|context|anchor|pattern|(?:old|search)[ _]?\w*)\b.{0,200}?"
    r" (?:(?:was|were|is|are)(?: not|n't) (?:found|present|unique|in|matched|an?|exact\w*)\b"
    r"|(?:did|does|could)(?: not|n't) (?:appear|match|occur|exist|be|find)\b"
    r"|not found|occurs|appears|matche[sd] (?:[2-9]|multiple|more)))",
    re.IGNORECASE,
)
"""The beginning of the result of an edit that changed nothing, or that was reverted."""
_HUNK_FAILED = re.compile(r"[1-9]\d* out of \d+ hunks? (?:FAILED|failed)")
_COUNTER = re.compile(
    r"(?:num|number|total|count|n|rows?|files?|lines?|edits?|hunks?|records?|documents?|items?)?(?:of)?"
    r"(?P<what>matched|matches|found|applied|updated?|updates|modified|modifications|changed|changes|replaced|replacements"
    r"|inserted|upserted|created|deleted|removed|affected|written|edited|edits|saved|patched)(?:count|rows?|files?|lines?)?"
)
"""A field that counts the changes of a call, in lower case and without the separators of its words."""
_OF_AN_EDIT = re.compile(r"appl|edit|repla|patch|hunk|chang", re.IGNORECASE)
_SEEN_ONLY = re.compile(r"match|found", re.IGNORECASE)
_CLIENT_FAILED = re.compile(
    r"[-\d\s:.]{0,120}curl: \(\d+\) |\w+: error: |An error occurred \(\w+\) when calling |ERROR: \(gcloud\."
    r"|Error from server \("
    r"|ERROR:  \S|ERROR \d+ \(\w+\)|error: the server doesn't have |(?:Parse e|E)rror: (?:near |no such |in prepare)"
    r"|(?:Catalog|Binder|Parser) Error: "
    r"|Error response from daemon: |Cannot connect to the Docker daemon |The connection to the server \S+ was refused"
    r"|Unable to connect to the server: |ssh: |Permission denied \(publickey|kex_exchange_identification: "
)
"""The first or last line of a client of a server or a database that could not do what it was asked for."""
_FILTER = re.compile(r"(?<!\|)\|&?\s*(?!tee\b|cat\b|ts\b)\w")
"""A pipe into a program that may show a part of its input."""
_BRIEF = 300
"""Characters of a call's result above which the result is content and no message."""

_CODES = ("exit_code", "exitCode", "exit_status", "exitStatus", "returncode", "return_code", "returnCode", "code")
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
_PARSED = 400_000
"""Maximum number of characters of a result that is parsed as JSON, if it does not have too many values."""


class ResultLines(NamedTuple):
    """The lines of a result."""

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


class ToolOutcome(msgspec.Struct, frozen=True):
    """The outcome of a call, and the evidence. Lines are given by their index in `read_lines(message)`."""

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
        lambda m: _read(_unwrap(m.text, is_error=_states_error(m), lines=lines), command), ("outcome", command)
    )


def _states_error(message: Message) -> bool:
    """True if the client says in the member `is_error` that the call failed, as Messages has it."""
    return b'"is_error"' in message.raw and json_spans.read_value(message.raw, "is_error") == b"true"


def reports_doubt(message: Message) -> bool:
    """True if a result is a short message with a word against the success of its call, or in a script whose words are
    not known."""
    text = message.text
    words = PATH_WORD.sub(" ", text) if len(text) <= _BRIEF else ""
    return _AGAINST.search(words) is not None or OTHER_SCRIPT.search(words) is not None


def read_lines(message: Message) -> Sequence[str]:
    """Return the lines of a result to which an outcome's indices refer.

    If the result is a JSON object in which some tools wrap outputs, the lines are those of the outputs. The lines are
    not stored with the message, because that would double its size.
    """
    return split_lines(message.text) if message.text[:200].lstrip()[:1] == "{" else message.text.splitlines()


def split_lines(text: str) -> Sequence[str]:
    """Return the lines of a result's text."""
    return _unwrap(text).lines


def _unwrap(text: str, *, is_error: bool = False, lines: Sequence[str] | None = None) -> ResultLines:
    start = text[:200].lstrip()[:1]
    if start == "{" and len(text) <= _PARSED:
        try:
            value = decode_embedded(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            found = _read_object_lines(value, text)
            return found._replace(failed=True, is_wrapper=True) if is_error else found
    return ResultLines(text.splitlines() if lines is None else lines, failed=True if is_error else None)


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
        if not nothing or len(text) <= _BRIEF:
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
    """Return the fields that count changes, at the top or one level below; empty if a count is not 0. Counts of matches
    may be above 0."""
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


def _read(given: ResultLines, command: ShellCommand) -> ToolOutcome:
    rows = given.lines
    first = next((n for n, line in enumerate(rows[:HEAD_LINES]) if has_content(strip_line(line))), None)
    if command.kind == "call":
        return _read_call_outcome(given, first, edits=command.edits_file)
    is_look = command.kind == "look"
    if is_look and given.is_object and not given.is_wrapper:
        given = given._replace(code=None, failed=None)  # it is what the command shows, of another run
    code, shown = _find_exit_code(given, is_shown=is_look)
    tail = outcome_lines.find_last_lines(rows, MAX_LAST_LINES if command.kind == "run" else 1)
    if is_look:
        return _read_look_outcome(given, command, code, shown, tail, first)
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
    if verdict == "succeeded" and (state.unfinished or outcome_lines.ran_no_tests(rows, found)):
        verdict = "unknown"
    proven = code == 0 and command.exit_code_proves
    doubtful = verdict == "succeeded" and not proven and _reports_error(rows, found, command)
    if doubtful:
        verdict = "unknown"
    suspicious = doubtful or verdict == "failed" or bool(found.failed) or ends_badly
    failures = (_find_failure_lines(rows, patterns) if suspicious else ()) or state.timeouts
    passed = (found.passed or found.part)[-1:]
    # A line of words after the one that proves the success often has the counts.
    words = [n for n in found.words[-1:] if not passed or n > passed[0]]
    summary = found.failed[-MAX_SUMMARIES:] + found.failed[:1] if found.failed else passed + words
    keep = sorted({*shown, *summary, *failures, *tail, *state.unfinished})
    return ToolOutcome(
        verdict,
        code,
        timed_out,
        tuple(shown),
        # A run that failed otherwise, for example by its exit code, may have printed a success before.
        tuple(sorted(set(summary))) if verdict != "failed" or found.failed else (),
        failures,
        state.unfinished,
        tuple(keep),
        first,
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


def _find_exit_code(given: ResultLines, *, is_shown: bool) -> tuple[int | None, list[int]]:
    """Return the exit code and the lines that show it. A code other than 0 has priority over 0. is_shown: see
    `find_exit_codes`."""
    rows = given.lines
    found = output_wrappers.find_exit_codes(rows, is_shown=is_shown)
    if given.code is not None and (given.code or not found):
        return given.code, [n for _, n in found] or ([0] if given.inside else _find_code_lines(rows))
    if not found:
        return None, []
    return next((code for code, _ in found if code), 0), [n for _, n in found]


def _find_code_lines(rows: Sequence[str]) -> list[int]:
    return [n for n, line in enumerate(rows) if any(f'"{name}"' in line for name in _CODES)][:1]


def _find_failure_lines(rows: Sequence[str], patterns: runner_patterns.RunnerPatterns) -> tuple[int, ...]:
    """Return the first lines on each failure; only of the first and last failures if there are many."""
    groups: list[tuple[int, ...]] = []
    seen: set[str] = set()
    until = -1
    for n in (*range(min(HEAD_LINES, len(rows))), *range(max(HEAD_LINES, len(rows) - TAIL_LINES), len(rows))):
        if n <= until or len(rows[n]) > MAX_LINE_CHARS:
            continue
        stripped = strip_line(rows[n])
        match = patterns.detail.match(stripped) if stripped else None
        if match is None or stripped in seen:
            continue
        seen.add(stripped)
        follow = patterns.following_lines[(match.lastindex or 1) - 1]
        group = (n, *_find_next_lines(rows, n, follow, (patterns.success_words, patterns.part)))
        until = group[-1]
        groups.append(group)
    if len(groups) > MAX_FAILURES:
        groups = groups[: MAX_FAILURES // 2] + groups[-(MAX_FAILURES // 2) :]
    found: list[int] = []
    room = MAX_FAILURE_CHARS
    for group in (*(g[:1] for g in groups), *(g[1:] for g in groups)):  # the first lines have priority
        for n in group:
            room -= min(len(rows[n]), SHORT_LINE_CHARS)
            if room >= 0:
                found.append(n)
    return tuple(sorted(found))


def _find_next_lines(rows: Sequence[str], n: int, count: int, ends: Sequence[re.Pattern[str]] = ()) -> Iterator[int]:
    """Yield the next `count` lines with content, among the five lines after `n`. ends: patterns of a line that is no
    part of the failure any more."""
    for k in range(n + 1, min(len(rows), n + 6)):
        line = strip_line(rows[k]) if count > 0 else ""
        if count <= 0 or any(end.match(line) for end in ends):
            return
        if has_content(line):
            count -= 1
            yield k


def _read_look_outcome(
    given: ResultLines, command: ShellCommand, code: int | None, shown: list[int], tail: list[int], first: int | None
) -> ToolOutcome:
    """Return the outcome of a command that only shows. The shown text is not an outcome itself."""
    rows = given.lines
    error = runner_patterns.compile_patterns().error
    filled = [n for n, line in enumerate(rows) if has_content(strip_line(line))] if len(rows) <= 8 else []
    starts = [strip_line(rows[n]) for n in filled]
    only_errors = bool(filled) and all(error.match(start) and _SAYS_NO.search(start) for start in starts)
    if command.asks_another:
        only_errors = only_errors or any(map(_CLIENT_FAILED.match, (*starts[:1], *starts[-1:])))
    failures = tuple(filled[:2]) if only_errors or ((code or given.failed) and filled) else ()
    verdict: Verdict = "unknown"
    has_failed = code not in (None, 0, *command.answer_codes) or (given.failed and not command.answer_codes)
    if has_failed or (only_errors and code != 0):
        verdict = "failed"
    elif code == 0 and command.exit_code_proves and not only_errors and not any(map(error.match, starts)):
        verdict = "succeeded"
    return ToolOutcome(
        verdict, code, False, tuple(shown), (), failures, (), tuple(sorted({*shown, *failures, *tail})), first
    )


def _read_call_outcome(given: ResultLines, first: int | None, *, edits: bool) -> ToolOutcome:
    """Return the outcome of a tool that runs no command.

    The call failed if its result is a message of failure, or reports a failure in a field.
    """
    rows = given.lines
    beginning = strip_line(rows[first])[:SHORT_LINE_CHARS] if first is not None else ""
    brief = not given.is_object and sum(map(len, rows)) <= _BRIEF
    may_begin = brief or (edits and not given.is_object) or "<tool_use_error>" in beginning
    is_shown = first is not None and SHOWN_LINE.match(rows[first].lstrip()) is not None
    begins = may_begin and not is_shown and bool(_CALL_FAILED.match(beginning)) and not _DONE.search(beginning)
    says_no = brief and not is_shown and _says_no(beginning) and not _DONE.search(beginning)
    timed_out = brief and output_wrappers.is_timeout(beginning)
    unchanged = edits and not given.is_object and _reports_no_change(rows, beginning)
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
    if first is not None and keep and _HEADING.fullmatch(beginning):
        keep = (*_find_next_lines(rows, first, 1),) or keep
    counted = _find_zero_counts(rows, given.zero_counts) if given.zero_counts else ()
    return ToolOutcome(verdict, given.code, timed_out, (), counted, keep, (), tuple(sorted({*keep, *counted})), first)


def _says_no(line: str) -> bool:
    """True if the first sentence of a message says that a call found or did nothing."""
    return bool(_SAYS_NO.search(PATH_WORD.sub(" ", _SECOND_SENTENCE.sub("", line))))


def _find_zero_counts(rows: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """Return the lines that show these fields with the value 0."""
    field = re.compile(rf'"(?:{"|".join(map(re.escape, names))})"\s*:\s*0(?![\d.])')
    return tuple(n for n, row in enumerate(rows) if len(row) <= MAX_LINE_CHARS and field.search(row))[:MAX_SUMMARIES]


def _reports_no_change(rows: Sequence[str], beginning: str) -> bool:
    """True if the beginning of an edit's result reports no change, or a line reports a failed hunk."""
    return bool(_EDIT_FAILED.match(beginning)) or any(
        _HUNK_FAILED.match(row[:SHORT_LINE_CHARS]) for row in rows[:HEAD_LINES]
    )
