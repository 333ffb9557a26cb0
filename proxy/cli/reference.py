"""Reference tables that no class describes: headers, reasons for a fallback, limits. Tests compare them with the code.

A limit names its settings and constants, and the table shows their values. A row therefore cannot name one that is
gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from proxy.chat.embedded_json import LONGEST, VALUES
from proxy.chat.size_limits import OUTERMOST
from proxy.exchange.asking import MEMORY
from proxy.settings import Settings, Webhook
from proxy.store.absent import MOST
from proxy.store.gap_file import SIZE
from proxy.store.pieces import BYTES, ROWS
from proxy.store.spool import HOLD_S
from proxy.store.sql import ANSWERS_MOST
from proxy.web.body_budget import SLOW_S
from proxy.web.connection import GRACE, QUEUED, STEADY
from proxy.web.connection_share import PIPELINED, RESERVED
from proxy.web.failures import LINGER_S

REQUEST_HEADERS = (
    ("x-context-session: NAME", "Names the session. The path `/s/NAME/v1` does the same."),
    (
        "x-context-policy: NAME",
        (
            "Another policy for this request. What a literal policy takes out is out of requests "
            "under literal policies alone."
        ),
    ),
    ("x-context-max-iterations: N", "Iterations that this task may take (`count_down`, `report_progress`)."),
    ("x-context-urgency: off, gentle or firm", "The urgency of texts to the model (`count_down`, `warn_of_loops`)."),
    ("x-context-reflect: off, inline or helper", "Says who reflects on this request's tool calls (`reflective`)."),
    (
        "x-context-pin: true",
        ("Pins the last user message: no policy edits it, ever. A `[pin]` in a user or system message does the same."),
    ),
    ("x-context-off: 1", "This request passes as it is, unmanaged and unstored."),
    (
        "x-context-project: NAME",
        "The project whose memos are used. The setting `memos.project_header` names this header.",
    ),
    ("x-context-key: KEY", "A key of the proxy. It is removed before anything else reads the request."),
)
"""Request headers that the proxy reads: the header with its values, and the effect."""

RESPONSE_HEADERS = (
    ("x-context-session: NAME", "The session that the request was taken for."),
    ("x-context-tokens: BEFORE, AFTER", "Tokens of the prompt as it came, and as it was sent."),
    (
        "x-context-over-budget: TOKENS",
        ("The prompt that was sent is over its budget by so many tokens, with everything out that may go."),
    ),
    ("x-context-fallback: REASON", "The original went out, and why. The page on errors lists the reasons."),
    (
        "x-context-warning: TEXT",
        "The value of an `x-context-*` header is not understood: which one, and what is allowed.",
    ),
    (
        "x-context-unmanaged: PATH",
        (
            "The path carries conversations in a format that passes unmanaged, such as "
            "`/v1/messages` and `/v1/responses`."
        ),
    ),
    ("x-context-persist: deferred", "The answer was not yet on disk when it was sent."),
    ("x-should-retry: false", "On an error of the proxy that a second try would meet again. The SDKs obey it."),
)
"""Response headers that the proxy adds."""

WEBHOOK_HEADERS = (
    ("x-context-event: KIND", "The kind of the event."),
    ("x-context-id: ID", "The event's id."),
    (
        "x-context-signature: t=SECONDS,v1=HEX",
        "HMAC-SHA256 with the secret over the seconds, a full stop and the body.",
    ),
)
"""Headers of a webhook's POST."""

FALLBACKS = (
    ("off", "The client asked for it with `x-context-off`."),
    (
        "size",
        (
            "The body is over one of `limits.managed_mb`, `limits.messages`, `limits.parts`, `limits.calls`, "
            "`limits.values`."
        ),
    ),
    ("shape", "The body is JSON but no chat request that the proxy knows."),
    ("unreadable", "The body or a message in it is not valid JSON."),
    ("encoding", "The body is compressed in a way that the proxy cannot read."),
    ("store", "The store did not answer in time."),
    ("timeout", "Planning took longer than `limits.plan_ms`."),
    ("rule ID", "The plan broke a rule of strict upstreams. `context_proxy_refusals_total` counts each rule."),
    ("error", "A fault of the proxy, counted in `context_proxy_swallowed_total` and logged."),
    ("upstream_reject", "The upstream refused the rewritten request with a 400. The original was sent once more."),
    (
        "rounds",
        "A hidden round of the proxy's tools could not be finished. The original request was asked in its place.",
    ),
)
"""Reasons of `x-context-fallback`. `context_proxy_bypasses_total` counts most of them."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One bounded thing. A setting in backticks in `bound` is shown with its default."""

    what: str
    bound: str
    then: str


def _kib(size: int) -> str:
    return f"{size >> 10} KiB"


LIMITS = (
    Limit("chat request body", "`limits.body_mb`", "413"),
    Limit("chat bodies held at once, together", "`limits.bodies_mb`", "503 with Retry-After"),
    Limit("those of one tenant, where there are keys of several", "half of that", "503 with Retry-After"),
    Limit(
        "a chat body that has not come whole",
        f"{SLOW_S:.0f} s",
        "gives way with 503 where others need its room; the oldest first",
    ),
    Limit(
        "a managed chat body: bytes, messages, content parts, tool calls, JSON values",
        "`limits.managed_mb`, `limits.messages`, `limits.parts`, `limits.calls`, `limits.values`",
        "goes on as it came: `x-context-fallback: size`, counted",
    ),
    Limit("keys on the outermost level of such a body", f"{OUTERMOST:,}", "the same"),
    Limit(
        "JSON in the arguments of a call, or in a result",
        f"{LONGEST >> 10} KiB, {VALUES:,} values",
        "read as plain text",
    ),
    Limit("header block", "`limits.header_kb`", "431"),
    Limit("requests at once", "`limits.requests`", "503 with Retry-After"),
    Limit(
        "connections of clients",
        "`limits.connections`",
        f"503; `/healthz` and `/readyz` have {RESERVED} more; beyond twice as many the oldest half-open ones are "
        "closed, then new ones",
    ),
    Limit(
        "connections of one address, once seven eighths of all are taken",
        "`limits.address_share` of `limits.connections`",
        "503",
    ),
    Limit("the rest of a body whose request is answered already", f"{LINGER_S:.0f} s", "closed"),
    Limit(
        "half-open connections of one address (of an IPv6 network, /64)", "`limits.half_open`", "the oldest are closed"
    ),
    Limit(
        "a client that brings no head, or a body too slowly",
        f"`timeouts.header_s`, `timeouts.body_s`; a whole body: {GRACE} times that, and 1 s for each {_kib(STEADY)}",
        "408, closed",
    ),
    Limit("requests that wait on one connection (pipelining)", str(QUEUED), "closed after them"),
    Limit(
        "bodies of requests that wait, on all connections together",
        f"{PIPELINED >> 20} MiB",
        "closed after those before",
    ),
    Limit("captured copy of an answer", "`limits.capture_mb`", "passed on, not understood beyond"),
    Limit("messages remembered in memory", "`limits.message_cache_mb`", "least recently used out"),
    Limit("live threads in memory", "`limits.live_threads`, `limits.live_mb`", "read back from the store"),
    Limit("rows waiting to be written", "`limits.spool_mb`", "refused, counted, recorded as a gap"),
    Limit(
        "gaps that SQLite's disk could not take before the proxy stopped",
        f"{_kib(SIZE)} beside the database (`.gaps`)",
        "the rest is added up; the next start records them",
    ),
    Limit(
        "rows of one request that are written at once",
        f"{ROWS}, {_kib(BYTES)}",
        "the rest follows, what others store between them",
    ),
    Limit(
        "rows that nobody waits for, held back to share the next commit", f"{HOLD_S * 1000:.0f} ms, 64 KiB", "written"
    ),
    Limit(
        "sessions known to have a scratchpad, memos or hidden rounds (SQLite)",
        f"{MOST:,} each",
        "the store is asked for all",
    ),
    Limit("planning one request", "`limits.plan_ms`", "the original goes out, and the work stops"),
    Limit("questions to the helper", f"`helper.queue`, {MEMORY >> 20} MiB", "done without, counted"),
    Limit("a helper's answers in memory", f"{ANSWERS_MOST:,} a session", "read back from the store"),
    Limit("dollars for helpers", "`helper.dollars_a_day`", "done without, counted"),
    Limit("events in memory", "`events.kept`, some 16 KB each at most", "whoever comes back is told of a gap"),
    Limit("events that wait for a listener or a webhook", "`events.queue`", "the oldest are lost, counted and told"),
    Limit("listeners", "`events.listeners`", "429"),
    Limit("tries of a webhook", "`webhooks[].tries`", "given up, counted"),
)


def with_defaults(bound: str) -> str:
    """Return the bound with each setting's default after its name. Raises KeyError if a setting does not exist."""

    def valued(match: re.Match[str]) -> str:
        return f"{match[0]} ({_default(match[1])})"

    return re.sub(r"`([a-z_]+(?:\[\])?\.[a-z_]+)`", valued, bound)


def limits() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table of limits."""
    for limit in LIMITS:
        yield limit.what, with_defaults(limit.bound), limit.then


def _default(setting: str) -> str:
    section, _, name = setting.partition(".")
    kind: type[BaseModel] = Webhook
    if section != "webhooks[]":
        kind = type(Settings.model_fields[section].get_default(call_default_factory=True))
    value = kind.model_fields[name].default
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
