"""Make a new result cheap before it is sent: refer to text in the prompt, remove line numbers of listings.

`summaries.references` has the form of a reference, and what becomes of one whose text leaves the prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from proxy.chat.chain import public_id
from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Call, Message, checkpoint
from proxy.chat.tokens import PER_MESSAGE
from proxy.context import page_faults
from proxy.context.analysis import line_numbers, outcome, refetch, result_lines, shell_commands
from proxy.context.analysis.call_batches import find_answered_call
from proxy.context.analysis.line_numbers import NumberedLines
from proxy.context.plan import THINNED, Proposal
from proxy.context.stage import Stage, When
from proxy.context.summaries import references
from proxy.context.summaries.references import QuotedText, Repeat, is_thinned
from proxy.context.view import View

MAX_SOURCES = 6
"""Maximum number of earlier texts that are compared line by line: the newest ones that share enough lines."""
MIN_LINE_CHARS = 8
"""Minimum number of characters of a line that is compared."""


@dataclass(frozen=True, slots=True)
class ReferRepeats(Stage):
    """Make a new result shorter before it is sent. Lines that occur, byte for byte, in an earlier result become
    references, and line numbers of listings are removed.

    Agents read the same files repeatedly: on recorded runs one token in six of results is such a repeat. A listing is
    compared without its line numbers, and also with the text that the agent wrote itself. It keeps every tenth line
    number and the number after a jump. A result is examined once, when it is new: the provider has not cached it yet,
    so that the change costs nothing. A result that is fetched again after a reference or a stub is sent unchanged.
    """

    lines: int = 8
    """Minimum number of lines in a repeated run."""
    chars: int = 600
    """Minimum number of characters in a repeated run."""
    least: int = 150
    """Tokens below which a result is not changed."""
    save: int = 200
    """Minimum number of characters that the references have to save."""
    thin: bool = True
    """Keep only every tenth line number of listings."""
    again: int = 20
    """Steps after a reference or a stub within which a repeated read of the same source is sent whole."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield proposals for new results with repeated runs, and for new listings with removable numbers."""
        earlier: list[int] | None = None
        for n in range(_find_first_new_index(view), len(view.messages)):
            message = view.messages[n]
            if not view.is_result[n] or not message.text or view.find_edit(n) is not None:
                continue
            if (
                view.original_tokens[n] >= self.least
                and message.shape in ("string", "parts")
                and not _is_recall(view, n)
            ):
                earlier = _list_whole_results(view, n) if earlier is None else earlier
                proposal = self._make_cheaper_edit(view, n, earlier)
                if proposal is not None:
                    yield proposal
                    if proposal.reason != THINNED:
                        continue
            if earlier is not None and not _is_recall(view, n):
                earlier.append(n)

    def _make_cheaper_edit(self, view: View, n: int, earlier: Sequence[int]) -> Proposal | None:
        if self.again and is_page_fault(view, n, self.again):
            return None
        lines = _read_shown_lines(view, n)
        text = self._write_references(view, n, earlier, lines) if page_faults.are_references_followed(view) else None
        if text is not None:
            write_text = _TextWriter(self, view, n, tuple(earlier), text)
            after = PER_MESSAGE + view.token_counter.count_text(text)
            reason, is_view = "stands in an earlier result", lines.is_listing
            return Proposal(n, "text", "refer_repeats", reason, after, text, n, write_text, refers_to_view=is_view)
        if not self.thin or not lines.is_listing:
            return None
        text = "\n".join(line_numbers.thin_numbers(lines, 0, len(lines.whole)))
        if len(view.messages[n].text) - len(text) < self.save // 4:
            return None
        after = PER_MESSAGE + view.token_counter.count_text(text)
        return Proposal(n, "text", "refer_repeats", THINNED, after, text, n, lossless=True, refers_to_view=True)

    def rewrite_without(self, view: View, n: int, earlier: Sequence[int], gone: frozenset[int]) -> str | None:
        """Return a proposal's text without messages cut in the same batch. None if that saves too little."""
        return self._write_references(view, n, [k for k in earlier if k not in gone], _read_shown_lines(view, n), gone)

    def _write_references(
        self, view: View, n: int, earlier: Sequence[int], lines: NumberedLines, gone: frozenset[int] = frozenset()
    ) -> str | None:
        """Return the result with references in place of its repeats, None if that saves too little."""
        sources = [source for source in self._find_sources(view, n, earlier, lines) if source.message_index not in gone]
        if not sources:
            return None
        out: list[str] = []
        saved = done = 0
        compared = _hide_outcome(view, n, _choose_compared(lines, lines))
        for repeat in self._find_repeats(compared, sources):
            checkpoint()
            reference = references.render_reference(view, n, lines, repeat)
            saved += sum(len(line) + 1 for line in lines.whole[repeat.start : repeat.end]) - len(reference)
            out += [*self._keep_lines(lines, done, repeat.start), reference]
            done = repeat.end
        return "\n".join([*out, *self._keep_lines(lines, done, len(lines.whole))]) if saved >= self.save else None

    def _keep_lines(self, lines: NumberedLines, start: int, end: int) -> Sequence[str]:
        """Return lines that are no repeat, those of a listing with fewer numbers."""
        if self.thin and lines.is_listing:
            return line_numbers.thin_numbers(lines, start, end)
        return lines.whole[start:end]

    def _find_sources(self, view: View, n: int, earlier: Sequence[int], lines: NumberedLines) -> list[QuotedText]:
        """Return the newest texts that share enough lines with the result, newest first. The texts are earlier results
        and, for a listing, texts that the agent wrote in its calls."""
        line_hashes = view.messages[n].derive(_hash_bare_lines if lines.is_listing else _hash_text_lines)
        sources: list[QuotedText] = []
        for other in reversed(earlier):
            message = view.messages[other]
            checkpoint()
            other_hashes = message.derive(_hash_bare_lines if lines.is_listing else _hash_text_lines)
            if not line_hashes.isdisjoint(other_hashes) and len(line_hashes & other_hashes) >= self.lines // 2:
                source_lines = line_numbers.read_lines(message)
                if source_lines.is_plain:
                    sources.append(QuotedText(other, None, "", _choose_compared(source_lines, lines), source_lines))
                    if len(sources) == MAX_SOURCES:
                        break
        if lines.is_listing:
            sources += self._find_written_sources(view, n, line_hashes)
            sources.sort(key=lambda source: -source.message_index)
        return sources

    def _find_written_sources(self, view: View, n: int, line_hashes: frozenset[int]) -> list[QuotedText]:
        sources: list[QuotedText] = []
        for at in reversed(_find_writing_messages(view, n)):
            edit = view.find_edit(at)
            if edit is not None and edit.action == "arguments":
                continue
            for call, name, text, hashes in view.messages[at].derive(_read_written_texts):
                if not line_hashes.isdisjoint(hashes) and len(line_hashes & hashes) >= self.lines // 2:
                    source_lines = line_numbers.split_lines(text)
                    if source_lines.is_plain:
                        sources.append(QuotedText(at, call, name, source_lines.whole, source_lines))
            if len(sources) >= MAX_SOURCES:
                break
        return sources

    def _find_repeats(self, lines: Sequence[str], sources: Sequence[QuotedText]) -> Iterator[Repeat]:
        """Yield each run of lines that is long enough and is in a source, in order: of several the longest, and of
        these the newest. sources: newest first."""
        places: dict[str, list[tuple[QuotedText, int]]] = {}
        for source in reversed(sources):
            checkpoint()
            for k, line in enumerate(source.compared):
                if len(line) >= MIN_LINE_CHARS:
                    places.setdefault(line, []).append((source, k))
        at, last = 0, len(lines) - (not lines[-1])  # an empty text after the last line end is no line
        while at < last:
            if not at & 4095:
                checkpoint()
            best, where = 0, None
            for source, k in places.get(lines[at], ())[-MAX_SOURCES:]:
                run = _count_common_lines(lines, at, last, source.compared, k)
                if run >= best:
                    best, where = run, (source, k)
            if (
                where is not None
                and best >= self.lines
                and sum(len(line) + 1 for line in lines[at : at + best]) >= self.chars
            ):
                yield Repeat(at, at + best, *where)
                at += best
            else:
                at += 1


@dataclass(frozen=True, slots=True)
class _TextWriter:
    """Writes a result with its references once the messages cut in the same batch are known (`Proposal.write_text`).
    The references name text that remains after these cuts."""

    stage: ReferRepeats
    view: View
    n: int
    earlier: tuple[int, ...]
    text: str

    def __call__(self, gone: frozenset[int]) -> str | None:
        named = {one.message_id for one in references.find_references(self.text)}
        if not any(public_id(self.view.keys[k]) in named for k in gone):
            return self.text
        return self.stage.rewrite_without(self.view, self.n, self.earlier, gone)


_HIDDEN = "\n"
"""A line that equals no other: no line has a line end in it."""
_TABLES = (".csv", ".tsv", ".tab", ".txt", ".log", ".dat")
"""Extensions of files whose own text may begin with a column of numbers."""


def is_page_fault(view: View, n: int, again: int) -> bool:
    """True if a result answers a page fault: the agent fetched the source again after its earlier result was changed.

    The earlier result of the same source is a stub, or has references and is at most `again` steps old.
    """
    refetches = refetch.find_refetches(view)
    at = refetches.get(n)
    while at is not None and (at.kind != "reread" or _do_overlap(view.messages[n], view.messages[at.earlier_index])):
        is_recent = view.request_counts[n] - view.request_counts[at.earlier_index] <= again
        edit = view.find_edit(at.earlier_index)
        if edit is not None and edit.action != "append":
            if edit.stage != "refer_repeats":
                return True
            if is_recent and not is_thinned(edit):
                return True
        if not is_recent:
            return False
        at = refetches.get(at.earlier_index)
    return False


def _choose_compared(lines: NumberedLines, result: NumberedLines) -> Sequence[str]:
    """The form of these lines that is compared: without numbers where the new result is a listing."""
    return lines.bare if result.is_listing else lines.whole


def _hide_outcome(view: View, n: int, lines: Sequence[str]) -> Sequence[str]:
    """These lines of a result, with a line that is in no text in place of those that say how a run ended. So they stay
    in the result: a reader of another one would have to compare the two."""
    call = find_answered_call(view.messages, n)
    command = shell_commands.parse_call(call) if call is not None else shell_commands.PLAIN_CALL
    if command.kind != "run":
        return lines
    ended, rows = outcome.read_outcome(view.messages[n], command), result_lines.read_lines(view.messages[n])
    told = {rows[k] for k in (*ended.code_lines, *ended.summary_lines)}
    return [_HIDDEN if line in told else line for line in lines] if told else lines


def _do_overlap(result: Message, other: Message) -> bool:
    """True if most lines of a result occur in another one of the same file: not another page of it."""
    mine = result.derive(_hash_bare_lines)
    return 2 * len(mine & other.derive(_hash_bare_lines)) > len(mine)


def _read_shown_lines(view: View, n: int) -> NumberedLines:
    """Return the lines of a new result, as a listing only if the tool added the line numbers.

    Where the format does not prove that, a tool must show or edit a file, and the file must not be a table.
    """
    lines = line_numbers.read_lines(view.messages[n])
    if not lines.is_listing or lines.is_sure:
        return lines
    call = find_answered_call(view.messages, n)
    source = refetch.find_source(call) if call is not None else None
    by_tool = source is not None and source.action in ("shows", "writes") and not source.by_shell
    if source is not None and by_tool and not source.path.lower().endswith(_TABLES):
        return lines
    return replace(lines, bare=lines.whole, numbers=(), is_listing=False)


def _list_whole_results(view: View, end: int) -> list[int]:
    """Return the results before `end` that have text and are whole in the prompt."""

    def extend(begin: int, known: list[int] | None) -> list[int]:
        results = known or []
        return results + [n for n in range(begin, len(view.messages)) if _stands_whole(view, n)]

    results: list[int] = view.memo_edited("refer_repeats", extend)
    return results[: bisect_left(results, end)]


def _stands_whole(view: View, n: int) -> bool:
    """True if a result is complete in the prompt: unchanged, or with fewer line numbers. A result of recall does not
    count: it is a copy of another message, under another id."""
    if not view.is_result[n] or not view.messages[n].text or _is_recall(view, n):
        return False
    edit = view.find_edit(n)
    return edit is None or is_thinned(edit)


def _is_recall(view: View, n: int) -> bool:
    call = find_answered_call(view.messages, n)
    return call is not None and call.name == "recall"


def _find_writing_messages(view: View, end: int) -> list[int]:
    """Return the messages before `end` in whose calls the agent wrote a long text."""

    def extend(begin: int, known: list[int] | None) -> list[int]:
        indexes = known or []
        return indexes + [
            n for n in range(begin, len(view.messages)) if view.messages[n].calls and _has_long_text(view.messages[n])
        ]

    indexes: list[int] = view.memo("written", extend)
    return indexes[: bisect_left(indexes, end)]


def _has_long_text(message: Message) -> bool:
    return bool(message.derive(_read_written_texts))


def _read_written_texts(message: Message) -> tuple[tuple[Call, str, str, frozenset[int]], ...]:
    """Return (call, argument, text, hashes of its lines) of each long text in the message's calls."""
    texts = []
    for call in message.calls:
        try:
            value = decode_embedded(call.arguments)
        except (ValueError, RecursionError):
            continue
        for name, text in value.items() if isinstance(value, dict) else ():
            if isinstance(text, str) and text.count("\n") >= 4:
                texts.append((call, name, text, _hash_lines(text.split("\n"))))
    return tuple(texts)


def _find_first_new_index(view: View) -> int:
    """Return the index after the last answer: the messages from there on were never sent before."""
    for n in range(len(view.messages) - 1, -1, -1):
        if view.messages[n].role == "assistant":
            return n + 1
    return 0


def _count_common_lines(mine: Sequence[str], at: int, last: int, theirs: Sequence[str], k: int) -> int:
    run = 0
    while at + run < last and k + run < len(theirs) and mine[at + run] == theirs[k + run]:
        run += 1
    return run


def _hash_text_lines(message: Message) -> frozenset[int]:
    # The lines as `read_lines` has them. It also looks for line numbers, which takes ten times as long.
    return _hash_lines(message.text.split("\n"))


def _hash_bare_lines(message: Message) -> frozenset[int]:
    return _hash_lines(line_numbers.read_lines(message).bare)


def _hash_lines(lines: Sequence[str]) -> frozenset[int]:
    return frozenset(map(hash, [line for line in lines if len(line) >= MIN_LINE_CHARS]))
