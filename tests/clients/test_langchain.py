"""LangChain's own integration tests, with ChatOpenAI pointed at the proxy in front of the demo model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

from tests.proxy_server import RunningProxy, run_proxy_in_thread

pytestmark = [
    pytest.mark.clients,
    # Both are LangChain's own, and come without the proxy as well.
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1 schema:UserWarning"),
]


@pytest.fixture(scope="module", params=["thrifty", "rolling"], autouse=True)
def proxy(request: pytest.FixtureRequest) -> Iterator[RunningProxy]:
    with run_proxy_in_thread("demo", policy=request.param) as made:
        TestChatOpenAI.url = made.url
        yield made


class TestChatOpenAI(ChatModelIntegrationTests):
    url: str = ""
    opened: ClassVar[list[Any]] = []

    @pytest.fixture(autouse=True)
    async def closed(self) -> AsyncIterator[None]:
        """LangChain keeps its connections in a cache of its own for ever; these are closed with each test."""
        yield
        while self.opened:
            client = self.opened.pop()
            if isinstance(client, DefaultHttpxClient):
                client.close()
            else:
                await client.aclose()

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # The one line that a user changes is base_url.
        clients = {"http_client": DefaultHttpxClient(), "http_async_client": DefaultAsyncHttpxClient()}
        self.opened.extend(clients.values())
        return {"model": "demo", "base_url": self.url, "api_key": "sk-any", "stream_usage": True, **clients}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "demo-2"

    @property
    def supports_image_inputs(self) -> bool:
        return False
