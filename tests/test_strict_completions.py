"""The strict upstreams of Chat Completions refuse what they are meant to refuse, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.strict_completions import PROVIDERS, find_violations

Json = dict[str, Any]
SIGNED = {"google": {"thought_signature": "sig"}}
SPOKEN: Json = {"role": "assistant", "content": "So."}


def make_history(provider: str) -> list[Json]:
    """A short history that this provider takes."""
    form = PROVIDERS[provider]
    ids = [form.make_id.format(n) for n in (1, 2)]
    calls: list[Json] = [
        {"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids
    ]
    if provider == "gemini":
        calls[0]["extra_content"] = SIGNED
    asked: Json = {"role": "assistant", "content": "I look." if form.speaks else None, "tool_calls": calls}
    if form.reasoning:
        asked[form.reasoning] = "I think."
    results = [{"role": "tool", "tool_call_id": one, "content": "It is so."} for one in ids]
    head = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "Look."}]
    return [*head, asked, *results, SPOKEN, {"role": "user", "content": "Go on."}]


def refuse(provider: str, messages: list[Json], **more: Any) -> list[str]:
    return [*find_violations(provider, {"model": "m", "messages": messages, **more})]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_plain_history_is_accepted(provider: str) -> None:
    assert refuse(provider, make_history(provider)) == []
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert refuse(provider, make_history(provider)[:5], tools=tools, tool_choice="auto") == []


@pytest.mark.parametrize(
    ("provider", "drop", "words"),
    [
        *[(name, slice(2, 3), "must be a response") for name in PROVIDERS],
        *[(name, slice(3, 4), "must be followed by tool messages") for name in PROVIDERS],
        ("mistral", slice(5, 6), "Unexpected role 'user' after role 'tool'"),
        ("mistral", slice(6, 7), "Expected last role"),
        ("mistral", slice(0, 2), "Conversation must start"),
        ("gemma", slice(0, 2), "roles must alternate"),
        ("llama.cpp", slice(6, 7), "prefill"),
        ("ollama", slice(6, 7), "prefill"),
    ],
)
def test_a_history_with_a_gap_is_refused(provider: str, drop: slice, words: str) -> None:
    messages = make_history(provider)
    del messages[drop]
    assert any(words in one for one in refuse(provider, messages))


@pytest.mark.parametrize(
    ("provider", "at", "change", "words"),
    [
        ("openai", 5, {"content": ""}, "must not be empty"),
        ("openai", 2, {"tool_calls": [{"id": "c" * 41, "function": {}}]}, "maximum length of 40"),
        ("mistral", 2, {"reasoning_content": "So."}, "unsupported"),
        ("mistral", 2, {"tool_calls": [{"id": "call_1", "function": {}}]}, "length of 9"),
        ("deepseek", 2, {"reasoning_content": None}, "must be passed back"),
        ("kimi", 2, {"reasoning_content": ""}, "reasoning_content is missing"),
        ("groq", 5, {"reasoning_content": "So."}, "unsupported"),
        ("cerebras", 5, {"reasoning_content": "So."}, "unsupported"),
        ("qwen", 6, {"role": "system"}, "must be at the beginning"),
        ("cohere", 2, {"content": "I look."}, "text content is not allowed"),
    ],
)
def test_a_changed_message_is_refused(provider: str, at: int, change: Json, words: str) -> None:
    messages = copy.deepcopy(make_history(provider))
    messages[at] |= change
    assert any(words in one for one in refuse(provider, messages))


def test_a_missing_question_or_signature_is_refused() -> None:
    for provider in ("qwen", "glm"):
        answers = [one for one in make_history(provider) if one["role"] != "user"]
        assert "No user query found in messages." in refuse(provider, answers)
    unsigned = copy.deepcopy(make_history("gemini"))
    del unsigned[2]["tool_calls"][0]["extra_content"]
    assert any("thought_signature" in one for one in refuse("gemini", unsigned))


@pytest.mark.parametrize(
    ("provider", "more", "words"),
    [
        ("openai", {"tools": []}, "too short"),
        ("openai", {"tool_choice": "auto"}, "only allowed when"),
        ("openai", {"stream_options": {"include_usage": True}}, "only allowed when"),
        ("openai", {"tools": [{"function": {"name": "look"}}] * 2}, "unique"),
        ("openai", {"tools": [{"function": {"name": "look at"}}]}, "invalid tool name"),
        ("mistral", {"store": False}, "Extra inputs"),
        ("kimi", {"tool_choice": "required", "tools": [{"function": {"name": "look"}}]}, "incompatible"),
    ],
)
def test_a_field_out_of_place_is_refused(provider: str, more: Json, words: str) -> None:
    assert any(words in one for one in refuse(provider, make_history(provider), **more))
