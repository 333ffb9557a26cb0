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
"""Limit in characters on the prompts of all questions that are under way."""
LONGEST = 64 * 1024
"""Limit in characters on an answer, whatever its Ask allows."""
AGAIN_S = 60.0
"""Seconds before a question that brought no answer is asked again."""
USELESS_AGAIN_S = 3600.0
"""Seconds before a question is asked again whose answer did not fit: it would fail again, at the same cost."""
REMEMBERED = 4096
"""Limit on the questions that are remembered because they brought no usable answer."""

UNWANTED = frozenset({"empty", "too_long", "missing", "cut"})
"""Outcomes of answers that came and did not fit."""

Key = tuple[str, str, str]
"""(tenant, session, Ask.id)"""


@dataclass(slots=True, eq=False)
class Question:
    """An Ask that is under way. headers: the client's credential, where the helper's upstream has no key; dropped with
    the question. threads: those that wait for the answer. done: resolves to True if there is an answer. text: the
    answer."""

    key: Key
    ask: Ask
    headers: Headers
    done: asyncio.Future[bool]
    threads: list[Thread] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    text: str | None = None


def verdict(ask: Ask, text: str) -> str:
    """Return `kept` if the text is a usable answer to this question, else the name of its fault."""
    if not text:
        return "empty"
    if len(text) > (ask.longest or LONGEST) or len(text) > LONGEST:
        return "too_long"
    return "kept" if all(_holds(text, name) for name in ask.keep) else "missing"


def _holds(text: str, name: str) -> bool:
    """True if the name stands in the text and is not a part of another word (`12` in `123`)."""
    if name not in text:
        return False
    before = r"(?<!\w)" if re.match(r"\w", name) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", name) else ""
    return re.search(before + re.escape(name) + after, text) is not None


class Asking:
    """All questions that are under way. Made before the loop runs; `close` cancels the open questions."""

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
        """Questions under way, including those that wait for a slot."""
        return len(self._open)

    def take(self, thread: Thread, asks: Sequence[Ask], headers: Headers) -> list[asyncio.Future[bool]]:
        """Start answering these Asks in the background. headers: those of the request that asks. Returns the futures of
        the questions whose answers are needed now. Never raises: an Ask may come from the stage of a third party."""
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
        """Return the question of this Ask, started if it is not under way. The thread will receive its answer."""
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
        """True if one of these questions gets an answer within `helper.wait_ms`."""
        if not waiting or not self._limits.wait_ms:
            return False
        done, _ = await asyncio.wait(waiting, timeout=self._limits.wait_ms / 1000)
        return any(future.result() for future in done if not future.cancelled())

    async def close(self) -> None:
        """Cancel the questions under way, and accept no more."""
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
        except Exception:  # nobody awaits this task: counted here and logged; the stage's deterministic way is used
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
        """Take the answer from the store, where another replica or an earlier thread has asked; else ask the helper.
        Return the outcome."""
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
        """Deliver the answer at once, and return when it is on disk: until then no other process would find it
        there."""
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
        """Deliver the answer to every live thread of the session, and to the threads that asked: one may have left
        memory."""
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
    """Store the answer to the Ask of that name in the thread's state; the first answer stays."""
    if name not in thread.state.answers:
        thread.state = replace(thread.state, answers=_with(thread.state.answers, name, text))


def _with(answers: Mapping[str, str], name: str, text: str) -> dict[str, str]:
    made = {**answers, name: text}
    while len(made) > ANSWERS_MOST:  # the oldest answers leave; they can be read again from the store
        del made[next(iter(made))]
    return made


def make_asking(
    settings: Settings, client: Client, purse: Purse, threads: Threads, metrics: Metrics, models: Sequence[Model]
) -> Asking | None:
    """Return the service that answers Asks under these settings; None where there is no helper."""
    limits = settings.helper
    target = next((target for target in client.targets if target.name == limits.upstream), None)
    if target is None:
        return None
    model = find_model(models, limits.model)
    asker = Asker(client, target, limits.model, model, max_tokens=limits.max_tokens, timeout_s=limits.timeout_s)
    return Asking(limits, asker, purse, threads, metrics)
