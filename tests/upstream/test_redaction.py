from __future__ import annotations

import random

import pytest

from proxy.upstream.redaction import Redactor

SECRET = b"sk-sk-operator"


def fed(body: bytes, sizes: list[int]) -> bytes:
    redactor, out = Redactor(SECRET), b""
    for size in sizes:
        out += redactor.feed(body[:size])
        body = body[size:]
    return out + redactor.feed(body) + redactor.end()


@pytest.mark.parametrize(
    "body", [SECRET, b"a" + SECRET + b"b", SECRET * 3, b"sk-" + SECRET, b"sk-sk-sk-operator sk-op", b"sk-sk-operato"]
)
def test_however_a_body_is_cut_the_secret_is_not_in_it_and_its_length_stays(body: bytes) -> None:
    chance = random.Random(3)
    wanted = body.replace(SECRET, b"*" * len(SECRET))
    for cut in range(len(body) + 1):
        assert fed(body, [cut]) == wanted
    for _ in range(50):
        assert fed(body, [chance.randrange(4) for _ in range(30)]) == wanted


def test_only_what_might_begin_the_secret_waits() -> None:
    redactor = Redactor(SECRET)
    assert redactor.feed(b"nothing of it") == b"nothing of it"
    assert redactor.feed(b"but sk-sk") == b"but "
    assert redactor.feed(b"ating") == b"sk-skating"
