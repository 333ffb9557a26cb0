"""The data of reflection: answered calls in batches, the reflections on them, and the relevance of each call.

The chain keys of its results name a batch. So every author of a reflection (the model in its answer, a helper, another
replica) stores it under the same name. It is found there again among the answers of the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from proxy.chat.group import Step
from proxy.chat.key import public_id
from proxy.chat.message import Call, Message
from proxy.context.evidence import commands, outcome, terms
from proxy.context.plan import Ask, View
from proxy.errors import ConfigError
from proxy.memory import reflection
from proxy.memory.actions import Reading
from proxy.memory.reflection import Item, Progress, Reflection, Relevance

Mode = Literal["off", "inline", "helper"]
KIND = "reflection"
"""The kind of the Asks."""
GOAL_TERMS = 40
"""Number of terms of the goal, its first ones, by which calls are ranked."""
LOW_STAKES = ("think", "sleep", "wait", "todo_write", "todowrite", "todo_read", "update_plan", "manage_scratchpad")
RANKS: Mapping[str, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Reflecting:
    """Settings of reflection, shared by the stage `distil_results` and the voice `reflect`; both must have the same
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
        if self.reflect not in get_args(Mode):
            raise ConfigError("reflect", self.reflect, "one of " + ", ".join(get_args(Mode)))
        if self.reflect_batch < 1:
            raise ConfigError("reflect_batch", self.reflect_batch, "1 or more")

    def mode(self, options: Mapping[str, str]) -> str:
        """Return the author of the reflections on this request's calls."""
        wanted = options.get("reflect", "").lower()
        return wanted if wanted in get_args(Mode) else self.reflect


class Done(NamedTuple):
    """An answered call. source: the index of the message with the call. result: the index of its result."""

    call: Call
    source: int
    result: int


class Batch(NamedTuple):
    """Steps with one reflection. done: their calls, without low-stakes calls. keys: the chain keys of their results.
    ask: the id of the question."""

    done: tuple[Done, ...]
    keys: tuple[bytes, ...]
    ask: str


def done(messages: Sequence[Message], step: Step) -> list[Done]:
    """Return the answered calls of a step, matched by id, else by position."""
    asked = messages[step.start].calls
    if len(asked) == 1:
        return [Done(asked[0], step.start, step.start + 1)] if step.end > step.start + 1 else []
    calls = list(asked)
    found = []
    for n in range(step.start + 1, step.end):
        if not calls:
            break
        name = messages[n].call_id
        at = next((i for i, call in enumerate(calls) if call.id == name), 0)
        found.append(Done(calls.pop(at), step.start, n))
    return found


def batches(
    messages: Sequence[Message], keys: Sequence[bytes], steps: Sequence[Step], reflecting: Reflecting
) -> list[Batch]:
    """Return the batches of a conversation, counted from its first step on, so that batches do not change while it
    grows."""
    return _batches(messages, keys, answered(messages, steps), reflecting)


def answered(messages: Sequence[Message], steps: Sequence[Step]) -> list[list[Done]]:
    """Return the answered calls of each step that has any."""
    return [done(messages, step) for step in steps if step.end - step.start > 1]


def _batches(
    messages: Sequence[Message], keys: Sequence[bytes], called: Sequence[Sequence[Done]], reflecting: Reflecting
) -> list[Batch]:
    made = [_batch(messages, keys, tuple(found)) for found in _together(called, reflecting)]
    return made[:-1] if made and not _is_full(made[-1], reflecting) else made


def place(messages: Sequence[Message], steps: Sequence[Step], reflecting: Reflecting) -> dict[int, int]:
    """Return the number of each call in the newest batch, full or not, by the index of the result."""
    found = _together(answered(messages, steps), reflecting)
    return {one.result: n for n, one in enumerate(found[-1], 1)} if found else {}


def _together(called: Sequence[Sequence[Done]], reflecting: Reflecting) -> list[list[Done]]:
    """Return the calls of each batch; the last batch may wait for more."""
    low = frozenset(reflecting.low_stakes)
    found: list[list[Done]] = []
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


def _is_full(batch: Batch, reflecting: Reflecting) -> bool:
    return len({one.source for one in batch.done}) == reflecting.reflect_batch


def _batch(messages: Sequence[Message], keys: Sequence[bytes], found: tuple[Done, ...]) -> Batch:
    about = tuple(keys[one.result] for one in found)
    name = messages[found[-1].result].derive(lambda _: Ask(KIND, "", about).id, (KIND, about))
    return Batch(found, about, name)


def goal(state: str | None, messages: Sequence[Message], is_result: Sequence[bool] | None = None) -> str:
    """Return the goal of the conversation: STATE's Goal, else the last user message."""
    for row in (state or "").splitlines():
        if row.strip().lower().startswith("goal:"):
            return row.partition(":")[2].strip()
    for n in range(len(messages) - 1, -1, -1):
        if messages[n].role == "user" and not (is_result and is_result[n]):
            return messages[n].text
    return ""


def ranks(wanted: str, messages: Sequence[Message], found: Sequence[Done], half: float = 0.5) -> list[Relevance]:
    """Return the relevance of each call to the goal, by the words of its result and arguments.

    high: a score of at least `half` of the best one. low: no shared words. medium: all others.
    """
    query = dict(list(terms.terms(wanted).counts.items())[:GOAL_TERMS])
    documents = [_terms(messages[one.result], one.call) for one in found]
    scores = terms.relevance(query, documents)
    return ["high" if score >= half else "medium" if score > 0 else "low" for score in scores]


def _terms(result: Message, call: Call) -> terms.Terms:
    return result.derive(
        lambda m: terms.terms(f"{call.name} {call.arguments}\n{m.text}"), ("terms", call.name, call.arguments)
    )


class Looked(NamedTuple):
    """The reflections of a conversation. done: all answered calls. items: the reflection on a call, by the index of its
    result. progress: the assessments of progress, oldest first. batches: the batches."""

    done: list[Done]
    items: dict[int, Item]
    progress: list[Progress]
    batches: list[Batch]


def look(view: View, reflecting: Reflecting) -> Looked:
    """Return the reflections of a conversation; computed once for each View."""
    settings = Reflecting(reflecting.reflect, reflecting.reflect_batch, reflecting.low_stakes)
    return view.once(settings, lambda: _look(view, settings))


def _look(view: View, reflecting: Reflecting) -> Looked:
    called = answered(view.messages, view.steps)
    grouped = _batches(view.messages, view.keys, called, reflecting) if _any(view, reflecting) else []
    items: dict[int, Item] = {}
    progress: list[Progress] = []
    for batch in grouped:
        found = said(view, batch)
        if found is None:
            continue
        if found.progress_assessment is not None:
            progress.append(found.progress_assessment)
        for item in found.tool_calls:
            if 1 <= item.call <= len(batch.done):
                items[batch.done[item.call - 1].result] = item
    return Looked([one for step in called for one in step], items, progress, grouped)


def _any(view: View, reflecting: Reflecting) -> bool:
    return bool(view.answers) or reflecting.mode(view.options) != "off"


def said(view: View, batch: Batch) -> Reflection | None:
    """Return the reflection on a batch, None if there is none that can be parsed."""
    text = view.answers.get(batch.ask)
    return reflection.parse(text) if text is not None else None


def tell(view: View, one: Done, looked: Looked) -> str:
    """Return the line on one call. If the model has recall, the line ends with the id of the result."""
    item = looked.items.get(one.result)
    said = (item.insights, item.learning, item.next_suggested_actions) if item is not None else None
    line = view.messages[one.result].derive(
        lambda m: reflection.told(one.call, m, item, reading(one.call, m)),
        ("told", one.call.name, one.call.arguments, said),
    )
    return f"{line}; id {public_id(view.keys[one.result])}" if "recall" in view.offered else line


def reading(call: Call, result: Message) -> Reading:
    """Return the outcome of a call in the words of iteration records.

    A tool that answered something has succeeded. Of a tool that answered nothing, and of a command, the outcome is
    known only if the result proves it.
    """
    command = commands.of(call)
    ended = outcome.of(result, command)
    telling = (*ended.failures, *ended.summary, *ended.shown) if ended.verdict == "failed" else ended.summary[-1:]
    line = outcome.bare(outcome.lines(result)[telling[0]]) if telling else ""
    if ended.verdict == "failed":
        if ended.timed_out:
            return Reading("timeout", line)
        return Reading("failure" if ended.code or ended.summary else "error", line)
    if ended.verdict == "succeeded":
        return Reading("success", line)
    if command.kind == "call":
        return Reading("success" if result.media or result.text.strip() else "unknown")
    return Reading("unknown", line)


def relevance(view: View, found: Sequence[Done], looked: Looked) -> list[int]:
    """Return the rank of each call, 0 the highest: from the reflection if it has one, else from its words."""
    known = [item.relevance if (item := looked.items.get(one.result)) else None for one in found]
    rest = [one for one, rank in zip(found, known, strict=True) if rank is None]
    wanted = goal(view.state, view.messages, view.is_result) if rest else ""
    by_words = iter(ranks(wanted, view.messages, rest))
    return [RANKS[rank or next(by_words)] for rank in known]
