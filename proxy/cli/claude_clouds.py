"""Clouds on which Claude Code runs: the address of each, and the variables that point one run at the proxy.

The addresses are those of Anthropic's SDKs. On AWS a client signs its requests for one host and one body. So the proxy
signs them, unless an API key or a gateway does without a signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from proxy.errors import ConfigError

BEDROCK: Final = "CLAUDE_CODE_USE_BEDROCK"
MANTLE: Final = "CLAUDE_CODE_USE_MANTLE"
PLATFORM: Final = "CLAUDE_CODE_USE_ANTHROPIC_AWS"
VERTEX: Final = "CLAUDE_CODE_USE_VERTEX"
FOUNDRY: Final = "CLAUDE_CODE_USE_FOUNDRY"
"""Variables by which Claude Code sends its requests to a cloud: three on AWS, Google's, Microsoft's."""
FOUNDRY_RESOURCE: Final = "ANTHROPIC_FOUNDRY_RESOURCE"
VERTEX_REGION: Final = "CLOUD_ML_REGION"
SMALL_MODEL_REGION: Final = "ANTHROPIC_SMALL_FAST_MODEL_AWS_REGION"


class CloudPlace(NamedTuple):
    """The place of Claude Code's requests in a cloud."""

    base_url: str
    environment: dict[str, str]
    """The variables that point one run at the proxy (`AgentSetup.environment`)."""
    auth: str = ""
    """`aws` if the proxy has to sign (`upstreams.NAME.auth`)."""


@dataclass(frozen=True, slots=True)
class AwsPlace:
    """One of Claude's addresses on AWS."""

    base_variable: str
    """The variable that names another address."""
    usual: str
    """The address in a region."""
    key_variables: tuple[str, ...]
    """Variables of an API key, with which nothing is signed."""
    unsigned_variable: str
    """The variable with which Claude Code neither signs nor sends a key."""


AWS_PLACES: Final[Mapping[str, AwsPlace]] = {
    BEDROCK: AwsPlace(
        "ANTHROPIC_BEDROCK_BASE_URL", "https://bedrock-runtime.{region}.amazonaws.com",
        ("AWS_BEARER_TOKEN_BEDROCK",), "CLAUDE_CODE_SKIP_BEDROCK_AUTH",
    ),
    MANTLE: AwsPlace(
        "ANTHROPIC_BEDROCK_MANTLE_BASE_URL", "https://bedrock-mantle.{region}.api.aws/anthropic",
        ("AWS_BEARER_TOKEN_BEDROCK", "ANTHROPIC_AWS_API_KEY"), "CLAUDE_CODE_SKIP_MANTLE_AUTH",
    ),
    PLATFORM: AwsPlace(
        "ANTHROPIC_AWS_BASE_URL", "https://aws-external-anthropic.{region}.api.aws",
        ("ANTHROPIC_AWS_API_KEY",), "CLAUDE_CODE_SKIP_ANTHROPIC_AWS_AUTH",
    ),
}  # fmt: skip
"""By the variable that chooses it."""


def find_cloud_place(known: Mapping[str, str], upstream: str) -> CloudPlace | None:
    """Return the place of Claude Code's requests; None if they go to no cloud. known: the variables in force. upstream:
    the address that a person named. Raises ConfigError."""
    clouds = [name for name in (*AWS_PLACES, VERTEX, FOUNDRY) if is_switched_on(known, name)]
    if not clouds:
        return None
    if len(clouds) > 1:
        raise ConfigError(clouds[1], known[clouds[1]], f"0 beside {clouds[0]}: the proxy leads to one address")
    if clouds[0] in AWS_PLACES:
        return _find_aws_place(AWS_PLACES[clouds[0]], known, upstream)
    if clouds[0] == VERTEX:
        return CloudPlace(upstream or _find_vertex_base(known), {"ANTHROPIC_VERTEX_BASE_URL": "{url}/v1"})
    environment = {"ANTHROPIC_FOUNDRY_BASE_URL": "{url}"}
    if known.get(FOUNDRY_RESOURCE):
        environment[FOUNDRY_RESOURCE] = ""  # Claude Code refuses both
    return CloudPlace(upstream or _find_foundry_base(known), environment)


def is_switched_on(known: Mapping[str, str], name: str) -> bool:
    """True if a variable is set to more than an empty value, 0 or false."""
    return known.get(name, "").lower() not in ("", "0", "false")


def _find_aws_place(place: AwsPlace, known: Mapping[str, str], upstream: str) -> CloudPlace:
    named = upstream or known.get(place.base_variable, "")
    region = known.get("AWS_REGION") or known.get("AWS_DEFAULT_REGION") or ""
    if not (named or region):
        raise ConfigError("AWS_REGION", region, "a region of AWS, or name the address with --upstream")
    small = known.get(SMALL_MODEL_REGION) or region
    if not named and small != region:
        raise ConfigError(SMALL_MODEL_REGION, small, "the region of AWS_REGION: the proxy leads to one")
    base = named or place.usual.format(region=region)
    if place.base_variable != AWS_PLACES[BEDROCK].base_variable:
        base = add_version(base)
    environment = {place.base_variable: "{url}"}
    if is_switched_on(known, place.unsigned_variable) or any(known.get(name) for name in place.key_variables):
        return CloudPlace(base, environment)
    return CloudPlace(base, {**environment, place.unsigned_variable: "1"}, "aws")


def _find_vertex_base(known: Mapping[str, str]) -> str:
    """Return the address of Vertex AI in a region."""
    if named := known.get("ANTHROPIC_VERTEX_BASE_URL"):
        return named
    for name, value in known.items():  # a region for one model
        if name.startswith("VERTEX_REGION_") and value and value != known.get(VERTEX_REGION):
            raise ConfigError(name, value, f"the region of {VERTEX_REGION}: the proxy leads to one")
    region = known.get(VERTEX_REGION, "")
    if not region:
        raise ConfigError(VERTEX_REGION, region, "a region of Vertex AI, or name the address with --upstream")
    if region == "global":
        return "https://aiplatform.googleapis.com/v1"
    if region in ("us", "eu"):
        return f"https://aiplatform.{region}.rep.googleapis.com/v1"
    return f"https://{region}-aiplatform.googleapis.com/v1"


def _find_foundry_base(known: Mapping[str, str]) -> str:
    """Return the address of Claude in Microsoft Foundry."""
    if named := known.get("ANTHROPIC_FOUNDRY_BASE_URL"):
        return add_version(named)
    resource = known.get(FOUNDRY_RESOURCE, "")
    if not resource:
        raise ConfigError(FOUNDRY_RESOURCE, resource, "a resource of Foundry, or name the address with --upstream")
    return f"https://{resource}.services.ai.azure.com/anthropic/v1"


def add_version(base: str) -> str:
    """Return the address for the proxy: agents add /v1/messages to theirs, and the proxy replaces /v1 by a base's own
    path."""
    base = base.rstrip("/")
    return base if urlsplit(base).path in ("", "/v1") or base.endswith("/v1") else base + "/v1"
