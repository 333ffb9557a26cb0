from __future__ import annotations

import base64
import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import toktok
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # a namespace package without types

from proxy import tokenizers
from proxy.chat.tokens import estimate_text_tokens
from proxy.errors import ConfigError
from proxy.tokenizers import MAX_ENCODED_CHARS, TOKENIZERS, VOCABULARIES, get_token_counter, load_vocabulary

BOTH = pytest.mark.parametrize("name", VOCABULARIES)

# Counts that tiktoken 0.14 gives for its own copies of the tables.
KNOWN = {
    "o200k_base": {
        "": 0,
        "hello world": 2,
        "tiktoken is great!": 6,
        "お誕生日おめでとう": 8,
        "<|endoftext|>": 7,
        "\n\n\n  x": 3,
    },
    "cl100k_base": {
        "": 0,
        "hello world": 2,
        "tiktoken is great!": 6,
        "お誕生日おめでとう": 9,
        "<|endoftext|>": 7,
        "\n\n\n  x": 3,
    },
}


@BOTH
def test_token_counts_equal_those_of_tiktoken(name: str) -> None:
    for text, tokens in KNOWN[name].items():
        assert get_token_counter(name)(text) == tokens, text


PUBLISHED = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
"""The hashes of the vocabularies' files, as OpenAI publishes them."""


@pytest.fixture(scope="module", params=VOCABULARIES)
def published(request: pytest.FixtureRequest) -> tuple[str, tiktoken.Encoding]:
    """tiktoken with the published vocabulary: the tokens are read from our library, and their hash is compared.
    tiktoken would fetch the file."""
    name = request.param
    ours = toktok._encoding(name)
    special = {number for _, number in ours.special_tokens()}
    ranks = {}
    for number in range(ours.n_vocab):
        if number not in special:
            try:
                ranks[ours.decode_single_token_bytes(number)] = number
            except KeyError:
                continue  # a number without a token
    lines = b"".join(b"%b %d\n" % (base64.b64encode(token), number) for token, number in ranks.items())
    assert hashlib.sha256(lines).hexdigest() == PUBLISHED[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_public, "load_tiktoken_bpe", lambda *args, **kwargs: ranks)
        return name, tiktoken.Encoding(**getattr(openai_public, name)())


def differing(published: tuple[str, tiktoken.Encoding], texts: Iterator[str] | list[str]) -> list[str]:
    """The texts of which we have another count than tiktoken."""
    name, encoding = published
    count = get_token_counter(name)
    return [text[:200] for text in texts if count(text) != len(encoding.encode_ordinary(text))]


def texts_in(value: Any) -> Iterator[str]:
    """All texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts_in(inner)


def hostile_texts() -> list[str]:
    """Texts that tokenizers find hard: runs, mixtures, and every kind of character."""
    pick = random.Random(17)
    kinds = (
        " ",
        "\n",
        "\t",
        "a",
        "A",
        "0",
        "-",
        "=",
        "/",
        "\x00",
        "\xa0",
        "\u3000",
        "\u200d",
        "e\u0301",
        "中",
        "👨‍👩‍👧",
        "'s",
    )
    ranges = (
        (32, 126),
        (0, 0x2FF),
        (0x300, 0x36F),
        (0x1100, 0x11FF),
        (0x4E00, 0x9FFF),
        (0x20, 0xD7FF),
        (0x1F300, 0x1FAFF),
    )
    mixed = [
        "".join(chr(pick.randint(*between)) for _ in range(length)) for between in ranges for length in (3, 40, 3000)
    ]
    blanks = ["".join(pick.choices(" \n\t\r\x0b\x85\u2028\u3000", k=length)) for length in (5, 60, 4000)]
    words = [
        "".join(pick.choices([*kinds, "word", " the", "Don't", "'LL", "<|endoftext|>", "\r\n"], k=2000)) for _ in "12"
    ]
    return ["", *(kind * length for kind in kinds for length in (1, 2, 3, 17, 3000)), *mixed, *blanks, *words]


def test_hostile_texts_have_the_counts_of_tiktoken(published: tuple[str, tiktoken.Encoding]) -> None:
    assert differing(published, hostile_texts()) == []
    lone = ["\ud800", "a\udfffb", "\ud83d\ud83d", "\ud83d\ude00 x"]  # surrogates, which JSON can carry
    assert differing(published, lone) == []


@settings(max_examples=200)
@given(text=st.text(max_size=300))
def test_any_text_has_the_count_of_tiktoken(published: tuple[str, tiktoken.Encoding], text: str) -> None:
    assert differing(published, [text]) == []


@pytest.mark.slow
def test_every_text_of_the_recordings_has_the_count_of_tiktoken(
    published: tuple[str, tiktoken.Encoding], shared: Path
) -> None:
    files = sorted((shared / "replay" / "open").glob("*.jsonl"))
    lines = (line for file in files for line in file.read_bytes().splitlines())
    texts = {text for line in lines for text in texts_in(json.loads(line)["messages"])}
    assert len(texts) > 10_000
    assert differing(published, [text for text in texts if len(text) <= MAX_ENCODED_CHARS]) == []


def test_the_counter_named_estimate_estimates() -> None:
    assert get_token_counter("estimate") is estimate_text_tokens


def test_counter_is_one_object_a_name() -> None:
    assert get_token_counter("o200k_base") is get_token_counter("o200k_base")


def test_an_unknown_name_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cl100k_base"):
        get_token_counter("p50k_base")
    assert "estimate" in TOKENIZERS


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no vocabulary had been read yet."""
    monkeypatch.setattr(tokenizers, "_loaded", {})
    monkeypatch.setattr(tokenizers, "_thread_counters", tokenizers._ThreadCounters())


@pytest.mark.usefixtures("forgotten")
def test_a_vocabulary_is_read_once_when_many_threads_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = toktok._encoding

    def make(name: str) -> object:
        made.append(threading.get_ident())
        time.sleep(0.01)
        return original(name)

    monkeypatch.setattr(toktok, "_encoding", make)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(get_token_counter("cl100k_base"), ["hello world"] * 16)) == [2] * 16
    assert len(made) == 1


@pytest.mark.usefixtures("forgotten")
def test_nothing_is_read_before_something_is_counted() -> None:
    get_token_counter("o200k_base")
    assert tokenizers._loaded == {}


FOUR_THREADS_COUNT = """
import threading
from pathlib import Path
from proxy import tokenizers

def measure_memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def count():
    assert tokenizers.get_token_counter("o200k_base")("hello world") == 2
    together.wait()

tokenizers.load_vocabulary("o200k_base")
before = measure_memory()
together = threading.Barrier(4)
threads = [threading.Thread(target=count) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(measure_memory() - before)
"""


def test_a_thread_that_counts_takes_little_memory() -> None:
    """The library gives a thread 16 MB, and the next one as much."""
    output = subprocess.run([sys.executable, "-c", FOUR_THREADS_COUNT], capture_output=True, text=True, check=True)
    assert int(output.stdout) < 12_000_000


class PanicException(BaseException):
    """Named as the class of a panic in Rust."""


@pytest.mark.usefixtures("forgotten")
def test_a_thread_counts_where_no_threads_can_be_started_for_its_buffer() -> None:
    class Exhausted:
        error: BaseException = PanicException("failed to spawn thread")

        def count_batch(self, texts: list[str], threads: int) -> list[int]:
            raise self.error

        def count(self, text: str) -> int:
            return len(text)

    encoding = tokenizers._loaded["o200k_base"] = Exhausted()
    assert load_vocabulary("o200k_base")("hello") == 5
    encoding.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        load_vocabulary("o200k_base")


PROSE = "The quick brown fox, 12 of them, jumps over\nthe lazy dog and def f(x): return x + 1\n"

BOMBS = {
    "one letter": "a" * 10**6,
    "one mark": "^" * 10**6,
    "spaces": " " * 10**6,
    "line breaks": "\n" * 10**6,
    "joined emoji": "👨\u200d👩\u200d👧" * (10**6 // 5),
    "letters, then spaces": "a" * 250_000 + " " * 250_000,
    "lone surrogates": "\ud800 ab" * 125_000,
    "dense script": "中文字符" * 125_000,
    "just under the cut": "a" * MAX_ENCODED_CHARS,
}


@pytest.mark.timed
@BOTH
@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS.keys())
def test_pathological_texts_are_counted_at_once(name: str, text: str) -> None:
    count = get_token_counter(name)
    count("warm")
    took = []
    for _ in range(3):  # the best of three: the machine does other things as well
        start = time.thread_time()
        assert count(text) > 0
        took.append(time.thread_time() - start)
    assert min(took) < 0.4, "four times the promise"


@BOTH
@pytest.mark.parametrize("text", [BOMBS["one letter"], BOMBS["one mark"], BOMBS["line breaks"], PROSE * 12_000])
def test_a_sampled_count_is_within_five_percent(name: str, text: str) -> None:
    exact = sum(
        load_vocabulary(name)(text[at : at + MAX_ENCODED_CHARS]) for at in range(0, len(text), MAX_ENCODED_CHARS)
    )
    assert get_token_counter(name)(text) == pytest.approx(exact, rel=0.05)


@BOTH
def test_long_texts_of_words_are_counted_exactly_although_they_are_cut(name: str) -> None:
    text = PROSE * 5_000
    assert MAX_ENCODED_CHARS < len(text) < tokenizers.MAX_EXACT_CHARS
    assert get_token_counter(name)(text) == load_vocabulary(name)(text)


def test_parts_are_the_text_and_none_is_too_long() -> None:
    for text in (
        "",
        "a" * MAX_ENCODED_CHARS,
        "a" * (MAX_ENCODED_CHARS + 1),
        "\n" * (2 * MAX_ENCODED_CHARS + 5),
        PROSE * 10_000,
        "x\n" + "y" * 3 * MAX_ENCODED_CHARS,
    ):
        parts = list(tokenizers._split_text(text))
        assert "".join(parts) == text
        assert max(map(len, parts)) <= MAX_ENCODED_CHARS


def test_a_panic_becomes_an_estimate_and_an_interrupt_does_not() -> None:
    def broken(error: BaseException) -> Callable[[str], int]:
        def count(text: str) -> int:
            raise error

        return count

    assert tokenizers._count_whole(broken(PanicException("no")), "some text") == estimate_text_tokens("some text")
    with pytest.raises(KeyboardInterrupt):
        tokenizers._count_whole(broken(KeyboardInterrupt()), "some text")


def test_the_same_text_has_the_same_count() -> None:
    text = PROSE * 8_000 + "b" * 100_000
    assert len({get_token_counter("o200k_base")(text) for _ in range(3)}) == 1
