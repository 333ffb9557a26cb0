from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.cli.agents import ANTHROPIC
from proxy.cli.claude_clouds import BEDROCK, FOUNDRY, MANTLE, PLATFORM, VERTEX
from proxy.errors import ConfigError
from tests.cli.test_agents import URL, bases, read, write


@pytest.mark.parametrize(
    ("known", "base"),
    [
        ({"CLOUD_ML_REGION": "us-east5"}, "https://us-east5-aiplatform.googleapis.com/v1"),
        ({"CLOUD_ML_REGION": "global"}, "https://aiplatform.googleapis.com/v1"),
        ({"CLOUD_ML_REGION": "eu"}, "https://aiplatform.eu.rep.googleapis.com/v1"),
        ({"ANTHROPIC_VERTEX_BASE_URL": "https://gateway.example/vertex/v1"}, "https://gateway.example/vertex/v1"),
    ],
)
def test_claude_on_vertex_is_led_to_its_region(tmp_path: Path, known: dict[str, str], base: str) -> None:
    made = read("claude", tmp_path, **{VERTEX: "1"}, **known)
    assert bases(made) == [(base, ("*",))]
    assert made.fill_environment(URL) == {"ANTHROPIC_VERTEX_BASE_URL": f"{URL}/v1"}
    named = read("claude", tmp_path, upstream="https://mine.example/v1", **{VERTEX: "true"})
    assert bases(named) == [("https://mine.example/v1", ("*",))]


def test_claude_on_vertex_needs_one_region(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CLOUD_ML_REGION"):
        read("claude", tmp_path, **{VERTEX: "1"})
    two = {"CLOUD_ML_REGION": "global", "VERTEX_REGION_CLAUDE_HAIKU_4_5": "us-east5"}
    with pytest.raises(ConfigError, match="VERTEX_REGION_CLAUDE_HAIKU_4_5"):
        read("claude", tmp_path, **{VERTEX: "1"}, **two)


def test_claude_in_foundry_is_led_to_its_resource_and_told_of_one_address(tmp_path: Path) -> None:
    made = read("claude", tmp_path, **{FOUNDRY: "1"}, ANTHROPIC_FOUNDRY_RESOURCE="team")
    assert bases(made) == [("https://team.services.ai.azure.com/anthropic/v1", ("*",))]
    assert made.fill_environment(URL) == {"ANTHROPIC_FOUNDRY_BASE_URL": URL, "ANTHROPIC_FOUNDRY_RESOURCE": ""}
    made = read("claude", tmp_path, **{FOUNDRY: "1"}, ANTHROPIC_FOUNDRY_BASE_URL="https://gateway.example/anthropic")
    assert bases(made) == [("https://gateway.example/anthropic/v1", ("*",))]
    assert made.fill_environment(URL) == {"ANTHROPIC_FOUNDRY_BASE_URL": URL}
    with pytest.raises(ConfigError, match="ANTHROPIC_FOUNDRY_RESOURCE"):
        read("claude", tmp_path, **{FOUNDRY: "1"})


def test_a_cloud_that_a_settings_file_names_is_laid_over_it(tmp_path: Path) -> None:
    own = {FOUNDRY: "1", "ANTHROPIC_FOUNDRY_RESOURCE": "team"}
    write(tmp_path / ".claude/settings.json", json.dumps({"env": own}))
    laid = json.loads(read("claude", tmp_path).fill_arguments(URL)[1])
    assert laid == {"env": {"ANTHROPIC_FOUNDRY_RESOURCE": ""}}, "its base URL stands in the environment"


AWS = {"AWS_REGION": "eu-west-1"}


@pytest.mark.parametrize(
    ("cloud", "variable", "base", "unsigned"),
    [
        (BEDROCK, "ANTHROPIC_BEDROCK_BASE_URL", "https://bedrock-runtime.eu-west-1.amazonaws.com",
         "CLAUDE_CODE_SKIP_BEDROCK_AUTH"),
        (MANTLE, "ANTHROPIC_BEDROCK_MANTLE_BASE_URL", "https://bedrock-mantle.eu-west-1.api.aws/anthropic/v1",
         "CLAUDE_CODE_SKIP_MANTLE_AUTH"),
        (PLATFORM, "ANTHROPIC_AWS_BASE_URL", "https://aws-external-anthropic.eu-west-1.api.aws",
         "CLAUDE_CODE_SKIP_ANTHROPIC_AWS_AUTH"),
    ],
)  # fmt: skip
def test_claude_on_aws_is_signed_for_by_the_proxy_where_it_has_no_key(
    tmp_path: Path, cloud: str, variable: str, base: str, unsigned: str
) -> None:
    made = read("claude", tmp_path, **{cloud: "1"}, **AWS)
    assert [(one.base_url, one.auth) for one in made.upstreams] == [(base, "aws")]
    assert made.fill_environment(URL) == {variable: URL, unsigned: "1"}
    key = "ANTHROPIC_AWS_API_KEY" if cloud == PLATFORM else "AWS_BEARER_TOKEN_BEDROCK"
    for more in ({key: "k"}, {unsigned: "1"}):
        made = read("claude", tmp_path, **{cloud: "1"}, **AWS, **more)
        assert [(one.base_url, one.auth) for one in made.upstreams] == [(base, "")]
        assert made.fill_environment(URL) == {variable: URL}
    named = read("claude", tmp_path, upstream="https://mine.example/v1", **{cloud: "1"})
    assert [(one.base_url, one.auth) for one in named.upstreams] == [("https://mine.example/v1", "aws")]


def test_claude_on_aws_needs_one_region_and_one_cloud(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="AWS_REGION"):
        read("claude", tmp_path, **{BEDROCK: "1"})
    with pytest.raises(ConfigError, match="ANTHROPIC_SMALL_FAST_MODEL_AWS_REGION"):
        read("claude", tmp_path, **{BEDROCK: "1"}, **AWS, ANTHROPIC_SMALL_FAST_MODEL_AWS_REGION="us-east-1")
    with pytest.raises(ConfigError, match=MANTLE):
        read("claude", tmp_path, **{BEDROCK: "1", MANTLE: "1"}, **AWS)
    for cloud in (BEDROCK, MANTLE, PLATFORM, VERTEX, FOUNDRY):
        assert bases(read("claude", tmp_path, **{cloud: "0"})) == [(ANTHROPIC, ("*",))]
