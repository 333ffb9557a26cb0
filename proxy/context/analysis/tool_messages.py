"""Messages of tools: the words with which a tool reports that it has failed, or has changed nothing.

A tool that runs no command often answers with one sentence. It proves a failure if it begins as a
message of failure does. Words alone never prove a success.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.chat.message import Message
from proxy.context.analysis.outcome_lines import HEAD_LINES
from proxy.context.analysis.output_wrappers import SHORT_LINE_CHARS

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
HEADING = re.compile(r"\W*(?:error|exception|failed|failure)\W*", re.IGNORECASE)
"""A line that only says that the call failed: the reason is the next one."""
SAYS_NO = re.compile(
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
CLIENT_FAILED = re.compile(
    r"[-\d\s:.]{0,120}curl: \(\d+\) |\w+: error: |An error occurred \(\w+\) when calling |ERROR: \(gcloud\."
    r"|Error from server \("
    r"|ERROR:  \S|ERROR \d+ \(\w+\)|error: the server doesn't have |(?:Parse e|E)rror: (?:near |no such |in prepare)"
    r"|(?:Catalog|Binder|Parser) Error: "
    r"|Error response from daemon: |Cannot connect to the Docker daemon |The connection to the server \S+ was refused"
    r"|Unable to connect to the server: |ssh: |Permission denied \(publickey|kex_exchange_identification: "
)
"""The first or last line of a client of a server or a database that could not do what it was asked for."""
MAX_MESSAGE_CHARS = 300
"""Characters of a call's result above which the result is content and no message."""


def reports_doubt(message: Message) -> bool:
    """True if a result is a short message against its call's success, or in an unknown script."""
    text = message.text
    words = PATH_WORD.sub(" ", text) if len(text) <= MAX_MESSAGE_CHARS else ""
    return _AGAINST.search(words) is not None or OTHER_SCRIPT.search(words) is not None


def begins_with_failure(line: str) -> bool:
    """True if a line begins as the message of a failed call, and does not say that the call was done."""
    return bool(_CALL_FAILED.match(line)) and not _DONE.search(line)


def says_no(line: str) -> bool:
    """True if the first sentence of a message says that a call found or did nothing."""
    found = SAYS_NO.search(PATH_WORD.sub(" ", _SECOND_SENTENCE.sub("", line)))
    return bool(found) and not _DONE.search(line)


def reports_no_change(rows: Sequence[str], beginning: str) -> bool:
    """True if the beginning of an edit's result reports no change, or a line reports a failed hunk."""
    return bool(_EDIT_FAILED.match(beginning)) or any(
        _HUNK_FAILED.match(row[:SHORT_LINE_CHARS]) for row in rows[:HEAD_LINES]
    )
