from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from proxy.chat.json_spans import SizeLimits
from proxy.dialects.base import WireReader
from proxy.dialects.known_prefix import PREFIXES, TRACED, HistoryMemo, KnownPrefix, PrefixMemo
from proxy.dialects.messages.request import MessagesRequest, read_messages_request
from proxy.dialects.responses.request import read_wire_request
from proxy.dialects.written_history import WrittenHistory
from proxy.errors import NotManaged
from proxy.exchange.message_cache import (
    MAX_ALIKE,
    MESSAGE_OVERHEAD,
    MESSAGE_SHARE,
    SMALL_BODY_BYTES,
    TEXT_COPIES,
    BodyPrefix,
    BodyPrefixes,
    MessageCache,
)


def raw(text: str, role: str = "user") -> bytes:
    return json.dumps({"role": role, "content": text}).encode()


def body(count: int, name: str = "a", size: int = 400) -> bytes:
    messages = [{"role": "user", "content": f"{name} {n} " + "x" * size} for n in range(count)]
    return json.dumps({"model": "m", "messages": messages}).encode()


def test_a_message_that_comes_again_is_the_same_object() -> None:
    cache = MessageCache(1 << 20)
    first = cache.get_message(raw("a"))
    assert cache.get_message(bytes(bytearray(raw("a")))) is first
    assert cache.get_message(raw("b")) is not first


def test_an_unreadable_message_is_not_cached() -> None:
    cache = MessageCache(1 << 20)
    for _ in range(2):
        with pytest.raises(NotManaged):
            cache.get_message(b'{"content":"no role"}')
    assert cache.size == 0


def test_the_least_recently_used_message_leaves_first() -> None:
    one = len(raw("00")) * TEXT_COPIES + MESSAGE_OVERHEAD
    cache = MessageCache(int(3 * one / MESSAGE_SHARE) + 1)
    for n in (0, 1, 2, 0, 3):
        cache.get_message(raw(f"0{n}"))
    assert list(cache._live_messages) == [raw("00"), raw("02"), raw("03")]
    mine = cache.get_message(raw("04"))
    for n in range(5, 9):
        cache.get_message(raw(f"0{n}"))
    assert cache.get_message(raw("04")) is mine, "somebody has it still"


def test_memory_stays_within_its_limit() -> None:
    cache = MessageCache(1 << 20)
    for n in range(2000):
        cache.get_message(raw(f"{n} " + "x" * 1000))
    for n in range(200):
        cache.get_request(body(30, f"history {n}"))
    assert cache.size <= cache.max_bytes
    assert cache._prefixes.size == sum(one.size for alike in cache._prefixes.alike.values() for one in alike)


def test_one_message_larger_than_the_limit_can_still_be_read() -> None:
    cache = MessageCache(1000)
    assert cache.get_message(raw("x" * 5000)).text == "x" * 5000
    request, _ = cache.get_request(body(50))
    assert len(request.messages) == 50


def test_a_history_that_grows_is_known_by_its_beginning() -> None:
    cache = MessageCache(1 << 24)
    assert cache.find_prefix(body(30)) is None
    for count in range(30, 90):
        request, prefix_cache = cache.get_request(body(count))
        assert len(request.messages) == count
        assert prefix_cache is not None
        assert len(request.known_messages) == (count - 1 if count > 30 else 0)
    assert len(cache.find_prefix(body(95)) or ()) > len(body(88))
    assert cache.find_prefix(body(95, "another")) is None
    assert sum(len(alike) for alike in cache._prefixes.alike.values()) == 1, (
        "a longer beginning takes the place of a shorter"
    )


def test_messages_of_a_history_are_known_although_its_first_one_was_rewritten() -> None:
    cache = MessageCache(1 << 20)
    first = cache.get_request(body(30))[0]
    again = json.loads(body(30))
    again["messages"][0]["content"] = "Today is Monday."
    request = cache.get_request(json.dumps(again).encode())[0]
    assert not request.known_messages
    assert request.messages[1:] == first.messages[1:], "the very same objects"
    raw = first.messages[7].raw
    del first, request
    for n in range(30):
        cache.get_request(body(30, f"another {n}"))
    assert raw not in cache._live_messages


def test_a_small_body_is_read_whole() -> None:
    cache = MessageCache(1 << 20)
    small = body(2)
    assert len(small) < SMALL_BODY_BYTES
    assert cache.get_request(small)[1] is None
    assert cache.find_prefix(small) is None


def test_histories_that_part_late_are_all_read_right() -> None:
    cache = MessageCache(1 << 24)
    base: list[dict[str, Any]] = json.loads(body(40))["messages"]
    for n in range(3 * MAX_ALIKE):
        ends = [*base, {"role": "user", "content": f"end {n}"}, {"role": "assistant", "content": "Yes."}]
        asked = json.dumps({"model": "m", "messages": ends}).encode()
        request, _ = cache.get_request(asked)
        assert [json.loads(m.raw) for m in request.messages] == ends
    assert all(len(alike) <= MAX_ALIKE for alike in cache._prefixes.alike.values())


def test_sixteen_agents_that_work_side_by_side_on_one_task_are_all_known() -> None:
    cache = MessageCache(1 << 24)
    base: list[dict[str, Any]] = json.loads(body(60))["messages"]
    for length in range(3):
        for n in range(16):
            ends = [{"role": "user", "content": f"Agent {n}, {k}."} for k in range(length + 1)]
            asked = json.dumps({"model": "m", "messages": [*base, *ends]}).encode()
            request, _ = cache.get_request(asked)
            assert not length or len(request.known_messages) == 60 + length
    assert any(len(alike) == 16 for alike in cache._prefixes.alike.values())


def test_the_beginning_that_was_not_used_for_longest_leaves_first_whatever_others_have_its_sample() -> None:
    prefixes = BodyPrefixes()
    texts = [b"a" * 400, b"b" * 400, b"a" * 405]  # the first and the last have the same sample
    for text in texts:
        prefixes.add("f", BodyPrefix(memoryview(text), len(text), None))
    left = []
    while (oldest := prefixes.find_oldest()) is not None:
        left.append(bytes(oldest.text))
        prefixes.drop_oldest()
    assert left == texts[:2]
    assert prefixes.size == 405


def test_the_beginnings_have_what_small_messages_leave_of_the_limit() -> None:
    first = MessageCache(1 << 24)
    first.get_request(body(30, "history 0"))
    one = first.size
    cache = MessageCache(4 * one)
    for n in range(8):
        cache.get_request(body(30, f"history {n}"))
    assert cache.size == 4 * one
    for n in range(200):
        cache.get_request(body(2, f"small {n}"))
    assert 0.75 * one < cache.size - cache._prefixes.size <= one
    assert cache._prefixes.size == 3 * one
    for n in range(4):
        cache.get_request(body(30, f"history {n}"))
    assert cache._prefixes.size == 4 * one, "small messages that nobody has asked for since make room"


def test_a_message_from_another_wire_format_is_kept_once() -> None:
    cache = MessageCache(1 << 24)
    wire = read_messages_request(body(40))
    request, _ = cache.read_with_prefix(wire.chat_body, None, wire.canonical)
    assert all(message.raw is raw for message, raw in zip(request.messages, wire.canonical, strict=True))


def test_a_history_that_no_model_could_read_is_not_kept() -> None:
    cache = MessageCache(1 << 20)
    cache.get_request(body(30, "small"))
    before = cache.size
    cache.get_request(body(250, "vast", 1000))
    assert cache.size == before
    assert not cache.find_prefix(body(251, "vast", 1000))


def test_a_history_larger_than_the_limit_is_known_too_and_leaves_the_others_their_room() -> None:
    cache = MessageCache(1 << 20)
    cache.get_request(body(30, "small"))
    for count in (150, 151, 152):
        request, _ = cache.get_request(body(count, "large", 1000))
        assert len(request.known_messages) == (count - 1 if count > 150 else 0)
    assert cache.find_prefix(body(31, "small")), "it was not pushed out"
    before = cache.size
    cache.get_request(body(150, "a second", 1000))
    assert cache.size < 1.1 * before, "only the newest of them is kept"
    assert not cache.find_prefix(body(153, "large", 1000))
    assert cache.find_prefix(body(151, "a second", 1000))
    assert cache._large_prefix.size == sum(one.size for alike in cache._large_prefix.alike.values() for one in alike)


def test_a_request_of_another_wire_format_is_read_on_from_its_beginning() -> None:
    cache = MessageCache(1 << 24)
    known: list[int] = []

    def read(text: bytes, limits: SizeLimits | None, before: MessagesRequest | None) -> MessagesRequest:
        known.append(len(before.places) if before is not None else 0)
        return read_messages_request(text, limits, before)

    def read_wire(text: bytes) -> MessagesRequest:
        found: MessagesRequest = cache.read_wire_with_prefix(
            "messages", text, cache.find_prefix(text, "messages"), read
        )
        return found

    for count in (1, 30, 31, 40):
        assert len(read_wire(body(count)).places) == count
    assert known == [0, 0, 30, 31], "a small body is not remembered"
    assert len(cache.find_prefix(body(41), "messages") or ()) > len(body(39))
    assert cache.find_prefix(body(41)) is None, "the beginning of another wire format does not count"
    assert sum(len(alike) for alike in cache._prefixes.alike.values()) == 1
    for n in range(9):
        read_wire(body(900, str(n), 2000))
    assert cache.size <= cache.max_bytes


def keep_body(memo: PrefixMemo, text: bytes) -> None:
    """Note something of a body, which stays in memory for that."""
    memo.known[TRACED] = KnownPrefix(memoryview(text)[:-2], {}, (), None)


def test_the_body_that_bindings_of_chat_completions_keep_is_counted() -> None:
    cache, sent = MessageCache(1 << 24), body(30, "as it went out")
    request, _ = cache.get_request(body(30))
    memo = request.memo_values[PREFIXES] = HistoryMemo()
    keep_body(memo.own, request.body)
    cache.get_request(body(31))
    plain = cache.size
    keep_body(memo.sent, sent)
    cache.get_request(body(32))
    one_more = (TEXT_COPIES + 1) * (len(body(32)) - len(body(31))) + MESSAGE_OVERHEAD
    assert cache.size - plain == one_more + len(sent)


def test_every_body_that_stays_for_another_wire_format_is_counted() -> None:
    cache, written = MessageCache(1 << 24), body(30, "as it was written")

    def read(count: int) -> MessagesRequest:
        found: MessagesRequest = cache.read_wire_with_prefix(
            "messages", body(count), cache.find_prefix(body(count), "messages"), read_messages_request
        )
        return found

    def measure_growth(count: int) -> int:
        before = cache.size
        read(count)
        return cache.size - before

    read(30)
    step = measure_growth(31)
    memo = read(31).memo
    memo.written = WrittenHistory(memoryview(written)[5:], (), (), 30)
    keep_body(memo.sent, written)
    assert measure_growth(32) == pytest.approx(step, abs=100), "the written body is counted from the beginning"
    memo = read(32).memo
    keep_body(memo.sent, marked := written.replace(b"x", b"y"))
    assert measure_growth(33) == pytest.approx(step + len(marked), abs=1000)


TOOLS = [{"name": "look", "description": "y" * 200_000}]


def test_bytes_after_the_messages_stay_with_the_body_and_are_counted() -> None:
    cache = MessageCache(1 << 24)
    text = json.dumps(json.loads(body(30)) | {"tools": TOOLS}).encode()
    cache.get_request(body(30))
    plain = cache.size
    cache.get_request(text)
    # The body, the client's tools as they came, and the same with those of the proxy.
    assert cache.size - 2 * plain == pytest.approx(3 * (len(text) - len(body(30))), abs=100)


@pytest.mark.parametrize(("name", "copies"), [("messages", 4), ("responses", 4)])
def test_bytes_after_the_messages_of_another_wire_format_are_counted(name: str, copies: int) -> None:
    cache, said = MessageCache(1 << 24), json.loads(body(30))["messages"]
    history = {"messages": said} if name == "messages" else {"input": said}
    read: WireReader[Any] = read_messages_request if name == "messages" else read_wire_request
    text = json.dumps({"model": "m", "max_tokens": 9, **history, "tools": TOOLS}).encode()
    cache.read_wire_with_prefix(name, text, None, read)
    assert cache.size >= copies * 200_000  # the body, copies of its tools, and the body that will be written


def test_two_branches_may_read_at_once() -> None:
    """Large bodies are read in worker threads, small ones on the loop."""
    cache = MessageCache(300_000)
    wrong: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for n in range(150):
                for count in (30, 31, 32):
                    request, _ = cache.get_request(body(count, f"{name if n % 3 else 'both'} {n % 7}"))
                    assert len(request.messages) == count
        except BaseException as problem:  # noqa: BLE001 -- told by the assertion below, from the test's own branch
            wrong.append(problem)

    workers = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert cache._messages_size == sum(len(key) * TEXT_COPIES + MESSAGE_OVERHEAD for key in cache._messages)
    assert cache._prefixes.size == sum(one.size for alike in cache._prefixes.alike.values() for one in alike)
