from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from proxy.chat.chain import canonicalize_arguments
from proxy.chat.embedded_json import MAX_CHARS, MAX_VALUES, decode_embedded
from proxy.context.analysis import identifiers

READERS: dict[str, Callable[[str], object]] = {
    "canonical": canonicalize_arguments,
    "written": identifiers.read_argument_texts,
}
DENSE = {
    "lists": "[" + "[]," * 4_000_000 + "[]]",
    "objects": "[" + "{}," * 300_000 + "{}]",
    "members": '{"a":[' + '"b",' * 250_000 + "1]}",
    "numbers": "[" + "1," * 500_000 + "1]",
    "just too many": "[" + "[]," * (MAX_VALUES // 2) + "[]]",
    "just not too many": "[" + "[]," * (MAX_VALUES // 2 - 2) + "[]]",
    "nested": "[" * 500_000,
    "in strings": '{"a":"' + "[,{" * 300_000 + '"}',
    "quotes": '{"a":"' + '\\"[' * 300_000 + '"}',
    "backslashes": '{"a":"' + "\\" * 900_000 + "," * 30_000 + '"}',
}


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("reader", READERS)
def test_no_text_takes_a_tenth_of_a_second_to_decode(reader: str, name: str) -> None:
    text = DENSE[name]
    began = time.thread_time()
    READERS[reader](text)
    assert time.thread_time() - began < 0.1


def test_what_agents_write_is_decoded() -> None:
    code = "def add(a, b):\n    return [a, b]\n" * 8_000
    written = msgspec.json.encode({"path": "a.py", "content": code}).decode()
    assert decode_embedded(written)["content"] == code
    assert decode_embedded("[1]", list[int]) == [1]
    assert identifiers.parse_arguments(written)["path"] == "a.py"
    assert decode_embedded('{"a":"' + "[,{" * 300_000 + '"}')["a"].count(",") == 300_000, "those in strings are none"
    long = '{"content":"' + "x" * 900_000 + '"}'
    assert len(decode_embedded(long)["content"]) == 900_000


@pytest.mark.parametrize("text", ['"' + "x" * MAX_CHARS + '"', "[" + "1," * MAX_VALUES + "1]", "{", "[" * 5000])
def test_too_much_is_no_json(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_embedded(text)
    assert canonicalize_arguments(text) == text
    assert identifiers.read_argument_texts(text) == text
    assert identifiers.parse_arguments(text) == {}
