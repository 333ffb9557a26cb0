from __future__ import annotations

import gzip
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # a namespace package without types

from proxy import tokenizers
from proxy.chat.tokens import estimate_text_tokens
from proxy.errors import ConfigError
from proxy.tokenizers import MAX_ENCODED_CHARS, TABLES, TOKENIZERS, get_token_counter, load_encoding

BOTH = pytest.mark.parametrize("name", sorted(TABLES))

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
def test_counts_are_tiktokens(name: str) -> None:
    for text, tokens in KNOWN[name].items():
        assert get_token_counter(name)(text) == tokens, text


@BOTH
def test_patterns_and_special_tokens_are_those_of_the_installed_tiktoken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *args, **kwargs: {})  # it would fetch the table
    published = getattr(openai_public, name)()
    assert published["pat_str"] == TABLES[name].pattern
    assert published["special_tokens"] == dict(TABLES[name].special)


def test_estimate_is_the_estimate() -> None:
    assert get_token_counter("estimate") is estimate_text_tokens


def test_counter_is_one_object_a_name() -> None:
    assert get_token_counter("o200k_base") is get_token_counter("o200k_base")


def test_an_unknown_name_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cl100k_base"):
        get_token_counter("p50k_base")
    assert "estimate" in TOKENIZERS


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no table had been read yet."""
    monkeypatch.setattr(tokenizers, "_loaded", {})


@pytest.mark.usefixtures("forgotten")
def test_a_table_is_read_once_when_many_threads_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = tiktoken.Encoding

    def make(*args: object, **kwargs: object) -> tiktoken.Encoding:
        made.append(threading.get_ident())
        return original(*args, **kwargs)  # type: ignore[arg-type]  # the arguments go on as they came

    monkeypatch.setattr(tiktoken, "Encoding", make)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(get_token_counter("cl100k_base"), ["hello world"] * 16)) == [2] * 16
    assert len(made) == 1


@pytest.mark.usefixtures("forgotten")
def test_nothing_is_read_before_something_is_counted() -> None:
    get_token_counter("o200k_base")
    assert tokenizers._loaded == {}


def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cl100k_base.tiktoken.gz").write_bytes(gzip.compress(b"IQ== 0\n"))
    with pytest.raises(ConfigError, match="sha256"):
        load_encoding("cl100k_base", tmp_path)


def test_a_missing_or_damaged_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install"):
        load_encoding("cl100k_base", tmp_path)
    shipped = Path(tokenizers.__file__).with_name("vocab") / "cl100k_base.tiktoken.gz"
    damaged = tmp_path / shipped.name
    shutil.copyfile(shipped, damaged)
    damaged.write_bytes(damaged.read_bytes()[:5000])
    with pytest.raises(ConfigError, match="install"):
        load_encoding("cl100k_base", tmp_path)
    damaged.write_bytes(shipped.read_bytes()[:2000] + b"\xff" * 2000)
    with pytest.raises(ConfigError, match="install"):
        load_encoding("cl100k_base", tmp_path)


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
def test_what_is_sampled_is_nearly_right(name: str, text: str) -> None:
    encoding = load_encoding(name)
    exact = sum(
        len(encoding.encode_ordinary(text[at : at + MAX_ENCODED_CHARS]))
        for at in range(0, len(text), MAX_ENCODED_CHARS)
    )
    assert get_token_counter(name)(text) == pytest.approx(exact, rel=0.05)


@BOTH
def test_long_texts_of_words_are_counted_exactly_although_they_are_cut(name: str) -> None:
    text = PROSE * 5_000
    assert MAX_ENCODED_CHARS < len(text) < tokenizers.MAX_EXACT_CHARS
    assert get_token_counter(name)(text) == len(load_encoding(name).encode_ordinary(text))


def test_parts_are_the_text_and_none_is_too_long() -> None:
    for text in (
        "",
        "a" * MAX_ENCODED_CHARS,
        "a" * (MAX_ENCODED_CHARS + 1),
        "\n" * (2 * MAX_ENCODED_CHARS + 5),
        PROSE * 10_000,
        "x\n" + "y" * 3 * MAX_ENCODED_CHARS,
    ):
        parts = list(tokenizers._parts(text))
        assert "".join(parts) == text
        assert max(map(len, parts)) <= MAX_ENCODED_CHARS


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text_can_be_counted(text: str) -> None:
    assert get_token_counter("o200k_base")(text) >= (1 if text else 0)


def test_a_panic_becomes_an_estimate_and_an_interrupt_does_not() -> None:
    class PanicException(BaseException):
        pass

    class Stub:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def encode_ordinary(self, text: str) -> list[int]:
            raise self.error

    def broken(error: BaseException) -> tiktoken.Encoding:
        return Stub(error)  # type: ignore[return-value]  # a real panic needs a text that takes a second

    assert tokenizers._encoded(broken(PanicException("no")), "some text") == estimate_text_tokens("some text")
    with pytest.raises(KeyboardInterrupt):
        tokenizers._encoded(broken(KeyboardInterrupt()), "some text")


def test_the_same_text_has_the_same_count() -> None:
    text = PROSE * 8_000 + "b" * 100_000
    assert len({get_token_counter("o200k_base")(text) for _ in range(3)}) == 1
