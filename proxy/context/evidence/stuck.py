"""Loop detection: an agent thinks, calls or fails in the same way repeatedly. The whole history is examined.

There are two kinds of evidence. The agent's words are a hint: three thoughts of planning, thoughts without action,
steps without new results (after the source of `progressive`). The agent's actions are exact: the same call with the
same result, the same error, a cycle of calls done three times, the same words.

An agent has good reasons to repeat itself, and each of them ends the count. The answer was a different one, the agent
waits for something, or it has changed something in between.

The detection is one pass over facts that are computed once for each message (`Message.derive`). So a request costs one
look-up for each message.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from proxy.chat.key import canonical_arguments
from proxy.chat.message import Call, Message
from proxy.context.evidence import commands, outcome
from proxy.context.evidence.commands import CALL, Command
from proxy.context.evidence.signs import GENERAL, Signs
from proxy.context.plan import View
from proxy.memory.words import telling

KINDS = (
    "theme_loop",
    "same_call_still",
    "cycle",
    "same_call",
    "same_error",
    "same_text",
    "repeated_planning",
    "no_progress",
)
"""All kinds of loops, in the order in which they are reported: the most informative kind comes first."""


class Loop(NamedTuple):
    """One loop that the newest step continues.

    total: the number of events in loops of this kind so far, earlier loops included; it never decreases. run: the
    number of events in this loop. what: the theme, the tool's name or the line of the error.
    """

    kind: str
    total: int
    run: int
    what: str


class _Call(NamedTuple):
    """A call, as compared. key: a hash of name and arguments. name: the tool. polls: the call waits. writes: the call
    changes something. command: its command."""

    id: str
    key: int
    name: str
    polls: bool
    writes: bool
    command: Command


class _Said(NamedTuple):
    """An assistant message: its theme (None without a thought), a hash of its text, its calls."""

    theme: str | None
    text: int
    calls: tuple[_Call, ...]


class _Brought(NamedTuple):
    """A result: its hash, and the line that describes the failure, if it failed."""

    key: int
    error: str | None


class _Eyes:
    """Compiled form of `Signs`. Equal signs share one instance, which is part of the key of the facts stored with a
    message."""

    def __init__(self, signs: Signs) -> None:
        self.signs = signs
        self._themes = [
            (n, re.compile(r"\b(?:" + "|".join(map(_words, words)) + ")", re.IGNORECASE)) for n, words in signs.themes
        ]
        self._polls, self._writes = frozenset(signs.polls), frozenset(signs.writes)
        self._shell = re.compile(f'"(?:{"|".join(map(re.escape, signs.shell))})"\\s*:\\s*"((?:[^"\\\\]|\\\\.)*)')
        self._inner = re.compile(f'"(?:{"|".join(map(re.escape, signs.inner))})"\\s*:\\s*"([\\w.-]+)"')
        self._shell_polls = re.compile(signs.shell_polls, re.MULTILINE)
        self._shell_writes = re.compile(signs.shell_writes, re.MULTILINE)
        self._failed, self._error = re.compile(signs.failed, re.IGNORECASE), re.compile(signs.error, re.IGNORECASE)

    def said(self, message: Message) -> _Said:
        """Return the facts of an assistant message."""
        thought = f"{message.reasoning}\n{message.text}".strip()
        return _Said(
            self.theme(thought) if thought else None,
            hash(message.text.strip()) if message.text.strip() else 0,
            tuple(map(self._call, message.calls)),
        )

    def stems(self, message: Message) -> frozenset[str]:
        """Return the stems of the words that carry the meaning of a thought."""
        return frozenset(word[:STEM] for word in telling(f"{message.reasoning}\n{message.text}"[:LOOK]))

    def repeats(self, one: Message, other: Message) -> bool:
        """True if two thoughts are similar: half of the words of the shorter one occur in the other."""
        a, b = (message.derive(self.stems, (self, "stems")) for message in (one, other))
        least = min(len(a), len(b))
        return 2 * len(a & b) >= least if least else one.text.strip() == other.text.strip()

    def theme(self, thought: str) -> str:
        """Return the first theme, in the listed order, with a word that occurs in the thought."""
        return next((name for name, words in self._themes if words.search(thought)), GENERAL)

    def _call(self, call: Call) -> _Call:
        named = self._inner.findall(call.arguments) or [call.name]
        words = {word.lower() for name in named for word in _NAME_WORDS.findall(name)}
        shell = "\n".join(self._shell.findall(call.arguments))[:LOOK].replace("\\n", "\n").replace('\\"', '"')
        polls = bool(words & self._polls) or bool(shell and self._shell_polls.search(shell))
        writes = bool(words & self._writes) or bool(shell and self._shell_writes.search(shell))
        key = hash((call.name, canonical_arguments(call.arguments)))
        return _Call(call.id, key, call.name, polls, writes, commands.of(call))

    def brought(self, message: Message, command: Command) -> _Brought:
        """Return the facts of a result.

        A result with an image is compared by its whole form, and has no error. `outcome` gives the outcome; where that
        is unknown, the setting `failed` recognises the beginning of a failed result.
        """
        text = message.text.strip()
        if message.media:
            return _Brought(hash(message.form), None)
        ended = outcome.of(message, command)
        error = None
        if ended.verdict == "failed" or (ended.verdict == "unknown" and self._failed.search(text)):
            lines = (line.strip()[:LINE] for line in reversed(text.splitlines()))
            error = next((line for line in lines if self._error.search(line)), None)
        if error is None and ended.verdict == "failed":
            telling = (*ended.failures, *ended.summary, *ended.shown)
            error = outcome.bare(outcome.lines(message)[telling[0]])[:LINE] if telling else text[:LINE]
        return _Brought(hash(text), error)


_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""Matches the words of a tool's name: get_page, getPage, HTTPGet."""

LOOK = 8000
"""Maximum number of characters of a command or a thought that are examined."""
STEM = 4
"""Number of first characters that are equal in two forms of a word: plan, plans, planning."""
LINE = 300
"""Maximum number of characters of a line that describes a failure."""

_OF_WORDS = ("theme_loop", "repeated_planning", "same_text")
"""Kinds of loops in the agent's words: a new prompt of the user does not end them."""


def _words(words: str) -> str:
    return r"\s+".join(map(re.escape, words.split()))


@lru_cache(maxsize=64)
def _eyes(signs: Signs) -> _Eyes:
    return _Eyes(signs)


def theme(thought: str, signs: Signs) -> str:
    """Return the theme of a thought."""
    return _eyes(signs).theme(thought)


def loops(view: View, signs: Signs) -> list[Loop]:
    """Return the loops that the newest step continues, in the order of `KINDS`. The View's messages are the client's
    own, so that messages that have left the prompt are included."""
    walk = _Walk(signs)
    for n in range(len(view.messages)):
        walk.read(view.messages, view.is_result, n)
    return walk.found()


def along(messages: Sequence[Message], is_result: Sequence[bool], signs: Signs) -> Iterator[tuple[int, list[Loop]]]:
    """Yield (n, loops) for each request of a recorded history: the loops before the answer messages[n]. The last pair
    is for the request that has no answer yet."""
    walk = _Walk(signs)
    for n, message in enumerate(messages):
        if message.role == "assistant":
            yield n, walk.found()
        walk.read(messages, is_result, n)
    yield len(messages), walk.found()


class _Walk:
    """The state of one pass over a history."""

    def __init__(self, signs: Signs) -> None:
        self._signs = signs
        self._eyes = _eyes(signs)
        self._totals: dict[str, int] = defaultdict(int)
        self._now: dict[str, tuple[int, str]] = {}
        self._theme, self._themed = "", 0
        self._thought: Message | None = None
        self._parted = False
        self._thoughts = self._idle = 0
        self._open = False
        self._seen: set[int] = set()
        self._calls: list[_Call] = []
        self._same: dict[int, tuple[int, int]] = {}
        self._errors: dict[str, int] = defaultdict(int)
        self._errors_now: set[str] = set()
        self._texts: dict[int, int] = defaultdict(int)
        self._events: list[tuple[int, int]] = []
        self._periods = [0] * (signs.cycle + 1)

    def read(self, messages: Sequence[Message], is_result: Sequence[bool], n: int) -> None:
        """Read the next message of the history."""
        message, eyes = messages[n], self._eyes
        if is_result[n]:
            command = next((call.command for call in self._calls if call.id == message.call_id), CALL)
            brought = message.derive(lambda m: eyes.brought(m, command), (eyes, "brought", command))
            self.result(message.call_id, brought)
        elif message.role == "assistant":
            acts = n + 1 < len(messages) and is_result[n + 1]
            said = message.derive(eyes.said, (eyes, "said"))
            if said.theme is not None:
                self._thinks(message)
            self.assistant(said, acts)
        elif message.role == "user":
            self.prompt()

    def found(self) -> list[Loop]:
        """Return the loops that the newest step continues."""
        self._close()
        return [Loop(kind, self._totals[kind], *self._now[kind]) for kind in KINDS if kind in self._now]

    def _tally(self, kind: str, run: int, threshold: int, what: str) -> None:
        """Count a run that has grown by one into its kind, if it has reached the threshold of a loop."""
        if run >= threshold:
            self._totals[kind] += threshold if run == threshold else 1
            self._now[kind] = run, what

    def _close(self) -> None:
        """Close a step: only now it is known whether the step had a new result."""
        if self._open:
            self._open = False
            self._tally("no_progress", self._idle, self._signs.no_progress, "")

    def prompt(self) -> None:
        """Read a prompt of the user. The count of steps without progress begins again; earlier words and actions still
        count."""
        self._close()
        self._parted = True
        self._now = {kind: found for kind, found in self._now.items() if kind in _OF_WORDS}
        self._idle = 0

    def _thinks(self, message: Message) -> None:
        """Read a thought.

        Answers to successive questions of the user are no loop: across a prompt only thoughts that repeat each other
        count.
        """
        if self._parted and self._thought is not None and not self._eyes.repeats(self._thought, message):
            self._thoughts = self._themed = 0
        self._thought, self._parted = message, False

    def assistant(self, said: _Said, acts: bool) -> None:
        """Read an assistant message, which is a new iteration. acts: an observation follows, for agents without tool
        calls."""
        self._close()
        signs = self._signs
        self._now = {}
        self._calls = list(said.calls)
        self._errors_now.clear()
        polls = bool(said.calls) and all(call.polls for call in said.calls)
        self._idle += not polls
        self._open = not polls
        if said.theme is not None and not polls:
            self._themed = self._themed + 1 if said.theme == self._theme else 1
            self._theme = said.theme
            if said.theme in signs.looping:
                self._tally("theme_loop", self._themed, signs.theme_window, said.theme)
        if said.calls or acts:
            self._thoughts = 0
        elif said.theme is not None:
            self._thoughts += 1
            self._tally("repeated_planning", self._thoughts, signs.consecutive_threshold, "")
        if said.text:
            self._texts[said.text] += 1
            self._tally("same_text", self._texts[said.text], signs.repeats, "")

    def result(self, call_id: str | None, brought: _Brought) -> None:
        """Read the result of a call, or an observation."""
        signs = self._signs
        call = next((c for c in self._calls if c.id == call_id), None)
        if call is not None:
            self._calls.remove(call)
        wrote = call is not None and call.writes and brought.error is None
        if wrote or brought.key not in self._seen:
            self._seen.add(brought.key)
            self._idle = 0
            self._texts.clear()
            if signs.results_end_themes:
                self._themed = 0
        if call is not None and call.polls:
            self._changed()
            return
        if call is not None and wrote:
            self._changed(call.key)
        if brought.error is not None and brought.error not in self._errors_now:
            self._errors_now.add(brought.error)  # once for all calls of a step: one failed call may end the others
            self._errors[brought.error] += 1
            self._tally("same_error", self._errors[brought.error], signs.repeats, brought.error)
        if call is not None:
            self._repeats(call, brought)

    def _repeats(self, call: _Call, brought: _Brought) -> None:
        """Count the repeats of a call with the same result, and of cycles of calls."""
        signs = self._signs
        before, run = self._same.get(call.key, (0, 0))
        run = run + 1 if before == brought.key else 1
        self._same[call.key] = (brought.key, run)
        self._tally("same_call", run, signs.repeats, call.name)
        self._tally("same_call_still", run, signs.still, call.name)
        events = self._events
        events.append((call.key, brought.key))
        told = False  # a cycle of two calls is also a cycle of four, with half the count
        for length in range(2, signs.cycle + 1):
            same = len(events) > length and events[-1] == events[-1 - length]
            self._periods[length] = self._periods[length] + 1 if same else 0
            rounds, rest = divmod(self._periods[length] + length, length)
            if not told and rounds >= signs.repeats and len(set(events[-length:])) > 1:
                told = True
                if rest == 0:
                    self._tally("cycle", rounds, signs.repeats, call.name)

    def _changed(self, but: int | None = None) -> None:
        """Reset the counts after a change or a wait: a repeat of earlier actions is then no loop.

        but: the key of a call that made the change itself; its own repeats still count.
        """
        self._same = {} if but is None or but not in self._same else {but: self._same[but]}
        self._errors.clear()
        self._texts.clear()
        self._events.clear()
        self._periods = [0] * len(self._periods)
