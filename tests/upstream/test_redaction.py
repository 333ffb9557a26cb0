from __future__ import annotations

import random

import pytest

from proxy.upstream.redaction import Redactor, list_key_encodings

SECRET = b"sk-sk-operator"


def fed(body: bytes, sizes: list[int]) -> bytes:
    redactor, out = Redactor([SECRET]), b""
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
    redactor = Redactor([SECRET])
    assert redactor.feed(b"nothing of it") == b"nothing of it"
    assert redactor.feed(b"but sk-sk") == b"but "
    assert redactor.feed(b"ating") == b"sk-skating"


def test_a_key_is_blanked_in_each_of_its_forms_however_the_body_is_cut() -> None:
    key = "sk-a/b+c=d~e"
    forms = list_key_encodings(key)
    assert {b"sk-a/b+c=d~e", b"sk-a%2Fb%2Bc%3Dd~e", b"sk-a%2fb%2bc%3dd~e", b"c2stYS9iK2M9ZH5l"} <= set(forms)
    assert list_key_encodings("sk-operator1") == (b"c2stb3BlcmF0b3Ix", b"sk-operator1"), "nothing twice"
    body = b", ".join(form + form[:5] for form in forms) + b"; sk-a%2"
    wanted = b", ".join(b"*" * len(form) + form[:5] for form in forms) + b"; sk-a%2"
    for cut in range(len(body) + 1):
        redactor = Redactor(forms)
        got = redactor.feed(body[:cut]) + redactor.feed(body[cut:]) + redactor.end()
        assert got == wanted
