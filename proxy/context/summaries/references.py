"""References: what is in a result in place of lines that stand earlier in the prompt, byte for byte.

    [80 lines (1-80): as lines 1-80 of result k3j2h5g7a4, 2 steps before this: read {"path": "/a/b.py"}]

A reference names lines of an earlier result, or of a text that the agent wrote in a call. They are counted from the
first line of that text; numbers in parentheses are those of a listing. The stage `refer_repeats` makes references. What
a reference names has to stay in the prompt. If it leaves all the same, the reference is marked, and is then broken:

    [80 lines (1-80): lines 1-80 of result k3j2h5g7a4, which has left; recall("k3j2h5g7a4")]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from proxy.chat.chain import public_id
from proxy.chat.message import Call, checkpoint
from proxy.context.analysis import line_numbers
from proxy.context.analysis.call_batches import find_answered_call
from proxy.context.analysis.line_numbers import NumberedLines
from proxy.context.plan import WHOLE_TEXT_ACTIONS, Edit
from proxy.context.view import View, count_edited_tokens

STAGE = "refer_repeats"
"""The stage whose edits have references."""
_REFERENCE = re.compile(
    r"^\[\d+ lines[^:\n]*: as lines (\d{1,9})-(\d{1,9})(?: \([\d-]+\))? of (result|call) ([a-z2-7]{10})", re.MULTILINE
)
_WHOLE_REFERENCE = re.compile(
    r"^\[(\d+ lines[^:\n]*): as (lines (\d{1,9})-(\d{1,9}))(?: \([\d-]+\))?"
    r" of ((result|call) ([a-z2-7]{10})(?:[^\n,]|,(?! (?:\d{1,9} steps? before this|in this step): ))*+),"
    r" (?:\d{1,9} steps? before this|in this step): [^\n]*+(?<=\])$",
    re.MULTILINE,
)
"""A whole reference. Groups: (the lines that it replaces, the lines that it names, their first, their last, the result
or call, its kind, its id). Results are full of what looks like one: no part gives back, so that the time is linear, and
no number is too long to be read."""
_BROKEN = re.compile(
    r"^\[\d+ lines[^:\n]*: lines \d+-\d+ of (?:result|call) [a-z2-7]{10}[^\n]*, which has left", re.MULTILINE
)

MAX_CALL_CHARS, CALL_HEAD, CALL_TAIL = 60, 40, 17
"""Characters of the arguments of a call that a reference shows; of longer ones the beginning and the end."""


class QuotedText(NamedTuple):
    """A text that is whole in the prompt, and that a reference may name: a result, or an argument of a call."""

    message_index: int
    call: Call | None
    """The call that contains the text, None for a result."""
    argument: str
    """The name of the argument, "" for a result."""
    compared: Sequence[str]
    """The lines that are compared with those of a new result."""
    lines: NumberedLines


class Repeat(NamedTuple):
    """Consecutive lines of a new result that are in an earlier text, too."""

    start: int
    end: int
    source: QuotedText
    source_start: int
    """The first of these lines in the earlier text."""


class LineReference(NamedTuple):
    """A reference, as it is read from a result."""

    start: int
    """The first line that it names."""
    end: int
    kind: str
    """The kind of the message: result or call."""
    message_id: str
    """The id of the message that has these lines (`chain.public_id`)."""


def render_reference(view: View, index: int, lines: NumberedLines, repeat: Repeat) -> str:
    """Return the reference that replaces a repeat. lines: those of the new result, which is messages[index]."""
    source = repeat.source
    last = repeat.source_start + repeat.end - repeat.start
    own = there = ""
    if lines.is_listing:
        own = _render_numbers(lines.numbers[repeat.start : repeat.end])
        numbers = source.lines.numbers
        if source.call is None and numbers and numbers[repeat.source_start] != repeat.source_start + 1:
            there = _render_numbers(numbers[repeat.source_start : last])
    kind = "result" if source.call is None else "call"
    call = find_answered_call(view.messages, source.message_index) if source.call is None else source.call
    ago = view.request_counts[index] - view.request_counts[source.message_index]
    when = "in this step" if not ago else "1 step before this" if ago == 1 else f"{ago} steps before this"
    argument = f", {source.argument}" if source.argument else ""
    return (
        f"[{repeat.end - repeat.start} lines{own}: as lines {repeat.source_start + 1}-{last}{there}"
        f" of {kind} {public_id(view.keys[source.message_index])}{argument}, {when}: {_render_call(call)}]"
    )


def _render_numbers(numbers: Sequence[int]) -> str:
    """Return the first and the last number of a listing's lines; lines around a listing have none."""
    found = [number for number in numbers if number >= 0]
    return f" ({found[0]}-{found[-1]})" if found else ""


def _render_call(call: Call | None) -> str:
    """Return a short form of a call: its name and the beginning and end of its arguments."""
    if call is None:
        return "above"
    arguments = " ".join(call.arguments.split())
    if len(arguments) > MAX_CALL_CHARS:
        arguments = f"{arguments[:CALL_HEAD]}...{arguments[-CALL_TAIL:]}"
    return f"{call.name} {arguments}"


def find_references(text: str) -> list[LineReference]:
    found = _REFERENCE.findall(text)
    return [LineReference(int(first) - 1, int(last), kind, message_id) for first, last, kind, message_id in found]


def has_reference(text: str) -> bool:
    """True if a text has a reference. Most have not even its words, which are looked for in a tenth of the time."""
    return ": as lines " in text and _REFERENCE.search(text) is not None


def has_broken_reference(text: str) -> bool:
    """True if a text has a reference to lines that have left the prompt."""
    return _BROKEN.search(text) is not None


def is_thinned(edit: Edit) -> bool:
    """True if the edit takes out line numbers alone: its text has no reference, not even a broken one."""
    text = edit.text or ""
    return edit.stage == STAGE and not has_reference(text) and not has_broken_reference(text)


def find_referred_lines(view: View) -> dict[bytes, list[tuple[int, int]]]:
    """Return the (start, end) lines that references in the prompt name, by the id of an earlier result."""
    return view.memo_edited("referred", partial(_read_referred_lines, view))


def _read_referred_lines(
    view: View, _: int, known: dict[bytes, list[tuple[int, int]]] | None
) -> dict[bytes, list[tuple[int, int]]]:
    if known is not None:
        return known  # the value depends on the edits alone
    found: dict[bytes, list[tuple[int, int]]] = {}
    for one in _find_all_references(view):
        if one.kind == "result":
            found.setdefault(one.message_id.encode(), []).append((one.start, one.end))
    return found


def find_referred_calls(view: View) -> frozenset[str]:
    """Return the ids of the calls that references in the prompt name: their arguments have to stay."""

    def find(_: int, known: frozenset[str] | None) -> frozenset[str]:
        if known is not None:
            return known  # the value depends on the edits alone
        return frozenset(one.message_id for one in _find_all_references(view) if one.kind == "call")

    return view.memo_edited("referred calls", find)


def _find_all_references(view: View) -> Iterator[LineReference]:
    """The references of all edits in force."""
    for edit in view.edits.values():
        if edit.stage == STAGE:
            yield from find_references(edit.text or "")


def find_dangling_edits(view: View, edits: Mapping[bytes, Edit], made: Mapping[bytes, Edit]) -> frozenset[bytes]:
    """Return the keys of these edits that are new and refer to text that `made` takes out of the prompt."""
    named: dict[str, list[bytes]] = {}
    for k, edit in edits.items():
        if edit.stage == STAGE and k not in view.edits:
            for one in find_references(edit.text or ""):
                named.setdefault(one.message_id, []).append(k)
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
        if edit is None or edit.action != "text" or not has_reference(edit.text or ""):
            continue
        if marker is None:
            marker = _ReferenceMarker(view, edits)
        text = _WHOLE_REFERENCE.sub(partial(marker.mark, n, "recall" in view.inputs.offered_tools), edit.text or "")
        if text == edit.text:
            continue
        after = count_edited_tokens(view, n, text)
        if after > edit.after:  # the prompt could pass its budget, for which the edits were chosen before
            text = _WHOLE_REFERENCE.sub(partial(marker.mark, n, False), edit.text or "")
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
        self._sent_lines: dict[int, tuple[NumberedLines, frozenset[str]]] = {}
        """For each result that is cut: its own lines, and the lines that are sent of it."""

    def mark(self, n: int, with_recall: bool, found: re.Match[str]) -> str:
        """Return the reference of messages[n] unchanged, or the words that its text has left the prompt. with_recall:
        they name the call that returns the text."""
        checkpoint()
        replaced, lines, first, last, source, kind, message_id = found.groups()
        at = self._places.get(message_id)
        # A result may imitate a reference: then its own text has the same words.
        is_ours = at is not None and at < n and found[0] not in self._view.messages[n].text
        if at is None or not is_ours or self._are_sent(at, kind, int(first) - 1, int(last)):
            return found[0]
        again = f'; recall("{message_id}")' if with_recall else ""
        return f"[{replaced}: {lines} of {source}, which has left{again}]"

    def _are_sent(self, at: int, kind: str, first: int, last: int) -> bool:
        """True if these lines of a result are sent, or if the call that contains them is sent."""
        message, edit = self._view.messages[at], self._edits.get(self._view.keys[at])
        if edit is None or message.is_system or not _takes_out(edit):
            return True
        if kind == "call" or edit.text is None:
            return edit.action not in ("gone", "text_only", "arguments")
        if at not in self._sent_lines:
            sent = frozenset((*line_numbers.split_lines(edit.text).bare, *edit.text.split("\n")))
            self._sent_lines[at] = line_numbers.read_lines(message), sent
        own, sent = self._sent_lines[at]
        return all(line in sent or own.bare[k] in sent for k, line in enumerate(own.whole[first:last], first) if line)


def _takes_out(edit: Edit) -> bool:
    """True if the edit takes out a part of the message's text or calls."""
    return edit.action not in WHOLE_TEXT_ACTIONS and not is_thinned(edit)
