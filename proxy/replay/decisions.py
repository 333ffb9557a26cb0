"""Decision replay: the model's next action with the full prompt and with the managed one.

At each request whose plan has new edits the model is asked twice with each prompt. A model does not always answer the
same, so the agreement of full with managed is compared with the agreement of full with full. Two answers agree if
they call the same tools with the same arguments, or if neither calls one. An answer that calls the proxy's own tools
looks something up first; it counts apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

import msgspec
from msgspec import Struct

from proxy.chat.message import Message
from proxy.context.analysis.call_signature import sign_call
from proxy.dialects.completions.request import read_message
from proxy.errors import NotManaged
from proxy.replay.play import Contender, EditPoint, LengthHistory, ReplaySettings, find_edit_points
from proxy.replay.read import RecordedConversation
from proxy.stream.completions_answer import AssembledAnswer
from proxy.tools.registry import TOOLS

QUESTIONS_PER_PROMPT = 2
"""Questions with each prompt."""
DRAWS = 1000
TAIL = 0.025
TEXT = "answers in words"
LOOKUP = "looks something up"
SIDES = ("full", "managed")


class Decision(Struct, frozen=True):
    """One question with its answer. prompt: the digest of the body that was sent. number: of the question with this
    body. action: what the model does next."""

    prompt: str
    number: int
    action: str
    dollars: float


class DecisionPoint(Struct, frozen=True):
    """The two prompts of one request."""

    conversation: str
    position: int
    full: bytes
    managed: bytes

    def get_body(self, side: str) -> bytes:
        return self.full if side == "full" else self.managed


class DecisionReport(Struct, frozen=True):
    """Agreement of the next action. Shares are None where nothing could be compared. difference: full with managed less
    full with full, and its interval of 95 % by bootstrap over conversations. left: points that the budget left out."""

    points: int
    conversations: int
    left: int
    failed: int
    lookups: int
    dollars: float
    full_with_full: float | None
    full_with_managed: float | None
    managed_with_managed: float | None
    difference: float | None
    low: float | None
    high: float | None
    differing: list[str]
    """Points at which the full answers agree with each other and with no managed one, as CONVERSATION#POSITION."""


def list_points(
    conversations: Iterable[RecordedConversation], contender: Contender, settings: ReplaySettings, model_name: str
) -> Iterator[DecisionPoint]:
    """Yield the points of these conversations, in order."""
    history = LengthHistory()
    for conversation in conversations:
        for point in find_edit_points(conversation, contender, settings, history.list_earlier(conversation)):
            yield DecisionPoint(
                conversation.id,
                point.position,
                _write_request(model_name, point, full=True),
                _write_request(model_name, point),
            )


def _write_request(model_name: str, point: EditPoint, *, full: bool = False) -> bytes:
    messages = point.full if full else point.managed
    tools = point.full_tools if full else point.managed_tools
    return b"".join(
        (
            b'{"model":', msgspec.json.encode(model_name), b',"messages":[', b",".join(messages), b"]",
            b',"tools":' + tools if tools else b"", b"}",
        )
    )  # fmt: skip


def read_action(body: bytes) -> tuple[str, AssembledAnswer] | None:
    """Return (the next action that an answer takes, the answer); None if it is not whole."""
    answer = AssembledAnswer.from_body(body)
    raw = answer.build_message()
    if raw is None or not answer.is_done:
        return None
    try:
        message: Message = read_message(raw)
    except NotManaged:
        return None
    if message.calls and all(call.name in TOOLS for call in message.calls):
        return LOOKUP, answer
    signatures = sorted(map(sign_call, message.calls))
    return (msgspec.json.encode(signatures).decode() if signatures else TEXT), answer


def compare_decisions(
    points: Sequence[DecisionPoint], answers: Mapping[tuple[int, str], Sequence[Decision]], *, left: int, failed: int
) -> DecisionReport:
    """Return the report. answers: those to each point's index and side."""
    sums: dict[str, list[tuple[float, float]]] = {}
    same: list[float] = []
    own: list[float] = []
    differing, lookups, dollars, compared = [], 0, 0.0, 0
    for n, point in enumerate(points):
        full, managed = (answers.get((n, side), ()) for side in SIDES)
        dollars += sum(one.dollars for one in (*full, *managed))
        lookups += sum(one.action == LOOKUP for one in managed)
        acts = [one.action for one in managed if one.action != LOOKUP]
        if len(full) < QUESTIONS_PER_PROMPT or len(managed) < QUESTIONS_PER_PROMPT or not acts:
            continue
        compared += 1
        of_full = float(full[0].action == full[1].action)
        crossed = fmean(one.action == act for one in full for act in acts)
        sums.setdefault(point.conversation, []).append((of_full, crossed))
        same.append(of_full)
        own += [float(acts[0] == acts[1])] if len(acts) == QUESTIONS_PER_PROMPT else []
        if of_full and not crossed:
            differing.append(f"{point.conversation}#{point.position}")
    pairs = [pair for found in sums.values() for pair in found]
    low, high = _bootstrap_interval(list(sums.values()))
    difference = fmean(b - a for a, b in pairs) if pairs else None
    return DecisionReport(
        points=compared,
        conversations=len(sums),
        left=left,
        failed=failed,
        lookups=lookups,
        dollars=dollars,
        full_with_full=fmean(same) if same else None,
        full_with_managed=fmean(b for _, b in pairs) if pairs else None,
        managed_with_managed=fmean(own) if own else None,
        difference=difference,
        low=low,
        high=high,
        differing=differing,
    )


def _bootstrap_interval(conversations: Sequence[Sequence[tuple[float, float]]]) -> tuple[float | None, float | None]:
    """The interval of the difference, by drawing whole conversations."""
    if not conversations:
        return None, None
    chance = random.Random(0)  # no secret: the same draws for the same answers
    differences = []
    for _ in range(DRAWS):
        drawn = chance.choices(conversations, k=len(conversations))
        differences.append(fmean(b - a for pairs in drawn for a, b in pairs))
    differences.sort()
    return differences[round(TAIL * (DRAWS - 1))], differences[round((1 - TAIL) * (DRAWS - 1))]
