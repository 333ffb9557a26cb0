from __future__ import annotations

import logging

import pytest

from proxy.web import unmanaged_paths
from proxy.web.unmanaged_paths import is_conversational
from tests.faulty import faulty
from tests.running import CHAT, Agent, running
from tests.scripted import Scripted

HEADER = "x-context-unmanaged"


@pytest.mark.parametrize(
    "path",
    ["/v1/messages", "/v1/responses", "/v1/completions", "/anthropic/v1/messages/", "/v1beta/models/g:generateContent",
     "/v1beta/models/g:streamGenerateContent", "/api/chat", "/api/generate", "/model/m/converse-stream",
     "/model/m/invoke", "/openai/deployments/d/chat/completions", "/v1/complete"],
)  # fmt: skip
def test_these_bring_conversations(path: str) -> None:
    assert is_conversational("POST", path)
    assert not is_conversational("GET", path)


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/files", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/responses/resp_1/cancel",
     "/v1/threads/t/messages", "/v1/models/m:embedContent", "/", "", "/v1/mymessages", "/x/chat"],
)  # fmt: skip
def test_these_do_not(path: str) -> None:
    assert not is_conversational("POST", path)


async def test_an_unmanaged_conversation_is_named_in_the_answer_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unmanaged_paths, "MAX_LOGGED_PATHS", 3)
    with caplog.at_level(logging.WARNING, "proxy.web.app"):
        async with faulty(Scripted()) as upstream, running(upstream.port) as proxy:
            for path in ("/v1/messages", "/v1/responses", "/s/mine/v1/messages", "/v1/messages"):
                found = await proxy.post({"model": "m", "messages": []}, path=path)
                assert found.header(HEADER) == path.removeprefix("/s/mine")
            for other in ("/v1/embeddings", "/v1/files"):
                assert (await proxy.post({"model": "m"}, path=other)).header(HEADER) is None
            managed = Agent(proxy, path=CHAT, messages=[{"role": "user", "content": "Hello"}])
            assert (await managed.send()).header(HEADER) is None
            strange = await proxy.post({}, path="/%0d%0ax:%20y/v1/messages")
            assert strange.header(HEADER) == "/%0d%0ax:%20y/v1/messages"
            await proxy.post({}, path="/one/more/v1/messages")
    said = [record.getMessage() for record in caplog.records if "unmanaged" in record.getMessage()]
    assert len(said) == 3, "a client cannot fill the log with paths of its own"
    assert [text.split()[2] for text in said[:2]] == ["/v1/messages", "/v1/responses"]
    assert "\n" not in said[2]
