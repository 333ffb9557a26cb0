from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.media import PER_MEDIUM
from proxy.chat.tokens import (
    MAX_REMEMBERED_TOOLS,
    MAX_TOOLS_BYTES,
    PER_CALL,
    PER_MESSAGE,
    TokenCounter,
    estimate_text_tokens,
)
from proxy.dialects.completions.request import read_message
from proxy.tokenizers import get_token_counter
from tests.conversations import COUNTER, assistant, make_message, result, user


def test_the_estimate_counts_words_numbers_punctuation_and_indentation() -> None:
    assert estimate_text_tokens("") == 0
    assert estimate_text_tokens("the " * 1000) == 949  # a word of three letters: 790 + 3 x 53 thousandths
    assert estimate_text_tokens("1234567 " * 1000) == 3997  # three tokens each, and one for the blank in front
    assert estimate_text_tokens("x" * 6000) < 500 < estimate_text_tokens("X" * 6000)
    assert estimate_text_tokens("a" + " " * 1000) == estimate_text_tokens("a") + 1
    assert estimate_text_tokens("a(b" * 1000) < estimate_text_tokens("a( b" * 1000)


def test_other_alphabets_dense_scripts_and_emoji_are_weighed_by_their_tokens() -> None:
    assert estimate_text_tokens("да" * 100) == 100
    assert estimate_text_tokens("日本語" * 100) == 255
    assert estimate_text_tokens("\N{GRINNING FACE}" * 100) == 150


def count_by_the_rules(text: str) -> int:
    """The estimate, each rule by itself: pairs of classes at which something begins, and single classes."""

    def classify(byte: int) -> str:
        kinds = {32: "s", 10: "n", 13: "n", 9: "t"}
        if byte in kinds or byte >= 128:
            return kinds.get(byte) or "." if byte < 192 else "2" if byte < 224 else "3" if byte < 240 else "4"
        letter = chr(byte)
        return "l" if letter.islower() else "U" if letter.isupper() else "d" if letter.isdigit() else "p"

    classes = "n" + "".join(map(classify, text.encode("utf-8", "surrogatepass")))
    begins = {
        790: "sl pl nl dl tl sU pU nU dU tU lU",
        500: "lp Up sp np dp tp .p",
        667: "ld Ud sd nd pd td .d",
        -350: "lpl",
        1050: "nss lss pss dss",
    }
    total = sum(weight * sum(map(classes.count, patterns.split())) for weight, patterns in begins.items())
    total += 1000 * classes.count("sd")
    single = {"l": 53, "U": 53 + 240, "p": 300, "d": 333, "2": 500, "3": 850, "4": 1500}
    return (total + sum(weight * classes.count(one) for one, weight in single.items()) + 500) // 1000


@given(st.text("aaZZ19  \n\t.-_()é日😀", max_size=60))
def test_the_estimate_is_the_sum_of_its_rules(text: str) -> None:
    assert estimate_text_tokens(text) == (count_by_the_rules(text) if text else 0)


@given(st.text(), st.text())
def test_the_estimate_never_fails_and_grows_with_the_text(one: str, other: str) -> None:
    assert (
        0
        <= estimate_text_tokens(one)
        <= estimate_text_tokens(one + other)
        <= estimate_text_tokens(one) + estimate_text_tokens(other) + 2
    )


def compared(file: Path) -> dict[str, tuple[int, int]]:
    """The estimate and the count of each conversation in a file."""
    rough, exact = TokenCounter(estimate_text_tokens), TokenCounter(get_token_counter("o200k_base"))
    found = {}
    for line in file.read_bytes().splitlines():
        told = msgspec.json.decode(line)
        messages = [read_message(msgspec.json.encode(m)) for m in told["messages"]]
        found[told["id"]] = sum(map(rough, messages)), sum(map(exact, messages))
    return found


def test_d9_the_estimate_is_within_ten_percent_of_the_count_on_recordings_of_our_own() -> None:
    files = sorted((Path(__file__).parents[1] / "recorded" / "recordings").glob("*.jsonl"))
    assert files
    for file in files:
        for guessed, counted in compared(file).values():
            assert abs(guessed - counted) <= 0.05 * counted, file.name


def test_d9_the_estimate_is_within_ten_percent_of_the_count_on_recorded_traffic(shared: Path) -> None:
    """Of each source, and of all its conversations but a few: they are 3,000 to 400,000 tokens long."""
    off: dict[str, float] = {}
    conversations = 0
    for file in sorted((shared / "replay" / "open").glob("*.jsonl")):
        found = compared(file)
        conversations += len(found)
        off |= {name: one / other for name, (one, other) in found.items() if abs(one - other) > 0.1 * other}
        guessed, counted = map(sum, zip(*found.values(), strict=True))
        assert abs(guessed - counted) <= 0.05 * counted, file.name
    print(f"{len(off)} of {conversations} further off: {off}")
    assert len(off) <= 0.02 * conversations
    assert all(0.8 < ratio < 1.2 for ratio in off.values())


def test_lone_surrogates_can_be_estimated() -> None:
    assert estimate_text_tokens("\ud800") > 0


def test_a_message_weighs_its_text_calls_reasoning_and_media() -> None:
    assert COUNTER(make_message(user("abc"))) == PER_MESSAGE + 3
    assert COUNTER(make_message(result("c1", ""))) == PER_MESSAGE
    called = PER_CALL + len("run") + len('{"n": 1}')
    assert COUNTER(make_message(assistant("ab", "c1", "c2"))) == PER_MESSAGE + 2 + 2 * called
    assert COUNTER(make_message(assistant("ab", reasoning_content="because"))) == PER_MESSAGE + 2 + 7
    picture = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}
    assert COUNTER(make_message(user([{"type": "text", "text": "ab"}, picture]))) == PER_MESSAGE + 2 + PER_MEDIUM


def count_part(part: Any) -> int:
    """Tokens that a content part adds to a message, with a token for each character."""
    return COUNTER(make_message(user([{"type": "text", "text": "ab"}, part]))) - PER_MESSAGE - 2


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://x/1.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 200}},
        {"type": "input_audio", "input_audio": {"data": "UklG" * 300, "format": "wav"}},
        {"type": "document", "source": {"type": "url", "url": "https://x/1.pdf"}},
        {"type": "gemini", "part": {"fileData": {"fileUri": "https://x/1.pdf"}}},
        {"type": "image_generation_call", "image_generation_call": {"result": "iVBORw0K" * 200}},
        {"type": "web_search_tool_result", "content": [{"title": "A page", "encrypted_content": "Eo4F" * 400}]},
    ],
)
def test_a_medium_has_a_fixed_number_of_tokens(part: dict[str, Any]) -> None:
    assert count_part(part) == PER_MEDIUM


@pytest.mark.parametrize(
    "part",
    [
        {
            "type": "additional_tools",
            "additional_tools": {"tools": [{"name": "exec", "description": "Run it. " * 900}]},
        },
        {"type": "refusal", "refusal": "I cannot help with that."},
        {"type": {"of": "no kind"}, "source": [], "part": 7},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A line of it\n" * 400}},
        {"type": "gemini", "part": {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42 of them"}}},
    ],
)
def test_a_part_that_a_model_reads_as_text_counts_as_its_json(part: dict[str, Any]) -> None:
    assert count_part(part) == len(json.dumps(part))


def test_a_bare_string_among_the_parts_counts_once() -> None:
    assert count_part("abc") == 3


def test_each_message_is_counted_once_a_counter() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    one, other = TokenCounter(count), TokenCounter(count)
    told = make_message(user("abc"))
    assert not one.has_count(told)
    assert one(told) == one(told) == 7
    assert one.has_count(told)
    assert not other.has_count(told)
    assert counted == ["abc"]
    assert other(told) == 7
    assert counted == ["abc", "abc"]


def test_the_tools_array_is_counted_once_and_few_are_remembered() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    token_counter = TokenCounter(count)
    assert (token_counter.count_tools(None), token_counter.count_tools(b"")) == (0, 0)
    assert token_counter.count_tools(b"[1]") == token_counter.count_tools(b"[1]") == 3
    assert counted == ["[1]"]
    for n in range(3 * MAX_REMEMBERED_TOOLS):
        assert token_counter.count_tools(b"%d" % n) == len(str(n))
    assert len(token_counter._heads) <= MAX_REMEMBERED_TOOLS
    assert token_counter.count_tools(b"\xff") == 1
    for n in range(3):
        assert token_counter.count_tools(b"%d" % n + bytes(MAX_TOOLS_BYTES // 2)) == 1 + MAX_TOOLS_BYTES // 2
    assert sum(map(len, token_counter._heads)) <= MAX_TOOLS_BYTES
    token_counter.count_tools(bytes(2 * MAX_TOOLS_BYTES))
    assert sum(map(len, token_counter._heads)) <= MAX_TOOLS_BYTES
