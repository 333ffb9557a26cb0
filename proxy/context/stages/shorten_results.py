"""Shorten stale tool results to the lines that still identify them, and leave out old screenshots: the stage of the
default policy."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import msgspec

from proxy.chat.chain import public_id
from proxy.chat.media import find_images
from proxy.chat.message import Message
from proxy.context.analysis import (
    file_views,
    identifiers,
    outcome,
    refetch,
    screenshots,
)
from proxy.context.analysis.file_views import ViewState
from proxy.context.analysis.result_kinds import ClassifiedResult, find_results, is_path_listing
from proxy.context.analysis.shell_commands import ShellCommand
from proxy.context.plan import ContentKind, Proposal
from proxy.context.stage import Stage, When
from proxy.context.summaries.references import find_referred_lines
from proxy.context.summaries.stub import STATE_REMARKS, StubLimits, StubWriter, estimate_stub_chars
from proxy.context.view import View

StalenessRules = tuple[tuple[int, int], ...]
"""Pairs of (user turns since, steps since). A result is stale as soon as one pair is reached."""

_ReferredLines = Mapping[bytes, Sequence[tuple[int, int]]]
"""The lines of earlier results that references name, as `find_referred_lines`."""
_Use = tuple[int, refetch.ResultSource]
"""(index, source) of a result that shows or writes a file"""
_Written = tuple[int, ShellCommand, ContentKind, str]
"""(index, command of the call, content, stub)"""


class StubEstimate(NamedTuple):
    """Estimate of the stub of a result."""

    tokens: int
    waits_for_rent: bool


_UNKNOWN = StubEstimate(0, False)
"""In place of an estimate that was not made yet."""
_NEVER = 1 << 62
"""The request at which a result becomes stale that only later user turns can make stale."""


@dataclass(frozen=True, slots=True)
class ShortenResults(Stage):
    """Replace stale results by their first line, the outcome of a run, error lines, and the names that occur nowhere
    else.

    Views (the text of a file or page, which an agent quotes when it edits) go stale late. Searches, listings and
    command output go stale early, and large ones as soon as the agent has answered them.
    """

    view_rules: StalenessRules = ((0, 18), (1, 8), (2, 4))
    """Staleness rules of a view: pairs of (user turns since, steps since)."""
    beside: int = 3
    """Steps for which a view stays longer for each other result of its step, while the user says nothing new. An agent
    that reads several files at once works through them one after another."""
    planned: int = 2
    """Steps for which a view of a file of a plan stays longer for each such file that is left. A plan is a prompt that
    names files, one of which was changed since. An agent reads the files first and edits them one after another."""
    planned_most: int = 20
    """Maximum of these steps: after them the agent has left the plan, or the prompt names files that it only reads."""
    other_rules: StalenessRules = ((0, 3),)
    """Staleness rules of a search, a listing or command output."""
    big_rules: StalenessRules = ((0, 1),)
    """Staleness rules of such a result with `big` tokens or more: stale once the agent has answered it. Nothing follows
    the result in the cache at that time, so that the cut is nearly free."""
    big: int = 250
    """Tokens from which a result counts as large."""
    listing_rules: StalenessRules = ((0, 9),)
    """Staleness rules of a list of paths. The agent opens the files of such a list one after another, and their paths
    rarely stand elsewhere."""
    listing_most: int = 1000
    """Tokens above which a list of paths is treated as any other result: it costs more to carry than to fetch again."""
    unknown_rules: StalenessRules = ((0, 4),)
    """Staleness rules of the result of an unknown tool."""
    along_view: int = 3
    """Steps after which a view is cut together with a batch that changes the prompt in front of it anyway."""
    along_other: int = 2
    """The same number of steps for other results."""
    again: int = 20
    """Steps for which the result of a repeated call is left whole: the first result was shortened too early."""
    eager_least: int = 600
    """Tokens from which a result does not wait for its rent in a policy with `eager = true`. Small ones save little for
    the names that they lose. A failed run waits too: the agent works on it next."""
    least: int = 150
    """Tokens below which a result is not changed."""
    save: float = 0.15
    """Minimum share of a result that its stub saves."""
    errors: int = 8
    """Maximum number of error lines in a stub."""
    chars: int = 6000
    """Maximum number of characters for names that occur nowhere else."""
    share: float = 0.35
    """The same maximum, as a share of the result."""
    recalled_share: float = 0.15
    """The same share where the model has the tool recall, which returns the whole result."""
    screenshots: int = 3
    """Newest results with an image that keep it. A remark stands in for the older images of a screen, and for an older
    image that an equal call has returned again. 0: all images stay."""
    files: tuple[str, ...] = ()
    """Names of tools that show or change files, in addition to the tools that are recognised by the words of their
    names."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield a proposal for each stale result, and riders for results that are no longer new."""
        if True not in view.is_result:
            return
        if self.screenshots and (shown := view.memo("results with media", partial(_find_media_results, view))):
            yield from self._leave_out_images(view, shown)
        open_results = view.memo_edited("shorten_results", partial(self._find_open, view), self)
        if not open_results:
            return
        share = self.recalled_share if "recall" in view.inputs.offered_tools else self.share
        batch = _Batch(self, view, StubLimits(self.errors, self.chars, share))
        now = view.request_counts[-1]
        turns = _Turns(view)
        again, confirmed = refetch.find_refetches(view), refetch.find_confirmed(view)
        results_by_step = self._count_step_results(view)
        estimates = view.memo_edited("stub estimates", _copy_estimates, self)
        due_requests = view.memo("due requests", turns.copy_due_requests, self).by_result
        referred = find_referred_lines(view)
        views = [n for n, content, _ in open_results if content == "view"]
        planned = turns.count_planned(views) if self.planned else {}
        for n, content, command in open_results:
            read_at = confirmed.get(n, n)  # a client that says so has read it again
            stub, age = estimates.get(n, _UNKNOWN), now - view.request_counts[read_at]
            if stub is None or (age < self.again and n in again and again[n].kind == "repeat"):
                continue
            due = due_requests.get(read_at)
            if due is None:
                due = turns.find_due_request(read_at, self._rules(view, n, content, results_by_step))
                if age:  # no more results come to a step that the model has answered
                    due_requests[read_at] = due
            since = due if due <= now else None
            if since is None and age < (self.along_other if content == "other" else self.along_view):
                continue
            if n in planned and now < due + min(self.planned * planned[n], self.planned_most):
                continue
            if stub is _UNKNOWN:  # only now: a result that is not stale yet may never be looked at
                stub = estimates[n] = self._estimate(view, n, content, command, referred)
                if stub is None:
                    continue
            reason = f"stale: {age} steps old" if since is not None else f"taken along: {age} steps old"
            yield Proposal(
                n,
                "text",
                "shorten_results",
                reason,
                stub.tokens,
                since=turns.index_of(since - 1) if since is not None else n,
                write_text=batch.writer(n, command, content),
                rider=since is None,
                content=content,
                waits_for_rent=stub.waits_for_rent,
            )

    def find_ended_edits(self, view: View) -> Iterable[bytes]:
        """Keys of the results whose images left, and which have no newer ones any more behind them. In a fork, also
        keys of results that are said to be outdated, and are not."""
        return [*self._find_returning_images(view), *(_find_current_results(view) if view.branch.is_new_fork else ())]

    def _find_returning_images(self, view: View) -> Iterable[bytes]:
        if not self.screenshots:
            return ()
        shown = view.memo("results with media", partial(_find_media_results, view))
        edited = [n for n in shown if (edit := view.find_edit(n)) is not None and edit.action == "images"]
        if not edited:
            return ()
        replaced = {n for n, _ in screenshots.find_replaced_images(view, shown, self.screenshots)}
        return [view.keys[n] for n in edited if n not in replaced]

    def _leave_out_images(self, view: View, shown: Sequence[int]) -> Iterator[Proposal]:
        """Yield a proposal for each result whose images were replaced by newer ones. shown: the results with media."""
        for n, newer in screenshots.find_replaced_images(view, shown, self.screenshots):
            if view.find_edit(n) is None:
                message, count = view.messages[n], view.token_counter.count_text(screenshots.REMARK)
                images = len(find_images(message))
                after = view.original_tokens[n] - view.token_counter.count_images(message) + images * count
                reason = f"replaced: {images} image{'s' * (images > 1)}"
                yield Proposal(
                    n, "images", "shorten_results", reason, after, screenshots.REMARK, since=newer, content="other"
                )

    def _waits_for_rent(self, view: View, n: int, command: ShellCommand) -> bool:
        """True if the result is small, or is that of a failed run."""
        if view.original_tokens[n] < self.eager_least:
            return True
        return outcome.read_outcome(view.messages[n], command).verdict == "failed"

    def _find_open(self, view: View, begin: int, known: list[ClassifiedResult] | None) -> list[ClassifiedResult]:
        """Return the results that can be shortened."""
        found = list(known or ())
        for n, content, command in find_results(view, frozenset(self.files), begin):
            message = view.messages[n]
            if view.original_tokens[n] < self.least or message.shape not in ("string", "parts") or message.media_count:
                continue
            edit = view.find_edit(n)
            if edit is None or edit.action == "append" or edit.stage == "refer_repeats":
                found.append((n, content, command))
        return found

    def _estimate(
        self, view: View, n: int, content: ContentKind, command: ShellCommand, referred: _ReferredLines
    ) -> StubEstimate | None:
        """Estimate the stub of a result; None if it saves too little."""
        message, whole = view.messages[n], view.original_tokens[n]
        left = estimate_stub_chars(message, command, content=content) + _count_referred_chars(view, n, referred)
        after = left * whole // max(1, len(message.text)) + 12
        if after > view.tokens[n] - whole * self.save:
            return None
        return StubEstimate(after, self._waits_for_rent(view, n, command))

    def _rules(self, view: View, n: int, content: ContentKind, results_by_step: Mapping[int, int]) -> StalenessRules:
        if content == "view":
            more = self.beside * (results_by_step[view.request_counts[n]] - 1)
            return tuple((turns, steps if turns else steps + more) for turns, steps in self.view_rules)
        if content == "unknown":
            return self.unknown_rules
        message, tokens = view.messages[n], view.original_tokens[n]
        if tokens <= self.listing_most and message.derive(is_path_listing):
            return self.listing_rules
        return self.big_rules if tokens >= self.big else self.other_rules

    def _count_step_results(self, view: View) -> Counter[int]:
        """Count the results of `least` tokens or more by step. A step is named by its `request_counts`."""

        def add(begin: int, known: Counter[int] | None) -> Counter[int]:
            found = Counter(known)
            found.update(
                view.request_counts[n]
                for n in range(begin, len(view.messages))
                if view.is_result[n] and view.original_tokens[n] >= self.least
            )
            return found

        return view.memo("results of steps", add, self)


def _find_current_results(view: View) -> Iterator[bytes]:
    """Keys of the results whose stubs say that their file was changed or removed since, which is not so here."""
    find_state: Callable[[int], ViewState] | None = None
    for n in range(len(view.messages)):
        edit = view.find_edit(n)
        text = edit.text or "" if edit is not None and edit.stage == "shorten_results" else ""
        told = next((state for state, remark in STATE_REMARKS.items() if f"\n[{remark}; as it was: " in text), None)
        if told is not None:
            find_state = find_state or file_views.make_state_test(view)
            if find_state(n) != told:
                yield view.keys[n]


def _find_media_results(view: View, begin: int, known: Sequence[int] | None) -> Sequence[int]:
    """The indexes of the tool results with parts that are not text."""
    new = [n for n in range(begin, len(view.messages)) if view.messages[n].media_count and view.messages[n].is_result]
    return [*(known or ()), *new] if new else known or ()


def _copy_estimates(_: int, known: dict[int, StubEstimate | None] | None) -> dict[int, StubEstimate | None]:
    """The estimates so far, by the index of the result: a copy, since two requests may continue the same prefix."""
    return dict(known or {})


class _DueRequests(NamedTuple):
    """The requests at which results become stale. A new user turn may bring them forward."""

    turn_starts: Sequence[int]
    """The index of the first message of each user turn."""
    by_result: dict[int, int]
    """The number of the request, by the index of the result."""


class _Turns:
    """Counts of steps and user turns of a view. A step is a request and is counted by its answer."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._requests = view.request_counts
        self._answers = view.history.assistant_indexes
        self._starts = [group.start for group in view.groups]

    def copy_due_requests(self, _: int, known: _DueRequests | None) -> _DueRequests:
        """A copy of the due requests that are known, as long as there is no other user turn."""
        is_known = known is not None and known.turn_starts == self._starts
        return _DueRequests(self._starts, dict(known.by_result) if known is not None and is_known else {})

    def find_due_request(self, n: int, rules: StalenessRules) -> int:
        """Return the number of the request at which messages[n] becomes stale, by the user turns that there are."""
        due = _NEVER
        turn = bisect_right(self._starts, n) - 1
        for turns, steps in rules:
            later = turn + turns
            if later >= len(self._starts):
                continue
            at = self._requests[n] + steps
            if turns:
                at = max(at, self._requests[self._starts[later]])
            due = min(due, at)
        return due

    def count_planned(self, views: Iterable[int]) -> Mapping[int, int]:
        """By the index of a view of a file that the prompt of its turn names, and that no later call has changed: the
        number of such files. There are none before one of the files that the prompt names was changed."""
        uses, sources = refetch.find_file_uses(self._view), refetch.find_sources(self._view)
        named: dict[int, frozenset[str]] = {}
        files: dict[int, tuple[int, str]] = {}
        for n in views:
            turn = bisect_right(self._starts, n) - 1
            if turn not in named:
                named[turn] = self._find_planned_names(turn, uses)
            name = sources[n].path.rpartition("/")[2] if n in sources else ""
            if name in named[turn] and not any(at > n and use.action == "writes" for at, use in reversed(uses[name])):
                files[n] = turn, sources[n].path
        counts = Counter(turn for turn, _ in set(files.values()))
        return {n: counts[turn] for n, (turn, _) in files.items()}

    def _find_planned_names(self, turn: int, uses: Mapping[str, Sequence[_Use]]) -> frozenset[str]:
        """The names of the files that the prompt of a turn names, if one of them was changed since; else none."""
        group = self._view.groups[turn]
        names = self._view.messages[group.prompt_end - 1].derive(_list_file_names) & uses.keys()
        written = any(n > group.start and use.action == "writes" for name in names for n, use in uses[name])
        return names if written else frozenset()

    def index_of(self, request: int) -> int:
        """Return the index of the answer to that request (counted from 1), 0 before the first request.

        The answer before a request makes the result stale for it: that request has already paid its rent.
        """
        return self._answers[request - 1] if request > 0 else 0


def _list_file_names(message: Message) -> frozenset[str]:
    """Return the names of files in a message: the last parts of paths, without line numbers."""
    paths = (name.partition(":")[0].partition("#")[0] for name in identifiers.find_distinct_names(message.text))
    return frozenset(name for path in paths if "." in (name := path.rpartition("/")[2]))


class _Batch:
    """Builder of the stubs of a batch. The contents of the prompt are indexed once, when the first stub is written.

    The stubs are kept with the history. A request with the same messages and the same edits in force takes them if it
    writes the same batch. Such a request is a retry, another sample of the same prompt, or a second pass of this one.
    """

    def __init__(self, stage: ShortenResults, view: View, limits: StubLimits) -> None:
        self._stage = stage
        self._view = view
        self._limits = limits
        self._written: list[_Written] = []
        self._known: Sequence[_Written] = ()
        self._made: StubWriter | None = None
        self._referred: dict[bytes, list[tuple[int, int]]] = {}
        self._newest: Mapping[int, frozenset[str]] = {}
        self._find_state: Callable[[int], ViewState] = lambda _: "current"

    def writer(self, n: int, command: ShellCommand, content: ContentKind) -> _Write:
        """Return the callable that writes the stub of messages[n]."""
        return _Write(self, n, command, content)

    def write(self, n: int, command: ShellCommand, gone: frozenset[int], content: ContentKind) -> str:
        """Return the stub of messages[n]. gone: the indices of all messages that are shortened in the same batch."""
        if not self._written:
            self._find_known(gone)
        at = len(self._written)
        # A stub depends on those that were written before it, so the first one that differs ends what is known.
        if at < len(self._known) and self._known[at][:3] == (n, command, content):
            text = self._known[at][3]
        else:
            self._known = ()
            text = self._write(n, command, gone, content)
        self._written.append((n, command, content, text))
        return text

    def _find_known(self, gone: frozenset[int]) -> None:
        kept: dict[Hashable, list[_Written]] = self._view.memo_edited("stubs", lambda _, __: {}, self._stage)
        key = (gone, self._limits, "recall" in self._view.inputs.offered_tools, self._view.request.tools)
        self._known = kept.get(key, ())
        kept.clear()
        kept[key] = self._written

    def _write(self, n: int, command: ShellCommand, gone: frozenset[int], content: ContentKind) -> str:
        if self._made is None:
            self._made = StubWriter(identifiers.PromptIndex(self._view), self._limits)
            self._referred = find_referred_lines(self._view)
            self._newest = file_views.find_newest_lines(self._view, gone)
            if "recall" in self._view.inputs.offered_tools:  # else no stub has a call whose result could be outdated
                self._find_state = file_views.make_state_test(self._view)
            for known in self._written:
                self._write(known[0], known[1], gone, known[2])
        view = self._view
        message = view.messages[n]
        name = public_id(view.keys[n])
        wanted = self._referred.get(name.encode(), ())
        if n in self._newest:
            wanted = [*wanted, *file_views.find_spans(message.text, self._newest[n])]
        held = identifiers.find_facts(message, view.find_edit(n))
        shown = name if "recall" in view.inputs.offered_tools else ""
        state = self._find_state(n) if shown else "current"
        return self._made.write_stub(message, held, wanted, command, content=content, message_id=shown, state=state)


def _count_referred_chars(view: View, n: int, found: _ReferredLines) -> int:
    """Count the characters of messages[n] that have to stay, because a later result refers to them."""
    spans = found.get(public_id(view.keys[n]).encode()) if found else None
    if not spans:
        return 0
    lines = view.messages[n].text.splitlines()
    kept = {k for start, end in spans for k in range(start, min(end, len(lines)))}
    return sum(len(lines[k]) + 1 for k in kept)


class _Write(msgspec.Struct, frozen=True):
    batch: _Batch
    n: int
    command: ShellCommand
    content: ContentKind

    def __call__(self, gone: frozenset[int]) -> str:
        return self.batch.write(self.n, self.command, gone, self.content)
