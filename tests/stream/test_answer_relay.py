"""Options that a dialect does not have leave its streams as they are."""

from __future__ import annotations

import pytest

from proxy.exchange.dialect import DIALECTS
from proxy.stream.answer_relay import RelayOptions
from tests.response_events import events, message, response
from tests.stream import gemini_rounds, messages_rounds

USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
STREAMS = {
    "completions": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Hi."}}]}\n\n' + USAGE,
    "messages": messages_rounds.stream(messages_rounds.text("Hi.")),
    "responses": b"".join(events(response(message(1, "Hi.")))),
    "gemini": gemini_rounds.stream(gemini_rounds.text("Hi.")),
}


@pytest.mark.parametrize("name", STREAMS)
def test_chat_completions_alone_have_a_usage_that_the_client_did_not_ask_for(name: str) -> None:
    relay = DIALECTS[name].answers.make_relay(RelayOptions(drop_usage=True), None)
    out = relay.feed(STREAMS[name]) + relay.end() + relay.terminal
    assert out == (STREAMS[name].removesuffix(USAGE) if name == "completions" else STREAMS[name])
    assert relay.answer.usage is not None
