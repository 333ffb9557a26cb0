"""The SDKs' own clients of Vertex AI, Bedrock and Azure in loops of 25 steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.clouds import AzureModel, BedrockModel, VertexModel, on
from tests.clients.loops import POLICIES, Run, check_client, make_messages_model, make_responses_model
from tests.clients.test_dialect_sdks import work_on_messages, work_on_responses

# Any, where the package is not installed as well: then the tests are skipped with this reason.
anthropic: Any = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")

pytestmark = [pytest.mark.clients, pytest.mark.slow]


async def run_vertex(base: str, stream: bool) -> Run:
    """Claude on Vertex AI, with a count before each step."""
    client = anthropic.AsyncAnthropicVertex(
        base_url=f"{base}/v1", access_token="ya29.token", project_id="team", region="us-east5", max_retries=0
    )
    return await work_on_messages(client, stream=stream, counts=True)


async def run_bedrock(base: str, stream: bool) -> Run:
    """Claude on Bedrock, with an API key."""
    client = anthropic.AsyncAnthropicBedrock(base_url=base, api_key="ABSK-any", aws_region="us-east-1", max_retries=0)
    return await work_on_messages(client, stream=stream)


async def run_azure(base: str, stream: bool) -> Run:
    """Responses on Azure."""
    client = openai.AsyncAzureOpenAI(
        azure_endpoint=base, api_key="azure-key", api_version="2025-04-01-preview", max_retries=0
    )
    return await work_on_responses(client, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_of_claude_on_vertex_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_vertex, on(VertexModel, make_messages_model), POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_of_responses_on_azure_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_azure, on(AzureModel, make_responses_model), POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_of_claude_on_bedrock_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_bedrock, on(BedrockModel, make_messages_model), POLICIES, tmp_path, stream=stream)
