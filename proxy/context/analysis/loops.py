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
from collections.abc import Sequence
from functools import lru_cache
from itertools import filterfalse
from typing import NamedTuple

from proxy.chat.chain import canonicalize_arguments
from proxy.chat.group import is_beside_results
from proxy.chat.message import Call, Message
from proxy.context.analysis import outcome, output_wrappers, result_lines, runner_patterns, shell_commands
from proxy.context.analysis.lexicon import GENERAL_THEME, LoopSettings
from proxy.context.analysis.shell_commands import PLAIN_CALL, ShellCommand
from proxy.context.view import View
from proxy.notes.topic_words import find_topic_words

LOOP_KINDS = (
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
    """One loop that the newest step continues."""

    kind: str
    total: int
    """The number of events in loops of this kind so far, earlier loops included; it never decreases."""
    run_length: int
    """The number of events in this loop."""
    subject: str
    """The theme, the tool's name or the line of the error."""


class _Call(NamedTuple):
    """A call, as compared."""

    id: str
    key: int
    """A hash of name and arguments."""
    name: str
    """The tool."""
    polls: bool
    """True if the call waits."""
    writes: bool
    """True if the call changes something."""
    acts: bool
    """True if the call of a tool that runs no commands both changes something and is meant to be repeated."""
    command: ShellCommand
    """The command of the call."""


class _AssistantFacts(NamedTuple):
    """An assistant message: its theme (None without a thought), a hash of its text, its calls."""

    theme: str | None
    text: int
    calls: tuple[_Call, ...]


class _ResultFacts(NamedTuple):
    """A result: its hash, and the line that describes the failure, if it failed."""

    key: int
    error: str | None
    acknowledges: bool
    """True if the result only says that the call was done."""
    waits: bool
    """True if the result says that something is not done yet: the agent has to ask again."""


class _LoopPatterns:
    """Compiled form of `LoopSettings`: one instance for equal ones, part of the key of a message's facts."""

    def __init__(self, settings: LoopSettings) -> None:
        self._themes = [
            (n, re.compile(r"\b(?:" + "|".join(map(_match_words, words)) + ")", re.IGNORECASE))
            for n, words in settings.themes
        ]
        self._polls, self._writes = frozenset(settings.polls), frozenset(settings.writes)
        self._shell = re.compile(f'"(?:{"|".join(map(re.escape, settings.shell))})"\\s*:\\s*"((?:[^"\\\\]|\\\\.)*)')
        self._inner = re.compile(f'"(?:{"|".join(map(re.escape, settings.inner))})"\\s*:\\s*"([\\w.-]+)"')
        self._shell_polls = re.compile(settings.shell_polls, re.MULTILINE)
        self._shell_writes = re.compile(settings.shell_writes, re.MULTILINE)
        self._failed, self._error = (
            re.compile(settings.failed, re.IGNORECASE),
            re.compile(settings.error, re.IGNORECASE),
        )

    def read_assistant(self, message: Message) -> _AssistantFacts:
        thought = f"{message.reasoning}\n{message.text}".strip()
        return _AssistantFacts(
            self.find_theme(thought) if thought else None,
            hash(message.text.strip()) if message.text.strip() else 0,
            tuple(map(self._call, message.calls)),
        )

    def find_stems(self, message: Message) -> frozenset[str]:
        """Return the stems of the words that carry the meaning of a thought."""
        return frozenset(
            word[:STEM_CHARS] for word in find_topic_words(f"{message.reasoning}\n{message.text}"[:MAX_EXAMINED_CHARS])
        )

    def are_similar(self, one: Message, other: Message) -> bool:
        """True if two thoughts are similar: half of the words of the shorter one occur in the other."""
        a, b = (message.derive(self.find_stems, (self, "stems")) for message in (one, other))
        least = min(len(a), len(b))
        return 2 * len(a & b) >= least if least else one.text.strip() == other.text.strip()

    def find_theme(self, thought: str) -> str:
        """Return the first theme, in the listed order, with a word that occurs in the thought."""
        return next((name for name, words in self._themes if words.search(thought)), GENERAL_THEME)

    def _call(self, call: Call) -> _Call:
        named = self._inner.findall(call.arguments) or [call.name]
        words = {word.lower() for name in named for word in _NAME_WORDS.findall(name)}
        shell = (
            "\n".join(self._shell.findall(call.arguments))[:MAX_EXAMINED_CHARS].replace("\\n", "\n").replace('\\"', '"')
        )
        polls = bool(words & self._polls) or bool(shell and self._shell_polls.search(shell))
        writes = bool(words & self._writes) or bool(shell and self._shell_writes.search(shell))
        key = hash((call.name, canonicalize_arguments(call.arguments)))
        command = shell_commands.parse_call(call)
        return _Call(call.id, key, call.name, polls, writes, polls and writes and command.kind == "call", command)

    def read_result(self, message: Message, command: ShellCommand) -> _ResultFacts:
        """Return the facts of a result.

        A result with an image is compared by its whole form, and has no error. `outcome` gives the outcome; where that
        is unknown, the setting `failed` recognises the beginning of a failed result.
        """
        text = message.text.strip()
        if message.media_count:
            return _ResultFacts(hash(message.form), None, acknowledges=False, waits=False)
        ended = outcome.read_outcome(message, command)
        error = None
        known = runner_patterns.compile_patterns()
        if ended.verdict == "failed" or (ended.verdict == "unknown" and self._failed.search(text)):
            lines = (line.strip()[:MAX_LINE_CHARS] for line in reversed(text.splitlines()))
            found = filterfalse(known.closing.match, filter(self._error.search, lines))
            error = next(filterfalse(known.remark.match, found), None)
        if error is None and ended.verdict == "failed":
            rows = result_lines.read_lines(message)
            numbers = (*ended.failure_lines, *ended.summary_lines)
            told = (output_wrappers.strip_line(rows[n])[:MAX_LINE_CHARS] for n in numbers)
            error = next(filterfalse(known.closing.match, told), " ".join(text[:MAX_LINE_CHARS].split()))
        is_brief = error is None and len(text) <= MAX_LINE_CHARS
        acknowledges = is_brief and _ACKNOWLEDGES.fullmatch(text) is not None
        return _ResultFacts(hash(text), error, acknowledges, is_brief and _WAITS.search(text) is not None)


_ACKNOWLEDGES = re.compile(
    r"\W*(?:ok(?:ay)?|done|success(?:ful|fully)?|true|accepted|saved|sent|updated"
    r"|(?:insert 0|update|delete|copy|merge) [1-9]\d*|query ok, [1-9]\d* rows? affected.{0,80})\W*",
    re.IGNORECASE,
)
"""A result that only says that the call did what it was asked for: it is the same for other calls."""
_WAITS = re.compile(
    r"\b(?:running|pending|queued|in[ _-]?progress|processing|starting|creating|compiling|building|provisioning)\b"
    r"|\bnot (?:ready|done|finished) yet\b",
    re.IGNORECASE,
)
_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""Matches the words of a tool's name: get_page, getPage, HTTPGet."""

REQUEST_BYTES = 20
"""Bytes from which on a prompt of the user is a request: seven Chinese characters have 21."""
MAX_EXAMINED_CHARS = 8000
"""Maximum number of characters of a command or a thought that are examined."""
STEM_CHARS = 4
"""Number of first characters that are equal in two forms of a word: plan, plans, planning."""
MAX_LINE_CHARS = 300
"""Maximum number of characters of a line that describes a failure."""

_OF_WORDS = ("theme_loop", "repeated_planning", "same_text")
"""Kinds of loops in the agent's words: a new prompt of the user does not end them."""


def _match_words(words: str) -> str:
    return r"\s+".join(map(re.escape, words.split()))


@lru_cache(maxsize=64)
def _compile_patterns(settings: LoopSettings) -> _LoopPatterns:
    return _LoopPatterns(settings)


def find_loops(view: View, settings: LoopSettings) -> list[Loop]:
    """Return the loops that the newest step continues, in the order of `LOOP_KINDS`. The View's messages are the
    client's own, so that messages that have left the prompt are included."""
    detector = LoopDetector(settings)
    for n in range(len(view.messages)):
        detector.read_message(view.messages, view.is_result, n)
    return detector.list_loops()


class LoopDetector:
    """The state of one pass over a history."""

    def __init__(self, settings: LoopSettings) -> None:
        self._settings = settings
        self._patterns = _compile_patterns(settings)
        self._totals: dict[str, int] = defaultdict(int)
        self._now: dict[str, tuple[int, str]] = {}
        self._theme, self._theme_run = "", 0
        self._thought: Message | None = None
        self._prompt_since = False
        """A prompt of the user came after `_thought`."""
        self._thoughts = self._idle = 0
        self._open = False
        """The newest step may still get a new result."""
        self._seen: set[int] = set()
        self._calls: list[_Call] = []
        self._same: dict[int, tuple[int, int, int]] = {}
        """By call: its newest result, how often in a row, and the turn of the user."""
        self._turn = 0
        self._prompts: set[int] = set()
        self._newest: dict[int, int] = {}
        """The newest result of each call of a tool that runs no commands."""
        self._errors: dict[str, int] = defaultdict(int)
        self._open_errors: dict[str, set[str]] = defaultdict(set)
        """The errors of each tool since it last succeeded, but of those tools that run commands."""
        self._errors_now: set[str] = set()
        self._settled: set[str] = set()
        """Errors of tools that have succeeded since."""
        self._texts: dict[int, int] = defaultdict(int)
        self._events: list[tuple[int, int]] = []
        self._periods = [0] * (settings.cycle + 1)

    def read_message(self, messages: Sequence[Message], is_result: Sequence[bool], n: int) -> None:
        """Read the next message of the history."""
        message, patterns = messages[n], self._patterns
        if is_result[n]:
            command = next((call.command for call in self._calls if call.id == message.call_id), PLAIN_CALL)
            result = message.derive(lambda m: patterns.read_result(m, command), (patterns, "result", command))
            self.read_result(message.call_id, result)
        elif message.role == "assistant":
            acts = n + 1 < len(messages) and is_result[n + 1]
            facts = message.derive(patterns.read_assistant, (patterns, "assistant"))
            if facts.theme is not None:
                self._read_thought(message)
            self.read_assistant(facts, acts)
        elif message.role == "user" and not is_beside_results(messages, n):
            self.read_prompt(message.text)

    def list_loops(self) -> list[Loop]:
        """Return the loops that the newest step continues."""
        self._close()
        return [Loop(kind, self._totals[kind], *self._now[kind]) for kind in LOOP_KINDS if kind in self._now]

    def _tally(self, kind: str, run: int, threshold: int, what: str) -> None:
        """Count a run that has grown by one into its kind, if it has reached the threshold of a loop."""
        if run >= threshold:
            self._totals[kind] += threshold if run == threshold else 1
            self._now[kind] = run, what

    def _close(self) -> None:
        """Close a step: only now it is known whether the step had a new result."""
        if self._open:
            self._open = False
            self._tally("no_progress", self._idle, self._settings.no_progress, "")

    def read_prompt(self, text: str) -> None:
        """Read a prompt of the user.

        The count of steps without progress begins again. Earlier words and actions still count, but not two things:
        errors of a tool that did in the end what it was asked for, and calls before a request. The user may have asked
        for the same again. A few words (`Go on.`), or those of an earlier prompt, are no request.
        """
        self._close()
        if len(text.encode("utf-8", "replace")) >= REQUEST_BYTES and hash(text) not in self._prompts:
            self._turn += 1
            self._prompts.add(hash(text))
        for error in self._settled:
            self._errors.pop(error, None)
        self._settled.clear()
        self._prompt_since = True
        self._now = {kind: found for kind, found in self._now.items() if kind in _OF_WORDS}
        self._idle = 0

    def _read_thought(self, message: Message) -> None:
        """Read a thought.

        Answers to successive questions of the user are no loop: across a prompt only thoughts that repeat each other
        count.
        """
        if self._prompt_since and self._thought is not None and not self._patterns.are_similar(self._thought, message):
            self._thoughts = self._theme_run = 0
        self._thought, self._prompt_since = message, False

    def read_assistant(self, facts: _AssistantFacts, acts: bool) -> None:
        """Read an assistant message: a new iteration. acts: an observation follows, without a tool call."""
        self._close()
        settings = self._settings
        self._now = {}
        self._calls = list(facts.calls)
        self._errors_now.clear()
        polls = bool(facts.calls) and all(call.polls for call in facts.calls)
        self._idle += not polls
        self._open = not polls
        if facts.theme is not None and not polls:
            self._theme_run = self._theme_run + 1 if facts.theme == self._theme else 1
            self._theme = facts.theme
            if facts.theme in settings.looping:
                self._tally("theme_loop", self._theme_run, settings.theme_window, facts.theme)
        if facts.calls or acts:
            self._thoughts = 0
        elif facts.theme is not None:
            self._thoughts += 1
            self._tally("repeated_planning", self._thoughts, settings.consecutive_threshold, "")
        if facts.text:
            self._texts[facts.text] += 1
            self._tally("same_text", self._texts[facts.text], settings.repeats, "")

    def read_result(self, call_id: str | None, facts: _ResultFacts) -> None:
        """Read the result of a call, or an observation."""
        settings = self._settings
        call = next((c for c in self._calls if c.id == call_id), None)
        if call is not None:
            self._calls.remove(call)
        wrote = call is not None and call.writes and facts.error is None
        is_done = facts.acknowledges and call is not None and call.key not in self._same
        if wrote or is_done or facts.key not in self._seen:
            self._seen.add(facts.key)
            self._idle = 0
            self._texts.clear()
            if settings.results_end_themes:
                self._theme_run = 0
        if call is not None and facts.waits and settings.polls:
            self._idle = 0
            self._reset_counts()
            return
        if call is not None and call.polls and (facts.error is None or not call.acts):
            self._reset_counts()
            return
        if call is not None and wrote:
            self._reset_counts(call.key)
        if call is not None and call.command.kind == "call":
            self._read_end(call.name, facts.error)
            if self._newest.setdefault(call.key, facts.key) != facts.key:
                # What is there has changed, by a move of a robot for example, whose results are all the same.
                self._newest[call.key] = facts.key
                self._same = {call.key: self._same[call.key]} if call.key in self._same else {}
        if facts.error is not None and facts.error not in self._errors_now:
            self._errors_now.add(facts.error)  # once for all calls of a step: one failed call may end the others
            self._errors[facts.error] += 1
            self._tally("same_error", self._errors[facts.error], settings.repeats, facts.error)
        if call is not None:
            self._count_repeats(call, facts)

    def _read_end(self, tool: str, error: str | None) -> None:
        """Read how a call of a tool ended that runs no commands. error: None if it succeeded."""
        if error is not None:
            self._open_errors[tool].add(error)
            self._settled.discard(error)
        else:
            self._settled |= self._open_errors.pop(tool, set())

    def _count_repeats(self, call: _Call, facts: _ResultFacts) -> None:
        """Count the repeats of a call with the same result, and of cycles of calls."""
        settings = self._settings
        before, run, turn = self._same.get(call.key, (0, 0, 0))
        is_asked = turn != self._turn
        run = run + (not is_asked) if before == facts.key else 1
        self._same[call.key] = (facts.key, run, self._turn)
        if is_asked and run > 1:
            return
        self._tally("same_call", run, settings.repeats, call.name)
        self._tally("same_call_still", run, settings.still, call.name)
        events = self._events
        events.append((call.key, facts.key))
        counted = False  # a cycle of two calls is also a cycle of four, with half the count
        for length in range(2, settings.cycle + 1):
            same = len(events) > length and events[-1] == events[-1 - length]
            self._periods[length] = self._periods[length] + 1 if same else 0
            rounds, rest = divmod(self._periods[length] + length, length)
            if not counted and rounds >= settings.repeats and len(set(events[-length:])) > 1:
                counted = True
                if rest == 0:
                    self._tally("cycle", rounds, settings.repeats, call.name)

    def _reset_counts(self, but: int | None = None) -> None:
        """Reset the counts after a change or a wait: a repeat of earlier actions is then no loop.

        but: the key of a call that made the change itself; its own repeats still count.
        """
        self._same = {} if but is None or but not in self._same else {but: self._same[but]}
        self._errors.clear()
        self._open_errors.clear()
        self._texts.clear()
        self._events.clear()
        self._periods = [0] * len(self._periods)
