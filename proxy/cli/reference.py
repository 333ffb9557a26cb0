"""Reference tables that no class describes: headers, reasons for a fallback, limits. Tests compare them with the code.

A limit names its settings and constants, and the table shows their values. A row therefore cannot name one that is
gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from proxy.chat.json_spans import MAX_CHARS, MAX_TOP_LEVEL_KEYS, MAX_VALUES
from proxy.dialects.responses.frames import MAX_ITEM_BYTES
from proxy.exchange.fallback import REASON_TEXTS
from proxy.exchange.plan_request import MAX_LOOP_S, MAX_UNCHECKED_BYTES
from proxy.exchange.prepare_request import PLACE_S
from proxy.exchange.services import LARGE_BODY_BYTES, PREPARED_AT_ONCE, TURN_BYTES
from proxy.helper.queue import MAX_PROMPT_CHARS
from proxy.settings.load import Settings, WebhookSettings
from proxy.store.full_text_search import MAX_INDEXED_BYTES
from proxy.store.gap_file import FILE_SIZE
from proxy.store.journal import MAX_AGE_S, MAX_ITEMS, MAX_SLOTS
from proxy.store.postgres_index import MAX_INDEXED_WORDS
from proxy.store.row_reader import MAX_PAGE_BYTES
from proxy.store.sql import MAX_HELPER_ANSWERS
from proxy.store.sqlite import MAX_SESSIONS
from proxy.store.write_queue import HOLD_S, PIECE_BYTES, PIECE_ROWS
from proxy.stream import completions_answer, responses_answer, sse
from proxy.tools import sandbox, stored_history, tool_context
from proxy.upstream import http1
from proxy.upstream.client import ANSWER_VALUES
from proxy.upstream.decompress import FREE_BYTES, MAX_CODINGS, MAX_MEMBERS, MAX_RATIO
from proxy.web.api import transfer
from proxy.web.error_responses import LINGER_S
from proxy.web.limits import MAX_PIPELINED_BYTES, PROBE_PLACES, SLOW_S
from proxy.web.responses_websocket import MAX_BODY_BYTES, MAX_LANES, MAX_WAITING_FRAMES
from proxy.web.server import BODY_TIME_FACTOR, MAX_PIPELINED_REQUESTS, MIN_AVERAGE_RATE

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
    ("x-headroom-bypass: true", "Messages at `/v1/compress` come back as received."),
    (
        "x-context-project: NAME",
        "The project whose memos are used. The setting `memos.project_header` names this header.",
    ),
    ("x-context-key: KEY", "A key of the proxy. It is removed before anything else reads the request."),
)
"""Request headers that the proxy reads: the header with its values, and the effect."""

RESPONSE_HEADERS = (
    ("x-context-session: NAME", "The session that the request was taken for."),
    ("x-context-tokens: BEFORE, AFTER", "Tokens of the prompt as received, and as sent."),
    ("x-context-arm: ARM", "While an experiment is under way: the arm of the session, `control` or `managed`."),
    (
        "x-context-over-budget: TOKENS",
        ("The prompt that was sent is over its budget by this number of tokens, with everything out that may go."),
    ),
    (
        "x-context-policy-used: NAME, SCHEDULE",
        "A literal policy is not run on reasoning that is bound to its prompt. This one was run in its place.",
    ),
    (
        "x-context-chain: WHERE",
        (
            "The request names an earlier response. Its history is at the `provider`, there and `unknown` here, or "
            "`taken over` (see the guide on agents)."
        ),
    ),
    (
        "x-context-fallback: REASON",
        "The request went out without its plan, mostly as received, and why. The page on errors lists the reasons.",
    ),
    (
        "x-context-warning: TEXT",
        (
            "The value of an `x-context-*` header that is not understood, with what is allowed. Or why the schedule "
            "`provider` is not possible for this request."
        ),
    ),
    (
        "x-context-unmanaged: PATH",
        ("The path carries conversations in a format that passes unmanaged, such as `/v1/completions`."),
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

FALLBACKS = tuple((reason.value, text) for reason, text in REASON_TEXTS.items())
"""Reasons of `x-context-fallback`. `context_proxy_fallbacks_total` counts all but `rule ID`."""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One bounded thing. A setting in backticks in `bound` is shown with its default."""

    subject: str
    bound: str
    consequence: str


def _format_kib(size: int) -> str:
    return f"{size >> 10} KiB"


LIMITS = (
    LimitRow("chat request body", "`limits.body_mb`", "413"),
    LimitRow(
        "bodies of chat, bodies and long answers of the admin API held at once, together",
        "`limits.bodies_mb`",
        "503 with Retry-After",
    ),
    LimitRow("those of one tenant, where there are keys of several", "half of that", "503 with Retry-After"),
    LimitRow(
        "a chat body that has not come whole",
        f"{SLOW_S:.0f} s",
        "gives way with 503 where others need its room; the oldest first",
    ),
    LimitRow(
        "a managed chat body: bytes, messages, content parts, tool calls, JSON values",
        "`limits.managed_mb`, `limits.messages`, `limits.parts`, `limits.calls`, `limits.values`",
        "goes on as received: `x-context-fallback: size`, counted",
    ),
    LimitRow("keys on the outermost level of such a body", f"{MAX_TOP_LEVEL_KEYS:,}", "the same"),
    LimitRow(
        "JSON in the arguments of a call, or in a result",
        f"{MAX_CHARS >> 10} KiB, {MAX_VALUES:,} values",
        "read as plain text",
    ),
    LimitRow("header block", "`limits.header_kb`", "431"),
    LimitRow("requests at once", "`limits.requests`", "503 with Retry-After"),
    LimitRow(
        "connections of clients with a request",
        "`limits.connections`",
        f"503; `/healthz` and `/readyz` have {PROBE_PLACES} more; beyond twice as many, the oldest half-open and idle "
        "ones are closed, then new ones",
    ),
    LimitRow(
        "connections of one address, once seven eighths of all are taken",
        "`limits.address_share` of `limits.connections`",
        "503",
    ),
    LimitRow("the rest of a body whose request is answered already", f"{LINGER_S:.0f} s", "closed"),
    LimitRow(
        "half-open and idle connections of one address (of an IPv6 network, /64)",
        "`limits.half_open`",
        "the oldest are closed",
    ),
    LimitRow(
        "a client that sends no head, or a body too slowly",
        f"`timeouts.header_s`, `timeouts.body_s`; a whole body: {BODY_TIME_FACTOR} times that,"
        f" and 1 s for each {_format_kib(MIN_AVERAGE_RATE)}",
        "408, closed",
    ),
    LimitRow("requests that wait on one connection (pipelining)", str(MAX_PIPELINED_REQUESTS), "closed after them"),
    LimitRow(
        "bodies of requests that wait, on all connections together",
        f"{MAX_PIPELINED_BYTES >> 20} MiB",
        "closed after those before",
    ),
    LimitRow(
        "messages over WebSocket that have not come whole or were not taken yet, on all connections together",
        "`limits.bodies_mb`; half of it for one address",
        "closed with 1013",
    ),
    LimitRow("JSON values of a `response.create` frame", "`limits.values`", "an error frame"),
    LimitRow(
        "lanes of a WebSocket on `/v1/responses`, and frames that wait in each",
        f"{MAX_LANES}, {MAX_WAITING_FRAMES}",
        "closed with 1008",
    ),
    LimitRow(
        "a response over WebSocket: one that comes in one body; its items for a later frame",
        f"{MAX_BODY_BYTES >> 20} MiB; {MAX_ITEM_BYTES >> 20} MiB",
        "an error frame; items are forgotten, and the client sends its history again",
    ),
    LimitRow("JSON values of a body of the admin API", f"`limits.values`; {transfer.MAX_VALUES:,} in an import", "413"),
    LimitRow(
        "JSON values of an answer in one body", f"{ANSWER_VALUES} times `limits.values`", "passed on, not understood"
    ),
    LimitRow(
        "JSON values, and lines, of an event of a stream",
        f"{sse.MAX_VALUES:,}, {sse.MAX_LINES:,}",
        "passed on, not understood",
    ),
    LimitRow(
        "choices of an answer in chat completions, and calls of one; JSON values of one that came in one body",
        f"{completions_answer.MAX_CHOICES}, {completions_answer.MAX_CALLS:,}; {MAX_VALUES:,}",
        "passed on, not understood beyond",
    ),
    LimitRow("items of an answer of Responses", f"{responses_answer.MAX_ITEMS:,}", "passed on, not understood beyond"),
    LimitRow(
        "header lines of an answer, and informational heads before it",
        f"{http1.MAX_HEADER_LINES:,}, {http1.MAX_INFORMATIONAL}",
        "refused, 502",
    ),
    LimitRow("bytes of a stream that are read in one turn", f"{TURN_BYTES >> 10} KiB", "other requests get their turn"),
    LimitRow("captured copy of an answer", "`limits.capture_mb`", "passed on, not understood beyond"),
    LimitRow("codings of an answer that is compressed unasked", f"{MAX_CODINGS}", "passed on, noted, counted"),
    LimitRow(
        "what such an answer stands for",
        f"{FREE_BYTES >> 20} MiB, and {MAX_RATIO} times the bytes that came; {MAX_MEMBERS:,} members or frames",
        "ends there, as one that broke off",
    ),
    LimitRow(
        "messages remembered in memory",
        "`limits.message_cache_mb`, and one conversation of up to 1.25 times that",
        "least recently used out",
    ),
    LimitRow(
        "stored messages that a list reads at once", f"{MAX_PAGE_BYTES >> 20} MiB, and the one over it", "next page"
    ),
    LimitRow("texts of the matches of a search", f"{MAX_PAGE_BYTES >> 20} MiB, and the one over it", "without text"),
    LimitRow(
        "text of a message in which a search finds words",
        f"{MAX_INDEXED_BYTES >> 10} KiB; with PostgreSQL {MAX_INDEXED_WORDS:,} words of them",
        "not found by them",
    ),
    LimitRow("messages that are indexed for a search at once", f"{MAX_PAGE_BYTES >> 20} MiB", "the next step"),
    LimitRow(
        "queries of `query_db` at once; stored messages that each reads",
        f"{sandbox.MAX_CHILDREN}; {stored_history.MAX_COPIED_BYTES >> 20} MiB, and"
        f" {stored_history.MAX_ROUND_BYTES >> 20} MiB of calls of the proxy's tools",
        "wait, the tenants in turn; the newest messages",
    ),
    LimitRow(
        "calls of `recall` and `search`, and views of messages, prompts and whole histories, at once; what a recall"
        " searches for later edits",
        f"{tool_context.MAX_MESSAGE_READS}; {stored_history.MAX_SEARCHED_BYTES >> 20} MiB of messages",
        "wait, the tenants in turn; not counted",
    ),
    LimitRow("live branches in memory", "`limits.live_branches`, `limits.live_mb`", "read back from the store"),
    LimitRow("rows waiting to be written", "`limits.spool_mb`", "refused, counted, recorded as a gap"),
    LimitRow(
        "gaps that SQLite's disk could not take before the proxy stopped",
        f"{_format_kib(FILE_SIZE)} beside the database (`.gaps`)",
        "the rest is added up; the next start records them",
    ),
    LimitRow(
        "rows of one request that are written at once",
        f"{PIECE_ROWS}, {_format_kib(PIECE_BYTES)}",
        "the rest follows, what others store between them",
    ),
    LimitRow(
        "rows that nobody waits for, held back to share the next commit", f"{HOLD_S * 1000:.0f} ms, 64 KiB", "written"
    ),
    LimitRow(
        "transactions in SQLite's journal, not in their tables yet",
        f"{MAX_ITEMS}, {MAX_SLOTS} pages, {MAX_AGE_S:.0f} s",
        "written to the tables",
    ),
    LimitRow(
        "sessions known to have a scratchpad, memos or hidden rounds (SQLite)",
        f"{MAX_SESSIONS:,} each",
        "the store is asked for all",
    ),
    LimitRow(
        "requests that are prepared at once: read, found in the store, planned",
        f"{PREPARED_AT_ONCE}, and as many of {LARGE_BODY_BYTES >> 10} KiB and more; "
        f"given on after {PLACE_S:.0f} s while others wait",
        "wait for their turn",
    ),
    LimitRow(
        f"planning new text of over {MAX_UNCHECKED_BYTES >> 10} KiB on the event loop",
        f"{MAX_LOOP_S * 1000:.0f} ms, and the step that it is in",
        "begun again in a worker thread",
    ),
    LimitRow(
        "planning one request",
        "`limits.plan_ms`",
        "the work stops; the edits of earlier requests are repeated, or the original goes out",
    ),
    LimitRow("questions to the helper", f"`helper.queue`, {MAX_PROMPT_CHARS >> 20} MiB", "done without, counted"),
    LimitRow("a helper's answers in memory", f"{MAX_HELPER_ANSWERS:,} a session", "read back from the store"),
    LimitRow("dollars for helpers", "`helper.dollars_a_day`", "done without, counted"),
    LimitRow(
        "events in memory", "`events.kept`, some 16 KB each at most", "a listener that reconnects gets a gap event"
    ),
    LimitRow(
        "events that wait for a listener or a webhook", "`events.queue`", "the oldest are lost, counted and reported"
    ),
    LimitRow("listeners", "`events.listeners`", "429, or the newest one of a key that has more ends"),
    LimitRow("tries of a webhook", "`webhooks[].tries`", "given up, counted"),
)


def add_defaults(bound: str) -> str:
    """Return the bound with each setting's default after its name. Raises KeyError if a setting does not exist."""

    def add_default(match: re.Match[str]) -> str:
        return f"{match[0]} ({_format_default(match[1])})"

    return re.sub(r"`([a-z_]+(?:\[\])?\.[a-z_]+)`", add_default, bound)


def list_limits() -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table of limits."""
    for limit in LIMITS:
        yield limit.subject, add_defaults(limit.bound), limit.consequence


def _format_default(setting: str) -> str:
    section, _, name = setting.partition(".")
    kind: type[BaseModel] = WebhookSettings
    if section != "webhooks[]":
        kind = type(Settings.model_fields[section].get_default(call_default_factory=True))
    value = kind.model_fields[name].default
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
