from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.context.models import find_model
from proxy.errors import ConfigError
from proxy.metrics import Metrics
from proxy.settings.load import (
    Settings,
    UpstreamSettings,
    find_program,
    find_shipped_file,
    find_unreached_upstreams,
    load_settings,
    mask_password,
    select_upstream,
)
from proxy.tokenizers import TOKENIZERS
from proxy.upstream.client import UpstreamClient


def write(folder: Path, text: str) -> Path:
    file = folder / "config.toml"
    file.write_text(text)
    return file


def read_refusal(config: Path | None = None, **overrides: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_settings(config, overrides)
    return caught.value


def test_without_a_file_or_variables_the_defaults_hold() -> None:
    assert load_settings() == Settings()
    assert (Settings().host, Settings().port, Settings().policy) == ("127.0.0.1", 8080, "thrifty")


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, 'port = 1\nhost = "::1"\nlog_level = "error"\n[state]\nask = "never"\n')
    monkeypatch.setenv("CONTEXT_PROXY_PORT", "2")
    monkeypatch.setenv("CONTEXT_PROXY_HOST", "127.0.0.2")
    settings = load_settings(file, {"port": 3, "host": None})
    assert (settings.port, settings.host, settings.log_level, settings.state.ask) == (3, "127.0.0.2", "error", "never")


def test_environment_reaches_nested_keys_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_PROXY_STATE__ASK", "always")
    monkeypatch.setenv("CONTEXT_PROXY_STATE__WITHHOLD", "false")
    monkeypatch.setenv("CONTEXT_PROXY_TIMEOUTS__IDLE_S", "2.5")
    monkeypatch.setenv("CONTEXT_PROXY_UPSTREAMS__MAIN__BASE_URL", "https://example.com/v1")
    monkeypatch.setenv("CONTEXT_PROXY_UPSTREAMS__MAIN__MODELS", "gpt-*, o3")
    monkeypatch.setenv("CONTEXT_PROXY_GROUPS__OBSERVATION", '["^out: [a-z]{1,3}"]')
    settings = load_settings()
    assert (settings.state.ask, settings.state.withhold, settings.timeouts.idle_s) == ("always", False, 2.5)
    assert settings.upstreams["main"].models == ("gpt-*", "o3")
    assert settings.groups.observation == ("^out: [a-z]{1,3}",)


def test_config_file_can_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_PROXY_CONFIG", str(write(tmp_path, "port = 7\n")))
    assert load_settings().port == 7


@pytest.mark.parametrize(
    ("text", "key", "line", "allowed"),
    [
        ("port = 8080\nprot = 1\n", "prot", 2, "port"),
        ('[state]\n\nask = "sometimes"\n', "state.ask", 3, "'policy', 'always', 'when_needed' or 'never'"),
        ("port = 70000\n", "port", 1, "65535"),
        ('port = "x"\n', "port", 1, "a whole number"),
        ('[timeouts]\nidle_s = "5s"\n', "timeouts.idle_s", 2, "a number"),
        ('[compress]\nenabled = "maybe"\n', "compress.enabled", 2, "true or false"),
        ("policy = 3\n", "policy", 1, "a text in quotes"),
        ('[upstreams.a]\nbase_url = "demo"\nmodels = "gpt-*"\n', "upstreams.a.models", 3, "a list in square brackets"),
        ('[upstreams.a]\nbase_ur = "demo"\n', "upstreams.a.base_ur", 2, "base_url (is that what is meant?)"),
        ("[limits]\nbody_mb = 0\n", "limits.body_mb", 2, "1"),
        ("[limits]\nbody = 1\n", "limits.body", 2, "body_mb"),
        ('[upstreams.main]\nmodels = ["*"]\n', "upstreams.main.base_url", 1, "a value"),
        ('[upstreams.main]\nbase_url = "ftp://a"\n', "upstreams.main.base_url", 2, "http"),
        ('[upstreams.main]\nbase_url = "https://u:p@a/"\n', "upstreams.main.base_url", 2, "credentials"),
        ('[upstreams.main]\nbase_url = ""\n', "upstreams.main.base_url", 2, "not empty"),
        ('[groups]\nobservation = [\n "ok",\n "(",\n]\n', "groups.observation[1]", 2, "regular expression"),
        ('policy = "nonesuch"\n', "policy", 1, "thrifty"),
        ('policy = "../etc"\n', "policy", 1, "a name"),
        ('[upstreams.a]\nbase_url = "demo"\npolicy = "none"\n', "upstreams.a.policy", 3, "rolling"),
        ('[[webhooks]]\nurl = "http://a.example"\nsecret_env = "UNSET_9"\n', "webhooks[0].secret_env", 3, "is set"),
        ('[upstreams.a]\nbase_url = "demo"\napi_key_env = "UNSET_9"\n', "upstreams.a.api_key_env", 3, "is set"),
        ('[upstreams.a]\nbase_url = "demo"\nca_bundle = "/none.pem"\n', "upstreams.a.ca_bundle", 3, "PEM"),
        ('policies_dir = "/none"\n', "policies_dir", 1, "folder"),
        ('db = "mysql://a"\n', "db", 1, "postgresql"),
        ("workers = 2\n", "workers", 1, "1"),
        ("state = 1\n", "state", 1, "a table"),
        ('[helper]\nupstream = "none"\nmodel = "m"\n', "helper.upstream", 2, "default"),
        ('[helper]\nupstream = "default"\nmodel = ""\n', "helper.model", 3, "name of a model"),
        ('[embeddings]\nenabled = true\nupstream = ""\nmodel = "m"\n', "embeddings.upstream", 3, "default"),
    ],
)
def test_a_wrong_setting_is_reported_with_key_line_and_allowed_values(
    tmp_path: Path, text: str, key: str, line: int, allowed: str
) -> None:
    file = write(tmp_path, text)
    error = read_refusal(file)
    assert (error.key, error.line, error.source) == (key, line, str(file))
    assert allowed in error.allowed
    said = f"{key} = {error.value!r} is not usable; allowed: "
    if error.value is None:
        said = f"{key} is not given; needed: "
    if key in ("prot", "upstreams.a.base_ur", "limits.body"):
        said = f"there is no setting {key}; allowed: "
    assert str(error).startswith(f"{file}:{line}: {said}")


def test_a_wrong_variable_is_reported_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_PROXY_STATE__ASK", "sometimes")
    assert str(read_refusal()).startswith("CONTEXT_PROXY_STATE__ASK: state.ask = 'sometimes' is not usable")


@pytest.mark.parametrize("name", ["CONTEXT_PROXY_PROT", "CONTEXT_PROXY_STATE__ASKS", "CONTEXT_PROXY_PORT__X"])
def test_a_variable_that_names_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert read_refusal(write(tmp_path, "port = 1\n")).source == name


def test_a_wrong_flag_is_reported_as_a_flag() -> None:
    assert read_refusal(port=-1).source == "--port"


def test_the_value_in_force_is_blamed_not_the_one_it_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, 'policy = "nonesuch"\n')
    assert load_settings(file, {"policy": "rolling"}).policy == "rolling"
    monkeypatch.setenv("CONTEXT_PROXY_POLICY", "neither")
    assert read_refusal(file).source == "CONTEXT_PROXY_POLICY"


def test_loaded_settings_cannot_be_changed() -> None:
    settings: Any = Settings()
    with pytest.raises(ValidationError):
        settings.port = 1
    with pytest.raises(ValidationError):
        settings.limits.body_mb = 1


def test_secrets_of_settings_are_masked_when_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-canary")
    file = write(
        tmp_path,
        'db = "postgresql://me:db-canary@h/x"\n[identity]\nsalt = "salt-canary"\n'
        '[upstreams.a]\nbase_url = "demo"\napi_key_env = "SOME_KEY"\nproxy = "http://me:proxy-canary@h"\n',
    )
    settings = load_settings(file)
    key = settings.upstreams["a"].read_api_key()
    assert key is not None
    assert key.get_secret_value() == "sk-canary"
    assert "canary" not in repr(settings) + str(settings) + repr(key)
    assert mask_password(settings.db) == "postgresql://me:***@h/x"
    assert mask_password("./data/a.sqlite3") == "./data/a.sqlite3"


def test_a_wrong_secret_does_not_show_either(tmp_path: Path) -> None:
    error = read_refusal(write(tmp_path, 'db = "mysql://me:canary@h/x"\n'))
    assert "canary" not in str(error)


def test_targets_are_one_upstream_or_those_named_or_the_demo(tmp_path: Path) -> None:
    named = '[upstreams.a]\nbase_url = "https://a.example/"\n[upstreams.b]\nbase_url = "http://b.example"\n'
    assert list(load_settings(write(tmp_path, named)).active_upstreams) == ["a", "b"]
    assert load_settings(write(tmp_path, named)).active_upstreams["a"].base_url == "https://a.example"
    assert load_settings(write(tmp_path, named), {"upstream": "demo"}).active_upstreams == {
        "default": UpstreamSettings(base_url="demo")
    }
    assert Settings().active_upstreams == {"default": UpstreamSettings(base_url="demo")}


def make_upstreams(**patterns: list[str]) -> dict[str, UpstreamSettings]:
    return {name: UpstreamSettings(base_url="http://127.0.0.1:1", models=tuple(p)) for name, p in patterns.items()}


@pytest.mark.parametrize(
    ("patterns", "unreached"),
    [
        ({"a": ["*"], "b": ["claude-*"]}, {"b": "a"}), ({"a": ["gpt-*"], "b": ["*"]}, {}),
        ({"a": ["gpt-*"], "b": ["*"], "c": ["gemini-*"]}, {"c": "b"}), ({"a": ["*"], "helper": []}, {}),
        ({"a": ["claude-*"], "b": ["claude-opus-*", "claude-x"]}, {"b": "a"}),
        ({"a": ["claude-*"], "b": ["claude-opus-*", "gpt-5"]}, {}), ({"a": ["gpt-?"], "b": ["gpt-*"]}, {}),
        ({"a": ["gpt-[45]"], "b": ["gpt-4"]}, {}), ({"a": ["*-mini"], "b": ["gpt-*"]}, {}),
        ({"a": ["gpt-5"], "b": ["gpt-5"]}, {"b": "a"}),
    ],
)  # fmt: skip
def test_an_upstream_that_gets_no_request_is_found(patterns: dict[str, list[str]], unreached: dict[str, str]) -> None:
    """Nothing is said that cannot be told for sure, as with sets of characters."""
    assert find_unreached_upstreams(make_upstreams(**patterns)) == unreached


def test_the_upstream_of_a_model_is_the_one_to_which_requests_go() -> None:
    upstreams = make_upstreams(a=["gpt-*"], helper=[], b=["claude-*", "gpt-5"])
    client = UpstreamClient(Settings(upstreams=upstreams), Metrics())
    for model in ("gpt-5", "claude-x", "nobody's", ""):
        assert select_upstream(upstreams, model) == client.select_target(model).name


def test_shipped_policies_can_all_be_named_and_read() -> None:
    settings = Settings()
    assert {"thrifty", "rolling", "passthrough", "observe"} <= set(settings.find_policy_files())
    for name in settings.find_policy_files():
        assert settings.read_policy_table(name)["name"] == name


def test_a_policy_of_ones_own_is_found_and_does_not_replace_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\n')
    (tmp_path / "thrifty.toml").write_text('name = "fake"\n')
    settings = load_settings(None, {"policies_dir": str(tmp_path), "policy": "mine"})
    assert settings.read_policy_table("mine") == {"name": "mine"}
    assert settings.read_policy_table("thrifty")["name"] == "thrifty"
    with pytest.raises(ConfigError, match="mine"):
        settings.read_policy_table("nonesuch")


def test_shipped_models_can_all_be_read_and_have_sound_figures() -> None:
    models = Settings().load_models()
    assert models[-1].name == "*"
    for model in models:
        assert model.tokenizer in TOKENIZERS
        assert 0 < model.r <= 1 <= model.w <= 2
        assert model.window is None or model.window >= 8_000
        assert model.input is None or (model.output or 0) >= model.input


@pytest.mark.parametrize(
    ("name", "window", "cache", "after_tool"),
    [
        ("gemini-2.5-flash", 1_048_576, "prefix", "append"),
        ("claude-sonnet-4-5-20250929", 200_000, "breakpoint", "append"),
        ("anthropic/claude-opus-4.5", 200_000, "breakpoint", "append"),
        ("openai/gpt-5", 272_000, "prefix", "append"),
        ("gpt-5.6-sol", 922_000, "breakpoint", "append"),
        ("deepseek-v4-pro", 1_000_000, "units", "append"),
        ("mistral-large-latest", 262_144, "prefix", "append"),
        ("demo", 128_000, "prefix", "append"),
        ("some-new-model", None, "prefix", "append"),
    ],
)
def test_window_and_cache_rules_of_a_model_follow_its_name(
    name: str, window: int | None, cache: str, after_tool: str
) -> None:
    model = find_model(Settings().load_models(), name)
    assert (model.window, model.cache, model.after_tool) == (window, cache, after_tool)


def test_no_pattern_of_models_is_hidden_by_one_before_it() -> None:
    models = Settings().load_models()
    for model in models[:-1]:
        example = re.sub(r"\[(.)[^]]*\]", r"\1", model.name)
        assert model.name in {find_model(models, example.replace("*", rest)).name for rest in ("", ".2")}


def test_models_of_ones_own_come_first(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[models."gpt-5*"]\nwindow = 1000\n')
    models = load_settings(None, {"models_file": str(file)}).load_models()
    assert find_model(models, "gpt-5.6").window == 1000
    assert find_model(models, "gemini-2.5-flash").window == 1_048_576


def test_a_models_file_needs_to_name_only_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[models."gpt-5"]\ninput = 0.5\n')
    models = load_settings(None, {"models_file": str(file)}).load_models()
    shipped_row = find_model(Settings().load_models(), "gpt-5")
    assert find_model(models, "gpt-5") == replace(shipped_row, name="gpt-5", input=0.5)
    assert find_model(models, "gpt-5-mini") == find_model(Settings().load_models(), "gpt-5-mini")


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ('# prices\n[models."x"]\nwindow = 9000\ninput = -2.0\n', 'models."x".input', 4),
        ('[models."x"]\nwindow = "128k"\n', 'models."x".window', 2),
        ('[models."x"]\nwindov = 9000\n', 'models."x".windov', 2),
        ('[model."x"]\nwindow = 9000\n', "model", 1),
        ("window = 9000\n", "window", 1),
        ("models = 5\n", "models", 1),
    ],
)  # fmt: skip
def test_a_models_file_is_refused_at_the_start_with_file_and_line(
    tmp_path: Path, text: str, key: str, line: int
) -> None:
    file = tmp_path / "models.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"models_file": str(file)})
    assert (caught.value.key, caught.value.line, caught.value.source) == (key, line, str(file))


def test_a_models_file_that_is_not_there_is_named_by_its_key(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nmodels_file = "/nowhere.toml"\n')
    found = read_refusal(file)
    assert (found.key, found.value, found.line) == ("models_file", "/nowhere.toml", 2)


@pytest.mark.parametrize("value", [["rm"], "all", 3, ["recall", "rm"]])
def test_a_tool_that_is_not_known_is_refused_with_those_that_are(value: object) -> None:
    found = read_refusal(None, **{"tools.enabled": value})
    assert (found.key, found.value) == ("tools.enabled", value)
    assert found.allowed.startswith("'policy', or a list of recall, query_db")


def test_shipped_files_are_found_in_a_checkout() -> None:
    assert find_shipped_file("models.toml").is_file()


def test_only_settings_reads_the_environment() -> None:
    for file in Path(find_shipped_file("models.toml")).parents[1].joinpath("proxy").rglob("*.py"):
        if file.parts[-2:] != ("settings", "load.py"):
            text = file.read_text()
            assert "os.environ" not in text, file
            assert "getenv" not in text, file


def test_two_keys_have_two_names_and_two_hashes(tmp_path: Path) -> None:
    def entry(name: str, digit: str) -> str:
        return f'[[keys]]\nname = "{name}"\nsha256 = "{digit * 64}"\ntenant = "t"\nplane = "data"\n'

    assert len(load_settings(write(tmp_path, entry("a", "1") + entry("b", "2"))).keys) == 2
    twice = read_refusal(write(tmp_path, entry("a", "1") + entry("a", "2")))
    assert (twice.key, twice.line) == ("keys[1].name", 7)
    same = read_refusal(write(tmp_path, entry("a", "1") + entry("b", "1")))
    assert same.key == "keys[1].sha256"
    assert "1111" not in str(same)


def test_a_key_written_where_its_hash_belongs_is_not_reported(tmp_path: Path) -> None:
    text = '[[keys]]\nname = "a"\nsha256 = "cp-canary"\ntenant = "t"\nplane = "data"\n'
    assert "canary" not in str(read_refusal(write(tmp_path, text)))


def test_keys_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    key = f'[{{"name": "a", "sha256": "{"1" * 64}", "tenant": "t", "plane": "read"}}]'
    monkeypatch.setenv("CONTEXT_PROXY_KEYS", key)
    assert load_settings().keys[0].plane == "read"


def test_where_commands_find_a_proxy_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXT_PROXY_URL", "http://127.0.0.1:8080")
    monkeypatch.setenv("CONTEXT_PROXY_KEY", "cp-key")
    assert load_settings() == Settings()


def test_a_program_is_the_first_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", " ")
    assert find_program("VISUAL", "EDITOR", default="vi") == "vi"
    monkeypatch.setenv("EDITOR", "nano -w")
    assert find_program("VISUAL", "EDITOR", default="vi") == "nano -w"


KEYS = '[[keys]]\nname = "made"\nsha256 = "{}"\ntenant = "t"\nplane = "data"\n'.format("ab" * 32)


def test_s1_keys_of_a_folder_are_in_force_where_the_settings_have_none(tmp_path: Path) -> None:
    folder = {"keys_dir": str(tmp_path)}
    assert load_settings(None, folder).keys == ()
    (tmp_path / "keys.toml").write_text(KEYS)
    assert [key.name for key in load_settings(None, folder).keys] == ["made"]
    own = tmp_path / "config.toml"
    own.write_text(KEYS.replace("made", "mine"))
    settings = load_settings(own, folder)
    assert ([key.name for key in settings.keys], settings.keys_dir) == (["mine"], "")


@pytest.mark.parametrize("text", ["", "keys = []\n", "keys = 5\n", "port = 5\n"])
def test_s1_a_file_without_keys_is_not_taken_for_no_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError, match="keys_dir"):
        load_settings(None, {"keys_dir": str(tmp_path)})


def test_a_wrong_entry_of_the_folder_is_reported_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS.replace("data", "everything"))
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"keys_dir": str(tmp_path)})
    assert (caught.value.key, caught.value.source) == ("keys[0].plane", str(tmp_path / "keys.toml"))
