"""One proxy for a team (docs/deploy/team.md): each SDK sends a key of the proxy, each provider gets the operator's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai
import pytest

from tests.proxy_server import make_key, run_proxy
from tests.raw_upstream import RawRequest, run_upstream
from tests.scripted_model import ScriptedModel
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages
from tests.web.test_list_models import run_team

# Any, where a package is not installed as well: then the tests are skipped with these reasons.
anthropic: Any = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")
genai: Any = pytest.importorskip("google.genai", reason="the google-genai SDK is not installed")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),  # the SDK derives from aiohttp's session
]

KEY = "cp-of-a-team"
OPERATORS = {"OPENAI_KEY": "sk-operator-1", "ANTHROPIC_KEY": "sk-ant-operator-2", "GEMINI_KEY": "AIza-operator-3"}
CREDENTIALS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"x-context-key")


def list_credentials(received: Sequence[RawRequest]) -> set[tuple[bytes, bytes]]:
    """The credentials that an upstream has got."""
    return {(name, value) for one in received for name in CREDENTIALS for value in one.all(name)}


async def test_each_sdk_needs_the_proxys_key_alone_and_each_provider_gets_the_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in OPERATORS.items():
        monkeypatch.setenv(name, value)
    gpt, claude, gemini = ScriptedModel("Hello."), StrictMessages("Hello."), StrictGemini("Hello.")
    async with run_upstream(gpt) as one, run_upstream(claude) as two, run_upstream(gemini) as three:
        upstreams = {
            "openai": {"base_url": f"http://127.0.0.1:{one.port}/v1", "api_key_env": "OPENAI_KEY", "models": ["gpt-*"]},
            "anthropic": {
                "base_url": f"http://127.0.0.1:{two.port}/v1", "api_key_env": "ANTHROPIC_KEY", "models": ["claude-*"],
                "strategy": "anthropic",
            },
            "google": {
                "base_url": f"http://127.0.0.1:{three.port}", "api_key_env": "GEMINI_KEY", "models": ["gemini-*"],
                "strategy": "gemini",
            },
        }  # fmt: skip
        async with run_proxy("", upstreams=upstreams, keys=[make_key(KEY)]) as proxy:
            base = f"http://127.0.0.1:{proxy.port}"
            messages: Any = [{"role": "user", "content": "Hello"}]
            async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0) as client:
                said = await client.chat.completions.create(model="gpt-5", messages=messages)
                assert said.choices[0].message.content == "Hello."
            for credential in ({"api_key": KEY}, {"auth_token": KEY}):
                async with anthropic.AsyncAnthropic(base_url=base, max_retries=0, **credential) as client:
                    await client.messages.create(model="claude-opus-5-5", max_tokens=100, messages=messages)
            async with genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=base)).aio as client:
                await client.models.generate_content(model="gemini-3-pro", contents="Hello")
            async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-other", max_retries=0) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()
    assert list_credentials(gpt.received) == {(b"authorization", b"Bearer sk-operator-1")}
    assert list_credentials(claude.received) == {(b"x-api-key", b"sk-ant-operator-2")}
    assert list_credentials(gemini.received) == {(b"x-goog-api-key", b"AIza-operator-3")}
    assert claude.refusals == gemini.refusals == []


async def test_each_sdk_lists_the_models_of_all_providers_in_its_own_form(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_team(monkeypatch, keys=[make_key(KEY)]) as team:
        base = f"http://127.0.0.1:{team.proxy.port}"
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0) as client:
            found = [(one.id, one.owned_by) async for one in client.models.list()]
            assert found == [("gpt-5", "openai"), ("claude-x", "anthropic"), ("gemini-3", "google")]
        async with anthropic.AsyncAnthropic(base_url=base, api_key=KEY, max_retries=0) as client:
            listed = [(one.id, one.display_name) async for one in client.models.list(limit=1)]
            assert listed == [("gpt-5", "gpt-5"), ("claude-x", "X")]
        async with genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=base)).aio as client:
            names = [one.name async for one in await client.models.list()]
            assert names == ["models/gpt-5", "models/gemini-3"]
