"""The sections of the settings: a class for each table of the config file, with the checks of its values.

This module reads neither files nor the environment; settings.py does. The docstring under a setting is its row in
docs/reference/settings.md and its comment in config/default.toml.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

DEMO = "demo"
"""The base URL of the scripted model in the package."""
_ENDPOINT = re.compile(r"/(chat/completions|v1/(completions|responses|messages|embeddings))/*$")
"""The end of a URL to which requests go. The client's request names it, so a base URL has no such end."""
ALL_TENANTS = "*"
"""The tenant of a key that sees every tenant's sessions."""


def validate_pattern(value: str) -> str:
    """Return a regular expression that compiles. Raises ValueError if it does not."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return value


def validate_base_url(value: str) -> str:
    """Return an upstream's base URL without a slash at the end, `demo`, or an empty text. Raises ValueError
    otherwise."""
    if value in ("", DEMO):
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError(f"an http:// or https:// URL without credentials, query or fragment, or {DEMO!r}")
    if endpoint := _ENDPOINT.search(value):
        base = value.removesuffix(endpoint[0]) + ("/v1" if endpoint[2] else "")
        raise ValueError(f"the base URL alone, to which the path of each request is added: {base}")
    return value.rstrip("/")


def validate_policy_name(value: str) -> str:
    """Return a policy's name, which is a file's name too, or an empty text. Raises ValueError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,64}", value):
        raise ValueError("a name of letters, digits, - and _ (the file's name without .toml)")
    return value


def split_list(value: object) -> object:
    """Return a list from the text of an environment variable, which separates its items by commas. `policy` stays a
    word."""
    if not isinstance(value, str) or value == "policy":
        return value
    return tuple(name.strip(' "') for name in value.strip("[] ").split(",") if name.strip(' "'))


def read_enabled_tools(value: object) -> object:
    """Return the value of `tools.enabled`. Raises ValueError for anything but `policy` and a list of tools."""
    names, known = split_list(value), get_args(ToolName)
    if names != "policy" and not (isinstance(names, list | tuple) and all(name in known for name in names)):
        raise ValueError("'policy', or a list of " + ", ".join(known))
    return names


def validate_key_digest(value: str) -> str:
    """Return a SHA-256 in hexadecimal, in lower case. Raises ValueError otherwise. The error does not show the value:
    it may be the key itself."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise ValueError("the 64 hexadecimal digits of the key's SHA-256 (`context-proxy key` makes both)")
    return value.lower()


def validate_label(value: str) -> str:
    """Return a name that can stand in a log line, a path and a header. Raises ValueError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9._:@-]{1,128}", value):
        raise ValueError("1 to 128 letters, digits and . _ : @ -")
    return value


def validate_tenant(value: str) -> str:
    """Return a tenant's name, or * for all tenants. Raises ValueError otherwise."""
    return value if value == ALL_TENANTS else validate_label(value)


def validate_origin(value: str) -> str:
    """Return an origin as browsers write it: scheme, host, and port unless it is the scheme's own. Raises ValueError
    otherwise."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or value != f"{parts.scheme}://{parts.netloc}":
        raise ValueError("an origin such as https://example.com, without a path or a slash at the end")
    return value.lower()


def validate_path_rule(value: str) -> str:
    """Return a method and a path that may be requested, or * for all of them. Raises ValueError otherwise."""
    if not re.fullmatch(r"\*|[A-Z*]+ /\S*", value):
        raise ValueError(
            "a method and a path such as POST /v1/embeddings, with * for a segment and ** for several, or * alone"
        )
    return value


def validate_webhook_url(value: str) -> str:
    """Return a URL to which events are sent. Raises ValueError otherwise. The error does not show the value: some
    services put a secret into the path."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("an http:// or https:// URL without credentials or fragment")
    if not value.isascii() or any(c.isspace() for c in value):
        raise ValueError("a URL of ASCII characters, others percent-encoded")
    return value


Pattern = Annotated[str, AfterValidator(validate_pattern)]
BaseUrl = Annotated[str, AfterValidator(validate_base_url)]
PolicyName = Annotated[str, AfterValidator(validate_policy_name)]
ToolName = Literal["recall", "query_db", "describe_db", "manage_scratchpad", "save_memo", "retrieve_memos"]
EnabledTools = Annotated[Literal["policy"] | tuple[ToolName, ...], BeforeValidator(read_enabled_tools)]
Count = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[int, Field(ge=0, le=600_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class SettingsSection(BaseModel):
    """Base of all sections: it is frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class LimitSettings(SettingsSection):
    """`[limits]`: upper bounds of sizes, numbers and times."""

    body_mb: Count = 64
    """Largest request body in MiB. A larger one gets 413."""
    bodies_mb: Count = 256
    """Memory for all chat bodies held at once, in MiB. Over it: 503 with Retry-After. With keys of several tenants, one
    tenant has half of it. A body that has not come whole within 5 s gives way to others."""
    managed_mb: Count = 16
    """Largest chat body that is managed, in MiB. A body over this limit or over one of the next four goes on as
    received."""
    messages: Count = 10_000
    """Largest number of messages in one request."""
    parts: Count = 10_000
    """Largest number of content parts in one request's messages."""
    calls: Count = 10_000
    """Largest number of tool calls in one request's messages."""
    values: Count = 200_000
    """Largest number of JSON values in one request: members of objects and items of lists."""
    header_kb: Count = 64
    """Largest header block in KiB. A larger one gets 431."""
    plan_ms: Milliseconds = 1000
    """Time limit for planning a prompt, in milliseconds. Over it the work stops, since other requests wait for its
    thread. The edits of earlier requests are repeated then. Without any, the original goes out."""
    commit_wait_ms: Milliseconds = 250
    """Longest wait of an answer's end for the store, in milliseconds."""
    spool_mb: Count = 64
    """Memory for rows that wait to be stored, in MiB."""
    message_cache_mb: Count = 32
    """Memory for messages already read, in MiB. The newest conversation that is
    larger, up to 1.25 times as large, is kept in addition."""
    live_branches: Count = 1000
    """Number of branches whose state is kept in memory. The state of another branch is read back from the store."""
    live_mb: Count = 40
    """Memory for the state of branches, in MiB. The branch unused for longest leaves first."""
    capture_mb: Count = 8
    """Part of an answer that is remembered, in MiB. The whole answer is passed on."""
    requests: Count = 1000
    """Requests to upstreams at once. An excess request gets 503 with Retry-After immediately. So does one of a tenant
    that has half of them, once seven eighths are taken."""
    connections: Count = 4096
    """Connections of clients with a request at once. Requests on an excess connection get 503. Over twice as
    many, with half-open and idle ones, the oldest of those are closed, then new ones."""
    address_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Part of `limits.connections` that one address may have once seven eighths of them are taken. Over it: 503. Use 1
    if a reverse proxy in front is the one address. An IPv6 network (/64) counts as one address."""
    half_open: Count = 1024
    """Connections of one address that have not brought the head of a first or next request. Over it, the oldest are
    closed."""


class TimeoutSettings(SettingsSection):
    """`[timeouts]`: time limits, in seconds."""

    connect_s: Seconds = 5.0
    """Time limit for a connection to the upstream."""
    idle_s: Seconds = 300.0
    """Time limit for the next byte of the upstream."""
    total_s: Seconds = 3600.0
    """Time limit for a whole answer, in seconds."""
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Time limit for open answers to end when the proxy is stopped."""
    header_s: Seconds = 10.0
    """Time limit for a client to send the head of a request."""
    keep_alive_s: Seconds = 75.0
    """Time for which a client's connection stays open after an answer. It is longer than load balancers usually keep
    one (60 s): what they send on a connection that closes at that moment fails."""
    body_s: Seconds = 30.0
    """Time in which a client has to send more of a body: fewer than 500 bytes a second over this time get 408. The
    whole body may take four times as long, and one more second for each 32 KiB."""


class DrainSettings(SettingsSection):
    """`[drain]`: the stop of the proxy while a load balancer still sends requests to it."""

    notice_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Seconds after SIGTERM in which `/readyz` reports draining while requests are still served. Then the port is
    closed."""


class PoolSettings(SettingsSection):
    """`[pool]`: connections to each upstream."""

    connections: Count = 1000
    """Largest number of connections at once. The default is that of `limits.requests`, since each answer under way
    holds one."""
    keepalive: Annotated[int, Field(ge=0)] = 200
    """Connections kept open while idle, for 4 s: as many as a wave of requests may leave behind."""


class IdentitySettings(SettingsSection):
    """`[identity]`: names of a session in a client's request (the path and x-context-session always work)."""

    headers: tuple[str, ...] = (
        "thread-id", "x-session-id", "x-session-affinity", "x-opencode-session", "x-opencode-session-id",
        "x-conversation-id", "x-openwebui-chat-id", "x-task-id", "x-roo-task-id", "x-kilocode-taskid",
        "goose-session-id", "x-litellm-session-id", "x-litellm-trace-id", "helicone-session-id",
        "x-sm-conversation-id", "x-grok-conv-id", "x-affinity",
    )  # fmt: skip
    """Headers that agents and tools already send. The first match wins."""
    generic_header: Pattern = "^x-(?!parent-).+-session-id$"
    """Pattern for the names of other headers, tried after those; empty: none."""
    body_fields: tuple[str, ...] = (
        "session_id", "litellm_session_id", "metadata.conversation_id", "metadata.thread_id", "metadata.session_id",
        "metadata.chat_id", "metadata.langfuse_session_id",
    )  # fmt: skip
    """Body fields that name a session. They are tried last."""
    salt: SecretStr = SecretStr("")
    """Salt of the HMAC that makes a tenant of an Authorization value. It must be the same on every replica."""


class StateSettings(SettingsSection):
    """`[state]`: the block that the model writes for itself."""

    ask: Literal["policy", "always", "when_needed", "never"] = "policy"
    """Rule for asking the model for the block. `policy`: as the policy says. `always`: every prompt also shows the
    newest block. A model whose cache ends at breakpoints, for example Claude, is asked by literal policies only."""
    withhold: bool = True
    """Remove the block from the answer that the client gets. Only a block at the end of an answer that was asked for
    one counts."""
    max_chars: Annotated[int, Field(ge=100)] = 4000
    """Largest number of characters of the block. A longer one is cut at a line."""
    guidelines: str = ""
    """Rules for reading a rewritten history; empty: the proxy's own."""


class GroupSettings(SettingsSection):
    """`[groups]`: rules by which messages belong together."""

    observation: tuple[Pattern, ...] = ()
    """Regular expressions for user messages that are really the output of a tool. Outputs of known frameworks need
    none."""


class StoreSettings(SettingsSection):
    """`[store]`: durability and retention of the store."""

    durability: Literal["full", "normal"] = "full"
    """SQLite's synchronous setting. `full` survives power loss, `normal` a crash of the process."""
    persist: Literal["best_effort", "required"] = "best_effort"
    """Behaviour while the store is away. `best_effort`: requests are answered. `required`: they get a 503."""
    read_s: Seconds = 2.0
    """Time limit of one read, in seconds. A slower one is interrupted, and counts as a store that is away."""
    retention_days: Annotated[float, Field(ge=0, le=36_500)] = 0
    """Days after which an unused session is removed, and an unused branch on which no other depends. 0: nothing is ever
    removed. PostgreSQL removes sessions with whole partitions, up to a day later. That is up to 7 days later with more
    than 31 days, and 30 with more than 240."""


class TokenSettings(SettingsSection):
    """`[tokens]`: method of counting tokens."""

    count: Literal["exact", "estimate"] = "exact"
    """Method. `exact`: with the model's vocabulary if there is one. `estimate`: from the text's length."""


class HelperSettings(SettingsSection):
    """`[helper]`: a second model that writes summaries and reflections. If `upstream` is empty, none is asked."""

    upstream: str = ""
    """The name of the helper's upstream; empty: no helper. An upstream that only the helper uses has `models = []`."""
    model: str = ""
    """The model's name at that upstream. Its prices are those of config/models.toml."""
    max_tokens: Annotated[int, Field(ge=16)] = 1024
    """Largest number of tokens of an answer. An answer that is cut there is not used."""
    concurrency: Count = 2
    """Number of questions asked at once."""
    queue: Count = 64
    """Number of questions that may wait, 16 MiB of them at most. Further ones are dropped and counted."""
    timeout_s: Seconds = 60.0
    """Time limit for a whole answer, in seconds."""
    dollars_a_day: Annotated[float, Field(ge=0)] = 1.0
    """Largest amount in dollars per day (UTC), embeddings included; 0: nothing is asked. Models without prices cost
    nothing."""
    tenant_dollars_a_day: Annotated[float, Field(ge=0)] = 0.0
    """Largest part of `dollars_a_day` for one tenant, in dollars per day (UTC); 0: a tenant may use up all of it. A
    gateway of many tenants should set it, since they share the budget."""
    wait_ms: Milliseconds = 0
    """Longest wait of a request, in milliseconds, for an answer that its policy needs at once. 0: the next request has
    the answer."""


class CommandSettings(SettingsSection):
    """`[commands]`: commands that a user may type into the conversation itself, for example `/context show` or
    `/undo`."""

    in_band: bool = False
    """Answer commands in the conversation. Command and reply then never go to the upstream."""


class EmbeddingSettings(SettingsSection):
    """`[embeddings]`: vectors of texts, by which the hierarchical policy judges relevance to the task."""

    enabled: bool = False
    """Make embeddings. Without them relevance is judged by words."""
    upstream: str = ""
    """The name of the upstream whose /v1/embeddings is asked."""
    model: str = ""
    """The model's name at that upstream."""
    batch: Annotated[int, Field(ge=1, le=2048)] = 64
    """Largest number of texts in one call."""


class ToolSettings(SettingsSection):
    """`[tools]`: the proxy's own tools for the model, which the client does not see."""

    enabled: EnabledTools = "policy"
    """The tools that are offered: `policy`, or a list of recall, query_db, describe_db, manage_scratchpad, save_memo,
    retrieve_memos."""
    offer: Literal["policy", "first_request", "first_edit", "when_needed", "never"] = "policy"
    """The request from which tools are offered: a branch's first request, its first edit, or never. `when_needed`: the
    first request if earlier branches with the same tools came to edits and the model has a cache, else the first edit.
    `policy`: as the policy says."""
    rounds: Annotated[int, Field(ge=1, le=64)] = 8
    """Largest number of successive answers with calls of the proxy's tools. After them the model has to answer without
    these tools."""
    seconds: Seconds = 60.0
    """Time limit for successive answers with calls of the proxy's tools, in seconds."""
    hold_text: bool = False
    """Hold streamed text until no call of the proxy's tools can follow it. The text is left out if the client's own
    calls follow. Some clients take the first text for the whole answer (pydantic-ai's `run_stream`)."""
    result_chars: Annotated[int, Field(ge=500, le=64_000)] = 8000
    """Largest number of characters of a result. A longer result says how to get the rest."""
    scratchpad_chars: Annotated[int, Field(ge=200, le=64_000)] = 8000
    """Largest number of characters of a session's scratchpad."""


class MemoSettings(SettingsSection):
    """`[memos]`: the model's notes for later sessions."""

    scope: Literal["session", "tenant"] = "session"
    """Sessions that may use memos. `session`: those that the client names. `tenant`: all of the tenant's, guessed ones
    too."""
    most: Annotated[int, Field(ge=0, le=50)] = 5
    """Largest number of memos in a prompt; 0: none."""
    max_chars: Annotated[int, Field(ge=200, le=64_000)] = 2000
    """Largest number of characters that memos take in a prompt together."""
    keep: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Number of memos kept for a tenant's project. Beyond it none is saved until one is deleted."""
    project_header: str = "x-context-project"
    """The header that names a project. The memos of a project are kept apart from those of others. Empty: no header
    does."""


class EventSettings(SettingsSection):
    """`[events]`: events for `GET /api/events` and webhooks. Events are kept in memory alone."""

    kept: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Number of events kept for listeners that come back (`Last-Event-ID`)."""
    queue: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Number of events that may wait for one listener. A slower listener loses the oldest, and gets a notice of it."""
    listeners: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Listeners over the API at once. Further ones get 429, or end the newest one of a key that has more."""


Plane = Literal["data", "admin", "read", "metrics"]


class ApiKeySettings(SettingsSection):
    """`[[keys]]`: keys of clients, and their rights. `context-proxy key` makes a key and prints its entry."""

    name: Annotated[str, AfterValidator(validate_label)]
    """The key's name in logs. It is never the key itself."""
    sha256: Annotated[str, Field(repr=False), AfterValidator(validate_key_digest)]
    """SHA-256 of the key, in hexadecimal. The key itself is stored nowhere."""
    tenant: Annotated[str, AfterValidator(validate_tenant)]
    """The tenant whose sessions it opens. `*`, for the planes other than data: every tenant's."""
    plane: Plane
    """The rights of the key. `data`: chat and passthrough. `admin`: the whole of /api, and /metrics. `read`: the GETs
    of /api, for a dashboard that many see. `metrics`: /metrics alone."""

    @model_validator(mode="after")
    def _one_tenant_for_chat(self) -> ApiKeySettings:
        if self.plane == "data" and self.tenant == ALL_TENANTS:
            raise ValueError("a tenant's name: what is said with a data key belongs to one tenant")
        return self


class CompressSettings(SettingsSection):
    """`[compress]`: `POST /v1/compress` and `GET /v1/retrieve/{hash}`, for gateways that call a compressor."""

    enabled: bool = True
    """Answer these two paths. `false`: they go to the upstream, as any other path."""
    policy: PolicyName = ""
    """Policy for the rows of gateways; empty: the usual one. `thrifty` takes the place of a literal policy."""


class ResponsesSettings(SettingsSection):
    """`[responses]`: OpenAI's Responses, whose requests may name an earlier response in place of the history."""

    takeover: bool = False
    """Complete a request that names a response from the store, and manage it as any other. The provider then stores
    nothing: the chain goes on only through this proxy's store. `false`: such requests are stored and not changed."""


class CacheSettings(SettingsSection):
    """`[cache]`: what the proxy asks of a provider's prompt cache."""

    breakpoints: bool = True
    """Set cache breakpoints of our own beside the client's, at most four together, where a model caches at breakpoints
    only. `false`: a prompt has the client's breakpoints alone."""
    keep_alive_pings: Annotated[int, Field(ge=0, le=12)] = 0
    """Largest number of pings after each answer that keep Anthropic's five-minute cache warm while nobody asks, for
    example 2; 0: none. A ping repeats the last prompt 20 s before its cache expires, with `max_tokens` 0. It costs what
    reading the prompt from the cache costs."""


class ExperimentSettings(SettingsSection):
    """`[experiment]`: a measurement of the savings, against sessions that are left as they are."""

    control: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the sessions that runs as `passthrough`, for example 0.1; 0: no experiment. An HMAC of the session's
    name with `identity.salt` chooses them. `context-proxy report` compares both arms."""


class PassthroughSettings(SettingsSection):
    """`[passthrough]`: requests that go to an upstream unmanaged."""

    paths: Annotated[tuple[Annotated[str, AfterValidator(validate_path_rule)], ...], BeforeValidator(split_list)] = (
        "GET /v1/models", "GET /v1/models/*", "GET /v1/models/*/*", "GET /v1beta/models", "GET /v1beta/models/*",
        "POST /v1/responses", "POST /v1/completions", "POST /v1/messages", "POST /v1/messages/count_tokens",
        "POST /v1/embeddings", "POST /v1/moderations", "POST /v1/rerank", "POST /v1/images/generations",
        "POST /v1/images/edits", "POST /v1/audio/speech", "POST /v1/audio/transcriptions",
        "POST /v1/audio/translations", "POST /model/**/converse", "POST /model/**/converse-stream",
        "POST /model/**/count-tokens",
    )  # fmt: skip
    """Requests that a client may make of an upstream with a credential of the operator's, as method and path.
    `*` stands for characters of one segment, `**` for any number of segments, `["*"]` for everything. All others get
    403, and so does a segment that holds more than letters, digits and `-._~:@`. A name with a slash, for example
    `openai/gpt-5`, has two segments. Chat is not in this list: it always passes."""


class TelemetrySettings(SettingsSection):
    """`[telemetry]`: OpenTelemetry spans, with the extra `otel`. Spans hold no text of a conversation."""

    enabled: bool = False
    """Send a span for each request and for each round to an upstream. `false`: nothing is imported and nothing done."""
    endpoint: BaseUrl = "http://127.0.0.1:4318"
    """Base URL of an OTLP/HTTP receiver. Its path is `/v1/traces`. OTEL_EXPORTER_OTLP_HEADERS gives it headers."""
    service_name: Annotated[str, AfterValidator(validate_label)] = "context-proxy"
    """The name of this service in traces."""


class DashboardSettings(SettingsSection):
    """`[dashboard]`: pages in a browser that may call the proxy."""

    hosts: tuple[Annotated[str, AfterValidator(str.lower)], ...] = ()
    """Host names of a proxy without keys, in addition to localhost and IP addresses. For chat a name without a dot also
    works."""
    origins: tuple[Annotated[str, AfterValidator(validate_origin)], ...] = ()
    """Other origins (https://example.com) whose pages may call /api, each with its own key. Without keys, they may
    also call chat and the passthrough."""
