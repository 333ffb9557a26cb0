"""The data of reflection: answered calls in batches, the reflections on them, and the relevance of each call.

The chain keys of its results name a batch. So every author of a reflection (the model in its answer, a helper, another
replica) stores it under the same name. It is found there again among the answers of the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from proxy.chat.chain import public_id
from proxy.chat.group import Step, find_last_user
from proxy.chat.message import Call, Message
from proxy.context.analysis import (
    bm25,
    outcome,
    output_wrappers,
    refetch,
    result_lines,
    shell_commands,
    telling_lines,
    tool_messages,
)
from proxy.context.analysis.outcome import ToolOutcome
from proxy.context.analysis.shell_commands import ShellCommand
from proxy.context.plan import Ask
from proxy.context.view import View
from proxy.errors import ConfigError
from proxy.notes import reflection
from proxy.notes.call_summaries import QuotedOutcome, shorten_at_word
from proxy.notes.reflection import CallReflection, Progress, Reflection, Relevance

ReflectionMode = Literal["off", "inline", "helper"]
REFLECTION_KIND = "reflection"
"""The kind of the Asks."""
ERROR_CHARS = 90
"""Characters of a line that tells of an error, where the last line of the run follows it."""
GOAL_TERMS = 40
"""Number of terms of the goal, its first ones, by which calls are ranked."""
LOW_STAKES = ("think", "sleep", "wait", "todo_write", "todowrite", "todo_read", "update_plan", "manage_scratchpad")
RELEVANCE_RANKS: Mapping[str, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class ReflectionSettings:
    """Settings of reflection, shared by the stage `distil_results` and the injection `reflect`; both must have the same
    values."""

    reflect: str = "off"
    """Author of the reflections: off; inline (the model, in its answer); helper (the helper model). `x-context-reflect`
    overrides it."""
    reflect_batch: int = 1
    """Number of steps in one batch of reflection."""
    low_stakes: tuple[str, ...] = LOW_STAKES
    """Tools whose calls get no reflection."""

    def __post_init__(self) -> None:
        """Validate the settings, which come from a file. Raises ConfigError if one is invalid."""
        if self.reflect not in get_args(ReflectionMode):
            raise ConfigError("reflect", self.reflect, "one of " + ", ".join(get_args(ReflectionMode)))
        if self.reflect_batch < 1:
            raise ConfigError("reflect_batch", self.reflect_batch, "1 or more")

    def read_mode(self, options: Mapping[str, str]) -> str:
        """Return the author of the reflections on this request's calls."""
        wanted = options.get("reflect", "").lower()
        return wanted if wanted in get_args(ReflectionMode) else self.reflect


class AnsweredCall(NamedTuple):
    call: Call
    call_index: int
    """The index of the message with the call."""
    result_index: int
    """The index of its result."""


class CallBatch(NamedTuple):
    """Steps with one reflection."""

    calls: tuple[AnsweredCall, ...]
    """Their calls, without low-stakes calls."""
    result_keys: tuple[bytes, ...]
    """The chain keys of their results."""
    ask_id: str
    """The id of the question."""


def find_answered_calls(messages: Sequence[Message], step: Step) -> list[AnsweredCall]:
    """Return the answered calls of a step, matched by id, else by position."""
    asked = messages[step.start].calls
    if len(asked) == 1:
        return [AnsweredCall(asked[0], step.start, step.start + 1)] if step.end > step.start + 1 else []
    calls = list(asked)
    found = []
    for n in range(step.start + 1, step.end):
        if not calls:
            break
        if not messages[n].is_result:
            continue
        name = messages[n].call_id
        at = next((i for i, call in enumerate(calls) if call.id == name), 0)
        found.append(AnsweredCall(calls.pop(at), step.start, n))
    return found


def find_answered_call(messages: Sequence[Message], index: int) -> Call | None:
    """Return the call that messages[index] answers, by its id; None where the answer before it has no such call."""
    for at in range(index - 1, -1, -1):
        for call in messages[at].calls:
            if call.id == messages[index].call_id:
                return call
        if messages[at].calls:
            break
    return None


def find_batches(
    messages: Sequence[Message], keys: Sequence[bytes], steps: Sequence[Step], reflecting: ReflectionSettings
) -> list[CallBatch]:
    """Return the batches of a conversation, counted from its first step, so that they stay while it grows."""
    return _make_batches(messages, keys, find_calls_by_step(messages, steps), reflecting)


def find_calls_by_step(messages: Sequence[Message], steps: Sequence[Step]) -> list[list[AnsweredCall]]:
    """Return the answered calls of each step that has any."""
    return [find_answered_calls(messages, step) for step in steps if step.end - step.start > 1]


def _make_batches(
    messages: Sequence[Message],
    keys: Sequence[bytes],
    called: Sequence[Sequence[AnsweredCall]],
    reflecting: ReflectionSettings,
) -> list[CallBatch]:
    made = [_make_batch(messages, keys, tuple(found)) for found in _group_calls(called, reflecting)]
    return made[:-1] if made and not _is_full(made[-1], reflecting) else made


def number_newest_calls(
    messages: Sequence[Message], steps: Sequence[Step], reflecting: ReflectionSettings
) -> dict[int, int]:
    """Return the number of each call in the newest batch, full or not, by the index of the result."""
    found = _group_calls(find_calls_by_step(messages, steps), reflecting)
    return {one.result_index: n for n, one in enumerate(found[-1], 1)} if found else {}


def _group_calls(called: Sequence[Sequence[AnsweredCall]], reflecting: ReflectionSettings) -> list[list[AnsweredCall]]:
    """Return the calls of each batch; the last batch may wait for more."""
    low = frozenset(reflecting.low_stakes)
    found: list[list[AnsweredCall]] = []
    count = 0
    for step in called:
        fresh = [one for one in step if one.call.name not in low]
        if not fresh:
            continue
        if count % reflecting.reflect_batch == 0:
            found.append([])
        found[-1] += fresh
        count += 1
    return found


def _is_full(batch: CallBatch, reflecting: ReflectionSettings) -> bool:
    return len({one.call_index for one in batch.calls}) == reflecting.reflect_batch


def _make_batch(messages: Sequence[Message], keys: Sequence[bytes], found: tuple[AnsweredCall, ...]) -> CallBatch:
    about = tuple(keys[one.result_index] for one in found)
    name = messages[found[-1].result_index].derive(
        lambda _: Ask(REFLECTION_KIND, "", about).id, (REFLECTION_KIND, about)
    )
    return CallBatch(found, about, name)


def find_goal(state: str | None, messages: Sequence[Message], is_result: Sequence[bool] | None = None) -> str:
    """Return the goal of the conversation: STATE's Goal, else the last user message."""
    for row in (state or "").splitlines():
        if row.strip().lower().startswith("goal:"):
            return row.partition(":")[2].strip()
    at = find_last_user(messages, is_result)
    return messages[at].text if at >= 0 else ""


def rank_calls(goal_text: str, messages: Sequence[Message], calls: Sequence[AnsweredCall]) -> list[Relevance]:
    """Return the relevance of each call to the goal, by the words of its result and arguments.

    high: a score of at least half of the best one. low: no shared words. medium: all others.
    """
    query = dict(list(bm25.count_terms(goal_text).counts.items())[:GOAL_TERMS])
    documents = [_count_terms(messages[one.result_index], one.call) for one in calls]
    scores = bm25.score_relevance(query, documents)
    return ["high" if score >= 0.5 else "medium" if score > 0 else "low" for score in scores]


def _count_terms(result: Message, call: Call) -> bm25.TermCounts:
    return result.derive(
        lambda m: bm25.count_terms(f"{call.name} {call.arguments}\n{m.text}"), ("terms", call.name, call.arguments)
    )


class FoundReflections(NamedTuple):
    """The reflections of a conversation."""

    calls: list[AnsweredCall]
    """All answered calls."""
    items: dict[int, CallReflection]
    """The reflection on a call, by the index of its result."""
    progress: list[Progress]
    """The assessments of progress, oldest first."""
    batches: list[CallBatch]
    """The batches."""


def find_reflections(view: View, reflecting: ReflectionSettings) -> FoundReflections:
    """Return the reflections of a conversation; computed once for each View."""
    settings = ReflectionSettings(reflecting.reflect, reflecting.reflect_batch, reflecting.low_stakes)
    return view.compute_once(settings, lambda: _find_reflections(view, settings))


def _find_reflections(view: View, reflecting: ReflectionSettings) -> FoundReflections:
    called = find_calls_by_step(view.messages, view.steps)
    grouped = _make_batches(view.messages, view.keys, called, reflecting) if _has_reflections(view, reflecting) else []
    items: dict[int, CallReflection] = {}
    progress: list[Progress] = []
    for batch in grouped:
        found = read_reflection(view, batch)
        if found is None:
            continue
        if found.progress_assessment is not None:
            progress.append(found.progress_assessment)
        for item in found.tool_calls:
            if 1 <= item.call <= len(batch.calls):
                items[batch.calls[item.call - 1].result_index] = item
    return FoundReflections([one for step in called for one in step], items, progress, grouped)


def _has_reflections(view: View, reflecting: ReflectionSettings) -> bool:
    return bool(view.branch.helper_answers) or reflecting.read_mode(view.inputs.options) != "off"


def read_reflection(view: View, batch: CallBatch) -> Reflection | None:
    """Return the reflection on a batch, None if there is none that can be parsed."""
    text = view.branch.helper_answers.get(batch.ask_id)
    return reflection.parse_reflection(text) if text is not None else None


def render_call(view: View, answered_call: AnsweredCall, reflections: FoundReflections) -> str:
    """Return the line on one call. If the model has recall, the line ends with the id of the result."""
    item = reflections.items.get(answered_call.result_index)
    reflected = (item.insights, item.learning, item.next_suggested_actions) if item is not None else None
    line = view.messages[answered_call.result_index].derive(
        lambda m: reflection.render_call(answered_call.call, m, item, read_call_outcome(answered_call.call, m)),
        ("told", answered_call.call.name, answered_call.call.arguments, reflected),
    )
    has_recall = "recall" in view.inputs.offered_tools
    return f"{line}; id {public_id(view.keys[answered_call.result_index])}" if has_recall else line


def read_call_outcome(call: Call, result: Message) -> QuotedOutcome:
    """Return the outcome of a call in the words of iteration records.

    A tool that answered something has succeeded, unless it does more than look, and its answer is a short message with
    a word against it or counts no change. Of a tool that answered nothing, and of a command, the outcome is known only
    if the result proves it.
    """
    command = shell_commands.parse_call(call)
    ended = outcome.read_outcome(result, command)
    shown = (
        (*ended.failure_lines, *ended.summary_lines, *ended.code_lines)
        if ended.verdict == "failed"
        else ended.unfinished_lines[:1] or ended.summary_lines[-1:]
    )
    line = output_wrappers.strip_line(result_lines.read_lines(result)[shown[0]]) if shown else ""
    other = "" if line else _find_telling_line(result, command, ended)
    if ended.verdict == "failed":
        if ended.timed_out:
            return QuotedOutcome("timeout", line)
        return QuotedOutcome("failure" if ended.exit_code or ended.summary_lines else "error", line)
    if ended.verdict == "succeeded":
        return QuotedOutcome("success", line, other)
    if command.kind == "call":
        answered = result.media_count or result.text.strip()
        is_doubtful = bool(ended.summary_lines) or tool_messages.reports_doubt(result)
        is_doubtful = is_doubtful and refetch.find_source(call).action not in ("shows", "looks")
        return QuotedOutcome("success" if answered and not is_doubtful else "unknown", other_line=other)
    return QuotedOutcome("unknown", line, other)


def _find_telling_line(result: Message, command: ShellCommand, ended: ToolOutcome) -> str:
    """Return the line that says most of a result in which no line states the outcome.

    Of a run it is the last one, after the last one that tells of an error. Of another result it is the first one. Of
    an object the whole says more than a line in it, for which "" stands."""
    if command.kind == "run":
        ends = [n for n in ended.kept_lines if n not in ended.code_lines][-1:]
        errors = telling_lines.find_error_lines(result)[-1:] if ended.verdict == "unknown" else ()
        rows = result_lines.read_lines(result)
        told = [output_wrappers.strip_line(rows[n]) for n in dict.fromkeys((*errors, *ends))]
        return " ... ".join([*(shorten_at_word(line, ERROR_CHARS) for line in told[:-1]), *told[-1:]])
    is_object = result.text[:200].lstrip()[:1] == "{"
    return "" if is_object else output_wrappers.find_first_line(result.text)


def rank_by_relevance(view: View, calls: Sequence[AnsweredCall], reflections: FoundReflections) -> list[int]:
    """Return the rank of each call, 0 the highest: from the reflection if it has one, else from its words."""
    known = [item.relevance if (item := reflections.items.get(one.result_index)) else None for one in calls]
    rest = [one for one, rank in zip(calls, known, strict=True) if rank is None]
    wanted = find_goal(view.branch.state, view.messages, view.is_result) if rest else ""
    by_words = iter(rank_calls(wanted, view.messages, rest))
    return [RELEVANCE_RANKS[rank or next(by_words)] for rank in known]
