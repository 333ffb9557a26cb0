from __future__ import annotations

import json
from typing import Any

from proxy.stream.relay import Relay

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
DONE = b"data: [DONE]\n\n"
OURS = frozenset({"recall", "query_db"})


def chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    value = {**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def call(index: int, arguments: str, name: str = "") -> dict[str, Any]:
    part: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name:
        part |= {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [part]}


def test_a_round_with_calls_of_ours_alone_goes_on_and_shows_nothing_of_its_end() -> None:
    relay = Relay(withhold_state=False, drop_usage=False, hidden=OURS)
    said = chunk({"role": "assistant", "content": "Let me see."})
    ended = chunk({}, 0, "tool_calls") + DONE
    assert relay.feed(said + chunk(call(0, "", "recall")) + chunk(call(0, "{}")) + ended) + relay.end() == said
    assert relay.goes_on
    assert relay.terminal == b""
    assert [(one.name, one.arguments) for one in relay.hidden_calls] == [("recall", "{}")]
