"""Coding agents that `wrap` and `doctor` know: where their requests go now, and how one run of them is pointed at the
proxy.

Everything here reads: the environment as it is handed in, and the agents' own configuration files. Nothing writes to
those files. An agent is pointed at the proxy by variables and arguments of that one run.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.cli.claude_clouds import CloudPlace, add_version, find_cloud_place
from proxy.errors import ConfigError
from proxy.upstream.headers import ANTHROPIC_HOST, GOOGLE_HOST

ANTHROPIC: Final = f"https://{ANTHROPIC_HOST}"
OPENAI: Final = "https://api.openai.com/v1"
CHATGPT: Final = "https://chatgpt.com/backend-api/codex"
"""The address to which Codex sends requests of a ChatGPT login."""
GOOGLE: Final = f"https://{GOOGLE_HOST}"

TOOL_SEARCH: Final = "ENABLE_TOOL_SEARCH"
FIRST_PARTY: Final = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"


@dataclass(frozen=True, slots=True)
class AgentUpstream:
    """An address to which an agent's requests go."""

    name: str
    base_url: str
    models: tuple[str, ...] = ("*",)
    """Patterns of the model names that go there."""
    auth: str = ""
    """`aws` if the proxy has to sign the requests (`upstreams.NAME.auth`)."""


@dataclass(frozen=True, slots=True)
class AgentSurroundings:
    """The place in which an agent is started: environment, arguments, working directory."""

    environment: Mapping[str, str]
    folder: Path
    arguments: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """The home directory."""
        return Path(self.environment.get("HOME") or "/")

    def find_folder(self, variable: str, *usual: str) -> Path:
        """Return the folder that a variable names, else the usual one below the home directory."""
        return Path(self.environment[variable]) if self.environment.get(variable) else self.home.joinpath(*usual)


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """The upstreams of an agent, and the variables and arguments that point one run of it at a proxy."""

    upstreams: tuple[AgentUpstream, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set; `{url}` stands for the proxy's address without /v1."""
    arguments: tuple[str, ...] = ()
    """Arguments in front of the user's own; `{url}` as above."""
    notes: tuple[str, ...] = ()
    """Sentences about what this run loses or cannot have."""

    def fill_environment(self, url: str) -> dict[str, str]:
        """Return the variables with the proxy's address."""
        return {name: value.replace("{url}", url) for name, value in self.environment.items()}

    def fill_arguments(self, url: str) -> list[str]:
        """Return the arguments with the proxy's address."""
        return [one.replace("{url}", url) for one in self.arguments]


def read_agent(name: str, surroundings: AgentSurroundings, upstream: str = "") -> AgentSetup:
    """Return how an agent is pointed at a proxy. upstream: the address that a person named, empty for the agent's own.
    Raises ConfigError if the agent is not known, or if its requests cannot go through a proxy."""
    reader = AGENTS.get(name)
    if reader is None:
        others = "any other agent takes the base URL that `context-proxy serve` prints"
        raise ConfigError("AGENT", name, f"one of {', '.join(AGENTS)}; {others}")
    return reader(surroundings, upstream)


def _read_claude(surroundings: AgentSurroundings, upstream: str) -> AgentSetup:
    folder = surroundings.find_folder("CLAUDE_CONFIG_DIR", ".claude")
    files = (
        folder / "settings.json",
        surroundings.folder / ".claude/settings.json",
        surroundings.folder / ".claude/settings.local.json",
    )
    own: dict[str, str] = {}
    for file in files:
        table = _read_json(file).get("env")
        if isinstance(table, dict):
            own |= {str(name): str(value) for name, value in table.items()}
    # Claude Code lays the variables of its settings files over the environment.
    known = {**surroundings.environment, **own}
    place = _find_claude_place(known, upstream)
    laid = {name: value for name, value in place.environment.items() if name in own}
    if laid and any(one.partition("=")[0] == "--settings" for one in surroundings.arguments):
        allowed = f"nothing, as long as a settings file sets {next(iter(laid))}: wrap needs this argument itself"
        raise ConfigError("--settings", "...", allowed)
    arguments = ("--settings", json.dumps({"env": laid})) if laid else ()
    asked = AgentUpstream("anthropic", place.base_url, auth=place.auth)
    return AgentSetup((asked,), place.environment, arguments)


def _find_claude_place(known: Mapping[str, str], upstream: str) -> CloudPlace:
    """Return the place of Claude Code's requests. known: the variables in force. Raises ConfigError."""
    cloud = find_cloud_place(known, upstream)
    if cloud is not None:
        return cloud
    base = upstream or add_version(known.get("ANTHROPIC_BASE_URL") or ANTHROPIC)
    environment = {"ANTHROPIC_BASE_URL": "{url}"}
    # Behind an address that is not Anthropic's, Claude Code switches its tool search off and shortens its window.
    if TOOL_SEARCH not in known:
        environment[TOOL_SEARCH] = "true"
    if is_anthropic(base) and FIRST_PARTY not in known:
        environment[FIRST_PARTY] = "1"
    return CloudPlace(base, environment)


def is_anthropic(url: str) -> bool:
    """True if this is Anthropic's own address."""
    return urlsplit(url).hostname == ANTHROPIC_HOST


def _read_codex(surroundings: AgentSurroundings, upstream: str) -> AgentSetup:
    folder = surroundings.find_folder("CODEX_HOME", ".codex")
    config = _read_toml(folder / "config.toml")
    profiles = config.get("profiles")
    profile = profiles.get(config.get("profile")) if isinstance(profiles, dict) else None
    merged = config | (profile if isinstance(profile, dict) else {})
    name = str(merged.get("model_provider") or "openai")
    if name == "openai":
        login = _read_json(folder / "auth.json")
        by_chatgpt = bool(login.get("tokens")) and not login.get("OPENAI_API_KEY")
        base = (
            upstream or str(merged.get("openai_base_url") or "") or surroundings.environment.get("OPENAI_BASE_URL", "")
        )
        notes: tuple[str, ...] = ()
        if not base and by_chatgpt:
            base = CHATGPT
            notes = ("With a ChatGPT login Codex may compress its requests; the extra `zstd` manages those too.",)
        return AgentSetup(
            (AgentUpstream("openai", base or OPENAI),), {}, ("-c", 'openai_base_url="{url}/v1"'), notes
        )  # fmt: skip
    table = config.get("model_providers")
    provider = table.get(name) if isinstance(table, dict) else None
    base = upstream or (str(provider.get("base_url") or "") if isinstance(provider, dict) else "")
    if not base:
        allowed = "openai, or a provider with a base_url in [model_providers]"
        raise ConfigError("model_provider", name, allowed, source=str(folder / "config.toml"))
    return AgentSetup(
        (AgentUpstream(_make_upstream_name(name), base),), {}, ("-c", f'model_providers.{name}.base_url="{{url}}/v1"')
    )


def _read_opencode(surroundings: AgentSurroundings, upstream: str) -> AgentSetup:
    """opencode asks several providers; the model's name tells them apart at the proxy."""
    own = _parse(surroundings.environment.get("OPENCODE_CONFIG_CONTENT", ""))
    providers = _read_opencode_providers(surroundings, own)
    upstreams, skipped = _list_opencode_upstreams(surroundings, providers)
    if upstream:
        upstreams = [AgentUpstream(each.name, upstream) for each in upstreams] or [AgentUpstream("openai", upstream)]
    if not upstreams:
        allowed = "openai or anthropic with a key of yours, or a provider with a baseURL"
        raise ConfigError("provider", ", ".join(skipped) or None, allowed, source="opencode")
    content: dict[str, Any] = {**own, "provider": dict(own.get("provider") or {})}
    labels = {_make_upstream_name(name): name for name in providers}
    for each in upstreams:
        name = labels.get(each.name, each.name)
        entry = content["provider"].get(name) or {}
        content["provider"][name] = {**entry, "options": {**(entry.get("options") or {}), "baseURL": "{url}/v1"}}
    notes = tuple(f"The provider {name} is logged in by OAuth and goes past the proxy." for name in skipped)
    unique = tuple(upstreams[:1]) if upstream else tuple(upstreams)
    return AgentSetup(unique, {"OPENCODE_CONFIG_CONTENT": json.dumps(content)}, (), notes)


def _read_opencode_providers(surroundings: AgentSurroundings, own: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The providers by name, of all places where opencode reads them. own: its variable's content, the last one."""
    folder = surroundings.find_folder("XDG_CONFIG_HOME", ".config") / "opencode"
    files = [folder / "opencode.json", folder / "opencode.jsonc", surroundings.folder / "opencode.json"]
    if named := surroundings.environment.get("OPENCODE_CONFIG", ""):
        files.append(Path(named))
    providers: dict[str, dict[str, Any]] = {}
    for config in (*map(_read_json, files), own):
        providers |= _list_tables(config.get("provider"))
    return providers


def _list_opencode_upstreams(
    surroundings: AgentSurroundings, providers: Mapping[str, Mapping[str, Any]]
) -> tuple[list[AgentUpstream], list[str]]:
    """(the upstreams of these providers and of the logins, the providers whose login goes past every proxy)."""
    upstreams: list[AgentUpstream] = []
    for name, provider in providers.items():
        if name not in ("openai", "anthropic") and (base := _read_base_url(provider)):
            models = provider.get("models")
            names = tuple(str(each) for each in models) if isinstance(models, dict) and models else ("*",)
            upstreams.append(AgentUpstream(_make_upstream_name(name), base, names))
    logins = _list_tables(
        _read_json(surroundings.find_folder("XDG_DATA_HOME", ".local", "share") / "opencode" / "auth.json")
    )
    skipped: list[str] = []
    for name, usual, patterns in (("anthropic", ANTHROPIC + "/v1", ("claude*",)), ("openai", OPENAI, ("*",))):
        if logins.get(name, {}).get("type") == "oauth":
            skipped.append(name)
        elif name in providers or name in logins or surroundings.environment.get(f"{name.upper()}_API_KEY"):
            upstreams.append(AgentUpstream(name, _read_base_url(providers.get(name, {})) or usual, patterns))
    return upstreams, skipped


def _list_tables(value: Any) -> dict[str, dict[str, Any]]:
    """The members of an object that are objects themselves; none of a value of another type."""
    return {name: one for name, one in value.items() if isinstance(one, dict)} if isinstance(value, dict) else {}


def _read_base_url(provider: Mapping[str, Any]) -> str:
    options = provider.get("options")
    return str(options.get("baseURL") or "") if isinstance(options, dict) else ""


def _read_qwen(surroundings: AgentSurroundings, upstream: str) -> AgentSetup:
    folder = surroundings.home / ".qwen"
    auth: dict[str, Any] = {}
    for file in (folder / "settings.json", surroundings.folder / ".qwen/settings.json"):
        security = _read_json(file).get("security")
        if isinstance(security, dict) and isinstance(security.get("auth"), dict):
            auth |= security["auth"]
    if auth.get("selectedType") == "qwen-oauth" and not upstream:
        raise ConfigError("security.auth.selectedType", "qwen-oauth", "openai: a Qwen login has an address of its own")
    base = upstream or surroundings.environment.get("OPENAI_BASE_URL") or str(auth.get("baseUrl") or "") or OPENAI
    # The argument wins over settings files, the variable alone does not.
    given = any(one.partition("=")[0] == "--openai-base-url" for one in surroundings.arguments)
    arguments = () if given else ("--openai-base-url", "{url}/v1")
    return AgentSetup((AgentUpstream("openai", base),), {"OPENAI_BASE_URL": "{url}/v1"}, arguments)


def _read_aider(surroundings: AgentSurroundings, upstream: str) -> AgentSetup:
    known = surroundings.environment
    openai = (
        known.get("AIDER_OPENAI_API_BASE") or known.get("OPENAI_API_BASE") or known.get("OPENAI_BASE_URL") or OPENAI
    )
    anthropic = add_version(known.get("ANTHROPIC_API_BASE") or known.get("ANTHROPIC_BASE_URL") or ANTHROPIC)
    both = (AgentUpstream("anthropic", anthropic, ("claude*",)), AgentUpstream("openai", openai))
    wanted = dict.fromkeys(("AIDER_OPENAI_API_BASE", "OPENAI_API_BASE", "OPENAI_BASE_URL"), "{url}/v1")
    wanted |= dict.fromkeys(("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"), "{url}")
    return AgentSetup((AgentUpstream("named", upstream),) if upstream else both, wanted)


def _read_copilot(surroundings: AgentSurroundings, upstream: str) -> AgentSetup:
    known = surroundings.environment
    kind = known.get("COPILOT_PROVIDER_TYPE") or "openai"
    if kind not in ("openai", "anthropic"):
        raise ConfigError("COPILOT_PROVIDER_TYPE", kind, "openai or anthropic")
    anthropic = kind == "anthropic"
    named = known.get("COPILOT_PROVIDER_BASE_URL", "")
    base = upstream or (add_version(named) if named and anthropic else named)
    if not base and not known.get("COPILOT_PROVIDER_API_KEY"):
        allowed = "a key of a provider of your own: GitHub's models have an address that cannot be changed"
        raise ConfigError("COPILOT_PROVIDER_API_KEY", None, allowed)
    usual = ANTHROPIC if anthropic else OPENAI
    wanted = {"COPILOT_PROVIDER_BASE_URL": "{url}" if anthropic else "{url}/v1"}
    return AgentSetup((AgentUpstream(kind, base or usual),), wanted)


def _read_gemini(surroundings: AgentSurroundings, upstream: str) -> AgentSetup:
    home = surroundings.find_folder("GEMINI_CLI_HOME")
    # Gemini CLI takes from a file of variables what the environment does not have.
    known = {**_find_variables(surroundings.folder, home), **surroundings.environment}
    kind = ""
    for file in (home / ".gemini/settings.json", surroundings.folder / ".gemini/settings.json"):
        security = _read_json(file).get("security")
        auth = security.get("auth") if isinstance(security, dict) else None
        kind = (str(auth.get("selectedType") or "") if isinstance(auth, dict) else "") or kind
    if not kind:
        by_variable = {"GOOGLE_GENAI_USE_GCA": "oauth-personal", "GOOGLE_GENAI_USE_VERTEXAI": "vertex-ai"}
        kind = next((one for name, one in by_variable.items() if known.get(name) == "true"), "")
    if kind not in ("", "gemini-api-key", "gateway"):
        allowed = "gemini-api-key: a login with Google, and Vertex AI, have addresses of their own"
        raise ConfigError("security.auth.selectedType", kind, allowed)
    base = upstream or known.get("GOOGLE_GEMINI_BASE_URL", "")
    if not (kind or base or known.get("GEMINI_API_KEY")):
        allowed = "a key of yours: a login with Google has an address that cannot be changed"
        raise ConfigError("GEMINI_API_KEY", None, allowed)
    return AgentSetup((AgentUpstream("google", base or GOOGLE),), {"GOOGLE_GEMINI_BASE_URL": "{url}"})


def _find_variables(folder: Path, home: Path) -> dict[str, str]:
    """Return the variables of the file that Gemini CLI reads: the nearest above a folder, else in the home."""
    for place in (folder, *folder.parents, home):
        for file in (place / ".gemini" / ".env", place / ".env"):
            try:
                lines = file.read_text("utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            pairs = [line.removeprefix("export ").partition("=") for line in map(str.strip, lines) if line[:1] != "#"]
            return {name.strip(): value.strip().strip("\"'") for name, equals, value in pairs if equals}
    return {}


AgentReader = Callable[[AgentSurroundings, str], AgentSetup]

AGENTS: Final[Mapping[str, AgentReader]] = {
    "claude": _read_claude, "codex": _read_codex, "opencode": _read_opencode, "qwen": _read_qwen,
    "aider": _read_aider, "copilot": _read_copilot, "gemini": _read_gemini,
}  # fmt: skip
"""The agents by the names of their programs."""

KEY_VARIABLES: Final[Mapping[str, Sequence[str]]] = {
    "claude": (
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "AWS_BEARER_TOKEN_BEDROCK",
        "ANTHROPIC_AWS_API_KEY",
    ),
    "codex": ("OPENAI_API_KEY", "CODEX_API_KEY"),
    "opencode": ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    "qwen": ("OPENAI_API_KEY",),
    "aider": ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    "copilot": ("COPILOT_PROVIDER_API_KEY",),
    "gemini": ("GEMINI_API_KEY",),
}  # fmt: skip
"""Variables in which an agent looks for its key."""


def _make_upstream_name(name: str) -> str:
    """Return a provider's name as the name of an upstream."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def _read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty if there is none that can be read."""
    try:
        return _parse(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def _parse(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _read_toml(file: Path) -> dict[str, Any]:
    """Return the TOML of a file; empty if there is none that can be read."""
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}
