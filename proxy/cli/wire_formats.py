"""Wire formats of upstreams: how `doctor` tries one, and how a start shows to ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.cli.agents import is_anthropic
from proxy.settings.load import UpstreamSettings
from proxy.settings.model import DEMO
from proxy.upstream.aws_signing import BEDROCK_SERVICE, find_service
from proxy.upstream.headers import GOOGLE_HOST


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The way to ask an upstream of one wire format."""

    model: str
    """A small model of its provider."""
    key_variables: tuple[str, ...]
    """Variables in which clients look for the provider's key."""
    version: str
    """The beginning of its paths."""
    make_headers: Callable[[str], dict[str, str]]
    """Returns the headers with a key, which may be empty."""
    make_request: Callable[[str, str, int], tuple[str, dict[str, Any]]]
    """Returns path and body for a model, a prompt and the most tokens of the answer; 0: as many as the model likes."""
    client: str
    """The client in its own language: the title, and the lines behind it. {url} is the proxy's address without a path,
    {model} the model, {arguments} further arguments of the client."""


def _ask_completions(model: str, prompt: str, tokens: int) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}]}
    return "/chat/completions", body | ({"max_completion_tokens": tokens} if tokens else {})


def _ask_messages(model: str, prompt: str, tokens: int) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": prompt}]
    return "/messages", {"model": model, "max_tokens": tokens or 1000, "messages": messages}


def _ask_gemini(model: str, prompt: str, tokens: int) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
    return f"/models/{model}:generateContent", body | (
        {"generationConfig": {"maxOutputTokens": tokens}} if tokens else {}
    )


def _ask_bedrock(model: str, prompt: str, tokens: int) -> tuple[str, dict[str, Any]]:
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": tokens or 1000}
    return f"/model/{model}/invoke", body | {"messages": [{"role": "user", "content": prompt}]}


COMPLETIONS: Final = WireFormat(
    "gpt-5-mini", ("OPENAI_API_KEY",), "/v1", lambda key: {"Authorization": f"Bearer {key}"} if key else {},
    _ask_completions,
    "or from Python (pip install openai)\n"
    'from openai import OpenAI\nclient = OpenAI(base_url="{url}/v1"{arguments})\n'
    'print(client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}])'
    ".choices[0].message.content)",
)  # fmt: skip
MESSAGES: Final = WireFormat(
    "claude-haiku-4-5", ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), "/v1",
    lambda key: {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {}), _ask_messages,
    "or from Python (pip install anthropic)\n"
    'from anthropic import Anthropic\nclient = Anthropic(base_url="{url}"{arguments})\n'
    'print(client.messages.create(model="{model}", max_tokens=1000, messages=[{{"role": "user", "content": "Hello"}}])'
    ".content[0].text)",
)  # fmt: skip
GEMINI: Final = WireFormat(
    "gemini-2.5-flash", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "/v1beta",
    lambda key: {"x-goog-api-key": key} if key else {}, _ask_gemini,
    "or Gemini CLI\nGOOGLE_GEMINI_BASE_URL={url} gemini",
)  # fmt: skip

BEDROCK: Final = WireFormat(
    "us.anthropic.claude-haiku-4-5-20251001-v1:0", ("AWS_BEARER_TOKEN_BEDROCK",), "",
    lambda key: {"Authorization": f"Bearer {key}"} if key else {}, _ask_bedrock,
    "or Claude Code\nCLAUDE_CODE_USE_BEDROCK=1 ANTHROPIC_BEDROCK_BASE_URL={url} claude",
)  # fmt: skip


def find_wire_format(target: UpstreamSettings) -> WireFormat:
    """Return the format in which an upstream is asked. Google's address for clients of OpenAI has a longer path."""
    parts = urlsplit(target.base_url)
    service, region = find_service(parts.hostname or "")
    if service == BEDROCK_SERVICE and region and not parts.path.strip("/"):
        return BEDROCK
    if target.strategy == "anthropic" or is_anthropic(target.base_url):
        return MESSAGES
    is_google = target.strategy == "gemini" or parts.hostname == GOOGLE_HOST
    return GEMINI if is_google and parts.path.rstrip("/") in ("", GEMINI.version) else COMPLETIONS


def find_plain_model(target: UpstreamSettings) -> str:
    """Return a model of an upstream to ask about: the first one named without a pattern, else a usual one."""
    plain = [name for name in target.models if not set(name) & set("*?[")]
    if target.base_url == DEMO:
        return DEMO
    return plain[0] if plain else find_wire_format(target).model
