from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.cli.agents import (
    AGENTS,
    ANTHROPIC,
    CHATGPT,
    FIRST_PARTY,
    GOOGLE,
    OPENAI,
    TOOL_SEARCH,
    AgentSetup,
    AgentSurroundings,
    read_agent,
)
from proxy.errors import ConfigError

URL = "http://127.0.0.1:1234"


def read(agent: str, folder: Path, *arguments: str, upstream: str = "", **environment: str) -> AgentSetup:
    """An agent started in an empty project, with this home directory."""
    project = folder / "project"
    project.mkdir(exist_ok=True)
    return read_agent(agent, AgentSurroundings({"HOME": str(folder), **environment}, project, arguments), upstream)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def bases(setup: AgentSetup) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.base_url, one.models) for one in setup.upstreams]


def test_each_agent_asks_its_provider_by_itself_and_the_proxy_when_pointed_there(tmp_path: Path) -> None:
    keys = {"OPENAI_API_KEY": "k", "COPILOT_PROVIDER_API_KEY": "k", "GEMINI_API_KEY": "k"}
    for agent in AGENTS:
        setup = read(agent, tmp_path, **keys)
        assert {one.base_url for one in setup.upstreams} <= {OPENAI, ANTHROPIC, GOOGLE}, agent
        given = json.dumps([setup.fill_environment(URL), setup.fill_arguments(URL)])
        assert URL in given, agent
        assert "{url}" not in given, agent


def test_an_unknown_agent_is_refused_with_the_ones_that_are_known(tmp_path: Path) -> None:
    known = "claude, codex, opencode, qwen, aider, copilot, gemini; any other agent takes the base URL"
    with pytest.raises(ConfigError, match=known):
        read("emacs", tmp_path)


def test_claude_gets_its_tool_search_and_its_window_only_for_anthropic(tmp_path: Path) -> None:
    made = read("claude", tmp_path).fill_environment(URL)
    assert made == {"ANTHROPIC_BASE_URL": URL, TOOL_SEARCH: "true", FIRST_PARTY: "1"}
    gateway = read("claude", tmp_path, ANTHROPIC_BASE_URL="https://gateway.example/team", ENABLE_TOOL_SEARCH="auto")
    assert bases(gateway) == [("https://gateway.example/team/v1", ("*",))]
    assert gateway.fill_environment(URL) == {"ANTHROPIC_BASE_URL": URL}, "what a person has set stays"


def test_claude_s_settings_files_win_over_the_environment_and_are_left_as_they_are(tmp_path: Path) -> None:
    written = json.dumps({"env": {"ANTHROPIC_BASE_URL": "https://gateway.example", TOOL_SEARCH: "false"}})
    for file in (tmp_path / ".claude/settings.json", tmp_path / "elsewhere/settings.json"):
        write(file, written)
    made = read("claude", tmp_path, ANTHROPIC_BASE_URL="https://other.example")
    assert bases(made) == [("https://gateway.example", ("*",))]
    assert json.loads(made.fill_arguments(URL)[1]) == {"env": {"ANTHROPIC_BASE_URL": URL}}
    assert TOOL_SEARCH not in made.environment
    assert read("claude", tmp_path / "project", CLAUDE_CONFIG_DIR=str(tmp_path / "elsewhere")).arguments
    assert (tmp_path / ".claude/settings.json").read_text() == written
    with pytest.raises(ConfigError, match="--settings"):
        read("claude", tmp_path, "--settings=mine.json")


def test_codex_is_pointed_by_the_key_that_its_provider_reads(tmp_path: Path) -> None:
    assert read("codex", tmp_path).fill_arguments(URL) == ["-c", f'openai_base_url="{URL}/v1"']
    assert bases(read("codex", tmp_path, OPENAI_BASE_URL="https://eu.example/v1")) == [
        ("https://eu.example/v1", ("*",))
    ]
    write(tmp_path / ".codex/auth.json", json.dumps({"tokens": {"access_token": "t"}, "OPENAI_API_KEY": None}))
    login = read("codex", tmp_path)
    assert bases(login) == [(CHATGPT, ("*",))]
    assert login.notes
    config = (
        'profile = "work"\n[profiles.work]\nmodel_provider = "az"\n[model_providers.az]\nbase_url = "https://az/v1"\n'
    )
    write(tmp_path / ".codex/config.toml", config)
    made = read("codex", tmp_path)
    assert (bases(made), made.fill_arguments(URL)) == (
        [("https://az/v1", ("*",))],
        ["-c", f'model_providers.az.base_url="{URL}/v1"'],
    )
    write(tmp_path / ".codex/config.toml", 'model_provider = "ollama"\n')
    with pytest.raises(ConfigError, match="base_url"):
        read("codex", tmp_path)


def test_opencode_s_providers_are_all_rerouted_and_distinguished_by_their_models(tmp_path: Path) -> None:
    own = {"provider": {"my-vllm": {"options": {"baseURL": "http://gpu:8000/v1"}, "models": {"qwen3": {}}}}}
    write(tmp_path / ".config/opencode/opencode.json", json.dumps(own))
    write(tmp_path / ".local/share/opencode/auth.json", json.dumps({"anthropic": {"type": "api", "key": "k"}}))
    inline = json.dumps({"theme": "dark", "provider": {"openai": {"options": {"timeout": 5}}}})
    made = read("opencode", tmp_path, OPENAI_API_KEY="k", OPENCODE_CONFIG_CONTENT=inline)
    assert bases(made) == [
        ("http://gpu:8000/v1", ("qwen3",)), (ANTHROPIC + "/v1", ("claude*",)), (OPENAI, ("*",)),
    ]  # fmt: skip
    content = json.loads(made.fill_environment(URL)["OPENCODE_CONFIG_CONTENT"])
    assert content["theme"] == "dark"
    assert {name: one["options"] for name, one in content["provider"].items()} == {
        "my-vllm": {"baseURL": URL + "/v1"}, "anthropic": {"baseURL": URL + "/v1"},
        "openai": {"timeout": 5, "baseURL": URL + "/v1"},
    }  # fmt: skip


def test_opencode_without_a_provider_that_can_be_pointed_is_refused(tmp_path: Path) -> None:
    write(tmp_path / ".local/share/opencode/auth.json", json.dumps({"openai": {"type": "oauth"}}))
    with pytest.raises(ConfigError, match="with a key of yours"):
        read("opencode", tmp_path)
    made = read("opencode", tmp_path, ANTHROPIC_API_KEY="k")
    assert ([one.name for one in made.upstreams], made.notes) == (
        ["anthropic"], ("The provider openai is logged in by OAuth and goes past the proxy.",),
    )  # fmt: skip


def test_qwen_s_argument_wins_and_a_login_is_refused(tmp_path: Path) -> None:
    write(tmp_path / ".qwen/settings.json", json.dumps({"security": {"auth": {"baseUrl": "https://q.example/v1"}}}))
    made = read("qwen", tmp_path)
    assert (bases(made), made.fill_arguments(URL)) == (
        [("https://q.example/v1", ("*",))], ["--openai-base-url", URL + "/v1"],
    )  # fmt: skip
    assert read("qwen", tmp_path, "--openai-base-url=http://mine").arguments == ()
    write(tmp_path / ".qwen/settings.json", json.dumps({"security": {"auth": {"selectedType": "qwen-oauth"}}}))
    with pytest.raises(ConfigError, match="address of its own"):
        read("qwen", tmp_path)


def test_aider_s_two_providers_are_distinguished_by_the_model(tmp_path: Path) -> None:
    made = read("aider", tmp_path, OPENAI_API_BASE="http://gpu:8000/v1", ANTHROPIC_BASE_URL="https://gw.example/a")
    assert bases(made) == [("https://gw.example/a/v1", ("claude*",)), ("http://gpu:8000/v1", ("*",))]
    assert made.fill_environment(URL)["AIDER_OPENAI_API_BASE"] == URL + "/v1"


def test_copilot_needs_a_provider_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of your own"):
        read("copilot", tmp_path)
    made = read("copilot", tmp_path, COPILOT_PROVIDER_TYPE="anthropic", COPILOT_PROVIDER_API_KEY="k")
    assert (bases(made), made.fill_environment(URL)) == ([(ANTHROPIC, ("*",))], {"COPILOT_PROVIDER_BASE_URL": URL})
    with pytest.raises(ConfigError, match="openai or anthropic"):
        read("copilot", tmp_path, COPILOT_PROVIDER_TYPE="azure")


def test_gemini_is_pointed_with_a_key_and_a_login_with_google_is_refused(tmp_path: Path) -> None:
    made = read("gemini", tmp_path, GEMINI_API_KEY="k")
    assert (bases(made), made.fill_environment(URL)) == ([(GOOGLE, ("*",))], {"GOOGLE_GEMINI_BASE_URL": URL})
    with pytest.raises(ConfigError, match="a key of yours"):
        read("gemini", tmp_path)
    for variable in ("GOOGLE_GENAI_USE_GCA", "GOOGLE_GENAI_USE_VERTEXAI"):
        with pytest.raises(ConfigError, match="addresses of their own"):
            read("gemini", tmp_path, GEMINI_API_KEY="k", **{variable: "true"})
    settings = tmp_path / ".gemini/settings.json"
    write(settings, json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
    assert bases(read("gemini", tmp_path)) == [(GOOGLE, ("*",))], "the key may be in its own store"
    write(settings, json.dumps({"security": {"auth": {"selectedType": "oauth-personal"}}}))
    with pytest.raises(ConfigError, match="addresses of their own"):
        read("gemini", tmp_path, GEMINI_API_KEY="k")
    assert read("gemini", tmp_path, GEMINI_API_KEY="k", GEMINI_CLI_HOME=str(tmp_path / "project")).upstreams


def test_gemini_s_file_of_variables_gives_way_to_the_environment(tmp_path: Path) -> None:
    write(tmp_path / ".env", "GEMINI_API_KEY=far\n")
    write(
        tmp_path / "project/.gemini/.env",
        '# keys\n\nexport GEMINI_API_KEY="k"\nGOOGLE_GEMINI_BASE_URL=https://g.example\n',
    )
    assert bases(read("gemini", tmp_path)) == [("https://g.example", ("*",))], "the nearest file is read"
    made = read("gemini", tmp_path, GOOGLE_GEMINI_BASE_URL="https://other.example")
    assert bases(made) == [("https://other.example", ("*",))]
    (tmp_path / "project/.gemini/.env").write_bytes(b"\xff")
    assert bases(read("gemini", tmp_path)) == [(GOOGLE, ("*",))], "one that is no text is none"


@pytest.mark.parametrize("agent", AGENTS)
def test_a_named_upstream_takes_the_place_of_every_other(tmp_path: Path, agent: str) -> None:
    made = read(agent, tmp_path, upstream="https://named.example/v1")
    assert bases(made)[0][0] == "https://named.example/v1"
    assert len(made.upstreams) == 1
