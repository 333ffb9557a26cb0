"""The lines that tools write around the output of a command: labels, exit codes, and the state of the command.

Each agent's tool has its own form. Some put the exit code first, some last after other labels, and some return the
output of a command that still runs or that was stopped. An output without its end proves no success.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

SHORT_LINE_CHARS = 400
"""Characters of a line above which the line is no exit code and no summary."""
MAX_LINE_CHARS = 4 * SHORT_LINE_CHARS
"""Maximum number of characters of a line that are examined."""
_EDGE = 3
"""Number of lines at each end among which an exit code or a state stands; labels do not count."""
_EDGE_LABELS = 12
"""Maximum number of lines at each end that are examined, with the labels."""
_EDGE_ROWS = 6000
"""Maximum number of lines at each end that are looked at, blank ones included."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-B0-2])")
_TASK = re.compile(
    r"(?:\[(?!ERROR\]|-\])[\w:./-]+\] (?!\$)"
    r"|(?!(?:ok|FAILED) \| \d|INTERNALERROR>)[\w.-]++(?: +\||>) (?!(?:FAIL|PASS|SKIP) \|$)|#\d+ (?:\d+\.\d+ )?"
    r"|\d{4}-\d\d-\d\dT[\d:.]+Z |(?:Output|Stdout|Stderr): (?=\S))"
    r"|[\[#* ]*(?i:observation|(?:execution|command|tool|last) (?:logs?|results?|outputs?|responses?)"
    r"(?: of \[[^\]]{0,200}\]| from code snippet)?|\[[\w.-]{2,40} for [^\]]{0,200}\] results?)[\]* ]*:[* ]*"
)
"""The name of a task, a service or a build step before each line, the time, or the label of an output. Also the
words with which agents that act in plain text begin a result (`chat.group.is_observation`)."""
_CODE = re.compile(
    r"""<(?:returncode|exit_?code|return_code)> \s* (-?\d{1,10}) \s* </\w+>
    | \W* (?:error:\s+)? (?:command\ executed\ in\ terminal\b.{0,200}?\.\s+)?
      (?:(?:the\s)? (?:process|command|script|program|shell|run|task)\s+ (?:"[^"]{0,200}"\s+)?)?
      (?:(?:finished|exited|completed|terminated|ended|failed)\s+)? (?:with\s+)? (?:a\s+)? (?:non-zero\s+)?
      (?:exit(?:[ _-]?(?:code|status))? | return[ _-]?code | (?<=with\s)(?:code|status)) (?:\s+(?:was|is|of))?
      \W{0,4} (-?\d{1,10}) \W*
    | \W* (?:rc|returncode|exitcode|EXIT_CODE) \s* [=:] \s* (-?\d{1,10}) \W*""",
    re.IGNORECASE | re.VERBOSE,
)
"""A line that contains only the exit code."""
_FIELD = re.compile(
    r"\W*(?:exit[ _-]?(?:code|status)|return[ _-]?code|rc)\W{0,3}[:=]?\s*-?\d{1,10},?\s*", re.IGNORECASE
)
"""Such a line in a form that shown data has too, for example a log or the state of a job."""
_LABEL = re.compile(
    r"(?:</?[\w:-]+(?: [^<>]*)?>\s*)+|<\?xml\b[^<>]*\?>|\W*(?:output|stdout|stderr|result|logs?|observation)\W*"
    r"|#+ (?:page(?: state)?|snapshot|ran playwright code|(?:new console|modal state) messages?|open tabs)|`{3}\w*"
    r"|(?:Wall time|Chunk ID|Original token count|Total output lines)\b.*|Script completed"
    r"|Command: .*|Directory: \S.*|(?:Error|Signal|Background PIDs): \(none\)|Std(?:out|err): \(empty\)"
    r"|(?:Background PIDs|Process Group PGID): [\d, ]+|\[(?:Current working directory|Python interpreter): .*\]"
    r"|\W*(?:(?:the |your )?(?:command|bash|tool|process|script|shell)\b[\w ]{0,40}? )?"
    r"(?:no|without|not produce) (?:any )?(?:output|stdout|stderr)(?: or errors?)?\W*|[(<\[]empty[)>\]]"
    r"|<(status|retrieval_status|task_id|task_type|timestamp)>[^<>]{0,80}</\1>",
    re.IGNORECASE,
)
"""A line of the wrapper around an output."""
_MEASURE = re.compile(r"\s*(?:Chunk ID|Wall time|Original token count|Total output lines): ")
_OUTPUT_END = "</output>"
"""The end of a wrapper. It is on the last line of an output that has no line end of its own."""
_TELLS = re.compile(r"[^\W_]{2}")
_TIMED_OUT = re.compile(
    r"\W*(?:error\W+)?(?:the\s+)?(?:last\s+)?(?:tool\s+)?(?:command|call|process|execution|operation|request|script)\b"
    r".{0,200}?\btimed out\b(?!.*\bretr(?:y|ying|ied|ies)\b)"
    r"|\W*(?:error\W+)?(?:timed out|timeout)\b(?: after| \(|:(?!\s*+[\d.]*+\s*+\w*+$)|$)"
    r"|\W*(?:\w+ )?(?:tool|command|process)\b.{0,60}?\bexceed(?:ed|ing) (?:the |its )?time(?:out|[ -]?limit)\b"
    r"|\W*status>timed?[_ ]?out<",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(
    r"\W*(?:(?:error|system|warning|note|info)\W+)?(?:"
    r"(?:user )?(?:aborted|cancell?ed|interrupted) (?:the |this )?(?:command|tool|call|execution|process)\b"
    r"|(?:the )?(?:command|tool|call|execution|process|script)(?: (?:was|has been|is))?(?: \w+)?"
    r" (?:aborted|cancell?ed|interrupted|killed|terminated|moved to (?:the )?background)\b"
    r"(?! (?:successfully|normally|with))"
    r"|(?:the )?(?:command|process|script)(?: is)?(?: still)? running\b"
    r"|\w+\W[^{}]{0,200}\"interrupted\": ?true\b|interrupted\": ?true\b"
    r"|request interrupted by user\b|the command has no new output\b"
    r"|status>(?:running|pending|killed|stopped|cancell?ed)<)",
    re.IGNORECASE,
)
"""A line that says that a command still runs, or that somebody stopped it."""
_NUMBERED_BRACKET = re.compile(r"\d++(?:\t|\u2192|\|)\W*")
"""A line of a numbered file that has a number and no word."""


class CommandState(NamedTuple):
    """The state of a command, as the tool reports it with the output."""

    timeouts: tuple[int, ...]
    """The lines that say that the command timed out."""
    unfinished: tuple[int, ...]
    """The lines that say that the command still runs or was stopped."""


def strip_line(line: str) -> str:
    """Return the beginning of a line, without colours, indentation, and text that a carriage return has overwritten.
    The name of a task or the label of an observation in front is removed too, and the end of a wrapper after it."""
    if "\r" in line:
        line = line.rstrip("\r").rpartition("\r")[2]
    line = line.lstrip()[:MAX_LINE_CHARS]
    line = remove_colours(line).strip().removesuffix(_OUTPUT_END)
    found = _TASK.match(line)
    return line[found.end() :].lstrip() if found is not None else line


def remove_colours(line: str) -> str:
    """Return a text without the codes with which a terminal shows colours."""
    return _ANSI.sub("", line) if "\x1b" in line else line


def has_content(line: str) -> bool:
    """True if a line (bare) has content: it is no tag, bracket, ruler, label or exit code of a wrapper."""
    if _TELLS.search(line) is None:
        return False
    if line[0].isdigit():  # neither a label nor an exit code begins with one, and numbered lines are many
        return _NUMBERED_BRACKET.fullmatch(line) is None
    return _LABEL.fullmatch(line) is None and not (len(line) < 80 and _CODE.fullmatch(line))


def find_first_line(text: str) -> str:
    """Return the first line of a text with content; if there is none, the first line that is not blank."""
    rows = text.splitlines()
    found = next((row for row in rows if has_content(strip_line(row))), None)
    return remove_colours(next((row for row in rows if row.strip()), "") if found is None else found).strip()


def list_measures(rows: Sequence[str]) -> list[str]:
    """Return those of the first lines of a result with which the wrapper gives its own id, a time or a size."""
    return [row[:SHORT_LINE_CHARS] for row in rows[:_EDGE_LABELS] if _MEASURE.match(row)]


def find_exit_codes(rows: Sequence[str], *, is_shown: bool) -> list[tuple[int, int]]:
    """Return (exit code, line) of each line at the ends of a result that contains only an exit code.

    is_shown: the command only shows data, which may have the code of another run. Then a plain `exit code: 1` counts
    only where it begins the result or is beside a label of the wrapper.
    """
    found: list[tuple[int, int]] = []
    for n in _find_edges(rows):
        line = rows[n].strip()
        if line[:1].isdigit() or len(line) >= SHORT_LINE_CHARS:
            continue
        match = _CODE.fullmatch(remove_colours(line))
        if match is not None and not (is_shown and _FIELD.fullmatch(line) and not _stands_in_wrapper(rows, n)):
            found.append((next(int(group) for group in match.groups() if group is not None), n))
    return found


def _stands_in_wrapper(rows: Sequence[str], n: int) -> bool:
    """True if a line begins a result, or if one of the lines around it is a label."""
    around = [row.strip() for row in rows[max(0, n - 1) : n + 2]]
    return not any(row.strip() for row in rows[:n]) or any(
        _LABEL.fullmatch(row) and not _CODE.fullmatch(row) for row in around if row
    )


def find_state(rows: Sequence[str], ends: Sequence[int]) -> CommandState:
    """Return the state of a command. ends: further lines that may say that it timed out."""
    edges = _find_edges(rows)
    timeouts = tuple(n for n in sorted({*ends, *edges}) if _TIMED_OUT.match(strip_line(rows[n])))
    return CommandState(timeouts, tuple(n for n in sorted(edges) if _UNFINISHED.match(strip_line(rows[n]))))


def _find_edges(rows: Sequence[str]) -> list[int]:
    """Return the lines at both ends, without blank lines and labels. A label with a state counts."""
    down = _find_filled(rows, range(len(rows)))
    up = _find_filled(rows, range(len(rows) - 1, -1, -1))
    up.reverse()
    return down + up if not (down and up) or down[-1] < up[0] else list(dict.fromkeys(down + up))


def _find_filled(rows: Sequence[str], order: range) -> list[int]:
    found: list[int] = []
    count = seen = 0
    for n in order[:_EDGE_ROWS]:
        line = rows[n].strip()[:MAX_LINE_CHARS]
        if not line:
            continue
        seen += 1
        is_label = not line[0].isdigit() and _LABEL.fullmatch(line) is not None and _CODE.fullmatch(line) is None
        if not is_label or "status>" in line:
            found.append(n)
        count += not is_label
        if count == _EDGE or seen == _EDGE_LABELS:
            break
    return found


def is_timeout(line: str) -> bool:
    """True if a line (bare) says that a command or a call timed out."""
    return _TIMED_OUT.match(line) is not None
