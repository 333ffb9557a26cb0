"""Proof that a call has changed a file or shown it, in the result of a file tool.

The words are those with which tools report a change, in several languages. A failed call proves nothing, and neither
does a result of unknown outcome that has a word of doubt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from proxy.context.analysis import output_wrappers, tool_messages
from proxy.context.analysis.outcome import ToolOutcome
from proxy.context.analysis.output_wrappers import MAX_LINE_CHARS
from proxy.context.analysis.tool_messages import MAX_MESSAGE_CHARS

Lines = Callable[[], Sequence[str]]
"""Reader of the lines of a result: most records need none of them."""
_CHANGED = re.compile(
    r"\b(?:updated|edited|created|written|wrote|modified|replaced|applied|saved|inserted|changed|added|patched"
    r"|overwritten|overwrote|accepted|success\w*|done|ok)\b|(?:diff --git|Index:|---|@@) "
    r"|\b(?:gespeichert|aktualisiert|ge\u00e4ndert|geschrieben|erstellt|enregistr\w*|modifi\w*|mise? \u00e0 jour"
    r"|cr\u00e9\u00e9e?|guardad[ao]|actualizad[ao]|cread[ao]|escrit[ao]|salv[ao]|atualizad[ao]|criad[ao]|salvat[ao]|aggiornat[ao]|creat[ao])\b"
    r"|[\u5df2\u2705\u2713\u2714]|\u6210\u529f|\u4fdd\u5b58|\u66f4\u65b0|\u5b8c[\u6210\u4e86]|\uc800\uc7a5|\uc644\ub8cc|\uc218\uc815|\uc131\uacf5",
    re.IGNORECASE,
)
"""Words with which a tool reports that it has changed a file, and beginnings of a diff that shows the change. The words
are English, German, French, Spanish, Portuguese, Italian, Chinese, Japanese and Korean."""
_UNCHANGED = re.compile(
    r"\b(?:no|not|never|cannot|unable|without|nothing|neither|identical|unchanged|since|unexpectedly|already|permissions?"
    r"|errors?|invalid|fail\w*|reject\w*|den(?:y|ied)|refus\w*|cancel\w*|abort\w*|ambiguous|multiple|must|before"
    r"|will|would|could|pending|awaiting|waiting|queued|review|propos\w*|preview\w*|draft\w*|suggest\w*|confirm\w*"
    r"|interrupt\w*|timed|timeout|read-?only|locked|blocked|expired|stale|conflict\w*|rolled|rollback|revert\w*|undone"
    r"|skipp\w*|null|none)\b"
    r"|n['\u2019]t\b|[\u274c\u2717\u2718\u26d4]|" + tool_messages.FOREIGN_NEGATIONS,
    re.IGNORECASE,
)
"""Words with which a tool reports no change, or leaves it open. The words are English, German, French, Spanish,
Portuguese, Italian, Russian, Chinese, Japanese and Korean."""
_ASKS = re.compile(r"\b(?:found|match\w*|occur\w*|times|specify|provide|requires?|required|missing)\b", re.IGNORECASE)
"""Words of a tool that asks for other input; they count if no word reports a change of the file."""
_SENTENCE = re.compile(r"[.!:;](?:\s|$)")


def proves_change(end: ToolOutcome, lines: Lines) -> bool:
    """True if a result proves that a file was changed.

    Its first sentence reports the change, or it is a short message of the tool with such a word and none against it.
    A message without words proves it too: a tool that has failed says so.
    """
    if end.verdict != "unknown":
        return end.verdict == "succeeded"
    if end.summary_lines:
        return False  # the result counts no changes
    shown = lines()
    first_line = output_wrappers.strip_line(shown[end.first_line]) if end.first_line is not None else ""
    first = tool_messages.PATH_WORD.sub(" ", _SENTENCE.split(first_line, maxsplit=1)[0])
    if _CHANGED.search(first) and not _UNCHANGED.search(first):
        return True
    if sum(map(len, shown)) > MAX_MESSAGE_CHARS:
        return False
    cleaned = [tool_messages.PATH_WORD.sub(" ", line) for line in shown]
    if any(pattern.search(line) for line in cleaned for pattern in (_UNCHANGED, _ASKS, tool_messages.OTHER_SCRIPT)):
        return False
    return any(map(_CHANGED.search, cleaned)) or not any(map(output_wrappers.has_content, cleaned))


def shows_file(end: ToolOutcome, lines: Lines) -> bool:
    """True if a result shows a file, and is no short message, in whatever language, that there is none."""
    if end.verdict == "failed":
        return False
    shown = [line.lstrip() for line in lines()[:MAX_MESSAGE_CHARS]]
    return (
        sum(map(len, shown)) > MAX_MESSAGE_CHARS
        or any(map(tool_messages.SHOWN_LINE.match, shown[:1]))
        or not has_doubt(shown)
    )


def has_doubt(rows: Sequence[str]) -> bool:
    """True if the beginning of a line has a word with which a tool reports that it has not done something."""
    return any(_UNCHANGED.search(tool_messages.PATH_WORD.sub(" ", row[:MAX_LINE_CHARS])) for row in rows)
