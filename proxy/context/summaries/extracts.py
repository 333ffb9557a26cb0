"""Texts in place of finished work: deterministic extracts, and the questions to a helper model for better ones.

An extract shows the call, the first line of its result, the errors in it, and its identifiers. It is true: everything
listed was there. It is made once for each step and kept with the step's message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from proxy.chat.chain import public_id
from proxy.chat.group import Step
from proxy.chat.message import Call, Message
from proxy.context.analysis import identifiers, outcome, output_wrappers, refetch, result_lines, shell_commands
from proxy.context.analysis.shell_commands import PLAIN_CALL, ShellCommand
from proxy.context.analysis.telling_lines import find_reported_errors, find_unlike_lines
from proxy.context.plan import Ask
from proxy.context.summaries import placeholders
from proxy.context.summaries.stub import render_recall_call
from proxy.context.view import View
from proxy.notes.call_summaries import count_media, shorten_at_word

SUMMARY_PROMPT = (
    "Summarize the following conversation, preserving: key decisions, action items, errors encountered, and current "
    "task state. Be concise. At most <CHARACTERS> characters."
)
"""The words of the source (hierarchical memory), and the limit of the summary's length."""

CALL_CHARS, FIRST_LINE_CHARS, ERROR_CHARS, NAME_CHARS = 120, 160, 160, 80
"""Characters of a call, of a first line, of an error line and of an identifier that are shown."""
MAX_ERRORS, MAX_IDS = 3, 8
"""Error lines and identifiers of a step that are shown."""
MIN_ROWS, MIN_ROW_CHARS = 6, 36
"""Lines of a summary that leaves out steps, and characters of each: more and shorter ones would say nothing."""
MIN_END_CHARS = 60
"""Characters of a line from which on it has the reason of a failure, and not only that there was one."""
FAILED = " -> failed"
"""The end of the line of such a step."""
COMPARED_NAMES = 400
"""First identifiers of a result that are searched for within what is shown, and not only compared with its words."""
ASKED_CHARS = 2_000
"""Characters of each message that a helper gets."""

_ELEMENT_END = re.compile(r"<(/[^<>\s]+)>")
"""Pattern of the end of an element of markup, which reads like a path."""
_ERROR = re.compile(
    r"\b(?<!\b0 )(?<!\b[Nn]o )(?:[Ee]rrors?|ERRORS?|[A-Z]\w*(?:Error|Exception)|[Ee]xception|Traceback"
    r"|[Ff]ail(?:ed|ures?|s)?|FAIL(?:ED|URES?)?"
    r"|[Ff]atal|FATAL|[Pp]anic|[Dd]enied|[Nn]ot found|[Nn]o such)\b(?! ?[=:] *0\b)"
)
"""A line that may tell of an error; a count of none does not."""


class StepExtract(NamedTuple):
    """A summary line of a step."""

    call: str
    """The call, or the beginning of the text if there is no call."""
    first_line: str
    """The first line of the first result."""
    errors: tuple[str, ...]
    """Lines of the results that tell how the calls ended, or of errors (`find_telling_lines`)."""
    ids: tuple[str, ...]
    """Identifiers of the results that the other fields do not have: the first ones."""
    more_ids: int = 0
    """Number of further ones."""
    is_run: bool = False
    """The first call ran something: how it ended says more than the first line of its output."""
    has_failed: bool = False
    """A call has failed: shown by its call alone, the step would read as done."""


def extract_step(view: View, step: Step) -> StepExtract:
    """The step's line, made once and kept with its first message."""
    first = view.messages[step.start]
    return first.derive(lambda _: _extract_step(view, step), ("line", view.keys[step.end - 1]))


def _extract_step(view: View, step: Step) -> StepExtract:
    message = view.messages[step.start]
    results = [view.messages[n].text for n in range(step.start, step.end) if view.is_result[n]]
    call = _render_calls(message.calls) or ("" if results else _cut_first_line(message.text, FIRST_LINE_CHARS))
    first = _cut_first_line(results[0], FIRST_LINE_CHARS) if results else ""
    text = "\n".join(results)
    errors = _find_step_lines(view, step, excluded=first)
    media = count_media(sum(view.messages[n].media_count for n in range(step.start, step.end)))
    if media and results:
        first = f"{first}, with {media}" if first else media
    elif media:
        call = f"{call}, with {media}" if call else media
    seen = " ".join((call, first, *errors))
    left_out = {*identifiers.find_names(seen), *_ELEMENT_END.findall(text)}
    names = [n for n in identifiers.find_distinct_names(text) if len(n) <= NAME_CHARS and n not in left_out]
    names[:COMPARED_NAMES] = [n for n in names[:COMPARED_NAMES] if n not in seen]
    is_run = bool(message.calls) and shell_commands.parse_call(message.calls[0]).kind == "run"
    ids, more = tuple(names[:MAX_IDS]), len(names[MAX_IDS:])
    return StepExtract(call, first, errors, ids, more, is_run, _has_failed(view, step))


def _render_calls(calls: Sequence[Call]) -> str:
    """The calls of a step with the beginnings of their arguments, and the number without room."""
    named = [f"{one.name}({cut_text(_collapse_spaces(one.arguments), CALL_CHARS)})" for one in calls]
    ends = accumulate(len(one) + len("; ") for one in named)
    fit = max(1, sum(end <= 2 * CALL_CHARS for end in ends))
    text = cut_text("; ".join(named[:fit]), 2 * CALL_CHARS)
    return f"{text}; {len(named) - fit} more calls" if len(named) > fit else text


def _list_results(view: View, step: Step) -> Iterator[tuple[Message, Call | None]]:
    """Yield the results of a step, each with its call; None for a result of a call that is not in the step."""
    calls = {call.id: call for call in view.messages[step.start].calls}
    for n in range(step.start, step.end):
        if view.is_result[n]:
            yield view.messages[n], calls.get(view.messages[n].call_id or "")


def _find_step_lines(view: View, step: Step, excluded: str) -> tuple[str, ...]:
    found = [line for m, call in _list_results(view, step) for line in find_telling_lines(m, call, excluded)]
    return tuple(identifiers.remove_duplicates(found))[:MAX_ERRORS]


def _has_failed(view: View, step: Step) -> bool:
    return any(outcome.read_outcome(m, _parse_call(call)).verdict == "failed" for m, call in _list_results(view, step))


def _parse_call(call: Call | None) -> ShellCommand:
    return shell_commands.parse_call(call) if call is not None else PLAIN_CALL


def find_telling_lines(message: Message, call: Call | None, excluded: str) -> tuple[str, ...]:
    """The lines of a result that tell how its call ended: of a run, its first failures and its summary or last line.

    The text of a file and the hits of a search tell of an error only where a program has reported one. Of a result
    without errors these are the lines that are unlike all others.
    """
    command = _parse_call(call)
    source = refetch.find_source(call) if call is not None else None
    tool_outcome = outcome.read_outcome(message, command)
    if command.kind == "run":
        failures = tool_outcome.failure_lines[: MAX_ERRORS - 1]
        end_lines = tool_outcome.unfinished_lines[:1] or tool_outcome.summary_lines[-1:] or tool_outcome.code_lines[:1]
        end_lines = end_lines or (() if failures and tool_outcome.verdict == "failed" else tool_outcome.kept_lines[-1:])
        if not failures and tool_outcome.verdict == "unknown":
            failures = find_reported_errors(message)[-1:]  # what follows it may be the rest of its message
        line_numbers = [*(n for n in failures if n not in end_lines), *end_lines]
    else:
        shows = source is not None and source.action in ("shows", "writes", "looks")
        if (not shows or tool_outcome.verdict == "failed") and (errors := find_errors(message.text, excluded)):
            return errors
        reported, unlike = find_reported_errors(message), message.derive(find_unlike_lines)
        line_numbers = sorted([*dict.fromkeys((*reported, *reversed(unlike)))][:MAX_ERRORS])
    lines = result_lines.read_lines(message)
    found = (cut_text(output_wrappers.strip_line(lines[n]), ERROR_CHARS) for n in line_numbers)
    return tuple(line for line in identifiers.remove_duplicates(found) if line and line != excluded)


def find_step_failures(view: View, step: Step) -> list[str]:
    """The lines that say why calls of a step have failed."""
    return [line for m, call in _list_results(view, step) for line in _find_failures(m, call)]


def _find_failures(message: Message, call: Call | None) -> tuple[str, ...]:
    """The first lines of a result that tell of an error; none if its call succeeded."""
    ended = outcome.read_outcome(message, _parse_call(call))
    return () if ended.verdict == "succeeded" else message.derive(_find_errors)


def _find_errors(message: Message) -> tuple[str, ...]:
    return find_errors(message.text)


def find_errors(text: str, excluded: str = "") -> tuple[str, ...]:
    """The first lines of a text that tell of an error."""
    text = output_wrappers.remove_colours(text)
    if not _ERROR.search(text):
        return ()
    found = (cut_text(row.strip(), ERROR_CHARS) for row in text.splitlines() if _ERROR.search(row))
    return tuple(islice((e for e in identifiers.remove_duplicates(found) if e != excluded), MAX_ERRORS))


def _collapse_spaces(text: str) -> str:
    return " ".join(text.split())


def _cut_first_line(text: str, limit: int) -> str:
    return cut_text(output_wrappers.find_first_line(text), limit)


def cut_text(text: str, limit: int) -> str:
    """At most `limit` characters of a text, cut between two words."""
    return shorten_at_word(text, limit)


def extract_result(view: View, step: Step, index: int) -> str:
    """The extract of one result: its first line, error lines and identifiers, and its length."""
    message = view.messages[index]
    first = _cut_first_line(message.text, FIRST_LINE_CHARS)
    call = next((call for call in view.messages[step.start].calls if call.id == message.call_id), None)
    errors = find_telling_lines(message, call, excluded=first)
    name = public_id(view.keys[index])
    whole = f"; {render_recall_call(name)} has all" if "recall" in view.inputs.offered_tools else ""
    rows = [f"[extract of message {name}, {len(message.text)} characters{whole}]"]
    if first:
        rows.append(first)
    rows += errors
    names = _render_names(extract_step(view, step)) if step.end - step.start <= 2 else ""
    if names:
        rows.append("also there: " + names)
    return "\n".join(rows)


def render_heading(view: View, steps: Sequence[Step]) -> str:
    """The first line of a summary: the messages that it stands for."""
    first, last = steps[0].start, steps[-1].end - 1
    count = sum(step.end - step.start for step in steps)
    return f"[summary of {count} messages, {public_id(view.keys[first])} to {public_id(view.keys[last])}]"


def extract_steps(view: View, steps: Sequence[Step], call_only: Sequence[bool], limit: int) -> str:
    """Several steps in at most `limit` characters, one line for each; steps marked in `call_only` show their call
    alone, and that it has failed."""
    prefixes = [""] * len(steps)
    return _extract_rows(view, steps, prefixes, call_only, limit)


def extract_messages(view: View, steps: Sequence[Step], limit: int) -> str:
    """The messages of several steps in at most `limit` characters, one line for each with its role."""
    prefixes = [f"{view.messages[step.start].role}: " for step in steps]
    return _extract_rows(view, steps, prefixes, [True] * len(steps), limit)


def _extract_rows(
    view: View, steps: Sequence[Step], prefixes: Sequence[str], call_only: Sequence[bool], limit: int
) -> str:
    """The heading and a line for each step. Of more steps than have room, the first and the last ones are shown, and
    how many stand between them.

    Every step gets its share of the room, and the unused part goes to the steps after it."""
    rows = [render_heading(view, steps)]
    room = limit - len(rows[0])
    fitting_rows = (room - len(render_left_out(len(steps)))) // (MIN_ROW_CHARS + 3)
    is_cut = MIN_ROWS <= fitting_rows < len(steps)
    head_end, tail_start = (
        (fitting_rows // 2, len(steps) - (fitting_rows + 1) // 2) if is_cut else (len(steps), len(steps))
    )
    room -= len(render_left_out(tail_start - head_end)) + 1 if is_cut else 0
    shown = [n for n in range(len(steps)) if n < head_end or n >= tail_start]
    for shown_count, n in enumerate(shown):
        if is_cut and n == tail_start:
            rows.append(render_left_out(tail_start - head_end))
        share = max(16 + len(prefixes[n]), room // (len(shown) - shown_count) - 3)
        row = prefixes[n] + _render_row(extract_step(view, steps[n]), share - len(prefixes[n]), short=call_only[n])
        room -= len(row) + 3
        if row and room >= 0:
            rows.append("- " + row)
    return "\n".join(rows)


def render_left_out(count: int) -> str:
    """The line in place of steps for which a summary has no room."""
    return f"[... {count} steps]"


def _render_row(extract: StepExtract, share: int, *, short: bool) -> str:
    """The line of a step in at most `share` characters; short: its call alone, if it has not failed. A long call yields
    up to half of them to how it ended: a call that failed would read as done."""
    if short and not extract.has_failed:
        return cut_text(extract.call or extract.first_line, share)
    if short and share < MIN_END_CHARS:
        return f"{cut_text(extract.call, share - len(FAILED))}{FAILED}"
    lines = (*extract.errors[-1:], *extract.errors[:-1]) if extract.is_run else extract.errors
    ending_lines = (*lines, extract.first_line) if extract.is_run else (extract.first_line, *lines)
    ending = " | ".join(_collapse_spaces(line) for line in ending_lines if line)
    call = cut_text(extract.call, max(share // 2, share - len(ending) - 4)) if ending else extract.call
    row = " -> ".join(text for text in (call, ending) if text)
    return cut_text(row + (f" ({_render_names(extract)})" if extract.ids else ""), share)


def _render_names(extract: StepExtract) -> str:
    """The identifiers of a step that are shown, and how many more there are; empty if there are none."""
    return " ".join(extract.ids) + (f"; {extract.more_ids} more" if extract.more_ids else "")


def render_answer(view: View, steps: Sequence[Step], answer: str, limit: int) -> str:
    """A helper's summary of the steps, with the messages that it stands for."""
    return cut_text(f"{render_heading(view, steps)}\n{answer.strip()}", limit)


def shorten_text(text: str, limit: int, message_id: str = "") -> str:
    """The beginning of a text, and the number of missing characters. message_id: to read the whole text."""
    if len(text) <= limit:
        return text
    kept = text[:limit].rsplit(" ", 1)[0].rstrip() or text[:limit]
    whole = f"; {render_recall_call(message_id)} has all" if message_id else ""
    return f"{kept}\n[... {len(text) - len(kept)} characters left out{whole}]"


def build_ask(view: View, steps: Sequence[Step], max_chars: int, min_ids: int, prompt: str = SUMMARY_PROMPT) -> Ask:
    """The question for a summary of these steps.

    max_chars: characters that the summary may have. min_ids: number of identifiers of an extract that the answer has to
    hold. prompt: the instruction to the helper."""
    rows, keys = [], []
    for step in steps:
        for n in range(step.start, step.end):
            message = view.messages[n]
            keys.append(view.keys[n])
            rows.append(f"{message.role}: {shorten_text(identifiers.read_all_text(message), ASKED_CHARS)}")
    step_extracts = (extract_step(view, step) for step in steps)
    shown = " ".join(part for extract in step_extracts for part in (extract.first_line, *extract.errors, *extract.ids))
    ids = identifiers.remove_duplicates(
        name for name in identifiers.find_names(shown) if len(name) <= 40 and not name.endswith("...")
    )
    text = "\n\n".join((placeholders.fill(prompt, CHARACTERS=max_chars), *rows))
    return Ask("summary", text, tuple(keys), tuple(ids[:min_ids]), max_chars, urgent=True)


def build_merge_ask(
    view: View, steps: Sequence[Step], summaries: Sequence[str], max_chars: int, prompt: str = SUMMARY_PROMPT
) -> Ask:
    """The question for a summary of summaries.

    The summaries stand for these steps. They are more than the steps of any one summary, because the messages that an
    Ask is about make its id."""
    keys = tuple(view.keys[n] for step in steps for n in range(step.start, step.end))
    text = "\n\n".join((placeholders.fill(prompt, CHARACTERS=max_chars), *summaries))
    return Ask("summary", text, keys, (), max_chars, urgent=True)
