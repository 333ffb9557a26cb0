from __future__ import annotations

import json
import random
from typing import Any

import pytest

from proxy.chat.size_limits import MAX_TOP_LEVEL_KEYS, SCAN_BYTES, SizeLimits, count_marks, count_values, find_model
from proxy.dialects.completions.request import read_message, read_request
from proxy.errors import NotManaged

ENOUGH = 1 << 40


def values(found: Any) -> int:
    """Members of objects and items of lists, and the containers that hold none."""
    if isinstance(found, dict):
        return sum(map(values, found.values())) + max(1, len(found))
    if isinstance(found, list):
        return sum(map(values, found)) + max(1, len(found))
    return 0


def some(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 5 else 4)
    if kind < 4:
        return chance.choice([1, None, 'a"b', "\\", '\\"', "[1, 2]", '{"model": "x"}', "x" * chance.randrange(2000)])
    if kind < 6:
        return [some(chance, depth + 1) for _ in range(chance.randrange(6))]
    return {f'k"{n}\\': some(chance, depth + 1) for n in range(chance.randrange(6))}


@pytest.mark.parametrize("seed", range(20))
def test_values_are_counted_as_a_decoder_finds_them_whatever_texts_hold(seed: int) -> None:
    chance = random.Random(seed)
    found = [some(chance) for _ in range(200)]
    body = json.dumps(found).encode()
    assert count_values(body, ENOUGH) == values(found) <= count_marks(body)


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("text", ["\\", '"', '\\"', 'a\\\\"b'])
def test_an_escape_may_stand_where_one_piece_ends(shift: int, text: str) -> None:
    body = json.dumps(["x" * (SCAN_BYTES - 8 + shift) + text * 9, [1, 2, 3], text * SCAN_BYTES, {"a": 1}]).encode()
    assert count_values(body, ENOUGH) == 4 + 3 + 1


def test_counting_ends_where_it_is_enough() -> None:
    body = b"[" + b"1," * (10 * SCAN_BYTES) + b"1]"
    assert 100 < count_values(body, 100) <= SCAN_BYTES


def test_a_body_is_counted_only_where_it_is_long_enough_to_have_too_many() -> None:
    limits = SizeLimits(values=1000)
    assert limits.check_values(b"[" + b"1," * 400 + b"1]") == 0
    text = json.dumps(["a, b, c " * 1000]).encode()
    assert limits.check_values(text) == 1, "a decoder would find one"
    with pytest.raises(NotManaged, match="1000 JSON values"):
        limits.check_values(b"[" + b"1," * 1000 + b"1]")


def test_what_is_known_of_a_beginning_is_not_counted_again() -> None:
    limits = SizeLimits(values=1000)
    begin, rest = b"[" + b"1," * 600, b"1," * 100 + b"1]"
    assert limits.check_values(begin + rest, len(begin), 601) == 701
    with pytest.raises(NotManaged):
        limits.check_values(begin + b"1," * 400 + rest, len(begin), 601)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "right"},
        {"a": {"model": "wrong"}, "model": "right"},
        {"a": '"model": "wrong"', "b": '\\"model":"wrong"', "model": "right"},
        {"a": ["x" * (2 * SCAN_BYTES), {"model": "wrong"}], "model": "right"},
    ],
)
def test_the_model_is_the_one_of_the_outermost_level(body: dict[str, Any]) -> None:
    assert find_model(json.dumps(body).encode()) == b'"right"'
    assert find_model(json.dumps(body, indent=1).encode()) == b'"right"'


@pytest.mark.parametrize("body", [b"", b"[", b'{"model":1}', b'[{"model":"x"}]', b'{"a":"model"}', b'"model":"x"'])
def test_where_there_is_no_model_none_is_found(body: bytes) -> None:
    assert find_model(body) is None


def test_a_request_over_a_limit_is_not_read() -> None:
    message = b'{"role":"user","content":[{"type":"text","text":"a"}]}'
    read: list[bytes] = []

    def reading(raw: bytes) -> Any:
        read.append(raw)
        return read_message(raw)

    with pytest.raises(NotManaged) as found:
        read_request(b'{"messages":[' + b",".join([message] * 3) + b"]}", reading, limits=SizeLimits(messages=2))
    assert (found.value.reason, read) == ("size", [])
    many = b",".join(b'"k%d":1' % n for n in range(MAX_TOP_LEVEL_KEYS))
    with pytest.raises(NotManaged) as found:
        read_request(b'{"messages":[' + message + b"]," + many + b"}", reading, limits=SizeLimits())
    assert (found.value.reason, read) == ("size", [])
    assert read_request(b'{"messages":[' + message + b"]," + many + b"}").messages[0].part_count == 1
