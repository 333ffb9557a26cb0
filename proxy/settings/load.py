"""All settings, each defined once: its default, its allowed values, and its effect. Only this module reads the
environment.

The config file overrides the defaults, the environment overrides the config file, and flags override the environment.
An unknown key is an error and is never ignored. A typo that silently leaves a default in force is the worst way to be
configured. The docstring under a setting is its row in docs/reference/settings.md and its comment in
config/default.toml. An error in a TOML file names the line (`toml_files.find_line`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from proxy.context.models import Model, read_models
from proxy.errors import ConfigError
from proxy.settings.model import (
    ALL_TENANTS,
    DEMO,
    ApiKeySettings,
    BaseUrl,
    CacheSettings,
    CommandSettings,
    CompressSettings,
    DashboardSettings,
    DrainSettings,
    EmbeddingSettings,
    EventSettings,
    ExperimentSettings,
    GroupSettings,
    HelperSettings,
    IdentitySettings,
    LimitSettings,
    MemoSettings,
    PassthroughSettings,
    PolicyName,
    PoolSettings,
    ResponsesSettings,
    Seconds,
    SettingsSection,
    StateSettings,
    StoreSettings,
    TelemetrySettings,
    TimeoutSettings,
    TokenSettings,
    ToolSettings,
    validate_base_url,
    validate_policy_name,
    validate_tenant,
    validate_webhook_url,
)
from proxy.settings.toml_files import KeyPath, TomlTree, find_line, format_key_path, read_toml

ENV_PREFIX = "CONTEXT_PROXY_"
"""Prefix of environment variables. The key's path follows in capitals, its parts joined by two underscores."""

RESERVED_VARIABLES = frozenset({ENV_PREFIX + "CONFIG", ENV_PREFIX + "URL", ENV_PREFIX + "KEY"})
"""Variables with this prefix that are no settings: the config file, and a running proxy's address and key."""

KEYS_FILE = "keys.toml"
"""The file in `keys_dir` with the entries of the keys."""

PROXY_FROM_ENVIRONMENT = "environment"
"""Value in place of an outbound proxy's URL: the proxy that the environment names."""

SECRET_KEYS = frozenset({"salt", "proxy", "db", "sha256", "url"})
"""Settings that no error shows: two may be URLs with a password, one may be the key itself by mistake."""


def _check_database(value: str) -> str:
    if "://" in value and urlsplit(value).scheme not in ("postgresql", "postgres"):
        raise ValueError("a path, :memory: or a postgresql:// URL")
    return value


class UpstreamSettings(SettingsSection):
    """`[upstreams.NAME]`: an upstream. A request goes to the first one whose `models` match."""

    base_url: Annotated[str, Field(min_length=1), AfterValidator(validate_base_url)]
    """The base URL, with or without /v1; `demo` for the scripted model in the package."""
    strategy: Literal["openai", "gemini", "gemini_gca", "anthropic"] = "openai"
    """The kind of provider that answers there. Stored messages are tagged with it, and spans name it. The wire format
    is that of the client, whatever is set here."""
    api_key_env: str = ""
    """The environment variable that holds its key; empty: the client's own key goes on."""
    key_header: Literal["", "authorization", "x-api-key", "api-key", "x-goog-api-key"] = ""
    """The header of that key. Empty: `x-api-key` for Anthropic, `api-key` for Azure, `x-goog-api-key` for Gemini's own
    paths; for all others, and for OAuth tokens, `Authorization: Bearer`. Anthropic is recognised by its address or by
    `strategy`."""
    auth: Literal["", "aws"] = ""
    """`aws`: requests are signed for Bedrock with the credentials that AWS's own tools find, by the extra `aws`. The
    client's credential does not go on."""
    models: tuple[str, ...] = ("*",)
    """Patterns (`gpt-*`) of the model names that go here."""
    transport: Literal["aiohttp", "httpx2"] = "aiohttp"
    """The HTTP client. `aiohttp`: HTTP/1.1, at the least cost. `httpx2`: also HTTP/2 and SOCKS, with the extra of that
    name."""
    proxy: Annotated[str, Field(repr=False)] = ""
    """The URL of an outbound proxy; `environment` for the one of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""
    ca_bundle: str = ""
    """A PEM file of the authorities to trust instead of the usual ones."""
    client_cert: str = ""
    """A PEM file with the certificate for the upstream, and with its key if `client_key` names no other file."""
    client_key: str = ""
    """A PEM file with the key of `client_cert`."""
    policy: PolicyName = ""
    """The policy for requests that go here; empty: the global `policy`."""

    @property
    def lends_credential(self) -> bool:
        """True if requests carry a credential of the operator's."""
        return bool(self.api_key_env or self.auth)

    def read_api_key(self) -> SecretStr | None:
        """Return the key from the environment. None if the client's own key is used or the variable is empty."""
        value = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        return SecretStr(value) if value else None

    def find_outbound_proxy(self) -> str:
        """Return the URL of the outbound proxy, "" for none."""
        if self.proxy != PROXY_FROM_ENVIRONMENT:
            return self.proxy
        found, url = getproxies(), urlsplit(self.base_url)
        bypassed = not url.hostname or proxy_bypass(url.netloc)
        return "" if bypassed else found.get(url.scheme) or found.get("all", "")


def select_upstream(upstreams: Mapping[str, UpstreamSettings], model: str) -> str:
    """Return the name of the upstream to which requests of this model go, as `UpstreamClient.select_target` does."""
    for name, upstream in upstreams.items():
        if any(fnmatchcase(model, pattern) for pattern in upstream.models):
            return name
    return next(iter(upstreams))


def find_unreached_upstreams(upstreams: Mapping[str, UpstreamSettings]) -> dict[str, str]:
    """Return the upstreams that get no request, since earlier ones take each model of theirs: by name, with the earlier
    one that takes the first of their patterns. An upstream without patterns is for the helper alone."""
    unreached: dict[str, str] = {}
    earlier: list[tuple[str, str]] = []
    for name, upstream in upstreams.items():
        takers = [next((one for one, taken in earlier if _covers(taken, each)), None) for each in upstream.models]
        if takers and takers[0] is not None and None not in takers:
            unreached[name] = takers[0]
        earlier += [(name, pattern) for pattern in upstream.models]
    return unreached


def _covers(taken: str, pattern: str) -> bool:
    """True if each name that `pattern` matches is surely one that `taken` matches. A wildcard is no part of a name, so
    only `*` can stand for one of the other pattern's."""
    return not set(taken) & set("?[") and fnmatchcase(pattern, taken)


class WebhookSettings(SettingsSection):
    """`[[webhooks]]`: a receiver of events, by a signed POST for each."""

    url: Annotated[str, Field(repr=False), AfterValidator(validate_webhook_url)]
    """The URL that gets events. Only its scheme, host and port are connected to; redirects are not followed."""
    secret_env: Annotated[str, Field(min_length=1)]
    """The environment variable that holds the secret of the signature."""
    events: tuple[str, ...] = ("*",)
    """Patterns (`context:*`) of the kinds of events that go there."""
    tenant: Annotated[str, AfterValidator(validate_tenant)] = ALL_TENANTS
    """The tenant whose events go there; `*`: every tenant's."""
    tries: Annotated[int, Field(ge=1, le=20)] = 5
    """Number of tries of one event, after 1, 2, 4 ... seconds, if nobody answers or the status is 408, 425, 429 or
    5xx."""
    timeout_s: Seconds = 10.0
    """Time limit for one answer."""

    def read_secret(self) -> str:
        """Return the secret from the environment, "" if the variable is empty."""
        return os.environ.get(self.secret_env, "")


class Settings(SettingsSection):
    """The whole tree. `Settings()` has the defaults; a server starts from `load_settings`."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on. An address that others can reach is refused as long as no keys are configured."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port to listen on; 0: any that is free."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of a second listener, with /healthz, /readyz and /metrics alone; 0: none. It answers until the proxy has
    stopped."""
    metrics_host: str = ""
    """Address of `metrics_port`; empty: that of `host`. Any address may be set: without keys, everybody who reaches it
    can read the metrics, and nothing else."""
    db: Annotated[str, Field(min_length=1, repr=False), AfterValidator(_check_database)] = (
        "./data/context-proxy.sqlite3"
    )
    """SQLite file, `:memory:`, or a postgresql:// URL."""
    policy: Annotated[str, Field(min_length=1), AfterValidator(validate_policy_name)] = "thrifty"
    """The policy by which prompts are rewritten: a file's name in config/policies or in `policies_dir`."""
    upstream: BaseUrl = ""
    """One upstream for everything, in place of `[upstreams]`: a URL, or `demo`. With neither: `demo`."""
    workers: Annotated[int, Field(ge=1, le=1)] = 1
    """Number of processes. SQLite has one writer, so it is one. For more, start replicas on PostgreSQL."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged. A message's content or a credential is never logged."""
    access_log: Literal["auto", "json", "text", "off"] = "auto"
    """Format of the log, with one line for each request at level info. `json` and `text` hold for the whole log.
    `auto`: text on a terminal, else JSON. `off`: no line for a request."""
    policies_dir: str = ""
    """A folder of policies of your own, and of the .py files with the stages and injections that they name."""
    models_file: str = ""
    """A file of models of your own, in the form of config/models.toml. An entry names only what differs from the
    package's."""
    limits: LimitSettings = LimitSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    drain: DrainSettings = DrainSettings()
    pool: PoolSettings = PoolSettings()
    identity: IdentitySettings = IdentitySettings()
    state: StateSettings = StateSettings()
    groups: GroupSettings = GroupSettings()
    store: StoreSettings = StoreSettings()
    tokens: TokenSettings = TokenSettings()
    helper: HelperSettings = HelperSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    commands: CommandSettings = CommandSettings()
    tools: ToolSettings = ToolSettings()
    memos: MemoSettings = MemoSettings()
    events: EventSettings = EventSettings()
    cache: CacheSettings = CacheSettings()
    compress: CompressSettings = CompressSettings()
    responses: ResponsesSettings = ResponsesSettings()
    experiment: ExperimentSettings = ExperimentSettings()
    passthrough: PassthroughSettings = PassthroughSettings()
    dashboard: DashboardSettings = DashboardSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    keys: tuple[ApiKeySettings, ...] = ()
    """Keys of clients. Without any, only this machine's own address is served."""
    keys_dir: str = ""
    """A folder for keys, in force if `keys` has none. The first `serve` makes a key of each plane there. It prints two
    of them: the agents' and the operator's."""
    webhooks: tuple[WebhookSettings, ...] = ()
    """Receivers of events."""
    upstreams: Mapping[str, UpstreamSettings] = Field(default_factory=dict)

    @property
    def active_upstreams(self) -> Mapping[str, UpstreamSettings]:
        """The upstreams by name, in order: `upstream` alone if it is set, else `[upstreams]`, else the demo."""
        if self.upstream or not self.upstreams:
            return {"default": UpstreamSettings(base_url=self.upstream or DEMO)}
        return self.upstreams

    def read_policy_table(self, name: str) -> TomlTree:
        """Return a policy's TOML: the package's own, else one of `policies_dir`. Raises ConfigError without one."""
        files = self.find_policy_files()
        if name not in files:
            raise ConfigError("policy", name, "one of " + ", ".join(sorted(files)))
        return read_toml(files[name])[0]

    def find_policy_files(self) -> dict[str, Path]:
        """Return every policy that can be named, with its file."""
        folders = [Path(self.policies_dir)] if self.policies_dir else []
        return {
            file.stem: file
            for folder in [*folders, find_shipped_file("policies")]
            for file in sorted(folder.glob("*.toml"))
        }

    def load_models(self) -> tuple[Model, ...]:
        """Return the known data of each model, in the order of search. The entries of `models_file`, which need to name
        only the differences, come first, then the package's. Raises ConfigError with file and line."""
        known = _read_shipped_models()
        return _read_own_models(Path(self.models_file)) + known if self.models_file else known


@cache
def _read_shipped_models() -> tuple[Model, ...]:
    """Return the package's own models. The file is large, and a start needs its content three times."""
    return read_models(read_toml(find_shipped_file("models.toml"))[0]["models"])


def _read_own_models(file: Path) -> tuple[Model, ...]:
    tree, text = read_toml(file)
    for key, value in tree.items():
        if key != "models" or not isinstance(value, dict):
            allowed = 'tables [models."NAME"]'
            raise ConfigError(key, "(a table)" if isinstance(value, dict) else value, allowed,
                              line=find_line(text, (key,)), source=str(file))  # fmt: skip
    models = read_models(
        tree.get("models", {}), partial=True, source=str(file), find_line=lambda at: find_line(text, at)
    )
    # An entry for all models is less specific than one for some, wherever it is in the file.
    return tuple(sorted(models, key=lambda model: model.name == "*"))


def find_shipped_file(name: str) -> Path:
    """Return a file of config/. It is inside the package once installed, and beside the package in a checkout."""
    inside = Path(__file__).parents[1] / "config" / name
    return inside if inside.exists() else Path(__file__).parents[2] / "config" / name


def mask_password(url: str) -> str:
    """Return a URL for output, with stars in place of a password."""
    parts = urlsplit(url) if "://" in url else None
    if parts is None or parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{parts.netloc.rpartition('@')[2]}"))


def load_settings(config: Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
    """Return the settings in force. overrides: flags by key path (`port`, `state.ask`); None means not
    given.

    Raises ConfigError for the first setting that cannot be used, with the place it comes from.
    """
    config = config or (Path(os.environ[ENV_PREFIX + "CONFIG"]) if os.environ.get(ENV_PREFIX + "CONFIG") else None)
    written = _WrittenSettings(config)
    written.add_environment()
    for key, given in (overrides or {}).items():
        if given is not None:
            written.add(tuple(key.split(".")), given, "--" + key)
    written.add_keys_folder()
    try:
        settings = Settings.model_validate(written.tree)
    except ValidationError as error:
        # A key that is not known comes first: it may be the one that another error misses, with a typing error.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        value = first["input"] if first["type"] != "missing" else None
        is_unknown = first["type"] == "extra_forbidden"
        raise written.refuse(first["loc"], value, _describe_allowed(first), is_unknown=is_unknown) from None
    for path, value, allowed in _check_environment(settings):
        raise written.refuse(path, value, allowed)
    return settings


class _WrittenSettings:
    """The settings as written in all places, before they are checked. A later place precedes an earlier one."""

    def __init__(self, config: Path | None) -> None:
        self.tree, self._text = read_toml(config) if config else ({}, "")
        self._config = config
        self._sources: dict[KeyPath, str] = {}
        """The source of each value that does not come from `config`, by its path."""

    def add(self, path: KeyPath, value: object, source: str) -> None:
        """Add a value. source: the variable or the option that it comes from."""
        self._sources[path] = source
        _set_value(self.tree, path, value, source)

    def add_environment(self) -> None:
        """Add the values of all variables of the proxy."""
        for name, text in sorted(os.environ.items()):
            if name.startswith(ENV_PREFIX) and name not in RESERVED_VARIABLES:
                path: KeyPath = tuple(name[len(ENV_PREFIX) :].lower().split("__"))
                self.add(path, _parse_environment_value(path, text), name)

    def add_keys_folder(self) -> None:
        """Add the keys of `keys_dir`. The folder is not in force beside keys that are written elsewhere."""
        folder = self.tree.get("keys_dir")
        if not isinstance(folder, str) or not folder:
            return
        if self.tree.get("keys"):
            self.tree["keys_dir"] = ""
        else:
            self.tree["keys"] = _read_keys_folder(Path(folder))
            self._sources["keys",] = str(Path(folder) / KEYS_FILE)

    def refuse(self, path: KeyPath, value: object, allowed: str, *, is_unknown: bool = False) -> ConfigError:
        """Return the error for a value that cannot be used, with its source. allowed: what could be used. is_unknown:
        True if there is no such key."""
        key, shown = format_key_path(path), "***" if path[-1] in SECRET_KEYS and value else value
        for end in range(len(path), 0, -1):
            if path[:end] in self._sources:
                return ConfigError(key, shown, allowed, source=self._sources[path[:end]], is_unknown=is_unknown)
        line = find_line(self._text, path)
        return ConfigError(key, shown, allowed, line=line, source=str(self._config or ""), is_unknown=is_unknown)


def _read_keys_folder(folder: Path) -> list[Any]:
    """Return the entries of the keys in `keys_dir`; none if no keys were made there yet. Raises ConfigError if the
    folder cannot be read, or if its file has no keys: a proxy without keys would be no better than none."""
    try:
        (folder / KEYS_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError("keys_dir", str(folder), f"a folder that can be read ({error.strerror})") from None
    found = read_toml(folder / KEYS_FILE)[0].get("keys")
    if not isinstance(found, list) or not found:
        raise ConfigError("keys_dir", str(folder), f"a folder whose {KEYS_FILE} has [[keys]], or has no such file")
    return found


def copy_environment() -> dict[str, str]:
    """Return the environment, for a program that is started with it."""
    return dict(os.environ)


def find_data_folder() -> Path:
    """Return the folder of a person's data: `context-proxy` in $XDG_DATA_HOME, usually ~/.local/share."""
    named = os.environ.get("XDG_DATA_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path.home() / ".local" / "share") / "context-proxy"


def find_program(*names: str, default: str) -> str:
    """Return the program of the first of these variables that is set (`PAGER`, `EDITOR`)."""
    return next((os.environ[name] for name in names if os.environ.get(name, "").strip()), default)


def _set_value(tree: TomlTree, path: KeyPath, value: object, source: str) -> None:
    for depth, part in enumerate(path[:-1]):
        tree = tree.setdefault(str(part), {})
        if not isinstance(tree, dict):
            raise ConfigError(
                format_key_path(path),
                value,
                f"nothing: {format_key_path(path[: depth + 1])} is not a table",
                source=source,
            )
    tree[str(path[-1])] = value


def _find_type(path: KeyPath) -> Any:
    """Return the type that the tree has at a path, None if there is none."""
    kind: Any = Settings
    for part in path:
        fields = getattr(kind, "model_fields", {})
        kind = fields[part].annotation if part in fields else get_args(kind)[-1] if get_args(kind) else None
    return kind


def _parse_environment_value(path: KeyPath, value: str) -> object:
    """Return the value of a variable. A list is JSON or has commas; the field's type reads other values."""
    if get_origin(_find_type(path)) is not tuple:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return [item.strip() for item in value.split(",") if item.strip()]


TYPE_WORDS = (
    dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number")
    | dict.fromkeys(("float_parsing", "float_type"), "a number")
    | dict.fromkeys(("bool_parsing", "bool_type"), "true or false")
    | dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a table of keys and values")
    | {"string_type": "a text in quotes", "string_too_short": "a text that is not empty"}
    | {"tuple_type": "a list in square brackets"}
)
"""Allowed values in the words of TOML, by the type of pydantic's error, whose own text has the words of Python."""


RANGE_WORDS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
"""The same for a number out of its range. pydantic names the bound."""


def describe_plain_type(error: ErrorDetails) -> str:
    """Return the allowed values in words; "" if the error is not of a value's type or range."""
    if words := RANGE_WORDS.get(error["type"]):
        return words.format_map(error.get("ctx", {}))
    return TYPE_WORDS.get(error["type"], "")


def _describe_allowed(error: ErrorDetails) -> str:
    """Return the allowed values, in words."""
    if error["type"] == "extra_forbidden":
        known = list(_find_type(error["loc"][:-1]).model_fields)
        near = get_close_matches(str(error["loc"][-1]), known, 1)
        return (f"{near[0]} (is that what is meant?), " if near else "") + "one of " + ", ".join(known)
    if error["type"] == "missing":
        return "a value; it has no default"
    if words := describe_plain_type(error):
        return words
    return error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")


def _check_environment(settings: Settings) -> Iterator[tuple[KeyPath, object, str]]:
    """Yield errors that no type finds: files that do not exist, variables that are not set."""
    policies = settings.find_policy_files()
    policy_names: list[tuple[KeyPath, str]] = [(("policy",), settings.policy)]
    for name, upstream in settings.upstreams.items():
        place = ("upstreams", name)
        policy_names.append(((*place, "policy"), upstream.policy))
        for field, value, allowed in _check_upstream(upstream):
            yield (*place, field), value, allowed
    for path, policy in policy_names:
        if policy and policy not in policies:
            yield path, policy, "one of " + ", ".join(sorted(policies))
    yield from _check_helper_upstreams(settings)
    for n, hook in enumerate(settings.webhooks):
        if not hook.read_secret():
            yield ("webhooks", n, "secret_env"), hook.secret_env, "the name of an environment variable that is set"
    for field in ("name", "sha256"):
        seen: set[str] = set()
        for n, one in enumerate(settings.keys):
            value = getattr(one, field)
            if value in seen:
                yield ("keys", n, field), value, "one that no other key has"
            seen.add(value)
    yield from _check_own_files(settings)
    settings.load_models()


def _check_upstream(upstream: UpstreamSettings) -> Iterator[tuple[str, object, str]]:
    """Yield errors in one upstream: the setting, its value and what is allowed."""
    if upstream.api_key_env and not upstream.read_api_key():
        yield "api_key_env", upstream.api_key_env, "the name of an environment variable that is set"
    if upstream.auth and upstream.api_key_env:
        yield "auth", upstream.auth, "empty beside `api_key_env`: a request has one credential"
    if upstream.auth and find_spec("botocore") is None:
        yield "auth", upstream.auth, 'empty, or pip install "agent-context-proxy[aws]"'
    for field in ("ca_bundle", "client_cert", "client_key"):
        file = getattr(upstream, field)
        if file and not Path(file).is_file():
            yield field, file, "a PEM file that is there"
    if upstream.client_key and not upstream.client_cert:
        yield "client_cert", "", "the PEM file of the certificate to which `client_key` belongs"


def _check_own_files(settings: Settings) -> Iterator[tuple[KeyPath, object, str]]:
    """Yield the places of the operator's own policies and models that are not there."""
    if settings.policies_dir and not Path(settings.policies_dir).is_dir():
        yield ("policies_dir",), settings.policies_dir, "a folder that is there"
    if settings.models_file and not Path(settings.models_file).is_file():
        yield ("models_file",), settings.models_file, "a TOML file that is there"


def _check_helper_upstreams(settings: Settings) -> Iterator[tuple[KeyPath, object, str]]:
    """Yield errors in the upstreams that `[helper]` and `[embeddings]` name."""
    targets = settings.active_upstreams
    for table, part in (("helper", settings.helper), ("embeddings", settings.embeddings)):
        wanted = isinstance(part, EmbeddingSettings) and part.enabled
        if part.upstream not in targets and (part.upstream or wanted):
            yield (table, "upstream"), part.upstream, "one of " + ", ".join(targets)
        if not part.model and (part.upstream or wanted):
            yield (table, "model"), part.model, "the name of a model"
