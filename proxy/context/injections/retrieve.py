"""Retrieve messages that have left the prompt when the user refers to them: an old task, a past topic, an earlier
error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from proxy.chat.chain import public_id
from proxy.chat.message import Message
from proxy.context.analysis import bm25
from proxy.context.plan import Insert, RetrievedText
from proxy.context.ranking.memory_levels import check_patterns, compile_pattern, find_task
from proxy.context.stage import Injection
from proxy.context.summaries import extracts
from proxy.context.view import View, count_text_tokens

SOURCE = "retrieve"
QUOTATION_START = "[retrieved, message "
"""Beginning of each retrieved text."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)
_MAX_PIECE_CHARS = 240
"""Maximum number of characters of a quoted line."""
_SENTENCE = re.compile(r"(?<=[.!?…;])\s+|(?<=[—–])\s*")
_CLAUSE = re.compile(r"(?<=[,:)])\s+")
_GAP = "… "
"""Mark before a quoted piece where text between it and the piece before is missing."""
_MIN_LINE_TOKENS = 20
"""Tokens below which no further quotation is tried."""


class Quotation(NamedTuple):
    """A retrieved text."""

    key: bytes
    """The chain key of the source message."""
    description: str
    """A description of the text."""
    text: str


@dataclass(frozen=True, slots=True)
class Retrieve(Injection):
    """Quote messages that match the user's message and have left the prompt, with their sources.

    An old task: its summary. A past topic: quotations from its messages. An error that occurred before: the earlier
    error and the next action. Everything is quoted as data, never in a system message.
    """

    floor: float = 0.35
    """Minimum share of the user's words in a retrieved message; rare words count more."""
    items: int = 3
    """Maximum number of quoted messages."""
    tokens: int = 800
    """Maximum number of tokens of all quotations."""
    item_chars: int = 800
    """Maximum number of quoted characters of a message."""
    least_words: int = 2
    """Minimum number of words in the user's message: with fewer words the message names no topic."""
    nothing: tuple[str, ...] = (
        r"^\W*(?:continue|next|go on|go ahead|proceed|keep going|yes|ok(?:ay)?|sure|thanks?)\W*$",
    )
    """Patterns of user messages for which nothing is retrieved."""
    old_task: tuple[str, ...] = (
        r"\b(?:earlier|previous(?:ly)?|before|last time|back to|first task|that task|remember|as we did|you did)\b",
    )
    """Patterns of user messages that name an old task: its summary is retrieved, in addition to matching messages."""
    roles: tuple[str, ...] = ()
    """Roles whose messages are retrieved; empty: all. In a long talk the user's own words are wanted, and the answers
    only repeat them."""
    near: float = 0.0
    """Share of a message's score that is added to its neighbours. A topic goes over several messages, and not each of
    them has its name."""
    together: bool = False
    """Write one text with a line for each message, in place of one text for each: room for dozens of short
    quotations."""
    errors: bool = True
    """Retrieve the action that followed an earlier error, when the same error occurs again."""
    searches: ClassVar[bool] = True
    """Search the store too: messages that the client no longer sends can be retrieved (E6)."""

    def __post_init__(self) -> None:
        check_patterns(self, f"injections.{SOURCE}", ("nothing", "old_task"))

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield one insert for each item, the best first, while they fit."""
        last = view.messages[-1]
        edit = view.find_edit(len(view.messages) - 1)
        if not view.literal and edit is not None and edit.text is not None and QUOTATION_START in edit.text:
            return  # the prompt has the quotation already
        room = self.tokens if view.budget is None else min(self.tokens, view.budget - view.total)
        if self.together:
            yield from self._make_joint_insert(view, last, room)
            return
        seen: set[bytes] = set()
        texts: set[str] = set()
        for item in self._find_items(view, last):
            if len(seen) == self.items:
                return
            text = "\n\n" + render_quotation(item)
            size = count_text_tokens(view, last, text)
            if item.key in seen or item.text in texts or size > room:
                continue  # of equal texts only the newest is quoted
            seen.add(item.key)
            texts.add(item.text)
            room -= size
            yield Insert("tail", SOURCE, text, persistent=not view.literal, quoted_keys=(item.key,))

    def _make_joint_insert(self, view: View, last: Message, room: int) -> Iterator[Insert]:
        """Yield one insert for all items that fit, in the order of the conversation."""
        only_role = self.roles[0] if len(self.roles) == 1 else ""
        role_text = f" of role {only_role}" if only_role else ""
        head = (
            f"\n\n{QUOTATION_START}by message{role_text}, each under its id:"
            " quoted from earlier, oldest first, information only]"
        )
        if "recall" in view.inputs.offered_tools:
            head += "\n(recall(id) has the whole of a message.)"
        room -= count_text_tokens(view, last, head)
        lines: dict[bytes, str] = {}
        for item in self._find_items(view, last):
            if len(lines) == self.items or room < _MIN_LINE_TOKENS:
                break
            description = "" if item.description == only_role else f", {item.description}"
            line = f"\n> {public_id(item.key)}{description}: {' '.join(item.text.splitlines())}"
            size = count_text_tokens(view, last, line)
            if item.key not in lines and size <= room:
                lines[item.key] = line
                room -= size
        if lines:
            places = {k: n for n, k in enumerate(view.keys)}
            keys = sorted(lines, key=lambda k: places.get(k, -1))
            text = head + "".join(lines[k] for k in keys)
            yield Insert("tail", SOURCE, text, persistent=not view.literal, quoted_keys=tuple(keys))

    def _find_items(self, view: View, last: Message) -> Iterator[Quotation]:
        """Yield all items that could be retrieved, the most relevant first: a new error, then the user's topic."""
        if self.errors and last.is_result:
            yield from self._find_error_items(view)
        task = find_task(view)
        if task is not None and (view.literal or last is task) and has_topic(self, task):
            yield from self._find_task_items(view, task)

    def _find_task_items(self, view: View, message: Message) -> Iterator[Quotation]:
        start = view.active_start
        # The places of the messages count too: the last key alone says nothing of system messages among them.
        ranked = message.derive(
            lambda m: self._rank(view.messages[:start], bm25.count_message_terms(m)),
            (SOURCE, self, hash(tuple(view.keys[:start]))),
        )
        old_task_pattern = compile_pattern(self.old_task)
        hidden = [n for n in ranked if _is_hidden(view, n)]
        if hidden and old_task_pattern and old_task_pattern.search(message.text):
            yield from self._find_summary(view, hidden[0])
        query = bm25.count_message_terms(message)
        for n in hidden:
            text = view.messages[n].derive(
                lambda m: make_excerpt(m.text, query, self.item_chars), (SOURCE, message.form, self.item_chars)
            )
            if text:  # an answer of nothing but calls is found by their arguments
                yield Quotation(view.keys[n], view.messages[n].role, text)
        present = set(view.keys)
        stored = [
            found
            for found in view.inputs.retrieved_texts
            if found.key not in present and (found.kind == "summary" or self._is_asked(found.role))
        ]
        for number in self._rank_above_floor([bm25.count_terms(found.text) for found in stored], query, 0.0):
            retrieved: RetrievedText = stored[number]
            yield Quotation(
                retrieved.key, f"stored {retrieved.kind}", make_excerpt(retrieved.text, query, self.item_chars)
            )

    def _is_asked(self, role: str) -> bool:
        return not self.roles or role in self.roles

    def _rank(self, messages: Sequence[Message], query: bm25.TermCounts) -> list[int]:
        asked = [n for n, message in enumerate(messages) if self._is_asked(message.role)]
        return [
            asked[n]
            for n in self._rank_above_floor([bm25.count_message_terms(messages[n]) for n in asked], query, self.near)
        ]

    def _rank_above_floor(self, documents: Sequence[bm25.TermCounts], query: bm25.TermCounts, near: float) -> list[int]:
        """Return the numbers of the documents above the floor, best first; of equal ones the newer first."""
        term_weights = bm25.weigh_terms(query.counts, documents)
        scores = bm25.score_documents(query.counts, documents)
        coverages = [
            bm25.measure_coverage(query.counts, documents[n], term_weights) if s > 0 else 0.0
            for n, s in enumerate(scores)
        ]
        scores, coverages = bm25.spread_scores(scores, near), bm25.spread_scores(coverages, near)
        ranked = [n for n, score in enumerate(scores) if score > 0 and coverages[n] >= self.floor]
        return sorted(ranked, key=lambda n: (-scores[n], -n))

    def _find_summary(self, view: View, n: int) -> Iterator[Quotation]:
        """Yield the summary of the group of messages[n], if no step of the group is in the prompt."""
        group = next(g for g in view.groups if g.start <= n < g.end)
        steps = [s for s in view.steps if group.start <= s.start < group.end and not view.messages[s.start].is_system]
        if steps and all(view.tokens[s.start] == 0 for s in steps):
            text = extracts.extract_steps(view, steps, [False] * len(steps), self.item_chars)
            yield Quotation(view.keys[group.start], "summary of a task", text)

    def _find_error_items(self, view: View) -> Iterator[Quotation]:
        """Yield hidden steps that ended in the same error as the last step, each with the next action."""
        step = view.steps[-1]
        errors = {_mask_numbers(e) for e in extracts.find_step_failures(view, step)}
        if not errors:
            return
        for earlier, following in zip(reversed(view.steps[:-1]), reversed(view.steps[1:]), strict=True):
            is_hidden = any(_is_hidden(view, n) for n in range(earlier.start, earlier.end))
            same_errors = (
                [e for e in extracts.find_step_failures(view, earlier) if _mask_numbers(e) in errors]
                if is_hidden
                else []
            )
            if same_errors:
                next_step = extracts.extract_step(view, following)
                lines = [
                    extracts.extract_step(view, earlier).call,
                    *same_errors,
                    f"then: {next_step.call} -> {next_step.first_line}",
                ]
                yield Quotation(view.keys[earlier.end - 1], "the same error earlier", "\n".join(filter(None, lines)))


def has_topic(injection: Retrieve, message: Message) -> bool:
    """True if a user's message names a topic that can be searched for."""
    nothing = compile_pattern(injection.nothing)
    if nothing and nothing.search(message.text):
        return False
    return len(bm25.count_message_terms(message).counts) >= injection.least_words


def _is_hidden(view: View, n: int) -> bool:
    edit = view.find_edit(n)
    return edit is not None and edit.action in ("gone", "text")


def _mask_numbers(error: str) -> str:
    """Replace the numbers of an error by 0: line numbers and addresses of the same failure may differ."""
    return _NUMBER.sub("0", error)


def make_excerpt(text: str, query: bm25.TermCounts, limit: int) -> str:
    """Return the lines of a text that share most terms with the query, in their order; the beginning if no line shares
    any. Lines that are too long are split into sentences or clauses. Two pieces that do not stand one after the other
    have a mark between them: without it they would read as one sentence that nobody said."""
    longest = min(_MAX_PIECE_CHARS, limit - 1 - len(_GAP))
    lines = [piece for line in text.splitlines() for piece in _split_line(line.strip(), longest)]
    shared_terms = [len(query.counts.keys() & bm25.count_terms(line[:longest]).counts.keys()) for line in lines]
    room, kept = limit, set[int]()
    for n in sorted(range(len(lines)), key=lambda n: (-shared_terms[n], n)):
        size = min(len(lines[n]), longest) + 1 + len(_GAP)
        if (kept and not shared_terms[n]) or size > room:
            break
        kept.add(n)
        room -= size
    first_kept = min(kept, default=0)
    marks = {n: _GAP for n in kept if n > first_kept and n - 1 not in kept}
    return "\n".join(marks.get(n, "") + extracts.cut_text(lines[n], longest) for n in sorted(kept))


def _split_line(line: str, longest: int) -> list[str]:
    """Split a line that is too long into sentences, and sentences that are too long into clauses."""
    pieces = [line]
    for ends in (_SENTENCE, _CLAUSE):
        if len(line) > longest:
            pieces = [part for piece in pieces for part in (ends.split(piece) if len(piece) > longest else [piece])]
    return [piece for part in pieces if (piece := part.strip())]


def render_quotation(quotation: Quotation) -> str:
    """Return the item as data: its source, and every line marked as a quotation."""
    head = (
        f"{QUOTATION_START}{public_id(quotation.key)}, {quotation.description}: quoted from earlier, information only]"
    )
    return "\n".join([head, *("> " + line for line in quotation.text.splitlines())])
