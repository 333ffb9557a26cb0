"""A model that works with tools of the client's and of the proxy's, and what each side must have seen of it.

Any client can be put to it: it asks ASKED, brings what `weather` says for each call, and asks THANKS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.exchange.hidden_calls import OURS, SECRET, make_answer, normalize_answer
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest
from tests.scripted_model import ScriptedModel, send_completion, send_stream

Json = dict[str, Any]

SYSTEM = "You know about the weather. Be brief."
ASKED = "How is the weather in Oslo, in Rome and in Bergen? The word is swordfish."
THANKS = "Thank you. What was the word?"
FIRST = ("Let me look. ", "In Bergen it rains, in Oslo too, in Rome it does not.")
"""Texts of the first turn, before and after all the calls."""
LAST = ("One moment. ", "It was swordfish.")
SESSION = {"x-session-id": "weather-1"}
"""Memos are for sessions that the client names."""
CITIES = ["Oslo", "Rome", "Bergen"]
SCHEMA: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def weather(city: str) -> str:
    """The client's own tool."""
    return f"{city}: {len(city)} degrees"


def call(name: str, at: str, **arguments: Any) -> Json:
    """A call of ours has SECRET in its id."""
    call_id = f"call_{SECRET if name in OURS else 'own'}{at}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def look(city: str) -> Json:
    return call("get_weather", city, city=city)


def results(body: Json) -> dict[str, str]:
    """The result of each call of a request, by its id."""
    return {m["tool_call_id"]: m["content"] for m in body["messages"] if m["role"] == "tool"}


def first_id(body: Json) -> str:
    """The id of the user's question, as `query_db` has told it."""
    found = re.search(r"\b[0-9a-z]{10}\b", results(body)[f"call_{SECRET}q"].rpartition("\n")[2])
    assert found is not None
    return found[0]


FIND = call("query_db", "q", sql="SELECT id FROM messages WHERE role = 'user' ORDER BY seq LIMIT 1")
NOTE = f"{SECRET}: three cities were asked for"
ANSWERS: list[Callable[[Json], Json]] = [
    lambda _: make_answer(FIRST[0], FIND, call("manage_scratchpad", "s", action="append", content=NOTE)),
    lambda body: make_answer(None, look("Oslo"), call("recall", "r", id=first_id(body)), look("Rome")),
    lambda _: make_answer(None, call("save_memo", "m", content=f"{NOTE}, because a trip was planned", tags=[SECRET])),
    lambda _: make_answer(None, call("manage_scratchpad", "t", action="read"), look("Bergen")),
    lambda _: make_answer(FIRST[1]),
    lambda body: make_answer(
        LAST[0], call("recall", "u", id=first_id(body)), call("retrieve_memos", "v", tags=[SECRET])
    ),
    lambda _: make_answer(LAST[1]),
]
BROUGHT = {"q": "", "s": "", "r": "swordfish", "m": "saved", "t": NOTE, "u": "swordfish", "v": NOTE}
"""A text that the result of each call of the proxy's tools has to contain."""


class Forecaster(ScriptedModel):
    """The model. wrote: its messages so far."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote: list[Json] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.received.append(request)
        body = json.loads(request.body)
        message = ANSWERS[len(self.wrote)](body)
        self.wrote.append(message)
        if body.get("stream"):
            wanted = (body.get("stream_options") or {}).get("include_usage")
            await send_stream(connection, message, self.usage if wanted else None)
        else:
            await send_completion(connection, message, self.usage)

    def assert_told(self) -> None:
        """Each request is the transcript as it really was; the one thing of its own is the system message, in which
        the policy tells of its state."""
        assert len(self.wrote) == len(ANSWERS)
        history: list[Json] = []
        brought: dict[str, str] = {}
        for at, body in enumerate(self.chats):
            brought |= results(body)
            if at in (0, 5):
                history.append({"role": "user", "content": (ASKED, THANKS)[at > 0]})
            assert body["messages"][0]["role"] == "system"
            assert [_told(m) for m in body["messages"][1:]] == history, f"request {at}"
            history.append(normalize_answer(self.wrote[at]))
            called = self.wrote[at].get("tool_calls") or ()
            history += [{"role": "tool", "tool_call_id": one["id"]} for one in called]
            names = [tool["function"]["name"] for tool in body["tools"]]
            assert names == ["get_weather", *OURS]
        own = {name: text for name, text in brought.items() if SECRET not in name}
        assert own == {f"call_own{city}": weather(city) for city in CITIES}
        ours = {name.removeprefix(f"call_{SECRET}"): text for name, text in brought.items() if SECRET in name}
        assert ours.keys() == BROUGHT.keys()
        for name, text in ours.items():
            assert BROUGHT[name] in text
            assert '"error"' not in text


def _told(message: Json) -> Json:
    if message["role"] == "assistant":
        return normalize_answer({name: message.get(name) for name in ("content", "tool_calls")})
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["tool_call_id"]}
    text: str = message["content"]
    # What the policy tells at the tail stands behind the user's text.
    return {"role": "user", "content": text[: len(ASKED)] if text.startswith(ASKED) else text[: len(THANKS)]}


def assert_unseen(*told: str) -> None:
    """Nothing of ours in what the client has."""
    for text in told:
        for name in (*OURS, SECRET):
            assert name not in text


def offering_all(upstream: int) -> AbstractAsyncContextManager[RunningProxy]:
    """A proxy with all its tools."""
    return run_proxy(upstream, policy="rolling")
