"""Questions to the helper model: each is asked once, in the background, and its answer is used only if it fits.

Planning returns Asks and never waits for them. Tasks of this module answer the Asks; their number, memory and cost have
bounds. An answer is ready for the plan of the next request. No error here reaches a request: it is counted, and the
stage that asked has a way that needs no model.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from proxy.context.models import Model, find_model
from proxy.context.plan import Ask
from proxy.errors import StoreUnavailable
from proxy.helper.budget import Budget, HelperCircuitBreaker
from proxy.helper.helper_client import HelperAnswer, HelperClient, HelperEndpoint, pick_credential_headers
from proxy.metrics import Metrics
from proxy.sessions.branch import Branch
from proxy.sessions.live import LiveSessions
from proxy.settings.load import Settings
from proxy.settings.model import HelperSettings
from proxy.store.circuit_breaker import BREAK_S
from proxy.store.derived import HelperAnswerRow
from proxy.store.sql import MAX_HELPER_ANSWERS
from proxy.upstream.client import UpstreamClient
from proxy.upstream.headers import Headers

log = logging.getLogger(__name__)

MAX_PROMPT_CHARS = 16 << 20
"""Limit in characters on the prompts of all questions that are under way."""
MAX_ANSWER_CHARS = 64 * 1024
"""Limit in characters on an answer, whatever its Ask allows."""
RETRY_S = 60.0
"""Seconds before a question that brought no answer is asked again."""
USELESS_RETRY_S = 3600.0
"""Seconds before a question is asked again whose answer did not fit: it would fail again, at the same cost."""
MAX_FAILED_QUESTIONS = 4096
"""Limit on the questions that are remembered because they brought no usable answer."""

UNUSABLE = frozenset({"empty", "too_long", "missing", "cut"})
"""Outcomes of answers that came and did not fit."""

QuestionKey = tuple[str, str, str]
"""(tenant, session, Ask.id)"""


@dataclass(slots=True, eq=False)
class Question:
    """An Ask that is under way."""

    key: QuestionKey
    ask: Ask
    headers: Headers
    """The client's credential, where the helper's upstream has no key; dropped with the question."""
    done: asyncio.Future[bool]
    """Resolves to True if there is an answer."""
    branches: list[Branch] = field(default_factory=list)
    """The branches that wait for the answer."""
    task: asyncio.Task[None] | None = None
    text: str | None = None
    """The answer."""


def judge_answer(ask: Ask, text: str) -> str:
    """Return `kept` if the text is a usable answer to this question, else the name of its fault."""
    if not text:
        return "empty"
    if len(text) > (ask.max_chars or MAX_ANSWER_CHARS) or len(text) > MAX_ANSWER_CHARS:
        return "too_long"
    return "kept" if all(_contains_name(text, name) for name in ask.required_names) else "missing"


def _contains_name(text: str, name: str) -> bool:
    """True if the name is in the text and is not a part of another word (`12` in `123`)."""
    if name not in text:
        return False
    before = r"(?<!\w)" if re.match(r"\w", name) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", name) else ""
    return re.search(before + re.escape(name) + after, text) is not None


class HelperQueue:
    """All questions that are under way. Made before the loop runs; `close` cancels the open questions."""

    def __init__(
        self,
        limits: HelperSettings,
        helper_client: HelperClient,
        budget: Budget,
        live_sessions: LiveSessions,
        metrics: Metrics,
    ) -> None:
        self._limits = limits
        self._helper_client = helper_client
        self._budget = budget
        self._live_sessions = live_sessions
        self._metrics = metrics
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._questions: dict[QuestionKey, Question] = {}
        self._prompt_chars = 0
        self._retry_at: OrderedDict[QuestionKey, float] = OrderedDict()
        self._breaker = HelperCircuitBreaker()
        self._closed = False

    def __len__(self) -> int:
        """Questions under way, including those that wait for a slot."""
        return len(self._questions)

    def submit_asks(self, branch: Branch, asks: Sequence[Ask], headers: Headers) -> list[asyncio.Future[bool]]:
        """Start answering these Asks in the background. headers: those of the request that asks. Returns the futures of
        the questions whose answers are needed now. Never raises: an Ask may come from the stage of a third party."""
        waiting = []
        for ask in asks:
            try:
                question = self._find_or_start_question(branch, ask, headers)
            except Exception:  # promise P4: counted and logged, and the request goes on
                self._metrics.internal_errors_total.labels(where="helper").inc()
                log.exception("a question of kind %s cannot be asked", getattr(ask, "kind", "?"))
                continue
            if question is not None and ask.urgent:
                waiting.append(question.done)
        return waiting

    def _find_or_start_question(self, branch: Branch, ask: Ask, headers: Headers) -> Question | None:
        """Return the question of this Ask, started if it is not under way. The branch will receive its answer."""
        key = (branch.tenant, branch.session, ask.id)
        question = self._questions.get(key) or self._start_question(key, ask, headers)
        if question is None:
            return None
        if not any(known is branch for known in question.branches):
            question.branches.append(branch)
        if question.text is not None:  # answered, and on its way to the disk
            self._deliver_answer(question, question.text)
        return question

    async def wait_for_answer(self, waiting: Sequence[asyncio.Future[bool]]) -> bool:
        """True if one of these questions gets an answer within `helper.wait_ms`."""
        if not waiting or not self._limits.wait_ms:
            return False
        done, _ = await asyncio.wait(waiting, timeout=self._limits.wait_ms / 1000)
        return any(future.result() for future in done if not future.cancelled())

    async def close(self) -> None:
        """Cancel the questions under way, and accept no more."""
        self._closed = True
        tasks = [question.task for question in self._questions.values() if question.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_question(self, key: QuestionKey, ask: Ask, headers: Headers) -> Question | None:
        loop = asyncio.get_running_loop()
        if self._closed or self._retry_at.get(key, 0.0) > loop.time():
            return None
        if self._breaker.is_open(key[0]):
            self._count(ask, "resting")
            return None
        most = self._limits.concurrency + self._limits.queue
        if len(self._questions) >= most or self._prompt_chars + len(ask.prompt) > MAX_PROMPT_CHARS:
            self._count(ask, "queue_full")
            return None
        shown = [] if self._helper_client.target.key is not None else pick_credential_headers(headers)
        question = self._questions[key] = Question(key, ask, shown, loop.create_future())
        self._prompt_chars += len(ask.prompt)
        question.task = loop.create_task(self._run(question))
        return question

    async def _run(self, question: Question) -> None:
        outcome = "error"
        try:
            async with self._slots:
                outcome = await self._find_answer(question)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:  # nobody awaits this task: counted here and logged; the stage's deterministic way is used
            self._metrics.internal_errors_total.labels(where="helper").inc()
            log.exception("a question of kind %s failed", question.ask.kind)
        finally:
            del self._questions[question.key]
            self._prompt_chars -= len(question.ask.prompt)
            self._count(question.ask, outcome)
            if outcome not in ("kept", "stored", "cancelled"):
                self._put_off(question.key, USELESS_RETRY_S if outcome in UNUSABLE else RETRY_S)
            if not question.done.done():
                question.done.set_result(False)

    async def _find_answer(self, question: Question) -> str:
        """Take the answer from the store, or else ask the helper. Return the outcome."""
        store = self._live_sessions.store
        try:
            found = await store.read_helper_answer(*question.key)
            if found is not None:
                self._deliver_answer(question, found)
                return "stored"
            if self._breaker.is_open(question.key[0]):
                return "resting"
            reserved = self._helper_client.estimate_max_cost(question.ask.prompt)
            if not await self._budget.reserve(store, question.key[0], reserved):
                return "over_budget"
        except StoreUnavailable:
            return "store"
        answer = HelperAnswer("cancelled", dollars=reserved)
        try:
            answer = await self._helper_client.ask(question.ask.prompt, question.headers)
        finally:
            tokens = (answer.prompt_tokens, answer.completion_tokens)
            store.put(self._budget.settle_reserve(question.key[0], question.ask.kind, reserved, tokens, answer.dollars))
            self._count_cost(question.ask, answer)
        if self._breaker.record_call(answer.outcome, question.key[0]):
            log.warning(
                "the helper at upstream %s is down: nothing is asked for %g s", self._helper_client.target.name, BREAK_S
            )
        outcome = judge_answer(question.ask, answer.text.strip()) if answer.outcome == "answered" else answer.outcome
        if outcome == "kept":
            await self._store_answer(question, answer)
        return outcome

    async def _store_answer(self, question: Question, answer: HelperAnswer) -> None:
        """Deliver the answer at once, and return when it is on disk, where other processes find it."""
        text = answer.text.strip()
        tenant, session, name = question.key
        tokens = (answer.prompt_tokens, answer.completion_tokens)
        row = HelperAnswerRow(
            tenant,
            session,
            name,
            question.ask.kind,
            self._helper_client.model_name,
            *tokens,
            answer.dollars,
            time.time(),
            text,
        )
        written = self._live_sessions.store.put([row])
        self._deliver_answer(question, text)
        try:
            await asyncio.shield(written)
        except StoreUnavailable:
            self._metrics.persist_dropped_total.inc()

    def _deliver_answer(self, question: Question, text: str) -> None:
        """Deliver the answer to every live branch of the session, and to those that asked."""
        question.text = text
        tenant, session, name = question.key
        live_session = self._live_sessions.find_session(tenant, session)
        for branch in [*(live_session.branches.values() if live_session is not None else ()), *question.branches]:
            remember_answer(branch, name, text)
        if not question.done.done():
            question.done.set_result(True)

    def _put_off(self, key: QuestionKey, seconds: float) -> None:
        self._retry_at[key] = asyncio.get_running_loop().time() + seconds
        self._retry_at.move_to_end(key)
        if len(self._retry_at) > MAX_FAILED_QUESTIONS:
            self._retry_at.popitem(last=False)

    def _count(self, ask: Ask, outcome: str) -> None:
        self._metrics.helper_total.labels(kind=self._metrics.limit_label("helper", ask.kind), outcome=outcome).inc()

    def _count_cost(self, ask: Ask, answer: HelperAnswer) -> None:
        kind = self._metrics.limit_label("helper", ask.kind)
        self._metrics.helper_dollars_total.labels(kind=kind).inc(answer.dollars)
        self._metrics.helper_tokens_total.labels(kind=kind).inc(answer.prompt_tokens + answer.completion_tokens)


def remember_answer(branch: Branch, name: str, text: str) -> None:
    """Store the answer to the Ask of that name in the branch's state; the first answer stays."""
    if name not in branch.state.helper_answers:
        branch.state = replace(branch.state, helper_answers=_add_answer(branch.state.helper_answers, name, text))


def _add_answer(answers: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    made = {**answers, name: text}
    while len(made) > MAX_HELPER_ANSWERS:  # the oldest answers leave; they can be read again from the store
        del made[next(iter(made))]
    return made


def make_helper_queue(
    settings: Settings,
    client: UpstreamClient,
    budget: Budget,
    live_sessions: LiveSessions,
    metrics: Metrics,
    models: Sequence[Model],
) -> HelperQueue | None:
    """Return the service that answers Asks under these settings; None where there is no helper."""
    limits = settings.helper
    target = next((target for target in client.targets if target.name == limits.upstream), None)
    if target is None:
        return None
    model = find_model(models, limits.model)
    endpoint = HelperEndpoint(client, target, limits.timeout_s)
    asker = HelperClient(endpoint, limits.model, model, max_tokens=limits.max_tokens)
    return HelperQueue(limits, asker, budget, live_sessions, metrics)
