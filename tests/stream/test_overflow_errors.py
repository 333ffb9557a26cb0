"""B5: the words with which upstreams refuse a prompt that is too long."""

# ruff: noqa: E501  the errors stand as upstreams send them

from __future__ import annotations

import json
import time

import pytest

from proxy.stream.overflow_errors import ContextOverflow, read_overflow


def error_body(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


SAID = [
    ("openai", error_body("This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. "
                    "Please reduce the length of the messages.", code="context_length_exceeded"), (8192, 9001)),
    ("openai old", error_body("This model's maximum context length is 4097 tokens, however you requested 4569 tokens (3545 in "
                        "your prompt; 1024 for the completion)."), (4097, 3545)),
    ("openai new", error_body("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 303512 "
                        "tokens."), (272_000, 303_512)),
    ("vllm", json.dumps({"object": "error", "message": "This model's maximum context length is 16384 tokens. However, you "
                         "requested 122946 tokens (112946 in the messages, 10000 in the completion).", "code": 400,
                         "type": "BadRequestError"}).encode(), (16_384, 112_946)),
    ("vllm new", error_body("'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is "
                      "40960 tokens and your request has 9900 input tokens (32000 > 40960 - 9900)."), (40_960, 9_900)),
    ("anthropic", json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: "
                              "208310 tokens > 200000 maximum"}}).encode(), (200_000, 208_310)),
    ("anthropic both", error_body("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input "
                            "length or `max_tokens` and try again"), (200_000, 178_959)),
    ("llama.cpp", error_body("the request exceeds the available context size. try increasing the context size or enable "
                       "context shift", type="exceed_context_size_error", n_prompt_tokens=14_429, n_ctx=8_192),
     (8_192, 14_429)),
    ("llama.cpp in words", error_body("request (12345 tokens) exceeds the available context size (8192 tokens), try increasing "
                                "it"), (8_192, 12_345)),
    ("gemini", json.dumps([{"error": {"code": 400, "message": "The input token count (1200293) exceeds the maximum number "
                            "of tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}}]).encode(),
     (1_048_576, 1_200_293)),
    ("gemini without", error_body("The input token count exceeds the maximum number of tokens allowed (1048576)."),
     (1_048_576, None)),
    ("mistral", json.dumps({"object": "error", "message": "Prompt contains 33131 tokens and 0 draft tokens, too large for "
                            "model with 32768 maximum context length", "type": "invalid_request_prompt"}).encode(),
     (32_768, 33_131)),
    ("bedrock claude", json.dumps({"message": "The model returned the following errors: prompt is too long: 200049 tokens "
                                   "> 200000 maximum"}).encode(), (200_000, 200_049)),
    ("bedrock", json.dumps({"message": "Input is too long for requested model."}).encode(), (None, None)),
    ("xai", error_body("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
     (131_072, 537_812)),
    ("tgi", error_body("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 65537. Given: 79993 `inputs` tokens "
                 "and 1024 `max_new_tokens`"), (65_537, 79_993)),
    ("a router", error_body("Provider returned error", metadata={"raw": json.dumps({"message": "This model's maximum context "
                      "length is 131,072 tokens. However, you requested about 140,000 tokens"})}), (131_072, 140_000)),
    ("plain text", b"prompt is too long: 9000 tokens > 8000 maximum", (8_000, 9_000)),
]  # fmt: skip


@pytest.mark.parametrize(("body", "found"), [one[1:] for one in SAID], ids=[one[0] for one in SAID])
def test_the_window_is_read_from_the_words_of_each(body: bytes, found: tuple[int | None, int | None]) -> None:
    assert read_overflow(body) == ContextOverflow(*found)


@pytest.mark.parametrize(
    "body",
    [
        error_body("Invalid value for 'temperature': 5"),
        error_body("max_tokens is too large: 4096. This model supports at most 2048 completion tokens"),
        error_body("The maximum tokens you requested exceeds the model limit of 2048. Try again with a lower value."),
        error_body("This model's maximum context length is 12 tokens"),
        error_body("Slow down", n_ctx=8192),
        b'{"error": {"message": 5}}',
        b"[" * 100_000,
        b"",
        b"\xff\xfe",
        b"7",
    ],
)
def test_other_errors_are_not_taken_for_an_overflow(body: bytes) -> None:
    assert read_overflow(body) is None


@pytest.mark.parametrize("unit", ["7", "7_", "7,7"])
def test_digits_that_an_error_repeats_are_read_in_linear_time(unit: str) -> None:
    """Upstreams made with FastAPI repeat the whole value that they refuse: 880 KB of digits held the loop for 25 s."""
    quoted = [[(unit * 4000)[:4000]] * 20] * 20
    body = json.dumps({"error": {"message": "maximum context length is 300", "input": quoted}}).encode()
    before = time.process_time()
    assert read_overflow(body) == ContextOverflow(300, None)
    took = time.process_time() - before
    before = time.process_time()
    read_overflow(body.replace(unit.encode(), b"a" * len(unit)))
    assert took < 10 * (time.process_time() - before)
