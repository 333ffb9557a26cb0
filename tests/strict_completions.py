"""Upstreams of Chat Completions that refuse what real ones refuse, provider by provider.

The rules were read in the providers' documentation and in issues of clients that ran into them. Nothing of the proxy is
used here, so a mistake of the proxy's own rules does not hide itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.raw_upstream import STREAM, Connection, RawRequest
from tests.scripted_model import make_completion, make_events, send_reply

Json = dict[str, Any]
Rule = Callable[[Mapping[str, Any]], Iterator[str]]


def _list_calls(message: Mapping[str, Any]) -> Sequence[Json]:
    return message.get("tool_calls") or ()


def _read_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(str(part.get("text", "")) for part in content)


def check_pairs(body: Mapping[str, Any]) -> Iterator[str]:
    """Each call has its result right behind it, and each result its call in front of it."""
    waiting: list[str] = []
    for n, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message["tool_call_id"] in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                yield f"messages[{n}]: a 'tool' message must be a response to a preceding message with 'tool_calls'"
            continue
        if waiting:
            yield f"messages[{n}]: 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'"
        waiting = [call["id"] for call in _list_calls(message)]
    if waiting:
        yield "the last 'tool_calls' have no tool messages"


def check_options(body: Mapping[str, Any]) -> Iterator[str]:
    """Some fields are allowed only with others."""
    if "tools" in body and not body["tools"]:
        yield "[] is too short - 'tools'"
    for name in ("tool_choice", "parallel_tool_calls"):
        if name in body and not body.get("tools"):
            yield f"'{name}' is only allowed when 'tools' are specified"
    if "stream_options" in body and not body.get("stream"):
        yield "'stream_options' is only allowed when 'stream' is enabled"
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if len(set(names)) < len(names):
        yield "tool names must be unique"
    for name in names:
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
            yield f"invalid tool name {name!r}"


def check_ids_of_40(body: Mapping[str, Any]) -> Iterator[str]:
    """OpenAI and Azure: an id of a call has up to 40 characters."""
    for n, message in enumerate(body["messages"]):
        for call in _list_calls(message):
            if len(call["id"]) > 40:
                yield f"messages[{n}].tool_calls.id: string too long, expected a maximum length of 40"


def check_filled(body: Mapping[str, Any]) -> Iterator[str]:
    """No assistant message is without text and calls."""
    for n, message in enumerate(body["messages"]):
        if message["role"] == "assistant" and not _read_text(message) and not _list_calls(message):
            yield f"message at position {n} with role 'assistant' must not be empty"
        if message["role"] == "user" and not message.get("content"):
            yield f"message at position {n} with role 'user' must not be empty"


def check_last_role(body: Mapping[str, Any]) -> Iterator[str]:
    """The prompt ends with the user or a tool, unless the last message is a prefix to go on from."""
    last = body["messages"][-1]
    if last["role"] not in ("user", "tool") and not last.get("prefix"):
        yield f"Expected last role User or Tool (or Assistant with prefix True) but got {last['role']}"


def check_user_after_tool(body: Mapping[str, Any]) -> Iterator[str]:
    """Mistral: behind a tool's result comes the assistant."""
    roles = [message["role"] for message in body["messages"]]
    for before, role in pairwise(roles):
        if before == "tool" and role in ("user", "system"):
            yield f"Unexpected role '{role}' after role 'tool'"


def check_ids_of_9(body: Mapping[str, Any]) -> Iterator[str]:
    """Mistral: an id of a call has 9 letters and digits."""
    for message in body["messages"]:
        ids = [call["id"] for call in _list_calls(message)]
        for one in [*ids, message["tool_call_id"]] if message["role"] == "tool" else ids:
            if not re.fullmatch(r"[a-zA-Z0-9]{9}", one):
                yield f"Tool call id was {one} but must be a-z, A-Z, 0-9, with a length of 9."


def check_first_role(body: Mapping[str, Any]) -> Iterator[str]:
    """Mistral: a conversation does not begin with an answer. Behind a system message it may."""
    if (first := body["messages"][0]["role"]) not in ("system", "user"):
        yield f"Conversation must start with a user message or system message, got {first}"


def check_system_first(body: Mapping[str, Any]) -> Iterator[str]:
    """The template of Qwen: one system message, in front."""
    for n, message in enumerate(body["messages"]):
        if n and message["role"] in ("system", "developer"):
            yield "System message must be at the beginning."


def check_has_user(body: Mapping[str, Any]) -> Iterator[str]:
    """The templates of Qwen and GLM: there is a question."""
    if not any(m["role"] == "user" and _read_text(m).strip() for m in body["messages"]):
        yield "No user query found in messages."


def check_alternation(body: Mapping[str, Any]) -> Iterator[str]:
    """The template of Gemma: user and assistant in turn, results apart."""
    roles = [m["role"] for m in body["messages"] if m["role"] in ("user", "assistant")]
    if roles[0] == "assistant" or ("user", "user") in pairwise(roles):
        yield "Conversation roles must alternate user/assistant/user/assistant/..."


def check_reasoning_came_back(body: Mapping[str, Any]) -> Iterator[str]:
    """DeepSeek: the reasoning of each answer with calls is sent again, for ever."""
    for message in body["messages"]:
        if _list_calls(message) and not isinstance(message.get("reasoning_content"), str):
            yield "The `reasoning_content` in the thinking mode must be passed back to the API."


def check_reasoning_is_filled(body: Mapping[str, Any]) -> Iterator[str]:
    """Kimi: the same, and it may not be empty."""
    for n, message in enumerate(body["messages"]):
        if _list_calls(message) and not message.get("reasoning_content"):
            yield f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {n}"


def check_choice_is_free(body: Mapping[str, Any]) -> Iterator[str]:
    """Kimi, DeepSeek: a model that thinks is not told which tool to call."""
    if body.get("tool_choice") not in (None, "auto", "none"):
        yield "tool_choice 'specified' is incompatible with thinking enabled"


def check_signatures(body: Mapping[str, Any]) -> Iterator[str]:
    """Gemini's compatible surface: the first call of an answer has its thought signature."""
    for n, message in enumerate(body["messages"]):
        for call in _list_calls(message)[:1]:
            if not ((call.get("extra_content") or {}).get("google") or {}).get("thought_signature"):
                yield f"Function call is missing a thought_signature in functionCall parts: messages[{n}]"


def check_plan(body: Mapping[str, Any]) -> Iterator[str]:
    """Cohere: an answer with calls has no text of its own."""
    for n, message in enumerate(body["messages"]):
        if _list_calls(message) and _read_text(message):
            yield f"text content is not allowed when tool_calls are provided: messages[{n}]"


def check_two_answers_at_end(body: Mapping[str, Any]) -> Iterator[str]:
    """llama.cpp and Ollama: no two answers at the end, and none at all where the model thinks."""
    if body["messages"][-1]["role"] == "assistant":
        yield "Assistant response prefill is incompatible with enable_thinking."


def allow_fields(roles: Mapping[str, set[str]], call: set[str], top: set[str] | None = None) -> Rule:
    """Make the rule of a provider that refuses fields which it does not know."""

    def check(body: Mapping[str, Any]) -> Iterator[str]:
        for name in sorted(set(body) - top) if top else ():
            yield f"body.{name}: Extra inputs are not permitted"
        for n, message in enumerate(body["messages"]):
            role = message["role"]
            for name in sorted(set(message) - {"role", "content"} - roles.get(role, set())):
                yield f"messages.{n}.{role}.{name}: property '{name}' is unsupported"
            for one in _list_calls(message):
                for name in sorted(set(one) - {"id", "type", "function"} - call):
                    yield f"messages.{n}.{role}.tool_calls.{name}: Extra inputs are not permitted"

    return check


_SAMPLING = {
    "model",
    "messages",
    "stream",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "stop",
}
_MISTRAL = allow_fields(
    {"assistant": {"tool_calls", "prefix"}, "tool": {"tool_call_id", "name"}}, {"index"},
    {*_SAMPLING, "max_tokens", "random_seed", "response_format", "safe_prompt", "n", "metadata", "prompt_mode"},
)  # fmt: skip
_NAMED = {"system": {"name"}, "user": {"name"}}
_GROQ = allow_fields(
    {**_NAMED, "assistant": {"tool_calls", "name", "reasoning"}, "tool": {"tool_call_id", "name"}}, {"index"}
)
_CEREBRAS = allow_fields(
    {**_NAMED, "assistant": {"tool_calls", "name", "reasoning"}, "tool": {"tool_call_id", "name"}}, set()
)


@dataclass(frozen=True)
class Provider:
    """The rules of a provider, and the form of its answers."""

    rules: tuple[Rule, ...]
    make_id: str = "call_{0:024}"
    """The form of the ids of its calls."""
    reasoning: str = ""
    """The member in which it tells its reasoning; empty: it tells none."""
    extra: tuple[tuple[str, Any], ...] = ()
    """Further members of its messages."""
    is_echoed: bool = True
    """True if it wants its reasoning back, or takes it."""
    speaks: bool = True
    """False if an answer with calls has no text."""
    refuses_usage: bool = False
    """True if it refuses `stream_options`, and tells its usage by itself."""


_ALL = (check_pairs, check_options, check_filled)
_LOCAL = (*_ALL, check_two_answers_at_end)
PROVIDERS: dict[str, Provider] = {
    "openai": Provider((*_ALL, check_ids_of_40), extra=(("refusal", None), ("annotations", []))),
    "mistral": Provider(
        (
            check_pairs, check_options, _MISTRAL, check_ids_of_9, check_user_after_tool, check_last_role,
            check_first_role,
        ),
        "{0:09}", extra=(("prefix", False),), refuses_usage=True,
    ),
    "deepseek": Provider(
        (*_ALL, check_reasoning_came_back, check_choice_is_free), "call_00_{0:020}", "reasoning_content"
    ),
    "kimi": Provider((*_ALL, check_reasoning_is_filled, check_choice_is_free), "look:{0}", "reasoning_content"),
    "glm": Provider((*_ALL, check_has_user), "call_{0:019}", "reasoning_content"),
    "qwen": Provider((*_LOCAL, check_system_first, check_has_user), "chatcmpl-tool-{0:032}", "reasoning"),
    "gemma": Provider((*_LOCAL, check_alternation, check_first_role), "{0:032}", "reasoning_content"),
    "groq": Provider((*_ALL, _GROQ), "fc_{0:036}", "reasoning"),
    "cerebras": Provider((*_ALL, _CEREBRAS), "{0:09}", "reasoning"),
    "cohere": Provider((*_ALL, check_plan), "look_{0:012}", speaks=False),
    "llama.cpp": Provider(_LOCAL, "{0:032}", "reasoning_content"),
    "ollama": Provider(_LOCAL, "call_{0:08}", "reasoning"),
    "gemini": Provider((*_ALL, check_signatures), "function-call-{0:019}"),
    "openrouter": Provider(_ALL, "toolu_{0:024}", "reasoning", (("refusal", None),)),
}  # fmt: skip


def find_violations(name: str, body: Mapping[str, Any]) -> Iterator[str]:
    """The rules of this provider that a request breaks, in the provider's words."""
    for rule in PROVIDERS[name].rules:
        yield from rule(body)


class StrictCompletions:
    """Gives its answers one after the other, the last one for ever; streamed where that is asked for.

    provider: whose rules it has. bodies: the requests that it answered. refusals: the texts of the errors. given: the
    messages of its answers, as a client gets them.
    """

    def __init__(self, provider: str, *answers: Json) -> None:
        self.provider = provider
        self.answers = list(answers)
        self.bodies: list[Json] = []
        self.refusals: list[str] = []
        self.given: list[Json] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        body = json.loads(request.body)
        form = PROVIDERS[self.provider]
        broken = [*find_violations(self.provider, body)]
        if form.refuses_usage and "stream_options" in body:
            status, told = b"422 Unprocessable Entity", {"detail": [{"loc": ["body", "stream_options"]}]}
            await send_reply(connection, status, json.dumps(told).encode(), b"content-type: application/json")
            return
        if broken:
            self.refusals += broken
            error = {"error": {"message": broken[0], "type": "invalid_request_error", "param": None, "code": None}}
            await send_reply(
                connection, b"400 Bad Request", json.dumps(error).encode(), b"content-type: application/json"
            )
            return
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        message = self._make_message(answer)
        self.given.append(message)
        usage = {"prompt_tokens": len(request.body) // 4, "completion_tokens": 9, "total_tokens": 9}
        if body.get("stream") is True:
            wants_usage = form.refuses_usage or (body.get("stream_options") or {}).get("include_usage")
            await connection.send(STREAM)
            for event in make_events(message, usage if wants_usage else None):
                await connection.chunk(event)
            await connection.chunk(b"")
        else:
            await send_reply(connection, b"200 OK", make_completion(message, usage), b"content-type: application/json")

    def _make_message(self, answer: Json) -> Json:
        """The answer in the provider's form. answer: `text`, and the `calls` as (name, arguments)."""
        form, calls = PROVIDERS[self.provider], answer.get("calls") or ()
        made: Json = {"role": "assistant", "content": answer.get("text") if form.speaks or not calls else None}
        made |= dict(form.extra)
        if form.reasoning:
            made[form.reasoning] = f"I think about answer {len(self.given)}."
        if calls:
            made["tool_calls"] = [
                {
                    "id": form.make_id.format(100 * len(self.given) + n), "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for n, (name, arguments) in enumerate(calls)
            ]  # fmt: skip
            if self.provider == "gemini":
                made["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": f"sig{len(self.given)}"}}
        return made
