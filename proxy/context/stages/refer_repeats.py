"""Make a new result cheap before it is sent: refer to text in the prompt, remove line numbers of listings."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

import msgspec

from proxy.chat.chain import public_id
from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Call, Message, checkpoint
from proxy.chat.tokens import PER_MESSAGE
from proxy.context import page_faults
from proxy.context.analysis import line_numbers, refetch
from proxy.context.analysis.line_numbers import NumberedLines
from proxy.context.plan import THINNED, Edit, Proposal, View
from proxy.context.stage import Stage, When
from proxy.context.view import count_edited_tokens

_RECENT = 6
"""Maximum number of earlier texts that are compared line by line: the newest ones that share enough lines."""
_LINE = 8
"""Minimum number of characters of a line that is compared."""
_REFERENCE = re.compile(
    r"^\[\d+ lines[^:\n]*: as lines (\d{1,9})-(\d{1,9})(?: \([\d-]+\))? of (result|call) ([a-z2-7]{10})", re.MULTILINE
)
_POINTER = re.compile(
    r"^\[(\d+ lines[^:\n]*): as (lines (\d{1,9})-(\d{1,9}))(?: \([\d-]+\))?"
    r" of ((result|call) ([a-z2-7]{10})(?:[^\n,]|,(?! (?:\d{1,9} steps? before this|in this step): ))*+),"
    r" (?:\d{1,9} steps? before this|in this step): [^\n]*+(?<=\])$",
    re.MULTILINE,
)
"""A whole reference. Groups: (the lines that it replaces, the lines that it names, their first, their last, the result
or call, its kind, its id). Results are full of what looks like one: no part gives back, so that the time is linear, and
no number is too long to be read."""
_LEFT = re.compile(
    r"^\[\d+ lines[^:\n]*: lines \d+-\d+ of (?:result|call) [a-z2-7]{10}[^\n]*, which has left", re.MULTILINE
)


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
        """Yield a proposal for each new result with repeated runs, and for each new listing whose numbers can be
        removed."""
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
                earlier = _list_targets(view, n) if earlier is None else earlier
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
            write = _Write(self, view, n, tuple(earlier), text)
            after = PER_MESSAGE + view.token_counter.count_text(text)
            reason, is_view = "stands in an earlier result", lines.is_listing
            return Proposal(n, "text", "refer_repeats", reason, after, text, n, write, refers_to_view=is_view)
        if not self.thin or not lines.is_listing:
            return None
        text = "\n".join(line_numbers.thin_numbers(lines, 0, len(lines.whole)))
        if len(view.messages[n].text) - len(text) < self.save // 4:
            return None
        after = PER_MESSAGE + view.token_counter.count_text(text)
        return Proposal(n, "text", "refer_repeats", THINNED, after, text, n, lossless=True, refers_to_view=True)

    def rewrite_without(self, view: View, n: int, earlier: Sequence[int], gone: frozenset[int]) -> str | None:
        """Return the text of a proposal, made without the messages that are cut in the same batch. None if that saves
        too little."""
        return self._write_references(view, n, [k for k in earlier if k not in gone], _read_shown_lines(view, n), gone)

    def _write_references(
        self, view: View, n: int, earlier: Sequence[int], lines: NumberedLines, gone: frozenset[int] = frozenset()
    ) -> str | None:
        """Return the result with references in place of its repeats, None if that saves too little."""
        near = [target for target in self._find_similar_texts(view, n, earlier, lines) if target.at not in gone]
        if not near:
            return None
        out: list[str] = []
        saved = at = 0
        before = -1
        for start, end, target, first in self._find_runs(lines.bare if lines.is_listing else lines.whole, near):
            checkpoint()
            out += self._keep_lines(lines, at, start, before)
            reference = _render_reference(view, n, lines, start, end, target, first)
            saved += sum(len(line) + 1 for line in lines.whole[start:end]) - len(reference)
            out.append(reference)
            at, before = end, -1
        return "\n".join([*out, *self._keep_lines(lines, at, len(lines.whole), before)]) if saved >= self.save else None

    def _keep_lines(self, lines: NumberedLines, start: int, end: int, before: int) -> Sequence[str]:
        if self.thin and lines.is_listing:
            return line_numbers.thin_numbers(lines, start, end, before)
        return lines.whole[start:end]

    def _find_similar_texts(self, view: View, n: int, earlier: Sequence[int], lines: NumberedLines) -> list[_Target]:
        """Return the newest texts that share enough lines with the result, newest first. The texts are earlier results
        and, for a listing, texts that the agent wrote in its calls."""
        mine = view.messages[n].derive(_hash_bare_lines if lines.is_listing else _hash_text_lines)
        found: list[_Target] = []
        for other in reversed(earlier):
            message = view.messages[other]
            checkpoint()
            theirs = message.derive(_hash_bare_lines if lines.is_listing else _hash_text_lines)
            if not mine.isdisjoint(theirs) and len(mine & theirs) >= self.lines // 2:
                held = line_numbers.read_lines(message)
                if held.is_plain:
                    found.append(_Target(other, None, "", held.bare if lines.is_listing else held.whole, held))
                    if len(found) == _RECENT:
                        break
        if lines.is_listing:
            found += self._find_own_texts(view, n, mine)
            found.sort(key=lambda target: -target.at)
        return found

    def _find_own_texts(self, view: View, n: int, mine: frozenset[int]) -> list[_Target]:
        found: list[_Target] = []
        for at in reversed(_find_writing_messages(view, n)):
            edit = view.find_edit(at)
            if edit is not None and edit.action == "arguments":
                continue
            for call, name, text, hashes in view.messages[at].derive(_read_written_texts):
                if not mine.isdisjoint(hashes) and len(mine & hashes) >= self.lines // 2:
                    held = line_numbers.split_lines(text)
                    if held.is_plain:
                        found.append(_Target(at, call, name, held.whole, held))
            if len(found) >= _RECENT:
                break
        return found

    def _find_runs(self, lines: Sequence[str], near: Sequence[_Target]) -> Iterator[tuple[int, int, _Target, int]]:
        """Yield (start, end, target, its first line) of each run that is long enough, in order."""
        places: dict[str, list[tuple[_Target, int]]] = {}
        for target in reversed(near):
            checkpoint()
            for k, line in enumerate(target.lines):
                if len(line) >= _LINE:
                    places.setdefault(line, []).append((target, k))
        at, last = 0, len(lines) - (not lines[-1])  # an empty text after the last line end is no line
        while at < last:
            if not at & 4095:
                checkpoint()
            best, where = 0, None
            for target, k in places.get(lines[at], ())[-_RECENT:]:
                run = _count_common_lines(lines, at, last, target.lines, k)
                if run >= best:
                    best, where = run, (target, k)
            if (
                where is not None
                and best >= self.lines
                and sum(len(line) + 1 for line in lines[at : at + best]) >= self.chars
            ):
                yield at, at + best, *where
                at += best
            else:
                at += 1


@dataclass(frozen=True, slots=True)
class _Write:
    """Callable that writes a result with its references once the messages cut in the same batch are known. The
    references name text that remains after these cuts."""

    stage: ReferRepeats
    view: View
    n: int
    earlier: tuple[int, ...]
    text: str

    def __call__(self, gone: frozenset[int]) -> str | None:
        named = {name for *_, name in _find_references(self.text)}
        if not any(public_id(self.view.keys[k]) in named for k in gone):
            return self.text
        return self.stage.rewrite_without(self.view, self.n, self.earlier, gone)


_TABLES = (".csv", ".tsv", ".tab", ".txt", ".log", ".dat")
"""Extensions of files whose own text may begin with a column of numbers."""


class _Target(NamedTuple):
    """A text that is whole in the prompt."""

    at: int
    """Index of the message."""
    call: Call | None
    """The call that contains the text, None for a result."""
    name: str
    """The name of the argument."""
    lines: Sequence[str]
    """The lines that are compared."""
    held: NumberedLines


def is_page_fault(view: View, n: int, again: int) -> bool:
    """True if a result answers a page fault: the agent fetched the source again after its earlier result was changed.

    The earlier result of the same source is a stub, or has references and is at most `again` steps old.
    """
    found = refetch.find_refetches(view)
    at = found.get(n)
    while at is not None and (at.kind != "reread" or _do_overlap(view.messages[n], view.messages[at.earlier_index])):
        edit = view.find_edit(at.earlier_index)
        if edit is not None and edit.action != "append":
            if edit.stage != "refer_repeats":
                return True
            if (_has_reference(edit.text or "") or _LEFT.search(edit.text or "")) and view.request_counts[
                n
            ] - view.request_counts[at.earlier_index] <= again:
                return True
        if view.request_counts[n] - view.request_counts[at.earlier_index] > again:
            return False
        at = found.get(at.earlier_index)
    return False


def _do_overlap(one: Message, other: Message) -> bool:
    """True if most lines of a result occur in another result of the same file. A different part of the file is a
    different page."""
    mine = one.derive(_hash_bare_lines)
    return 2 * len(mine & other.derive(_hash_bare_lines)) > len(mine)


def _read_shown_lines(view: View, n: int) -> NumberedLines:
    """Return the lines of a new result, as a listing only if the tool added the line numbers.

    Where the format does not prove that, a tool must show or edit a file, and the file must not be a table.
    """
    lines = line_numbers.read_lines(view.messages[n])
    if not lines.is_listing or lines.is_sure:
        return lines
    call = _find_call(view, n)
    source = refetch.find_source(call) if call is not None else None
    by_tool = source is not None and source.action in ("shows", "writes") and not source.by_shell
    if source is not None and by_tool and not source.path.lower().endswith(_TABLES):
        return lines
    return replace(lines, bare=lines.whole, numbers=(), is_listing=False)


def _list_targets(view: View, end: int) -> list[int]:
    """Return the results before `end` that have text and are whole in the prompt."""

    def more(begin: int, known: list[int] | None) -> list[int]:
        found = known or []
        return found + [n for n in range(begin, len(view.messages)) if _stands_whole(view, n)]

    found: list[int] = view.memo_edited("refer_repeats", more)
    return found[: bisect_left(found, end)]


def _stands_whole(view: View, n: int) -> bool:
    """True if a result is complete in the prompt: unchanged, or with fewer line numbers. A result of recall does not
    count: it is a copy of another message, under another id."""
    if not view.is_result[n] or not view.messages[n].text or _is_recall(view, n):
        return False
    edit = view.find_edit(n)
    return edit is None or _is_thinned(edit)


def _is_thinned(edit: Edit) -> bool:
    """True if the edit takes out line numbers alone: its text has no reference, also none to what has left."""
    text = edit.text or ""
    return edit.stage == "refer_repeats" and not _has_reference(text) and not _LEFT.search(text)


def _is_recall(view: View, n: int) -> bool:
    call = _find_call(view, n)
    return call is not None and call.name == "recall"


def _find_writing_messages(view: View, end: int) -> list[int]:
    """Return the messages before `end` in whose calls the agent wrote a long text."""

    def more(begin: int, known: list[int] | None) -> list[int]:
        found = known or []
        return found + [
            n for n in range(begin, len(view.messages)) if view.messages[n].calls and _has_long_text(view.messages[n])
        ]

    found: list[int] = view.memo("written", more)
    return found[: bisect_left(found, end)]


def _has_long_text(message: Message) -> bool:
    return bool(message.derive(_read_written_texts))


def _read_written_texts(message: Message) -> tuple[tuple[Call, str, str, frozenset[int]], ...]:
    """Return (call, argument, text, hashes of its lines) of each long text in the message's calls."""
    found = []
    for call in message.calls:
        try:
            value = decode_embedded(call.arguments)
        except (ValueError, RecursionError):
            continue
        for name, text in value.items() if isinstance(value, dict) else ():
            if isinstance(text, str) and text.count("\n") >= 4:
                found.append((call, name, text, _hash_lines(text.split("\n"))))
    return tuple(found)


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
    return frozenset(map(hash, [line for line in lines if len(line) >= _LINE]))


def _render_reference(
    view: View, n: int, lines: NumberedLines, start: int, end: int, target: _Target, first: int
) -> str:
    """Return the reference that replaces lines[start:end]: the position of the same lines, the result or call, and the
    steps since."""
    last = first + end - start
    own = there = ""
    if lines.is_listing:
        own = _render_numbers(lines.numbers[start:end])
        numbers = target.held.numbers
        if target.call is None and numbers and numbers[first] != first + 1:
            there = _render_numbers(numbers[first:last])
    kind, call = ("result", _find_call(view, target.at)) if target.call is None else ("call", target.call)
    ago = view.request_counts[n] - view.request_counts[target.at]
    when = "in this step" if not ago else "1 step before this" if ago == 1 else f"{ago} steps before this"
    name = public_id(view.keys[target.at])
    what = f", {target.name}" if target.name else ""
    return (
        f"[{end - start} lines{own}: as lines {first + 1}-{last}{there} of {kind} {name}{what},"
        f" {when}: {_render_call(call)}]"
    )


def _render_numbers(numbers: Sequence[int]) -> str:
    """Return the first and the last number of a listing's lines; lines around a listing have none."""
    found = [number for number in numbers if number >= 0]
    return f" ({found[0]}-{found[-1]})" if found else ""


def _find_call(view: View, n: int) -> Call | None:
    for at in range(n - 1, -1, -1):
        for call in view.messages[at].calls:
            if call.id == view.messages[n].call_id:
                return call
        if view.messages[at].calls:
            break
    return None


def _render_call(call: Call | None) -> str:
    """Return a short form of a call: its name and the beginning and end of its arguments."""
    if call is None:
        return "above"
    arguments = " ".join(call.arguments.split())
    return f"{call.name} {arguments if len(arguments) <= 60 else f'{arguments[:40]}...{arguments[-17:]}'}"


def find_referred_lines(view: View) -> dict[bytes, list[tuple[int, int]]]:
    """Return, by the id of an earlier result, the (start, end) lines that references in the prompt name."""
    return view.memo_edited("referred", partial(_read_referred_keys, view))


def _read_referred_keys(
    view: View, _: int, known: dict[bytes, list[tuple[int, int]]] | None
) -> dict[bytes, list[tuple[int, int]]]:
    if known is not None:
        return known  # the value depends on the edits alone
    found: dict[bytes, list[tuple[int, int]]] = {}
    for edit in view.edits.values():
        if edit.stage == "refer_repeats":
            for first, last, name in _find_targets(edit):
                found.setdefault(name, []).append((first, last))
    return found


def find_referred_calls(view: View) -> frozenset[str]:
    """Return the ids of the calls that references in the prompt name: their arguments have to stay."""

    def find(_: int, known: frozenset[str] | None) -> frozenset[str]:
        if known is not None:
            return known  # the value depends on the edits alone
        made = [edit.text or "" for edit in view.edits.values() if edit.stage == "refer_repeats"]
        return frozenset(name for text in made for *_, kind, name in _find_references(text) if kind == "call")

    return view.memo_edited("referred calls", find)


def _find_targets(edit: Edit) -> list[tuple[int, int, bytes]]:
    return [
        (start, end, name.encode()) for start, end, kind, name in _find_references(edit.text or "") if kind == "result"
    ]


def _has_reference(text: str) -> bool:
    """True if a text has a reference. Most have not even its words, which are looked for in a tenth of the time."""
    return ": as lines " in text and _REFERENCE.search(text) is not None


def _find_references(text: str) -> list[tuple[int, int, str, str]]:
    """Return (start, end, "result" or "call", id) of each reference: the lines and the message that it names."""
    return [(int(a) - 1, int(b), kind, name) for a, b, kind, name in _REFERENCE.findall(text)]


def find_dangling_edits(view: View, edits: Mapping[bytes, Edit], made: Mapping[bytes, Edit]) -> frozenset[bytes]:
    """Return the keys of these edits that are new and refer to text that `made` takes out of the prompt."""
    named: dict[str, list[bytes]] = {}
    for k, edit in edits.items():
        if edit.stage == "refer_repeats" and k not in view.edits:
            for *_, name in _find_references(edit.text or ""):
                named.setdefault(name, []).append(k)
    if not named:
        return frozenset()
    cut = (public_id(k) for k in view.keys if (now := made.get(k)) is not None and _takes_out(now))
    return frozenset(k for name in cut for k in named.get(name, ()))


def mark_broken_references(view: View, edits: Mapping[bytes, Edit]) -> Mapping[bytes, Edit]:
    """Return the edits with each broken reference marked: its text does not stay whole in the prompt. The mark names
    the call that returns the text, if the model has recall.

    An operator, the budget or another upstream may take out the text after the reference was made. The model has
    already seen the reference, and the mark does not make the message longer: where it would, it names no call. The
    result itself is not restored into a full prompt.
    """
    marker: _ReferenceMarker | None = None
    made: dict[bytes, Edit] = {}
    for n, k in enumerate(view.keys):
        edit = edits.get(k)
        if edit is None or edit.action != "text" or not _has_reference(edit.text or ""):
            continue
        if marker is None:
            marker = _ReferenceMarker(view, edits)
        text = _POINTER.sub(partial(marker.mark, n, "recall" in view.offered_tools), edit.text or "")
        if text == edit.text:
            continue
        after = count_edited_tokens(view, n, text)
        if after > edit.after:  # the prompt could pass its budget, for which the edits were chosen before
            text = _POINTER.sub(partial(marker.mark, n, False), edit.text or "")
            after = count_edited_tokens(view, n, text)
        made[k] = msgspec.structs.replace(edit, text=text, after=after)
    return {**edits, **made} if made else edits


class _ReferenceMarker:
    """Marks the references of a prompt whose text has left. One message may have thousands of them, so what they have
    in common is computed once."""

    def __init__(self, view: View, edits: Mapping[bytes, Edit]) -> None:
        self._view = view
        self._edits = edits
        self._places = {public_id(key): at for at, key in enumerate(view.keys)}
        self._kept_lines: dict[int, tuple[NumberedLines, frozenset[str]]] = {}
        """For each result that is cut: its own lines, and the lines that are sent of it."""

    def mark(self, n: int, with_recall: bool, found: re.Match[str]) -> str:
        """Return the reference of messages[n] unchanged, or the words that its text has left the prompt. with_recall:
        they name the call that returns the text."""
        checkpoint()
        own, lines, first, last, named, kind, name = found.groups()
        at = self._places.get(name)
        ours = at is not None and at < n and found[0] not in self._view.messages[n].text
        if at is None or not ours or self._are_sent(at, kind, int(first) - 1, int(last)):
            return found[0]
        again = f'; recall("{name}")' if with_recall else ""
        return f"[{own}: {lines} of {named}, which has left{again}]"

    def _are_sent(self, at: int, kind: str, first: int, last: int) -> bool:
        """True if these lines of a result are sent, or if the call that contains them is sent."""
        message, edit = self._view.messages[at], self._edits.get(self._view.keys[at])
        if edit is None or message.is_system or not _takes_out(edit):
            return True
        if kind == "call" or edit.text is None:
            return edit.action not in ("gone", "text_only", "arguments")
        if at not in self._kept_lines:
            sent = frozenset((*line_numbers.split_lines(edit.text).bare, *edit.text.split("\n")))
            self._kept_lines[at] = line_numbers.read_lines(message), sent
        whole, there = self._kept_lines[at]
        return all(
            line in there or whole.bare[k] in there for k, line in enumerate(whole.whole[first:last], first) if line
        )


def _takes_out(edit: Edit) -> bool:
    """True if the edit takes out a part of the message's text or calls."""
    thinned = _is_thinned(edit)
    return edit.action != "append" and not thinned
