"""Questions to the helper model: asked in the background, each once, and what comes back is believed only if it fits.

Planning returns Asks and never waits for them. They are answered here by tasks of their own, whose number, memory and
cost have bounds, and an answer is there for the plan of the next request. Nothing that goes wrong here reaches a
request: it is counted, and the stage that asked has a way that needs no model.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.context.plan import Ask
from proxy.context.prices import Model, find_model
from proxy.errors import StoreUnavailable
from proxy.exchange.bounds import REST_S, Patience, Purse
from proxy.exchange.thread import Thread
from proxy.exchange.threads import Threads
from proxy.metrics import Metrics
from proxy.settings import Helper, Settings
from proxy.store.derived import AnswerRow
from proxy.store.sql import ANSWERS_MOST
from proxy.upstream.asks import Asker, Told, credential
from proxy.upstream.client import Client
from proxy.upstream.headers import Headers

log = logging.getLogger(__name__)

MEMORY = 16 << 20
"""Characters of all questions that wait."""
LONGEST = 64 * 1024
"""Characters of an answer, whatever its Ask allows."""
AGAIN_S = 60.0
"""Before a question is asked again that brought no answer."""
USELESS_AGAIN_S = 3600.0
"""The same where it brought one that did not fit: it would do so again, and cost as much."""
REMEMBERED = 4096
"""Questions without an answer that are remembered."""

UNWANTED = frozenset({"empty", "too_long", "missing", "cut"})
"""Outcomes of answers that came and did not fit."""

Key = tuple[str, str, str]
"""(tenant, session, Ask.id)"""


@dataclass(slots=True, eq=False)
class Question:
    """An Ask on its way. headers: the client's credential, where the helper's upstream has no key; gone with the
    question. threads: those that wait for it. done: whether there is an answer now. text: the answer."""

    key: Key
    ask: Ask
    headers: Headers
    done: asyncio.Future[bool]
    threads: list[Thread] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    text: str | None = None


def verdict(ask: Ask, text: str) -> str:
    """`kept` where an answer is one to this question, else what is wrong with it."""
    if not text:
        return "empty"
    if len(text) > (ask.longest or LONGEST) or len(text) > LONGEST:
        return "too_long"
    return "kept" if all(_holds(text, name) for name in ask.keep) else "missing"


def _holds(text: str, name: str) -> bool:
    """Whether the name stands in the text, and not as a part of another one (`12` in `123`)."""
    if name not in text:
        return False
    before = r"(?<!\w)" if re.match(r"\w", name) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", name) else ""
    return re.search(before + re.escape(name) + after, text) is not None


class Asking:
    """All questions under way. Made before the loop runs; `close` ends what is under way."""

    def __init__(
        self,
        limits: Helper,
        asker: Asker,
        purse: Purse,
        threads: Threads,
        metrics: Metrics,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        self._asker = asker
        self._purse = purse
        self._threads = threads
        self._metrics = metrics
        self._now = now
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._open: dict[Key, Question] = {}
        self._size = 0
        self._later: OrderedDict[Key, float] = OrderedDict()
        self._patience = Patience()
        self._closed = False

    def __len__(self) -> int:
        """Questions under way, waiting ones among them."""
        return len(self._open)

    def take(self, thread: Thread, asks: Sequence[Ask], headers: Headers) -> list[asyncio.Future[bool]]:
        """Have these answered in the background. headers: those of the request that asks. Returns what to wait for:
        questions whose answers are needed now. Never raises: an Ask may come from anybody's stage."""
        waiting = []
        for ask in asks:
            try:
                question = self._question(thread, ask, headers)
            except Exception:  # P4: counted and logged, and the request goes on
                self._metrics.swallowed_total.labels(where="helper").inc()
                log.exception("a question of kind %s cannot be asked", getattr(ask, "kind", "?"))
                continue
            if question is not None and ask.now:
                waiting.append(question.done)
        return waiting

    def _question(self, thread: Thread, ask: Ask, headers: Headers) -> Question | None:
        """The question that this Ask is, begun where it is not under way; the thread will have its answer."""
        key = (thread.tenant, thread.session, ask.id)
        question = self._open.get(key) or self._begin(key, ask, headers)
        if question is None:
            return None
        if not any(known is thread for known in question.threads):
            question.threads.append(thread)
        if question.text is not None:  # answered, and on its way to the disk
            self._give(question, question.text)
        return question

    async def answered(self, waiting: Sequence[asyncio.Future[bool]]) -> bool:
        """Whether one of them has an answer before `helper.wait_ms` is over."""
        if not waiting or not self._limits.wait_ms:
            return False
        done, _ = await asyncio.wait(waiting, timeout=self._limits.wait_ms / 1000)
        return any(future.result() for future in done if not future.cancelled())

    async def close(self) -> None:
        """Cancel what is under way, and take no more."""
        self._closed = True
        tasks = [question.task for question in self._open.values() if question.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: Key, ask: Ask, headers: Headers) -> Question | None:
        loop = asyncio.get_running_loop()
        if self._closed or self._later.get(key, 0.0) > loop.time():
            return None
        if self._patience.resting:
            self._count(ask, "resting")
            return None
        most = self._limits.concurrency + self._limits.queue
        if len(self._open) >= most or self._size + len(ask.prompt) > MEMORY:
            self._count(ask, "queue_full")
            return None
        shown = [] if self._asker.target.key is not None else credential(headers)
        question = self._open[key] = Question(key, ask, shown, loop.create_future())
        self._size += len(ask.prompt)
        question.task = loop.create_task(self._run(question))
        return question

    async def _run(self, question: Question) -> None:
        outcome = "error"
        try:
            async with self._slots:
                outcome = await self._find(question)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception:  # nobody awaits this task: counted here and in the log, and the deterministic way is used
            self._metrics.swallowed_total.labels(where="helper").inc()
            log.exception("a question of kind %s failed", question.ask.kind)
        finally:
            del self._open[question.key]
            self._size -= len(question.ask.prompt)
            self._count(question.ask, outcome)
            if outcome not in ("kept", "stored", "cancelled"):
                self._put_off(question.key, USELESS_AGAIN_S if outcome in UNWANTED else AGAIN_S)
            if not question.done.done():
                question.done.set_result(False)

    async def _find(self, question: Question) -> str:
        """The answer from the store, where another replica or an earlier thread has asked; else from the helper."""
        store = self._threads.store
        try:
            found = await store.answer(*question.key)
            if found is not None:
                self._give(question, found)
                return "stored"
            if self._patience.resting:
                return "resting"
            reserved = self._asker.worst(question.ask.prompt)
            if not await self._purse.reserve(store, reserved):
                return "over_budget"
        except StoreUnavailable:
            return "store"
        told = Told("cancelled", dollars=reserved)
        try:
            told = await self._asker.ask(question.ask.prompt, question.headers)
        finally:
            spent = self._purse.settle(
                question.ask.kind, reserved, (told.prompt_tokens, told.completion_tokens), told.dollars
            )
            store.put([spent])
            self._pay(question.ask, told)
        if self._patience.note(told.outcome):
            log.warning("the helper at upstream %s is down: nothing is asked for %g s", self._asker.target.name, REST_S)
        outcome = verdict(question.ask, told.text.strip()) if told.outcome == "answered" else told.outcome
        if outcome == "kept":
            await self._keep(question, told)
        return outcome

    async def _keep(self, question: Question, told: Told) -> None:
        """Give the answer at once, and be done when it is on disk: until then nobody would find it there."""
        text = told.text.strip()
        tenant, session, name = question.key
        tokens = (told.prompt_tokens, told.completion_tokens)
        row = AnswerRow(
            tenant, session, name, question.ask.kind, self._asker.name, *tokens, told.dollars, self._now(), text
        )
        written = self._threads.store.put([row])
        self._give(question, text)
        try:
            await asyncio.shield(written)
        except StoreUnavailable:
            self._metrics.persist_dropped_total.inc()

    def _give(self, question: Question, text: str) -> None:
        """Let every live thread of the session have it, and those that asked: one may have left memory meanwhile."""
        question.text = text
        tenant, session, name = question.key
        memory = self._threads.session(tenant, session)
        for thread in [*(memory.threads.values() if memory is not None else ()), *question.threads]:
            remember(thread, name, text)
        if not question.done.done():
            question.done.set_result(True)

    def _put_off(self, key: Key, seconds: float) -> None:
        self._later[key] = asyncio.get_running_loop().time() + seconds
        self._later.move_to_end(key)
        if len(self._later) > REMEMBERED:
            self._later.popitem(last=False)

    def _count(self, ask: Ask, outcome: str) -> None:
        self._metrics.helper_total.labels(kind=self._metrics.label("helper", ask.kind), outcome=outcome).inc()

    def _pay(self, ask: Ask, told: Told) -> None:
        kind = self._metrics.label("helper", ask.kind)
        self._metrics.helper_dollars_total.labels(kind=kind).inc(told.dollars)
        self._metrics.helper_tokens_total.labels(kind=kind).inc(told.prompt_tokens + told.completion_tokens)


def remember(thread: Thread, name: str, text: str) -> None:
    """Let the thread have the answer to the Ask of that name; the first one stands."""
    if name not in thread.state.answers:
        thread.state = replace(thread.state, answers=_with(thread.state.answers, name, text))


def _with(answers: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    made = {**answers, name: text}
    while len(made) > ANSWERS_MOST:  # those asked first leave; whoever asks again has them from the store
        del made[next(iter(made))]
    return made


def make_asking(
    settings: Settings, client: Client, purse: Purse, threads: Threads, metrics: Metrics, models: Sequence[Model]
) -> Asking | None:
    """What answers Asks under these settings; None where there is no helper."""
    limits = settings.helper
    target = next((target for target in client.targets if target.name == limits.upstream), None)
    if target is None:
        return None
    model = find_model(models, limits.model)
    asker = Asker(client, target, limits.model, model, max_tokens=limits.max_tokens, timeout_s=limits.timeout_s)
    return Asking(limits, asker, purse, threads, metrics)
