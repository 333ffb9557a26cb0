"""Errors that report a prompt that is too long, and the context window, in the words of each kind of upstream.

There is no field for this error. OpenAI, vLLM, Anthropic, Gemini, Mistral, Bedrock, xAI and TGI report it in a
sentence. The server of llama.cpp reports it in a sentence and in numbers. An error may quote the client's text, so only
whole phrases count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

MIN_WINDOW, MAX_WINDOW = 256, 100_000_000
"""Tokens between which a number is accepted as a context window."""
MAX_DEPTH = 6
"""Levels of an error's JSON that are read: routers wrap the error of the upstream behind them."""

_N = r"(?<![\d,_])(\d[\d,_]*+)"
"""A number from its first digit to its last one: an error may quote a megabyte of digits of the client's."""

_BOTH = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"prompt is too long: {_N} tokens > {_N} maximum",  # Anthropic, and Claude on Bedrock
        rf"exceed context limit: {_N} \+ \d[\d,_]* > {_N}",  # Anthropic, with max_tokens
        rf"input token count \({_N}\) exceeds the maximum number of tokens allowed \(?{_N}",  # Gemini
        rf"Prompt contains {_N} tokens.{{0,60}}?too large for model with {_N} maximum context length",  # Mistral
        rf"request \({_N} tokens\) exceeds the available context size \({_N} tokens\)",  # llama.cpp
        rf"Requested tokens \({_N}\) exceed context window of {_N}",  # llama-cpp-python
    )
)
"""(tokens of the prompt, tokens of the window)"""
_WINDOW = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"maximum context length is {_N}",  # OpenAI, vLLM, DeepSeek, OpenRouter, Llama on Bedrock
        rf"exceed the configured limit of {_N} tokens",  # OpenAI from GPT-5 on
        rf"maximum prompt length is {_N}",  # xAI
        rf"exceeds the maximum number of tokens allowed \(?{_N}",  # Gemini, without the count
        rf"`?inputs`? tokens \+ `?max_new_tokens`? must be <= {_N}",  # TGI
    )
)
_PROMPT = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_N} in (?:the messages|your prompt)",
        rf"messages resulted in {_N} tokens",
        rf"request has {_N} input tokens",
        rf"request contains {_N} tokens",
        rf"Given: {_N} `?inputs`? tokens",
        rf"requested (?:about )?{_N} tokens",
    )
)
_UNNUMBERED = re.compile(
    r"context_length_exceeded|exceed_context_size_error|Input is too long for requested model"
    r"|prompt is too long|exceeds the available context size",
    re.IGNORECASE,
)


class ContextOverflow(NamedTuple):
    """A prompt that is too long."""

    window_tokens: int | None
    """Tokens as the upstream counts them, None if it does not report them."""
    prompt_tokens: int | None
    """Tokens as the upstream counts them, None if it does not report them."""


def read_overflow(body: bytes) -> ContextOverflow | None:
    """Return what an error's body says about the window; None if the error is about something else."""
    try:
        error: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        error = body.decode("utf-8", "replace")[:4000]
    texts: list[str] = []
    numbers: dict[str, int] = {}
    for name, value in _list_values(error, MAX_DEPTH):
        if isinstance(value, str):
            texts.append(value)
        elif name in ("n_ctx", "n_prompt_tokens"):
            numbers[name] = value
    text = "\n".join(texts)
    window, prompt = numbers.get("n_ctx"), numbers.get("n_prompt_tokens")
    if window is not None and not _UNNUMBERED.search(text):
        return None
    if window is None:
        window, prompt = _read_words(text)
    if window is not None and MIN_WINDOW <= window <= MAX_WINDOW:
        return ContextOverflow(window, prompt)
    return ContextOverflow(None, None) if _UNNUMBERED.search(text) else None


def _read_words(text: str) -> tuple[int | None, int | None]:
    for pattern in _BOTH:
        if found := pattern.search(text):
            return _number(found[2]), _number(found[1])
    for pattern in _WINDOW:
        if found := pattern.search(text):
            prompts = (match for one in _PROMPT if (match := one.search(text)))
            prompt = next(prompts, None)
            return _number(found[1]), _number(prompt[1]) if prompt else None
    return None, None


def _number(text: str) -> int:
    return int(text.replace(",", "").replace("_", "")[:12])


def _list_values(error: Any, levels: int, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the texts and numbers of an error, with their names."""
    if isinstance(error, dict) and levels:
        for key, value in error.items():
            yield from _list_values(value, levels - 1, key)
    elif isinstance(error, list) and levels:
        for value in error[:20]:
            yield from _list_values(value, levels - 1, name)
    elif isinstance(error, str):
        yield name, error[:4000]
    elif isinstance(error, int):
        yield name, error
