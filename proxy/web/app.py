"""The composition root: every object is made here once, and every request is routed from here.

Raw ASGI is in front, because the hot path must not pay for routing and models. FastAPI comes after it for the
proxy's own pages. The route of a request is decided by `scope["path"]` alone, which no header can change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import unquote

from proxy.chat.json_spans import SizeLimits
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.models import Model
from proxy.context.policy import Policy, check_models, compile_patterns
from proxy.errors import ConfigError, ProxyError, StoreRefused, UpgradeRequired
from proxy.events.bus import EventBus
from proxy.events.webhooks import Webhooks
from proxy.exchange import learned_lengths, learned_windows, retention, warm_vocabulary
from proxy.exchange.dialect import find_dialect
from proxy.exchange.fallback import FallbackReason
from proxy.exchange.message_cache import MessageCache
from proxy.exchange.services import Services
from proxy.exchange.stored_responses import find_stored_response, read_question
from proxy.helper.budget import Budget
from proxy.helper.queue import make_helper_queue
from proxy.metrics import Metrics
from proxy.sessions.live import LiveSessions
from proxy.settings.load import Settings, find_unreached_upstreams
from proxy.settings.model import ALL_TENANTS
from proxy.settings.policy_files import find_own_classes, read_policy_file
from proxy.store import create_store
from proxy.store.reads import Store
from proxy.telemetry import create_telemetry
from proxy.tokenizers import get_token_counter
from proxy.upstream.client import UpstreamClient
from proxy.web.api.lazy_app import LazyAdminApp
from proxy.web.asgi import MAX_PATH_CHARS, App, Message, Receive, Scope, Send, log_requests
from proxy.web.auth import CALLER_KEY, ROUTE_KEY, Caller, require_access
from proxy.web.chat import serve_chat, serve_gateway, serve_stored_response
from proxy.web.dashboard.static_files import create_dashboard
from proxy.web.error_responses import DIALECT_KEY, answer_errors, convert_error
from proxy.web.limits import BODY_SHARE_KEY, BodyBudget, ConcurrencyLimit, limit_heads
from proxy.web.passthrough import serve_passthrough
from proxy.web.probes import create_probes
from proxy.web.responses_websocket import SOCKET_PATHS, CarriedHistories, ResponseSocket, admit_handshake
from proxy.web.routes import (
    MAX_LOGGED_PATHS,
    UNMANAGED_HEADER,
    PathRules,
    Route,
    RouteTable,
    SessionPath,
    is_conversational,
)
from proxy.web.tracing import trace_requests
from proxy.web.websocket_tunnel import NOT_SERVED, TUNNEL_KEY, relay_tunnel, serve_tunnel

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

ROUTES = (
    ("POST", "/v1/chat/completions", "Chat, managed. Also without `/v1`."),
    ("POST", "/v1/messages", "Anthropic's Messages, managed. Also without `/v1`."),
    ("POST", "/v1/responses", "OpenAI's Responses, managed. Also without `/v1`."),
    ("GET", "/v1/responses", "The same over WebSocket, if the extra `websocket` is installed."),
    ("GET", "any other path", "A WebSocket that the upstream serves, passed on, with the same extra; else 426."),
    ("POST", "/v1beta/models/{model}:generateContent", "Gemini, managed; also `:streamGenerateContent`."),
    ("POST", "/v1beta/models/{model}:countTokens", "The upstream counts the prompt that would be sent."),
    ("POST", "/v1/messages/count_tokens", "The upstream counts the prompt that would be sent. Nothing is stored."),
    ("POST", "/v1/responses/input_tokens", "The same for Responses."),
    ("POST", "/v1/responses/compact", "Passed on: the answer begins a new history in the same session."),
    (
        "GET",
        "/v1/responses/{id}",
        "One that the provider lacks, or has with additions of the proxy; `DELETE` deletes it. Others are passed on.",
    ),
    ("GET", "/v1/responses/{id}/input_items", "The input of such a response. `POST .../cancel` is refused for it."),
    ("POST", "/openai/deployments/{deployment}/chat/completions", "Chat on Azure, managed."),
    ("POST", "/openai/responses", "Responses on Azure, managed. Also `/openai/v1/responses`."),
    (
        "POST",
        "/v1/projects/{project}/locations/{location}/publishers/anthropic/models/{model}:streamRawPredict",
        "Messages on Vertex AI, managed; also `:rawPredict`. The model `count-tokens` counts.",
    ),
    (
        "POST",
        "/model/{model}/invoke-with-response-stream",
        "Messages on Bedrock, managed; also `/invoke`. A body without `anthropic_version` is passed on.",
    ),
    (
        "GET",
        "/v1/models",
        "The models of all upstreams as one list, also `/v1beta/models`. A single one's list is passed on as it is.",
    ),
    ("GET", "/v1/models/{model}", "One model, from the upstream to which its chat requests go."),
    ("POST", "/s/{session}/v1/...", "One of these, in the session that the path names."),
    ("POST", "/v1/compress", "Messages of a gateway, shortened: as many, in their order."),
    ("GET", "/v1/retrieve/{hash}", "The original of a message that was shortened there."),
    ("GET", "/healthz", "The process lives."),
    ("GET", "/readyz", "The process can serve, and how the store is."),
    ("GET", "/metrics", "Prometheus' text format."),
    ("GET", "/dashboard/", "The dashboard; `/dashboard/widget.js` is one that any page can show."),
    ("GET", "/", "For browsers the dashboard. A request that does not accept `text/html` goes to the upstream."),
    ("any", "/api/...", "The admin API; `GET /api/openapi.json` describes it. Paths of Ollama's API are passed on."),
    (
        "any",
        "anything else, also under /s/{session}",
        "Passed through byte for byte; with a credential of the operator's what `passthrough.paths` lists.",
    ),
)
"""The rows that docs/reference/routes.md lists before the admin API."""


def make_store(settings: Settings) -> Store:
    """Return the store that `db` names. Raises ConfigError if there is no store of that kind."""
    try:
        kept = settings.store
        return create_store(
            settings.db,
            durability=kept.durability,
            spool_mb=settings.limits.spool_mb,
            read_s=kept.read_s,
            retention_days=kept.retention_days,
            # An answer may take `total_s`; rounds of tools and other attempts before it take less than as long again.
            longest_request_s=2 * settings.timeouts.total_s,
        )
    except StoreRefused as problem:
        # The value may hold a password, so the error gives only the allowed values.
        raise ConfigError("db", "***", f"a path, :memory: or a postgresql:// URL ({problem.message})") from problem


def make_policies(settings: Settings) -> dict[str, Policy]:
    """Return every policy that can be named, with the values that the settings replace."""
    patterns = compile_patterns(settings.groups.observation)
    policies = {}
    for name, path in settings.find_policy_files().items():
        policy = read_policy_file(path)
        if settings.state.ask != "policy":
            policy = replace(policy, ask=settings.state.ask)
        if settings.state.guidelines:
            policy = replace(policy, guidelines=settings.state.guidelines)
        if patterns is not None and policy.observation is None:
            policy = replace(policy, observation=patterns)
        policies[name] = policy
    check_models(policies, settings.load_models())
    return policies


def make_services(settings: Settings, store: Store) -> Services:
    """Return the services that every exchange uses."""
    known = {"upstream": list(settings.active_upstreams)}
    metrics = Metrics(known)
    for reason in FallbackReason:
        if reason is not FallbackReason.RULE:  # it is counted by rule
            metrics.fallbacks_total.labels(reason=reason)  # begins at 0, as in `Metrics`
    counters: dict[str, TokenCounter] = {}

    def find_token_counter(model: Model) -> TokenCounter:
        exact = settings.tokens.count == "exact" and model.tokenizer != "estimate"
        name = model.tokenizer if exact else "estimate"
        if name not in counters:
            counters[name] = TokenCounter(get_token_counter(name) if exact else estimate_text_tokens)
        return counters[name]

    client = UpstreamClient(settings, metrics)
    branches = LiveSessions(
        settings.limits.live_branches, store, max_bytes=settings.limits.live_mb << 20,
        lookup_s=settings.limits.commit_wait_ms / 1000,
        on_lookup_failed=lambda where: metrics.internal_errors_total.labels(where=where).inc(),
    )  # fmt: skip
    limits = settings.limits
    size_limits = SizeLimits(limits.managed_mb << 20, limits.messages, limits.parts, limits.calls, limits.values)
    messages = MessageCache(limits.message_cache_mb << 20, size_limits)
    metrics.live_branches.set_function(lambda: len(branches))
    metrics.live_bytes.set_function(lambda: branches.size)
    metrics.message_cache_bytes.set_function(lambda: messages.size)
    metrics.store_up.set_function(lambda: store.writable)
    metrics.store_readable.set_function(lambda: store.readable)
    metrics.store_queue.set_function(lambda: store.queued)
    metrics.store_log_bytes.set_function(lambda: getattr(store, "log_bytes", 0))  # only SQLite has its own log
    models = settings.load_models()
    budget = Budget(settings.helper.dollars_a_day, tenant_limit=settings.helper.tenant_dollars_a_day)
    return Services(
        settings=settings,
        store=store,
        client=client,
        metrics=metrics,
        live_sessions=branches,
        message_cache=messages,
        models=models,
        policies=make_policies(settings),
        find_token_counter=find_token_counter,
        helper_budget=budget,
        event_bus=EventBus(settings.events, metrics),
        run_command=run_inband_command,
        helper_queue=make_helper_queue(settings, client, budget, branches, metrics, models),
    )


async def run_inband_command(
    services: Services, tenant: str, session: str, line: str, *, branch: str | None = None, is_shared: bool = False
) -> str:
    """Return the reply to an in-band command of an operator."""
    # The models of the operator actions are only needed by operators. A thread imports them, so that streams go on.
    commands = await asyncio.to_thread(import_module, "proxy.operator.inband_commands")
    reply: str = await commands.run_command(services, tenant, session, line, branch=branch, is_shared=is_shared)
    return reply


class ContextProxy:
    """The ASGI application. `services` is public for tests and tools that inspect it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = make_store(settings)
        self.services = make_services(settings, self.store)
        for own in find_own_classes(self.services.policies.values()):
            log.info("the policy %s uses %s of %s", own.policy, own.use, own.file)
        for name, taker in find_unreached_upstreams(settings.active_upstreams).items():
            log.warning("no request goes to upstream %s: upstream %s comes first, and takes its models", name, taker)
        self.webhooks = Webhooks(settings, self.services.event_bus, self.services.metrics)
        self.draining = False
        self._logged_paths: set[str] = set()
        """Paths that the log has already reported as unmanaged."""
        several = len({find_share_owner(key.tenant, key.name) for key in settings.keys}) > 1
        self.concurrency = ConcurrencyLimit(settings.limits.requests, self.services.metrics, several=several)
        self._rules = PathRules(settings.passthrough.paths)
        self.body_budget = BodyBudget(settings.limits.bodies_mb << 20, self.services.metrics, several=several)
        self.probes: App = create_probes(self.store, self.services.metrics, draining=lambda: self.draining)
        self.lazy_api = LazyAdminApp(self.services, settings.limits.body_mb << 20)
        self._pages = create_dashboard(settings)
        routes = RouteTable(
            load_routes=self.lazy_api.load,
            compress=settings.compress.enabled,
            base_paths=self.services.client.base_paths,
        )
        metrics = self.services.metrics
        self.telemetry = self.services.client.telemetry = create_telemetry(settings)
        routed = self._route if self.telemetry is None else trace_requests(self._route, self.telemetry)
        checked = require_access(routed, settings, routes)
        self._app = log_requests(answer_errors(limit_heads(checked, settings), metrics))
        handshake = require_access(admit_handshake, settings, routes)
        self._admit = answer_errors(limit_heads(handshake, settings), metrics)
        self._histories = CarriedHistories(settings.limits.bodies_mb << 20)

    @property
    def api(self) -> FastAPI:
        """The admin API, for its description and for tests; built now, if no request was for it yet."""
        return self.lazy_api.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        elif self._locate(scope).path in SOCKET_PATHS:
            socket = ResponseSocket(
                scope, receive, send,
                app=self._app, admit=self._admit, histories=self._histories,
                share_body=lambda caller: self.body_budget.share(find_share_owner(caller.tenant, caller.name)),
                max_values=self.settings.limits.values, is_draining=lambda: self.draining,
            )  # fmt: skip
            await socket.serve()
        else:
            await serve_tunnel(scope, receive, send, self._app)

    def announce_stop(self) -> None:
        """Report at /readyz that this process will stop, and continue to serve until requests are sent elsewhere."""
        self.draining = True
        self.services.cache_pings.close()

    def drain(self) -> None:
        """End the endless streams, before the server waits for open answers. It may be called again."""
        self.draining = True
        self.services.cache_pings.close()
        self.services.event_bus.close()

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "lifespan.startup":
            try:
                await self.store.open()
            except ProxyError as problem:  # the server logs it, and refuses to start
                await send({"type": "lifespan.startup.failed", "message": str(problem)})
                return
            await self._start_background_work()
            await send({"type": "lifespan.startup.complete"})
        await self._close_services()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start_background_work(self) -> None:
        await learned_windows.load_windows(self.services)
        self.webhooks.start()
        self._retention_task = asyncio.create_task(retention.run_retention(self.services), name="retention")
        lengths_task = asyncio.create_task(learned_lengths.load_lengths(self.services), name="learned-lengths")
        reading = warm_vocabulary.read_last_vocabulary(self.services)
        self.services.background_tasks |= {
            self._retention_task, lengths_task, asyncio.create_task(reading, name="vocabulary")
        }  # fmt: skip

    async def _close_services(self) -> None:
        """Stop all background work, and close the store last, after any error too: queued items must be written."""
        self.drain()
        try:
            for task in self.services.background_tasks:
                task.cancel()
            if self.services.helper_queue is not None:
                await self.services.helper_queue.close()
            await self.services.client.close()
            await self.webhooks.close()
            if self.telemetry is not None:
                await asyncio.to_thread(self.telemetry.close)
            self.services.workers.shutdown(wait=False, cancel_futures=True)
        finally:
            await self.store.close()
        log.info("stopped; %d items could not be stored", self.store.dropped)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        route: Route = scope[ROUTE_KEY]
        if TUNNEL_KEY in scope and route.kind != "data":
            raise UpgradeRequired(NOT_SERVED)
        if route.kind == "api":
            caller: Caller = scope[CALLER_KEY]
            share_owner = find_share_owner(caller.tenant, caller.name)
            with self._count_request("api", send) as counted, self.body_budget.share(share_owner) as share:
                scope[BODY_SHARE_KEY] = share
                await self.lazy_api(scope, receive, counted)
            return
        if route.kind == "pages":
            await self._pages(scope, receive, send)
            return
        if route.kind not in ("data", "gateway"):
            await self.probes(scope, receive, send)
            return
        await self._route_data(scope, receive, send, is_gateway=route.kind == "gateway")

    def _locate(self, scope: Scope) -> SessionPath:
        """Split the path of a request, and leave out an upstream's base path."""
        place, base_paths = split_session(scope), self.services.client.base_paths
        return place.without_base(base_paths) if base_paths else place

    async def _route_data(self, scope: Scope, receive: Receive, send: Send, *, is_gateway: bool) -> None:
        """Serve a request of an agent or a gateway: by the proxy where it knows the path, else by the upstream."""
        place = self._locate(scope)
        _, path, raw = place
        caller: Caller = scope[CALLER_KEY]
        share_owner = find_share_owner(caller.tenant, caller.name)
        if is_gateway:
            with (
                self._count_request("compress", send) as counted,
                self.concurrency.place(share_owner),
                self.body_budget.share(share_owner) as share,
            ):
                await serve_gateway(scope, receive, counted, self.services, place, share)
            return
        if TUNNEL_KEY in scope:
            await self._serve_tunnel(scope, send, path, raw, share_owner)
            return
        dialect = find_dialect(path) if scope["method"] == "POST" else None
        if dialect is not None:
            scope[DIALECT_KEY] = dialect
            with (
                self._count_request("chat", send) as counted,
                self.concurrency.place(share_owner),
                self.body_budget.share(share_owner) as share,
            ):
                await serve_chat(scope, receive, counted, self.services, place, share, dialect)
            return
        question = read_question(scope["method"], path, scope.get("query_string", b""))
        if question is not None:
            stored_response = await find_stored_response(
                self.services, list(scope["headers"]), caller.one_tenant, question
            )
            if stored_response is not None:
                with self._count_request("stored", send) as counted, self.concurrency.place(share_owner):
                    await serve_stored_response(counted, self.services, stored_response, question)
                return
        await self._pass_through(scope, receive, send, path, raw, share_owner)

    async def _pass_through(
        self, scope: Scope, receive: Receive, send: Send, path: str, raw: str, share_owner: str
    ) -> None:
        """Pass a request on as it is. If it carries a conversation, the answer names its path."""
        carries_conversation = is_conversational(scope["method"], path)
        shown = raw.partition("?")[0][:MAX_PATH_CHARS] if carries_conversation else None
        if shown is not None:
            send = _add_path_header(send, shown)
        with (
            self._count_request("passthrough", send) as counted,
            self.concurrency.place(share_owner),
            self.body_budget.share(share_owner) as share,
        ):
            await serve_passthrough(
                scope, receive, counted, self.services.client, self.services.metrics,
                path=raw, share=share, rules=self._rules, on_allowed=lambda: self._count_unmanaged(path, shown),
            )  # fmt: skip

    async def _serve_tunnel(self, scope: Scope, send: Send, path: str, raw: str, share_owner: str) -> None:
        with self._count_request("passthrough", send) as counted, self.concurrency.place(share_owner):
            await relay_tunnel(
                scope, counted, self.services.client, self.settings,
                path=raw, rules=self._rules, on_allowed=lambda: self._count_unmanaged(path, None),
            )  # fmt: skip

    @contextmanager
    def _count_request(self, route: str, send: Send) -> Iterator[Send]:
        """Yield a `send` whose status and time are counted at the end. An error before the first byte counts with the
        status that the outer layer gives it; "none" is left for a request that ends without either."""
        status, began = "none", time.perf_counter()

        def note_status(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            return send(message)

        try:
            yield note_status
        except BaseException as error:
            if status == "none":
                status = str(convert_error(error).status)
            raise
        finally:
            metrics = self.services.metrics
            metrics.requests_total.labels(route=route, status=metrics.limit_label("status", status)).inc()
            metrics.request_duration_seconds.labels(route=route).observe(time.perf_counter() - began)

    def _count_unmanaged(self, path: str, shown: str | None) -> None:
        """Count a request that passes unmanaged. shown: the path, if it carries a conversation; it is logged once."""
        metrics = self.services.metrics
        metrics.unmanaged_total.labels(path=metrics.limit_label("path", path)).inc()
        if shown is not None and shown not in self._logged_paths and len(self._logged_paths) < MAX_LOGGED_PATHS:
            self._logged_paths.add(shown)
            log.warning("requests to %s are passed on unmanaged: their format is not rewritten", shown)


def split_session(scope: Scope) -> SessionPath:
    """Split the path of a request into a session's name and the rest."""
    path: str = scope["path"]
    raw = (scope.get("raw_path") or path.encode()).decode("latin-1")
    if not raw.startswith("/s/") or raw.count("/") < 3:  # still encoded: a name may hold a slash
        return SessionPath(None, path, raw)
    _, _, name, rest = raw.split("/", 3)
    return SessionPath(unquote(name), unquote("/" + rest), "/" + rest)


def find_share_owner(tenant: str, key: str) -> str:
    """Return the owner of a share of the body budget and of the places: the tenant, or a key for all tenants."""
    return f"key {key}" if tenant == ALL_TENANTS else tenant


def _add_path_header(send: Send, shown: str) -> Send:
    """Return a `send` that names the path in a header of the answer."""

    def send_named(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            header = (UNMANAGED_HEADER, shown.encode("ascii", "replace"))
            message = {**message, "headers": [*message["headers"], header]}
        return send(message)

    return send_named


def create_app(settings: Settings) -> ContextProxy:
    """Return the application for these settings, ready to be served. Raises ConfigError."""
    return ContextProxy(settings)
