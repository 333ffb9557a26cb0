from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.tokens import HEADS, PER_CALL, PER_MEDIUM, PER_MESSAGE, Weigh, estimate
from tests.conversations import WEIGH, assistant, message, result, user


def test_the_estimate_is_bytes_over_3_9_rounded_up() -> None:
    assert [estimate("x" * n) for n in (0, 1, 3, 4, 39, 390)] == [0, 1, 1, 2, 10, 100]


def test_dense_scripts_weigh_more_a_character() -> None:
    assert estimate("日本語" * 100) > 2 * estimate("abc" * 100)


@given(st.text(), st.text())
def test_the_estimate_never_fails_and_grows_with_the_text(one: str, other: str) -> None:
    assert 0 <= estimate(one) <= estimate(one + other) <= estimate(one) + estimate(other) + 1


def test_lone_surrogates_can_be_estimated() -> None:
    assert estimate("\ud800") > 0


def test_a_message_weighs_its_text_calls_reasoning_and_media() -> None:
    assert WEIGH(message(user("abc"))) == PER_MESSAGE + 3
    assert WEIGH(message(result("c1", ""))) == PER_MESSAGE
    called = PER_CALL + len("run") + len('{"n": 1}')
    assert WEIGH(message(assistant("ab", "c1", "c2"))) == PER_MESSAGE + 2 + 2 * called
    assert WEIGH(message(assistant("ab", reasoning_content="because"))) == PER_MESSAGE + 2 + 7
    picture = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}
    assert WEIGH(message(user([{"type": "text", "text": "ab"}, picture]))) == PER_MESSAGE + 2 + PER_MEDIUM


def test_each_message_is_counted_once_a_counter() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    one, other = Weigh(count), Weigh(count)
    told = message(user("abc"))
    assert not one.known(told)
    assert one(told) == one(told) == 7
    assert one.known(told)
    assert not other.known(told)
    assert counted == ["abc"]
    assert other(told) == 7
    assert counted == ["abc", "abc"]


def test_the_tools_array_is_counted_once_and_few_are_remembered() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    weigh = Weigh(count)
    assert (weigh.head(None), weigh.head(b"")) == (0, 0)
    assert weigh.head(b"[1]") == weigh.head(b"[1]") == 3
    assert counted == ["[1]"]
    for n in range(3 * HEADS):
        assert weigh.head(b"%d" % n) == len(str(n))
    assert len(weigh._heads) <= HEADS
    assert weigh.head(b"\xff") == 1
