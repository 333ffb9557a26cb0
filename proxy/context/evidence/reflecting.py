"""What reflection looks at: calls that were answered, in batches; what was said of them; how much each matters.

A batch is named by the chain keys of its results, so whoever reflects on it (the model in its answer, a helper beside
it, another replica) files what it says under the same name, among a session's answers, and it is found again there.
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
"""Of the Asks."""
GOAL_TERMS = 40
"""Terms of the goal by which calls are ranked: its first ones."""
LOW_STAKES = ("think", "sleep", "wait", "todo_write", "todowrite", "todo_read", "update_plan", "manage_scratchpad")
RANKS: Mapping[str, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class Reflecting:
    """Who reflects, and on what: shared by the stage `distil_results` and the voice `reflect`, to be set alike."""

    reflect: str = "off"
    """off; inline (the model, in its answer); helper (the helper model). `x-context-reflect` overrides it."""
    reflect_batch: int = 1
    """Steps that are reflected on at once."""
    low_stakes: tuple[str, ...] = LOW_STAKES
    """Tools that are not reflected on."""

    def __post_init__(self) -> None:
        """Both come from a file."""
        if self.reflect not in get_args(Mode):
            raise ConfigError("reflect", self.reflect, "one of " + ", ".join(get_args(Mode)))
        if self.reflect_batch < 1:
            raise ConfigError("reflect_batch", self.reflect_batch, "1 or more")

    def mode(self, options: Mapping[str, str]) -> str:
        """Who reflects on this request's calls."""
        wanted = options.get("reflect", "").lower()
        return wanted if wanted in get_args(Mode) else self.reflect


class Done(NamedTuple):
    """A call that was answered: the indices of the message that called and of the result."""

    call: Call
    source: int
    result: int


class Batch(NamedTuple):
    """Steps that are reflected on together. done: their calls, without those of low stakes. ask: the question's id."""

    done: tuple[Done, ...]
    keys: tuple[bytes, ...]
    ask: str


def done(messages: Sequence[Message], step: Step) -> list[Done]:
    """The answered calls of a step: by their ids, else by where they stand."""
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
    """The batches of a conversation, counted from its first step on, so that they stay as they are while it grows."""
    return _batches(messages, keys, answered(messages, steps), reflecting)


def answered(messages: Sequence[Message], steps: Sequence[Step]) -> list[list[Done]]:
    """The answered calls of each step that has any."""
    return [done(messages, step) for step in steps if step.end - step.start > 1]


def _batches(
    messages: Sequence[Message], keys: Sequence[bytes], called: Sequence[Sequence[Done]], reflecting: Reflecting
) -> list[Batch]:
    made = [_batch(messages, keys, tuple(found)) for found in _together(called, reflecting)]
    return made[:-1] if made and not _is_full(made[-1], reflecting) else made


def place(messages: Sequence[Message], steps: Sequence[Step], reflecting: Reflecting) -> dict[int, int]:
    """The number in its batch of each call of the newest batch, full or not, by the index of the result."""
    found = _together(answered(messages, steps), reflecting)
    return {one.result: n for n, one in enumerate(found[-1], 1)} if found else {}


def _together(called: Sequence[Sequence[Done]], reflecting: Reflecting) -> list[list[Done]]:
    """The calls that are reflected on together; the last of them may wait for more."""
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
    """What is to be reached: STATE's Goal, else the last user message."""
    for row in (state or "").splitlines():
        if row.strip().lower().startswith("goal:"):
            return row.partition(":")[2].strip()
    for n in range(len(messages) - 1, -1, -1):
        if messages[n].role == "user" and not (is_result and is_result[n]):
            return messages[n].text
    return ""


def ranks(wanted: str, messages: Sequence[Message], found: Sequence[Done], half: float = 0.5) -> list[Relevance]:
    """How much each call matters to the goal, by the words of its result and arguments: high from `half` of the best
    score on, low where they share none, else medium."""
    query = dict(list(terms.terms(wanted).counts.items())[:GOAL_TERMS])
    documents = [_terms(messages[one.result], one.call) for one in found]
    scores = terms.relevance(query, documents)
    return ["high" if score >= half else "medium" if score > 0 else "low" for score in scores]


def _terms(result: Message, call: Call) -> terms.Terms:
    return result.derive(
        lambda m: terms.terms(f"{call.name} {call.arguments}\n{m.text}"), ("terms", call.name, call.arguments)
    )


class Looked(NamedTuple):
    """All answered calls, what was said of those that were reflected on by the index of the result, and what was said
    of the progress, oldest first."""

    done: list[Done]
    items: dict[int, Item]
    progress: list[Progress]
    batches: list[Batch]


def look(view: View, reflecting: Reflecting) -> Looked:
    """What there is to tell of a conversation; found once a View."""
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
    """The reflection on a batch, None where there is none that can be read."""
    text = view.answers.get(batch.ask)
    return reflection.parse(text) if text is not None else None


def tell(view: View, one: Done, looked: Looked) -> str:
    """The line on one call; where the model has recall, it ends with the id of the result."""
    item = looked.items.get(one.result)
    said = (item.insights, item.learning, item.next_suggested_actions) if item is not None else None
    line = view.messages[one.result].derive(
        lambda m: reflection.told(one.call, m, item, reading(one.call, m)),
        ("told", one.call.name, one.call.arguments, said),
    )
    return f"{line}; id {public_id(view.keys[one.result])}" if "recall" in view.offered else line


def reading(call: Call, result: Message) -> Reading:
    """How a call ended, in the words of iteration records. A tool that answered something has succeeded; of one that
    answered nothing, and of a command, that is known only where the result proves it."""
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
    """The rank of each call, 0 the highest: as the reflection says, else by its words."""
    known = [item.relevance if (item := looked.items.get(one.result)) else None for one in found]
    rest = [one for one, rank in zip(found, known, strict=True) if rank is None]
    wanted = goal(view.state, view.messages, view.is_result) if rest else ""
    by_words = iter(ranks(wanted, view.messages, rest))
    return [RANKS[rank or next(by_words)] for rank in known]
