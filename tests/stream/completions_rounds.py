"""Answers of several rounds, in the forms that servers give them, and what a client makes of them.

A `Script` says what a model does in one round; `events` writes it as the stream of some server, `body` as one body.
`read` is what openai-python's accumulating helper makes of a stream; `expected` is what the scripts say it should be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai._streaming import SSEDecoder
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_relay import CompletionsRelay

OURS = frozenset({"recall", "query_db", "describe_db", "save_memo"})
DONE = b"data: [DONE]\n\n"
FORMS = (
    "openai", "whole", "together", "one chunk", "parallel", "pieces", "names again", "no ids", "no index",
    "one index", "arguments at once",
)  # fmt: skip
"""Ways in which servers stream calls."""
LEGIBLE = frozenset(FORMS) - {"names again", "no index", "one index"}
"""Those that openai-python's helper can read where all calls are the client's."""


@dataclass(frozen=True)
class Made:
    """One call that the model makes."""

    name: str
    arguments: str
    id: str
    extra: bool = False

    def whole(self, form: str = "openai") -> dict[str, Any]:
        found: dict[str, Any] = {"id": self.id, "type": "function"}
        found["function"] = {"name": self.name, "arguments": self.arguments}
        if self.extra:
            found["extra_content"] = {"google": {"thought_signature": f"sig-{self.id}"}}
        if form == "no ids":
            del found["id"]
        return found


@dataclass(frozen=True)
class Script:
    """One round. said: texts, reasoning (`("reasoning_content", "...")`) and calls, in their order."""

    said: tuple[str | tuple[str, str] | Made, ...]
    finish: str = "tool_calls"
    form: str = "openai"
    prompt: int = 100
    completion: int = 7
    id: str = "chatcmpl-1"
    size: int = 9
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def calls(self) -> list[Made]:
        return [one for one in self.said if isinstance(one, Made)]

    @property
    def text(self) -> str:
        return "".join(one for one in self.said if isinstance(one, str))

    @property
    def reasoning(self) -> str:
        return "".join(one[1] for one in self.said if isinstance(one, tuple))

    def head(self) -> dict[str, Any]:
        created = 1_700_000_000 + len(self.id) + self.prompt
        return {"id": self.id, "object": "chat.completion.chunk", "created": created, "model": f"m-{self.id}"}

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.prompt // 2},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }


MINE = ("recall", "query_db", "describe_db", "save_memo")
THEIRS = ("read", "bash", "re", "query_db2")
LAST = Script(("And so it is.",), "stop", id="chatcmpl-last", prompt=900, completion=11)


def make_calls(names: str, form: str = "openai") -> list[Made]:
    """Calls for letters: `o` one of ours, `t` one of the client's."""
    found = []
    for at, letter in enumerate(names):
        name = (MINE if letter == "o" else THEIRS)[at % 4]
        who = "mine" if letter == "o" else "theirs"
        found.append(Made(name, json.dumps({who: f'{at} ü"\n{{}}'}), f"call_{who}_{at}", extra=at % 2 == 1))
    return found


def call(name: str, index: int = 0, **more: Any) -> dict[str, Any]:
    """The delta of a call in one fragment."""
    return {"tool_calls": [{"index": index, "id": f"i{index}", "function": {"name": name, "arguments": "{}"}, **more}]}


def chunk(script: Script, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    value = {**script.head(), **script.more, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def split_text(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def fragments(made: Made, index: int, form: str, size: int) -> list[dict[str, Any]]:
    """The call as the fragments in which a server of that form sends it."""
    first = {"index": index, **made.whole(form)}
    if form in ("whole", "together", "one chunk", "one index"):
        return [first if form != "one index" else {**first, "index": 0}]
    arguments = split_text(made.arguments, size)
    if form == "arguments at once":
        first["function"] = {"name": made.name, "arguments": arguments.pop(0)}
    else:
        first["function"] = {"name": made.name, "arguments": ""}
    found = [first]
    if form == "pieces":
        names = split_text(made.name, 3)
        first["function"] = {"name": names[0], "arguments": ""}
        found += [{"index": index, "function": {"name": name}} for name in names[1:]]
    found += [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    for one in found:
        if form == "no index":
            del one["index"]
        if form == "names again":
            one["function"]["name"] = made.name
    return found


def events(script: Script, *, usage: bool = True, done: bool = True) -> list[bytes]:
    """The round as a stream, an event each."""
    found = [chunk(script, {"role": "assistant", "content": ""})]
    calls: list[list[dict[str, Any]]] = []
    for one in script.said:
        if isinstance(one, str):
            found += [chunk(script, {"content": piece}) for piece in split_text(one, script.size)]
        elif isinstance(one, tuple):
            found += [chunk(script, {one[0]: piece}) for piece in split_text(one[1], script.size)]
        else:
            calls.append(fragments(one, len(calls), script.form, script.size))
            if script.form not in ("together", "one chunk", "parallel"):
                found += [chunk(script, {"tool_calls": [piece]}) for piece in calls[-1]]
    if script.form == "parallel":
        for step in range(max(map(len, calls), default=0)):
            found += [chunk(script, {"tool_calls": [one[step]]}) for one in calls if step < len(one)]
    together = {"tool_calls": [piece for one in calls for piece in one]} if calls else {}
    if script.form == "together" and together:
        found.append(chunk(script, together))
    if script.form == "one chunk":
        reasoning = {"reasoning_content": script.reasoning} if script.reasoning else {}
        found = [chunk(script, {"role": "assistant", "content": script.text, **reasoning, **together}, script.finish)]
    else:
        found.append(chunk(script, {}, script.finish))
    if usage:
        value = {**script.head(), **script.more, "choices": [], "usage": script.usage()}
        found.append(b"data: " + json.dumps(value).encode() + b"\n\n")
    return [*found, DONE] if done else found


def body(script: Script) -> bytes:
    """The round as one body."""
    message: dict[str, Any] = {"role": "assistant", "content": script.text}
    if script.reasoning:
        message["reasoning_content"] = script.reasoning
    if script.calls:
        message["tool_calls"] = [one.whole(script.form) for one in script.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": script.finish}
    value = {**script.head(), "object": "chat.completion", "choices": [choice], "usage": script.usage()}
    return json.dumps(value).encode()


def pieces(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


def run(
    rounds: Sequence[Iterable[bytes]],
    hidden: frozenset[str] = OURS,
    *,
    withhold: bool = False,
    drop: bool = False,
    limit: int = 8 << 20,
) -> tuple[bytes, list[CompletionsRelay]]:
    """The bytes that a client gets of these rounds, and their relays. Rounds behind the last one are not requested."""
    out = b""
    relays: list[CompletionsRelay] = []
    for parts in rounds:
        relay = CompletionsRelay(
            RelayOptions(withheld=HEADINGS if withhold else (), drop_usage=drop, limit=limit, hidden_tools=hidden),
            previous=relays[-1] if relays else None,
        )
        out += b"".join([relay.feed(part) for part in parts]) + relay.end() + relay.terminal
        relays.append(relay)
        if not relay.goes_on:
            break
    return out, relays


def chunks(data: bytes) -> list[dict[str, Any]]:
    """The chunks that openai-python's own decoder finds."""
    found = [one.data for one in SSEDecoder().iter_bytes(iter([data]))]
    return [json.loads(one) for one in found if not one.startswith("[DONE]")]


def read(data: bytes) -> dict[str, Any]:
    """The completion that openai-python accumulates from a stream, as plain values."""
    state: Any = ChatCompletionStreamState()
    for one in chunks(data):
        state.handle_chunk(ChatCompletionChunk.model_validate(one))
    found: dict[str, Any] = state.current_completion_snapshot.model_dump()
    return found


def pick_visible_fields(completion: dict[str, Any]) -> dict[str, Any]:
    """Of a completion what a client goes by."""
    choice = completion["choices"][0]
    message = choice["message"]
    calls = message.get("tool_calls") or []
    return {
        "id": completion["id"],
        "created": completion["created"],
        "model": completion["model"],
        "finish": choice["finish_reason"],
        "text": message["content"] or "",
        "reasoning": message.get("reasoning_content") or "",
        "calls": [
            (one.get("id"), one["function"]["name"], one["function"]["arguments"], one.get("extra_content"))
            for one in calls
        ],
        "usage": completion.get("usage") and plain_usage(completion["usage"]),
    }


def plain_usage(usage: dict[str, Any]) -> tuple[int, int, int, int, int]:
    return (
        usage["prompt_tokens"],
        usage["completion_tokens"],
        usage["total_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens_details"]["reasoning_tokens"],
    )


def expected(scripts: Sequence[Script], hidden: frozenset[str] = OURS, *, usage: bool = True) -> dict[str, Any]:
    """The message that a client has to get of these rounds, all of which are asked for."""
    first, last = scripts[0].head(), scripts[-1]
    spent = sum(one.completion for one in scripts)
    shown = [one for script in scripts for one in script.calls if one.name not in hidden]
    calls = [one.whole(last.form) for one in shown]
    return {
        "id": first["id"],
        "created": first["created"],
        "model": first["model"],
        "finish": last.finish,
        "text": "".join(one.text for one in scripts),
        "reasoning": "".join(one.reasoning for one in scripts),
        "calls": [
            (one.get("id"), one["function"]["name"], one["function"]["arguments"], one.get("extra_content"))
            for one in calls
        ],
        "usage": (last.prompt, spent, last.prompt + spent, last.prompt // 2, 2 * len(scripts)) if usage else None,
    }


def secrets(scripts: Iterable[Script], hidden: frozenset[str] = OURS) -> list[bytes]:
    """Texts that the client's bytes must not hold: names, ids, arguments and their pieces, of the proxy's calls."""
    found: list[bytes] = [f'"{name}"'.encode() for name in hidden]
    for script in scripts:
        for made in script.calls:
            if made.name in hidden:
                found += [made.id.encode(), json.dumps(made.arguments)[1:-1].encode()]
    return [one for one in found if len(one) > 2]


def indexes(data: bytes) -> list[int]:
    """The indexes of the calls in a stream, in the order in which they first came."""
    found: list[int] = []
    for one in chunks(data):
        for choice in one.get("choices") or ():
            for part in choice["delta"].get("tool_calls") or ():
                if part.get("index") not in found:
                    found.append(part.get("index"))
    return found
