"""The parts of the settings: a class for each table of the config file, and what their values may be.

Nothing is read here, neither files nor the environment: that is settings.py. A setting's docstring stands under it
and is its row in docs/reference/settings.md and its comment in config/default.toml.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

DEMO = "demo"
"""The base URL that stands for the scripted model in the package."""
ALL_TENANTS = "*"
"""The tenant of a key that sees every tenant's sessions."""


def checked_pattern(value: str) -> str:
    """A regular expression that compiles."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return value


def checked_url(value: str) -> str:
    """An upstream's base URL, without a slash at the end; `demo`; or nothing."""
    if value in ("", DEMO):
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError(f"an http:// or https:// URL without credentials, query or fragment, or {DEMO!r}")
    return value.rstrip("/")


def checked_name(value: str) -> str:
    """A policy's name, which is a file's name too, or nothing."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,64}", value):
        raise ValueError("a name of letters, digits, - and _ (the file's name without .toml)")
    return value


def listed(value: object) -> object:
    """A list that is written in an environment variable, with commas between; one word alone stays a word."""
    if not isinstance(value, str) or value == "policy":
        return value
    return tuple(name.strip(' "') for name in value.strip("[] ").split(",") if name.strip(' "'))


def checked_digest(value: str) -> str:
    """A SHA-256 in hexadecimal. The value itself is not told: somebody may have written the key in its place."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise ValueError("the 64 hexadecimal digits of the key's SHA-256 (`context-proxy key` makes both)")
    return value.lower()


def checked_label(value: str) -> str:
    """A name that can stand in a log line, a path and a header."""
    if not re.fullmatch(r"[A-Za-z0-9._:@-]{1,128}", value):
        raise ValueError("1 to 128 letters, digits and . _ : @ -")
    return value


def checked_tenant(value: str) -> str:
    """A tenant's name, or * for all of them."""
    return value if value == ALL_TENANTS else checked_label(value)


def checked_origin(value: str) -> str:
    """An origin as browsers write it: scheme, host, port unless it is the scheme's own."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or value != f"{parts.scheme}://{parts.netloc}":
        raise ValueError("an origin such as https://example.com, without a path or a slash at the end")
    return value.lower()


def checked_path(value: str) -> str:
    """A method and a path that may be asked for, or * for all of them."""
    if not re.fullmatch(r"\*|[A-Z*]+ /\S*", value):
        raise ValueError(
            "a method and a path such as POST /v1/embeddings, with * for a segment and ** for several, or * alone"
        )
    return value


def checked_hook(value: str) -> str:
    """A URL to which events are sent. The value itself is not told: some services put a secret into the path."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("an http:// or https:// URL without credentials or fragment")
    if not value.isascii() or any(c.isspace() for c in value):
        raise ValueError("a URL of ASCII characters, others percent-encoded")
    return value


Pattern = Annotated[str, AfterValidator(checked_pattern)]
Url = Annotated[str, AfterValidator(checked_url)]
PolicyName = Annotated[str, AfterValidator(checked_name)]
ToolName = Literal["recall", "query_db", "describe_db", "manage_scratchpad", "save_memo", "retrieve_memos"]
Enabled = Annotated[Literal["policy"] | tuple[ToolName, ...], BeforeValidator(listed)]
Count = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[int, Field(ge=0, le=600_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Section(BaseModel):
    """What all parts of the tree share: frozen, and nothing that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Limits(Section):
    """`[limits]`: what is bounded, and where."""

    body_mb: Count = 64
    """Largest request body in MiB; over it: 413."""
    bodies_mb: Count = 256
    """Chat bodies held at once, together, in MiB; over it: 503 with Retry-After. A tenant has half of it where there
    are keys of several; a body that has not come whole within 5 s gives way to others."""
    managed_mb: Count = 16
    """Largest chat body that is managed, in MiB. What is over this limit or one of the next four goes on as it came."""
    messages: Count = 10_000
    """Messages of one request."""
    parts: Count = 10_000
    """Content parts of one request's messages."""
    calls: Count = 10_000
    """Tool calls of one request's messages."""
    values: Count = 200_000
    """JSON values of one request: members of objects and items of lists."""
    header_kb: Count = 64
    """Largest header block in KiB; over it: 431."""
    plan_ms: Milliseconds = 1000
    """Time for rewriting a prompt; over it the original goes out. The work stops then, too, since other requests wait
    for its thread."""
    commit_wait_ms: Milliseconds = 250
    """Longest wait of an answer's end for the store."""
    spool_mb: Count = 64
    """Memory for rows that wait to be stored, in MiB."""
    message_cache_mb: Count = 32
    """Memory for messages already read, in MiB."""
    live_threads: Count = 1000
    """Threads whose state is kept in memory; another one is read back from the store."""
    live_mb: Count = 40
    """Memory for their state, in MiB; who was away for longest leaves first."""
    capture_mb: Count = 8
    """Part of an answer that is remembered, in MiB; all of it is passed on."""
    requests: Count = 1000
    """Requests to upstreams at once; over it: 503 with Retry-After, at once."""
    connections: Count = 4096
    """Connections of clients at once, half-open ones aside; over it: 503 for what they ask. Over twice as many, with
    half-open ones, the oldest half-open ones are closed, then new ones."""
    address_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Part of `limits.connections` that one address may have once seven eighths of them are taken; over it: 503. 1
    where a reverse proxy in front is the one address. Of IPv6 a network (/64) is one."""
    half_open: Count = 1024
    """Connections of one address that have not brought a request's head; over it: the oldest are closed."""


class Timeouts(Section):
    """`[timeouts]`: how long is waited, in seconds."""

    connect_s: Seconds = 5.0
    """For a connection to the upstream."""
    idle_s: Seconds = 300.0
    """For the next byte of the upstream."""
    total_s: Seconds = 3600.0
    """For a whole answer."""
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """For open answers to end when the proxy is told to stop."""
    header_s: Seconds = 10.0
    """For a client to bring the head of a request."""
    body_s: Seconds = 30.0
    """For a client to bring some more of a body: less than 500 bytes a second over so long: 408. All of it may take
    four times as long, and a second more for each 32 KiB."""


class Drain(Section):
    """`[drain]`: how the proxy stops while a load balancer still sends requests to it."""

    notice_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """At SIGTERM: how long `/readyz` says that it drains while requests are still served; then the port is closed."""


class Pool(Section):
    """`[pool]`: connections to each upstream."""

    connections: Count = 1000
    """At most at once; as many as `limits.requests`, since each answer under way holds one."""
    keepalive: Annotated[int, Field(ge=0)] = 200
    """Kept open while idle, for 4 s: as many as a wave of requests may leave behind."""


class Identity(Section):
    """`[identity]`: how a client may name its session (the path and x-context-session always do)."""

    headers: tuple[str, ...] = (
        "thread-id", "x-session-id", "x-session-affinity", "x-opencode-session", "x-opencode-session-id",
        "x-conversation-id", "x-openwebui-chat-id", "x-task-id", "x-roo-task-id", "x-kilocode-taskid",
        "goose-session-id", "x-litellm-session-id", "x-litellm-trace-id", "helicone-session-id",
        "x-sm-conversation-id", "x-grok-conv-id", "x-affinity",
    )  # fmt: skip
    """Headers that agents and tools already send, first match wins."""
    generic_header: Pattern = "^x-(?!parent-).+-session-id$"
    """Any other header whose name matches, tried after those; empty: none."""
    body_fields: tuple[str, ...] = (
        "session_id", "litellm_session_id", "metadata.conversation_id", "metadata.thread_id", "metadata.session_id",
        "metadata.chat_id", "metadata.langfuse_session_id",
    )  # fmt: skip
    """Body fields that name a session, tried last."""
    salt: SecretStr = SecretStr("")
    """Mixed into the HMAC that makes a tenant of an Authorization value. The same on every replica."""


class State(Section):
    """`[state]`: the block that the model writes for itself."""

    ask: Literal["policy", "always", "when_needed", "never"] = "policy"
    """When the model is asked for it; `policy`: as the policy says. `always`: and every prompt shows the newest."""
    withhold: bool = True
    """Take it out of what the client sees. Only a block at the end of an answer that was asked for one counts."""
    max_chars: Annotated[int, Field(ge=100)] = 4000
    """Longer ones are cut at a line."""
    guidelines: str = ""
    """Rules for reading a rewritten history; empty: the proxy's own."""


class Groups(Section):
    """`[groups]`: how messages belong together."""

    observation: tuple[Pattern, ...] = ()
    """Regular expressions for user messages that are really the output of a tool; what frameworks write is known."""


class Storage(Section):
    """`[store]`: how hard the store tries."""

    durability: Literal["full", "normal"] = "full"
    """SQLite's synchronous: `full` outlives power loss, `normal` a crash of the process."""
    persist: Literal["best_effort", "required"] = "best_effort"
    """`best_effort`: requests are answered while the store is away. `required`: they get a 503."""
    retention_days: Annotated[float, Field(ge=0, le=36_500)] = 0
    """Sessions that were not used for so many days are removed, and so are threads that no other stands on. 0: nothing
    is ever removed."""


class Tokens(Section):
    """`[tokens]`: how tokens are counted."""

    count: Literal["exact", "estimate"] = "exact"
    """`exact` with the model's vocabulary where there is one; `estimate` from the text's length."""


class Helper(Section):
    """`[helper]`: a second model that writes summaries and reflections. None is asked where `upstream` is empty."""

    upstream: str = ""
    """Its upstream's name; empty: no helper. One that is for it alone has `models = []`."""
    model: str = ""
    """The model's name there; its prices are those of config/models.toml."""
    max_tokens: Annotated[int, Field(ge=16)] = 1024
    """Longest answer; one that is cut there is not used."""
    concurrency: Count = 2
    """Questions asked at once."""
    queue: Count = 64
    """Questions that may wait, 16 MiB of them at most; further ones are dropped and counted."""
    timeout_s: Seconds = 60.0
    """For a whole answer."""
    dollars_a_day: Annotated[float, Field(ge=0)] = 1.0
    """Spent at most in a day (UTC), embeddings included; 0: nothing is asked. Models without prices cost nothing."""
    wait_ms: Milliseconds = 0
    """Longest wait of a request for an answer that its policy needs at once; 0: the next request has it."""


class Commands(Section):
    """`[commands]`: what a user may type into the conversation itself, as `/context show` or `/undo`."""

    in_band: bool = False
    """The proxy answers them; command and reply then never go upstream."""


class Embeddings(Section):
    """`[embeddings]`: vectors of texts, by which the hierarchical policy judges what matters to the task."""

    enabled: bool = False
    """They are made; without them relevance is judged by words."""
    upstream: str = ""
    """The name of the upstream whose /v1/embeddings is asked."""
    model: str = ""
    """The model's name there."""
    batch: Annotated[int, Field(ge=1, le=2048)] = 64
    """Texts in one call."""


class Tools(Section):
    """`[tools]`: what the proxy does for the model, unseen by the client."""

    enabled: Enabled = "policy"
    """Which are offered: `policy`, or a list of recall, query_db, describe_db, manage_scratchpad, save_memo,
    retrieve_memos."""
    offer: Literal["policy", "first_request", "first_edit", "when_needed", "never"] = "policy"
    """Since when: a thread's first request, its first edit, or never; `when_needed`: the first request where earlier
    threads with the same tools came to edits, else the first edit; `policy`: as the policy says."""
    rounds: Annotated[int, Field(ge=1, le=64)] = 8
    """Answers in a row that may go into tools of ours before the model has to answer without them."""
    seconds: Seconds = 60.0
    """Longest time of these together."""
    hold_text: bool = False
    """Streamed text waits until no call of the proxy's can follow it, and is left out where the client's own calls do.
    Some clients take the first text for the whole answer (pydantic-ai's `run_stream`)."""
    result_chars: Annotated[int, Field(ge=500, le=64_000)] = 8000
    """Longest result; what is longer says how to get the rest."""
    scratchpad_chars: Annotated[int, Field(ge=200, le=64_000)] = 8000
    """Longest scratchpad of a session."""


class Memos(Section):
    """`[memos]`: what the model notes for later sessions."""

    scope: Literal["session", "tenant"] = "session"
    """`session`: sessions that the client names may use them. `tenant`: all of the tenant's, guessed ones too."""
    most: Annotated[int, Field(ge=0, le=50)] = 5
    """Memos put into a prompt at most; 0: none."""
    max_chars: Annotated[int, Field(ge=200, le=64_000)] = 2000
    """Characters of a prompt that they may take together."""
    keep: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Memos kept for a tenant's project; then none is saved until one is deleted."""
    project_header: str = "x-context-project"
    """The header that names a project: its memos are kept apart from those of others. Empty: none does."""


class Events(Section):
    """`[events]`: what `GET /api/events` and webhooks are told. Events are kept in memory alone."""

    kept: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Events that stay here for listeners that come back (`Last-Event-ID`)."""
    queue: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Events that may wait for one listener; a slower one loses the oldest, and is told so."""
    listeners: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Listeners over the API at once; further ones get 429."""


Plane = Literal["data", "admin", "read", "metrics"]


class Key(Section):
    """`[[keys]]`: who may ask for what. `context-proxy key` makes one and prints its entry."""

    name: Annotated[str, AfterValidator(checked_label)]
    """The key's name in logs; never the key itself."""
    sha256: Annotated[str, Field(repr=False), AfterValidator(checked_digest)]
    """SHA-256 of the key, in hexadecimal. The key itself is stored nowhere."""
    tenant: Annotated[str, AfterValidator(checked_tenant)]
    """The tenant whose sessions it opens; `*`, for the planes other than data: every tenant's."""
    plane: Plane
    """`data`: chat and what is passed through. `admin`: the whole of /api, and /metrics. `read`: its GETs, for a
    dashboard that many see. `metrics`: /metrics alone."""

    @model_validator(mode="after")
    def _one_tenant_for_chat(self) -> Key:
        if self.plane == "data" and self.tenant == ALL_TENANTS:
            raise ValueError("a tenant's name: what is said with a data key belongs to one tenant")
        return self


class Passthrough(Section):
    """`[passthrough]`: what goes to an upstream without being managed."""

    paths: Annotated[tuple[Annotated[str, AfterValidator(checked_path)], ...], BeforeValidator(listed)] = (
        "GET /v1/models", "GET /v1/models/*", "GET /v1/models/*/*", "POST /v1/responses", "POST /v1/completions",
        "POST /v1/messages", "POST /v1/messages/count_tokens", "POST /v1/embeddings", "POST /v1/moderations",
        "POST /v1/rerank", "POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/audio/speech",
        "POST /v1/audio/transcriptions", "POST /v1/audio/translations",
    )  # fmt: skip
    """Requests that a client may make of an upstream with a key of the operator's (`api_key_env`), as method and path.
    `*` stands for characters of one segment, `**` for any number of segments, `["*"]` for everything. The rest gets
    403, and so does a segment that holds more than letters, digits and `-._~:@`. A name with a slash, such as
    `openai/gpt-5`, has two segments. Chat is not among them: it always passes."""


class Dashboard(Section):
    """`[dashboard]`: which pages in a browser may ask us."""

    hosts: tuple[Annotated[str, AfterValidator(str.lower)], ...] = ()
    """Names, beside localhost and IP addresses, by which a proxy that has no keys may be reached. For chat a name
    without a dot will do, too."""
    origins: tuple[Annotated[str, AfterValidator(checked_origin)], ...] = ()
    """Other origins (https://example.com) whose pages may call /api, each with a key of its own; where there are no
    keys, chat and what is passed through as well."""
