"""The short form of a tool result: its source, its outcome, and the content that is nowhere else in the prompt.

A shortened result has to name its call and its outcome. It must not take away the only place of a path, an id or a
line. Everything else can be had again, from the store or by calling the tool again. All that is listed was in the
result, in its order; the amount that is missing is given."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import filterfalse

import msgspec

from proxy.chat.message import Message, checkpoint
from proxy.context.analysis import (
    identifiers,
    line_numbers,
    outcome,
    outcome_lines,
    output_wrappers,
    result_lines,
    telling_lines,
)
from proxy.context.analysis.file_views import ViewState
from proxy.context.analysis.identifiers import PromptIndex, TextFacts
from proxy.context.analysis.outcome import ToolOutcome
from proxy.context.analysis.shell_commands import PLAIN_CALL, ShellCommand
from proxy.context.analysis.telling_lines import LONG_LINE
from proxy.context.plan import ContentKind
from proxy.context.summaries import labelled_records, listed_names

_OVERWRITTEN = re.compile(r"^[^\n]*\r(?=[^\n])", re.MULTILINE)
"""Text that a carriage return has overwritten, such as the steps of a progress bar."""
_MAX_LINE_CHARS = 300
"""Characters of a line that are shown."""
_LINE_HEAD_CHARS = 200
"""Characters of these at the front of a longer line; the others are from its end."""
_WORD_END = re.compile(r"[\s\"'\[\]{}()<>|;]")
"""A character that is in no name and in no number."""
_MAX_WORD_CHARS = 40
"""Characters above which a word is cut."""
_MIN_COUNT_AS_NAME = 1000
"""A count from which its digits are a name."""
_DEFAULT_MAX_ERRORS = 8
"""Error lines that stay if nothing else is set."""
_MAX_NAME_CHARS = 120
"""Characters above which a name is a blob."""

STATE_REMARKS: dict[ViewState, str] = {
    "changed": "edited since: read it again",
    "gone": "deleted or moved away since",
}
"""Remarks on a file that is not as it was shown any more."""


class StubLimits(msgspec.Struct, frozen=True):
    """The amount of a result that stays."""

    max_errors: int = _DEFAULT_MAX_ERRORS
    """Number of lines that tell of an error."""
    max_name_chars: int = 4000
    """Room for names that stand nowhere else, in characters."""
    max_name_share: float = 0.25
    """The same room as a share of the result; the smaller room counts."""


_DEFAULT_LIMITS = StubLimits()
"""The limits by which stubs are estimated, whatever a stage has set: the estimate is kept with the message."""


def estimate_stub_chars(message: Message, command: ShellCommand = PLAIN_CALL, *, content: ContentKind = "other") -> int:
    """Estimate the characters of this result's stub. The estimate is needed often, so it does not look at the prompt.

    Names that are elsewhere are not known here. Nearly all names are taken to be nowhere else, which is the
    careful side.
    """
    return message.derive(lambda m: _estimate_stub_chars(m, command, content), ("rough", command, content))


def _estimate_stub_chars(message: Message, command: ShellCommand, content: ContentKind) -> int:
    lines = result_lines.read_lines(message)
    tool_outcome = outcome.read_outcome(message, command, lines)
    kept_lines = _find_outcome_lines(tool_outcome, command, may_be_view=content != "other")
    telling = [n for n in _find_telling_lines(message, command, content) if n not in kept_lines]
    telling_chars = sum(
        len(lines[n]) for n in _take_both_ends(telling, _DEFAULT_MAX_ERRORS - len(tool_outcome.failure_lines))
    )
    if len(message.text) > LONG_LINE and max(map(len, lines), default=0) > LONG_LINE:
        # A line with an error counts this many characters, however long it is.
        beginnings = [line[:LONG_LINE] for line in lines if len(line) > LONG_LINE]
        telling_chars += LONG_LINE * len(telling_lines.select_error_lines(message, beginnings))
    if tool_outcome.first_line is not None:
        kept_lines.add(tool_outcome.first_line)
    shown = [show_line(lines[n]) for n in kept_lines]
    shown_names = set(identifiers.find_names("\n".join(shown)))
    checkpoint()
    known = identifiers.read_names(message)
    names = known.joined.split()
    left_out = [*shown_names.intersection(names)]
    if known.longest > _MAX_NAME_CHARS:
        left_out += [name for name in names if len(name) > _MAX_NAME_CHARS and name not in shown_names]
    loose_chars = len(known.joined) + bool(known.joined) - sum(map(len, left_out)) - len(left_out)
    shown_chars = sum(map(len, shown)) + len(shown)
    new_share = 0.5 if command.kind == "run" else 0.9  # a run names things that the agent has just written or run
    room = _DEFAULT_LIMITS.max_name_share * len(message.text)
    if labelled_records.is_record(message, command):
        return int(shown_chars + min(telling_chars, 1200) + min(8000, labelled_records.ROOM_FACTOR * room)) + 60
    return (
        int(shown_chars + min(telling_chars, 1200) + min(new_share * loose_chars, _DEFAULT_LIMITS.max_name_chars, room))
        + 60
    )


def _find_telling_lines(message: Message, command: ShellCommand, content: ContentKind) -> tuple[int, ...]:
    """The numbers of the lines that tell of an error.

    Of a file, a search or a listing, only lines that report an error count: the others are code with these words. Of a
    run that succeeded, what a test has printed does not count: without its heading it reads as an error of the run.
    """
    if content != "unknown" and command.kind != "run":
        return message.derive(telling_lines.find_reported_errors)
    found = message.derive(telling_lines.find_error_lines)
    if found and command.kind == "run" and outcome.read_outcome(message, command).verdict == "succeeded":
        logged = message.derive(_find_logged_lines)
        return tuple(n for n in found if n not in logged)
    return found


def _find_logged_lines(message: Message) -> frozenset[int]:
    return frozenset(outcome_lines.find_logged_lines(result_lines.read_lines(message)))


def _find_outcome_lines(tool_outcome: ToolOutcome, command: ShellCommand, *, may_be_view: bool) -> set[int]:
    """The lines that say how a call ended.

    For a run these are all lines of its outcome. The text of a viewed file says nothing about the call. So of what
    may be a view, only the lines of a failure stay, and the line that nothing was changed. A result of an unknown tool
    may be one.
    """
    if may_be_view and command.kind != "run":
        if tool_outcome.verdict != "failed":
            return set(tool_outcome.summary_lines)
        return {*tool_outcome.code_lines, *tool_outcome.failure_lines, *tool_outcome.summary_lines}
    return set(tool_outcome.kept_lines)


def _take_both_ends(items: list[int], most: int) -> list[int]:
    """At most `most` items: the first and the last ones."""
    half = max(0, most) // 2
    return items if len(items) <= most else items[:half] + items[len(items) - half :]


class StubWriter:
    """Write the stubs of one batch, newest first: of two copies of a text the older one goes."""

    def __init__(self, prompt_index: PromptIndex, limits: StubLimits) -> None:
        self._prompt_index = prompt_index
        self._limits = limits

    def write_stub(
        self,
        message: Message,
        facts: TextFacts,
        referred_spans: Sequence[tuple[int, int]] = (),
        command: ShellCommand = PLAIN_CALL,
        *,
        content: ContentKind,
        message_id: str = "",
        state: ViewState = "current",
    ) -> str:
        """The stub of one result.

        facts: the names and lines that the message holds now. referred_spans: (start, end) of lines that a later
        result refers to; these lines stay whole. command: the command of the result. content: what the result has; a
        view shows a file or page that may be edited later. message_id, state: see `render_stub`."""
        lines = result_lines.read_lines(message)
        may_be_view = content != "other"
        self._prompt_index.remove(facts)  # from here on, what the index has is in another message
        kept = self._find_fixed_lines(message, lines, command, content)
        whole = {n for start, end in referred_spans for n in range(start, min(end, len(lines)))}
        kept |= whole
        room = min(self._limits.max_name_chars, int(self._limits.max_name_share * len(message.text)))
        is_record = labelled_records.is_record(message, command)
        if is_record:
            room = int(labelled_records.ROOM_FACTOR * room)
        elif may_be_view:
            room = self._keep_lines(message.derive(telling_lines.find_constants), lines, kept, room)
        if room:  # the last ones first: a sum or a decision is at the end
            room = self._keep_lines(message.derive(telling_lines.find_unlike_lines)[::-1], lines, kept, room)
        if is_record:
            kept.update(labelled_records.select_lines(lines, room))
            room = 0
        keep_short_gaps(lines, kept)
        names, more, shown = self._find_lost_names(message, lines, kept, whole, room, command)
        text = render_stub(message.text, lines, kept, names, message_id, more, whole, state=state)
        if shown is not None and state == "current" and max(len(lines), more) < _MIN_COUNT_AS_NAME:
            # Beside these, a stub has names in its first line alone, so that its text need not be read again.
            shown.update(names, identifiers.find_names(text.partition("\n")[0]))
            self._prompt_index.add(identifiers.find_replacement_facts(message, text, shown))
        else:
            self._prompt_index.add(identifiers.find_replacement_facts(message, text))
        return text

    def _find_fixed_lines(
        self, message: Message, lines: Sequence[str], command: ShellCommand, content: ContentKind
    ) -> set[int]:
        """The lines that always stay: the first line with text, the outcome, unique error lines, the imports of a file.

        A file's constants and unlike lines come after these (`_keep_lines`).
        """
        tool_outcome = outcome.read_outcome(message, command)
        may_be_view = content != "other"
        kept = _find_outcome_lines(tool_outcome, command, may_be_view=may_be_view)
        first_line = (
            tool_outcome.first_line
            if tool_outcome.first_line is not None
            else next((n for n, line in enumerate(lines) if line.strip()), None)
        )
        if first_line is not None:
            kept.add(first_line)
        is_elsewhere = self._prompt_index.has_line
        telling = [n for n in _find_telling_lines(message, command, content) if n not in kept]
        numbers = [n for n in telling if not is_elsewhere(identifiers.strip_line_number(lines[n]))]
        if command.kind == "run" and not numbers and not tool_outcome.failure_lines:
            numbers = telling[-1:]  # without it, the run would read as one without that error
        kept.update(_take_both_ends(numbers, self._limits.max_errors - len(tool_outcome.failure_lines)))
        if may_be_view:
            kept.update(message.derive(telling_lines.find_imports))
        return kept

    def _keep_lines(self, numbers: Sequence[int], lines: Sequence[str], kept: set[int], room: int) -> int:
        """Keep those of these lines that stand nowhere else while there is room for names. Return the rest of it."""
        for n in numbers:
            size = len(lines[n]) + 1
            if (
                n not in kept
                and size <= room
                and not self._prompt_index.has_line(identifiers.strip_line_number(lines[n]))
            ):
                kept.add(n)
                room -= size
        return room

    def _find_lost_names(
        self,
        message: Message,
        lines: Sequence[str],
        kept: set[int],
        whole_lines: Collection[int],
        room: int,
        command: ShellCommand,
    ) -> tuple[list[str], int, set[str] | None]:
        """Return (names of the removed text that stand nowhere else, how many more such names there are, the names in
        the kept lines).

        The names are ordered by worth, and have at most `room` characters. The names in the kept lines are None if the
        stub has names or lines in another form than here.
        """
        shown = [lines[n] if n in whole_lines else show_line(lines[n]) for n in kept]
        shown_names = set(identifiers.find_names("\n".join(shown)))
        is_whole = all(len(lines[n]) <= _MAX_LINE_CHARS for n in kept)
        known = identifiers.read_names(message)
        select_missing = self._prompt_index.select_missing_names
        found = select_missing(known.joined.split())
        if any(_is_long_text(lines[n]) for n in kept):  # of such a line count only names that a removed line has too
            removed = {*identifiers.find_names("\n".join([line for n, line in enumerate(lines) if n not in kept]))}
            found = [name for name in found if name in removed]
        checkpoint()
        # Names that are in another message, and blobs, stay out.
        lost = whole_names = [name for name in found if name not in shown_names]
        split_names = listed_names.split_places(lost, lines)
        if split_names is not whole_names:
            shown_names.update(listed_names.split_places(list(shown_names), lines))
            lost = [name for name in select_missing(split_names) if name not in shown_names]
        if not is_whole or known.longest > _MAX_NAME_CHARS:
            lost = [name for name in lost if len(name) <= _MAX_NAME_CHARS]
        if command.kind != "call" and "\r" in message.text and _OVERWRITTEN.search(message.text):
            displayed = {*identifiers.find_names(_OVERWRITTEN.sub("", message.text))}
            lost = [name for name in lost if name in displayed]
        lost = listed_names.drop_no_names(line_numbers.drop_most_numbers(message, lost), lines)
        checkpoint()
        lost, folded = listed_names.fold_places(lost)
        ranks = {name: listed_names.rank_name(name) for name in filterfalse(str.isidentifier, lost)}
        if listed_names.NUMBER_RANK in ranks.values():
            sizes = listed_names.find_listing_sizes(lines).intersection(lost)
            ranks.update(dict.fromkeys(sizes, listed_names.LOWEST_RANK))
        checkpoint()
        listed = _select_names(lost, folded, ranks, room)
        if ranks:
            listed.sort(key=lambda name: ranks.get(name, 1))
        is_plain = is_whole and split_names is whole_names and not folded
        return [folded.get(name, name) for name in listed], len(lost) - len(listed), shown_names if is_plain else None


def _select_names(names: Sequence[str], folded: Mapping[str, str], ranks: Mapping[str, int], room: int) -> list[str]:
    """The names that have room, in their order, those of the lowest rank last. folded: the text in place of a name."""
    # The first names of a result say most; dates and sizes get the room that is left. A bare number says little to
    # a reader, but an agent that needs it finds it: without numbers more results are fetched again.
    if listed_names.LOWEST_RANK in ranks.values():
        names = sorted(names, key=lambda name: ranks.get(name) == listed_names.LOWEST_RANK)
    selected: list[str] = []
    for name in names:
        size = len(folded.get(name, name))
        if size > room:
            break
        selected.append(name)
        room -= size + 1
    return selected


def keep_short_gaps(lines: Sequence[str], kept: set[int]) -> None:
    """Keep lines that are no longer than the mark that would replace them: mostly one blank line."""
    start = 0
    for n in (*sorted(kept), len(lines)):
        if n > start:
            longest = len(render_gap(n - start))
            if n - start - 1 <= longest and sum(map(len, lines[start:n])) + n - start - 1 <= longest:
                kept.update(range(start, n))
        start = n + 1


def _is_long_text(line: str) -> bool:
    """True if a line is too long to be shown and is no JSON, whose ids are fields."""
    return len(line) > _MAX_LINE_CHARS and line.lstrip()[:1] not in ("{", "[")


def show_line(line: str) -> str:
    """The line as a stub shows it, without colours: of a long one both ends, and how much is missing."""
    if "\x1b" in line:
        line = output_wrappers.remove_colours(line)
    if len(line) <= _MAX_LINE_CHARS:
        return line
    start, end = keep_words(line, _LINE_HEAD_CHARS, len(line) - (_MAX_LINE_CHARS - _LINE_HEAD_CHARS))
    return f"{line[:start]}[... {end - start} characters]{line[end:]}"


def keep_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Move the (start, end) of a part of a text that is left out, so that it cuts no name and no number.

    The half of a number would read as another number."""
    if _WORD_END.match(text, start) is None:
        ends = _WORD_END.finditer(text, max(0, start - _MAX_WORD_CHARS), start)
        start = max((found.end() for found in ends), default=start)
    if _WORD_END.match(text, end - 1) is None:
        found = _WORD_END.search(text, end, end + _MAX_WORD_CHARS)
        end = end if found is None else found.start()
    return start, end


def render_gap(count: int) -> str:
    """The mark that replaces missing lines."""
    return f"[... {count} lines]"


def render_stub(
    text: str,
    lines: Sequence[str],
    kept: set[int],
    names: Sequence[str],
    message_id: str,
    omitted_names: int,
    whole_lines: Collection[int],
    *,
    state: ViewState,
) -> str:
    """The stub: the amount kept, the kept lines in their order, a mark where lines are missing, and the names.

    message_id: the id by which the model can read the whole result again; empty if it cannot. omitted_names: number of
    names that had no room. whole_lines: lines that are shown to their end, however long. state: whether the file is as
    it was shown. If it is not, the whole result is not what the model should read, and the mark says so."""
    out: list[str] = []
    start = 0
    for n in sorted(kept):
        if n > start:
            out.append(render_gap(n - start))
        line = lines[n]
        out.append(line if n in whole_lines else show_line(line))
        start = n + 1
    if len(lines) > start:
        out.append(render_gap(len(lines) - start))
    if names:
        out.append("[also there: " + " ".join(names) + (f"; {omitted_names} more]" if omitted_names else "]"))
    body = "\n".join(out)
    if message_id and state != "current":
        body += f"\n[{STATE_REMARKS[state]}; as it was: {render_recall_call(message_id)}]"
        message_id = ""
    again = f"; {render_recall_call(message_id)}" if message_id else ""  # as short as it can be: it is in every stub
    return f"[shortened: {len(body)} of {len(text)} characters{again}]\n{body}"


def render_recall_call(message_id: str) -> str:
    """The call by which the model reads a message by its id."""
    return f'recall("{message_id}")'
