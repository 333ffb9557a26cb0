from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat import chain
from proxy.dialects.completions.request import read_message
from tests.conversations import Json, assistant, make_message, make_messages, result, system, user


def digest(value: Json) -> bytes:
    return make_message(value).digest


def parts(*texts: str, **more: Any) -> list[Json]:
    return [{"type": "text", "text": t, **more} for t in texts]


def calling(arguments: str, name: str = "run", call: str = "c1") -> Json:
    return {
        "role": "assistant",
        "tool_calls": [{"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def image(url: str, **more: Any) -> Json:
    return user([{"type": "image_url", "image_url": {"url": url, **more}}])


ALIKE: dict[str, tuple[Json, Json]] = {
    "a string and one text part": (user("hello"), user(parts("hello"))),
    "a string and two text parts": (user("hello"), user(parts("he", "llo"))),
    "null and an empty string": (assistant(None, "c1"), assistant("", "c1")),
    "null and a missing content": (
        assistant(None, "c1"),
        {k: v for k, v in assistant("", "c1").items() if k != "content"},
    ),
    "null and an empty list": (assistant(None, "c1"), assistant([], "c1")),
    "arguments with other spaces": (calling('{"a":1,"b":[2]}'), calling('{ "a": 1, "b": [ 2 ] }')),
    "arguments in another order": (calling('{"a":1,"b":2}'), calling('{"b":2,"a":1}')),
    "arguments with other escapes": (calling('{"a":"ä"}'), calling('{"a":"\\u00e4"}')),
    "a name": (user("hello"), user("hello", name="ann")),
    "a name on a result": (result("c1", "ok"), result("c1", "ok", name="run")),
    "a refusal": (assistant("no"), assistant("no", refusal=None)),
    "annotations": (assistant("see"), assistant("see", annotations=[{"type": "url_citation"}])),
    "reasoning": (assistant("so"), assistant("so", reasoning_content="because", reasoning="because")),
    "provider fields": (assistant("so"), assistant("so", provider_specific_fields={"x": 1}, extra_content={})),
    "a cache mark on the message": (user("hello"), user("hello", cache_control={"type": "ephemeral"})),
    "a cache mark on a part": (user("hello"), user(parts("hello", cache_control={"type": "ephemeral"}))),
    "a breakpoint on a part": (user("hello"), user(parts("hello", prompt_cache_breakpoint={"mode": "explicit"}))),
    "a detail of an image": (image("https://x/1.png"), image("https://x/1.png", detail="high")),
}
OTHER: dict[str, tuple[Json, Json]] = {
    "roles": (user("hello"), assistant("hello")),
    "texts": (user("hello"), user("hello ")),
    "case": (user("hello"), user("Hello")),
    "call ids": (assistant(None, "c1"), assistant(None, "c2")),
    "result ids": (result("c1", "ok"), result("c2", "ok")),
    "tool names": (calling("{}"), calling("{}", name="walk")),
    "arguments": (calling('{"a":1}'), calling('{"a":2}')),
    "arguments that are no JSON": (calling("a b"), calling("a  b")),
    "how many calls": (assistant(None, "c1"), assistant(None, "c1", "c1")),
    "images": (image("https://x/1.png"), image("https://x/2.png")),
    "an image or none": (user(""), image("https://x/1.png")),
    "text or call": (assistant("c1"), assistant(None, "c1")),
    "audio": (
        user([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]),
        user([{"type": "input_audio", "input_audio": {"data": "AAAB", "format": "wav"}}]),
    ),
    "files": (
        user([{"type": "file", "file": {"file_id": "f1"}}]),
        user([{"type": "file", "file": {"file_id": "f2"}}]),
    ),
}


@pytest.mark.parametrize("what", sorted(ALIKE))
def test_equivalent_messages_have_the_same_digest(what: str) -> None:
    one, other = ALIKE[what]
    assert digest(one) == digest(other)


@pytest.mark.parametrize("what", sorted(OTHER))
def test_messages_that_differ_have_different_digests(what: str) -> None:
    one, other = OTHER[what]
    assert digest(one) != digest(other)


def test_the_boundary_of_text_and_ids_cannot_be_forged() -> None:
    assert chain.digest_message("tool", "ab", [], "c", []) != chain.digest_message("tool", "a", [], "bc", [])
    assert chain.digest_message("user", "4:tool", [], None, []) != chain.digest_message("user4:", "tool", [], None, [])


@given(st.dictionaries(st.text('ab"\\é', max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=4))
def test_arguments_are_the_same_however_they_are_written(table: Json) -> None:
    spread = json.dumps(table, indent=2, sort_keys=True)
    tight = json.dumps(table, separators=(",", ":"), ensure_ascii=False)
    assert chain.canonicalize_arguments(spread) == chain.canonicalize_arguments(tight)
    assert json.loads(chain.canonicalize_arguments(spread)) == table


@given(st.text())
def test_arguments_of_any_kind_have_a_canonical_form(arguments: str) -> None:
    once = chain.canonicalize_arguments(arguments)
    assert chain.canonicalize_arguments(once) == once


def test_arguments_nested_too_deeply_or_out_of_range_stay_as_they_are() -> None:
    for arguments in ("[" * 100_000, "1e999", '"\ud800"'):
        assert chain.canonicalize_arguments(arguments) == arguments


def test_system_and_developer_messages_stand_outside_the_chain() -> None:
    plain = make_messages(user("hi"), assistant("hello"), user("go"))
    dated = make_messages(
        system("Monday"), user("hi"), {"role": "developer", "content": "x"}, assistant("hello"), user("go")
    )
    one, other = chain.compute_keys("t", plain), chain.compute_keys("t", dated)
    assert other[0] == chain.derive_root_key("t")
    assert [other[n] for n in (1, 3, 4)] == one
    assert other[2] == other[1]


def test_a_key_covers_all_that_came_before_it() -> None:
    one = chain.compute_keys("t", make_messages(user("hi"), assistant("a"), user("go")))
    other = chain.compute_keys("t", make_messages(user("hi"), assistant("b"), user("go")))
    longer = chain.compute_keys("t", make_messages(user("hi"), assistant("a"), user("go"), assistant("done")))
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]
    assert longer[:3] == one


def test_chains_of_two_tenants_never_meet() -> None:
    talk = make_messages(user("hi"), assistant("a"))
    assert not set(chain.compute_keys("one", talk)) & set(chain.compute_keys("two", talk))


@given(st.binary(min_size=chain.DIGEST_BYTES, max_size=chain.DIGEST_BYTES))
def test_a_public_id_is_base32_as_any_library_writes_it(made: bytes) -> None:
    assert chain.public_id(made) == base64.b32encode(made[:7])[:10].decode().lower()


def test_public_ids_are_ten_base32_characters_and_a_function_of_the_key() -> None:
    keys = chain.compute_keys("t", make_messages(*(user(str(n)) for n in range(200))))
    ids = [chain.public_id(k) for k in keys]
    assert all(re.fullmatch("[a-z2-7]{10}", i) for i in ids)
    assert len(set(ids)) == len(ids)
    assert ids == [chain.public_id(k) for k in keys]


def test_the_system_digest_tells_side_calls_apart() -> None:
    talk = user("hi")
    assert chain.digest_system_messages(make_messages(system("a"), talk)) != chain.digest_system_messages(
        make_messages(system("b"), talk)
    )
    assert chain.digest_system_messages(make_messages(system("a"), talk)) == chain.digest_system_messages(
        make_messages(talk, system("a"))
    )
    assert chain.digest_system_messages(make_messages(talk)) == chain.digest_system_messages(())


def test_a_system_prompt_is_like_itself_on_another_day() -> None:
    days = ["Be. Today: Sat Nov 21 2026, 23:59", "Be. Today: Monday, December 1st, 2026 8 AM", "Be. Today: 2027-01-31"]
    assert len({chain.digest_undated_system(make_messages(system(day), user("hi"))) for day in days}) == 1
    assert chain.digest_undated_system(make_messages(system("a"))) != chain.digest_undated_system(
        make_messages(system("b"))
    )
    assert chain.digest_undated_system(make_messages(system("a"))) != chain.digest_undated_system(
        make_messages(system("a"), system("a"))
    )
    assert chain.digest_undated_system(make_messages(user("hi"))) == chain.digest_undated_system(())


def test_a_form_names_the_very_bytes() -> None:
    one, other = read_message(b'{"role":"user","content":"hi"}'), read_message(b'{"role": "user","content":"hi"}')
    assert one.digest == other.digest
    assert one.form != other.form
    assert one.form == chain.compute_form(one.raw)
    assert {len(one.form), len(one.digest), len(chain.derive_root_key("t")), len(chain.derive_next_key(b"", b""))} == {
        chain.DIGEST_BYTES
    }
