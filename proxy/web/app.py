"""The composition root: every object is made here once, and every request is routed from here.

Raw ASGI stands in front, because the hot path must not pay for routing and models. FastAPI stands behind it for the
proxy's own pages. The route of a request is decided by `scope["path"]` alone, which no header can change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from proxy.chat.size_limits import SizeLimits
from proxy.chat.tokens import Weigh, estimate
from proxy.context.policy import Policy, check_models, compile_patterns, read_policy
from proxy.context.prices import Model
from proxy.context.stages import BUILT_IN
from proxy.context.voices import BUILT_IN as VOICES
from proxy.errors import ConfigError, ProxyError, StoreRefused
from proxy.exchange import retention, windows
from proxy.exchange.asking import make_asking
from proxy.exchange.bounds import Purse
from proxy.exchange.news import News
from proxy.exchange.parts import Parts
from proxy.exchange.reading import MessageCache
from proxy.exchange.threads import Threads
from proxy.exchange.webhooks import Webhooks
from proxy.metrics import Metrics
from proxy.sections import ALL_TENANTS
from proxy.settings import Settings
from proxy.store import connect
from proxy.store.base import Store
from proxy.upstream.client import Client
from proxy.vocabulary import counter
from proxy.web import conversational
from proxy.web.api.app import bounded, create_api
from proxy.web.body_budget import BodyBudget
from proxy.web.completions import chat
from proxy.web.dashboard.files import dashboard
from proxy.web.doors import Door, Doors
from proxy.web.failures import answering
from proxy.web.gate import CALLER, DOOR, gated
from proxy.web.guard import guarded
from proxy.web.keys import Caller
from proxy.web.listen import App, Message, Receive, Scope, Send
from proxy.web.passthrough import passthrough
from proxy.web.path_rules import PathRules
from proxy.web.probes import probes
from proxy.web.request_log import logged
from proxy.web.room import Room

log = logging.getLogger(__name__)

ROUTES = (
    ("POST", "/v1/chat/completions", "Chat, managed. Also without `/v1`."),
    ("POST", "/s/{session}/v1/chat/completions", "The same, in the session that the path names."),
    ("GET", "/healthz", "The process lives."),
    ("GET", "/readyz", "The process can serve, and how the store is."),
    ("GET", "/metrics", "Prometheus' text format."),
    ("GET", "/dashboard/", "The dashboard; `/dashboard/widget.js` is one that any page can show."),
    ("any", "/api/...", "The admin API; `GET /api/openapi.json` describes it."),
    (
        "any",
        "anything else, also under /s/{session}",
        "Passed through byte for byte; with an `api_key_env` what `passthrough.paths` lists.",
    ),
)
"""The rows that docs/reference/routes.md lists before the admin API."""
CHAT = ("/v1/chat/completions", "/chat/completions")
"""Paths of chat requests, behind a session's part if there is one; with and without /v1."""


def make_store(settings: Settings) -> Store:
    """Return the store that `db` names. Raises ConfigError if there is no store of that kind."""
    try:
        return connect(settings.db, durability=settings.store.durability, spool_mb=settings.limits.spool_mb)
    except StoreRefused as problem:
        # The value may hold a password, so the error gives only the allowed values.
        raise ConfigError("db", "***", f"a path, :memory: or a postgresql:// URL ({problem.message})") from problem


def make_policies(settings: Settings) -> dict[str, Policy]:
    """Return every policy that can be named, with the values that the settings replace."""
    patterns = compile_patterns(settings.groups.observation)
    made = {}
    for name, path in settings.policy_files().items():
        policy = read_policy(settings.policy_table(name), BUILT_IN, VOICES, source=str(path))
        if settings.state.ask != "policy":
            policy = replace(policy, ask=settings.state.ask)
        if settings.state.guidelines:
            policy = replace(policy, guidelines=settings.state.guidelines)
        if patterns is not None and policy.observation is None:
            policy = replace(policy, observation=patterns)
        made[name] = policy
    check_models(made, settings.models())
    return made


def make_parts(settings: Settings, store: Store) -> Parts:
    """Return the services that every exchange uses."""
    known = {"upstream": list(settings.targets)}
    metrics = Metrics(known)
    counters: dict[str, Weigh] = {}

    def weigh(model: Model) -> Weigh:
        exact = settings.tokens.count == "exact" and model.tokenizer != "estimate"
        name = model.tokenizer if exact else "estimate"
        if name not in counters:
            counters[name] = Weigh(counter(name) if exact else estimate)
        return counters[name]

    client = Client(settings, metrics)
    threads = Threads(
        settings.limits.live_threads, store, most=settings.limits.live_mb << 20,
        look_s=settings.limits.commit_wait_ms / 1000, unseen=metrics.swallowed_total.labels(where="standing").inc,
    )  # fmt: skip
    limits = settings.limits
    size_limits = SizeLimits(limits.managed_mb << 20, limits.messages, limits.parts, limits.calls, limits.values)
    messages = MessageCache(limits.message_cache_mb << 20, size_limits)
    metrics.live_threads.set_function(lambda: len(threads))
    metrics.live_bytes.set_function(lambda: threads.size)
    metrics.message_cache_bytes.set_function(lambda: messages.size)
    metrics.store_queue.set_function(lambda: store.queued)
    metrics.store_log_bytes.set_function(lambda: getattr(store, "log_bytes", 0))  # only SQLite has a log of its own
    models = settings.models()
    purse = Purse(settings.helper.dollars_a_day)
    return Parts(
        settings=settings,
        store=store,
        client=client,
        metrics=metrics,
        threads=threads,
        messages=messages,
        models=models,
        policies=make_policies(settings),
        weigh=weigh,
        purse=purse,
        news=News(settings.events, metrics),
        asking=make_asking(settings, client, purse, threads, metrics, models),
    )


class ContextProxy:
    """The ASGI application. `parts` is public for tests and tools that inspect it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = make_store(settings)
        self.parts = make_parts(settings, self.store)
        self.webhooks = Webhooks(settings, self.parts.news, self.parts.metrics)
        self.draining = False
        self._told: set[str] = set()
        """Paths that the log has already reported as unmanaged."""
        self.room = Room(settings.limits.requests, self.parts.metrics)
        self._rules = PathRules(settings.passthrough.paths)
        several = len({share_of(key.tenant, key.name) for key in settings.keys}) > 1
        self.bodies = BodyBudget(settings.limits.bodies_mb << 20, self.parts.metrics, several=several)
        self._own: App = probes(self.store, self.parts.metrics, draining=lambda: self.draining)
        self.api = create_api(self.parts)
        self._pages = dashboard(settings)
        self._api = bounded(self.api, settings.limits.body_mb << 20)
        gate = gated(self._route, settings, Doors(self.api.routes))
        self._app = logged(answering(guarded(gate, settings), self.parts.metrics))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        else:
            # WebSockets are not passed on: the server answers a close before the accept with 403.
            await send({"type": "websocket.close", "code": 1008})

    def give_notice(self) -> None:
        """Report at /readyz that this process will stop, and go on serving until requests are sent elsewhere."""
        self.draining = True

    def drain(self) -> None:
        """End the streams that have no end of their own. A server calls this before it waits for open answers. It may
        be called again."""
        self.draining = True
        self.parts.news.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.store.open()
                except ProxyError as problem:  # reported to the server, which then refuses to start
                    log.error("the store cannot be opened: %s", problem)
                    await send({"type": "lifespan.startup.failed", "message": str(problem)})
                    return
                await windows.load(self.parts)
                self.webhooks.start()
                self._keeping = asyncio.create_task(retention.keep(self.parts), name="retention")
                self.parts.running.add(self._keeping)
                await send({"type": "lifespan.startup.complete"})
            else:
                self.drain()
                try:
                    for task in self.parts.running:
                        task.cancel()
                    if self.parts.asking is not None:
                        await self.parts.asking.close()
                    await self.parts.client.close()
                    await self.webhooks.close()
                    self.parts.workers.shutdown(wait=False, cancel_futures=True)
                finally:  # after any error before it: queued items must be written
                    await self.store.close()
                log.info("stopped; %d items could not be stored", self.store.dropped)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        door: Door = scope[DOOR]
        if door.kind == "api":
            with self._counted("api", send) as counted:
                await self._api(scope, receive, counted)
            return
        if door.kind == "pages":
            await self._pages(scope, receive, send)
            return
        if door.kind != "data":
            await self._own(scope, receive, send)
            return
        raw = (scope.get("raw_path") or path.encode()).decode("latin-1")
        session = None
        if raw.startswith("/s/") and raw.count("/") >= 3:  # still encoded: a name may hold a slash
            _, _, name, rest = raw.split("/", 3)
            session, raw = unquote(name), "/" + rest
            path = unquote(raw)
        caller: Caller = scope[CALLER]
        whose = share_of(caller.tenant, caller.name)
        if path in CHAT and scope["method"] == "POST":
            with self._counted("chat", send) as counted, self.room.place(), self.bodies.share(whose) as share:
                await chat(scope, receive, counted, self.parts, raw, session, share)
            return
        talks = conversational.is_conversational(scope["method"], path)
        shown = raw.partition("?")[0][: conversational.SHOWN] if talks else None
        telling = send if shown is None else _telling(send, shown)
        client, metrics = self.parts.client, self.parts.metrics
        with self._counted("passthrough", telling) as counted, self.room.place(), self.bodies.share(whose) as share:
            await passthrough(
                scope, receive, counted, client, metrics,
                path=raw, share=share, rules=self._rules, allowed=lambda: self._unmanaged(path, shown),
            )  # fmt: skip

    @contextmanager
    def _counted(self, route: str, send: Send) -> Iterator[Send]:
        """Yield a `send` whose status is counted at the end; "none" if nothing was sent: the outer layer then
        answers."""
        status = "none"

        def noting(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            return send(message)

        try:
            yield noting
        finally:
            metrics = self.parts.metrics
            metrics.requests_total.labels(route=route, status=metrics.label("status", status)).inc()

    def _unmanaged(self, path: str, shown: str | None) -> None:
        """Count a request that passes unmanaged. If its path carries a conversation, log it once a path. The answer
        names it too (`_telling`)."""
        metrics = self.parts.metrics
        metrics.unmanaged_total.labels(path=metrics.label("path", path)).inc()
        if shown is not None and shown not in self._told and len(self._told) < conversational.MOST:
            self._told.add(shown)
            log.warning("requests to %s are passed on unmanaged: only chat completions are rewritten", shown)


def share_of(tenant: str, key: str) -> str:
    """Return the owner of a share of the body budget: the tenant, or a key that is for all tenants."""
    return f"key {key}" if tenant == ALL_TENANTS else tenant


def _telling(send: Send, shown: str) -> Send:
    """Return a `send` that names the path in a header of the answer."""

    def telling(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            told = (conversational.UNMANAGED, shown.encode("ascii", "replace"))
            message = {**message, "headers": [*message["headers"], told]}
        return send(message)

    return telling


def create_app(settings: Settings | None = None, **overrides: Any) -> ContextProxy:
    """Return the application for these settings, ready to be served. Raises ConfigError."""
    return ContextProxy(settings or Settings(**_plain(overrides)))


def _plain(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in overrides.items() if value is not None}
