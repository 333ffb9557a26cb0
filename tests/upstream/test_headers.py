from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.headers import (
    HOP_BY_HOP,
    build_request_headers,
    build_response_headers,
    find_header,
    remove_headers,
)

NAMES = st.one_of(
    st.text(string.ascii_letters + "-", min_size=1, max_size=12).map(str.encode),
    st.sampled_from([*sorted(HOP_BY_HOP), b"Host", b"Authorization", b"X-Context-Session", b"Accept", b"X-Twice"]),
)
VALUES = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"authorization", b"close, X-Twice", b" keep-alive ,accept", b","])
)
BLOCKS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


def listed(block: list[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        part.strip().lower() for name, value in block if name.lower() == b"connection" for part in value.split(b",")
    }


@given(BLOCKS)
def test_h3_end_to_end_headers_go_up_as_they_came_in_their_order_with_their_doubles(
    block: list[tuple[bytes, bytes]],
) -> None:
    stopped = HOP_BY_HOP | listed(block) | {b"host", b"content-length", b"expect"}
    kept = [
        (name.lower(), value)
        for name, value in block
        if name.lower() not in stopped and not name.lower().startswith(b"x-context-")
    ]
    assert build_request_headers(block, host=b"up", length=3) == [(b"host", b"up"), *kept, (b"content-length", b"3")]


@given(BLOCKS)
def test_h3_end_to_end_headers_come_back_as_they_came_in_their_order_with_their_doubles(
    block: list[tuple[bytes, bytes]],
) -> None:
    stopped = HOP_BY_HOP | listed(block)
    kept = [(name.lower(), value) for name, value in block if name.lower() not in stopped]
    assert build_response_headers(block) == [header for header in kept if not header[0].startswith(b"x-context-")]


@given(BLOCKS, st.booleans())
def test_nothing_of_ours_and_no_other_authorization_goes_up(block: list[tuple[bytes, bytes]], identity: bool) -> None:
    out = build_request_headers(block, host=b"up", key="sk-own", identity=identity)
    assert [value for name, value in out if name == b"authorization"] == [b"Bearer sk-own"]
    assert not any(name.startswith(b"x-context-") for name, _ in out)
    if identity:
        assert [value for name, value in out if name == b"accept-encoding"] == [b"identity"]


def test_a_replaced_header_stays_in_its_place() -> None:
    block = [(b"a", b"1"), (b"Authorization", b"Bearer x"), (b"b", b"2"), (b"authorization", b"Bearer y")]
    assert build_request_headers(block, host=b"up", key="k") == [
        (b"host", b"up"), (b"a", b"1"), (b"authorization", b"Bearer k"), (b"b", b"2"),
    ]  # fmt: skip


def test_connection_may_name_authorization_but_not_take_ours_away() -> None:
    block = [(b"connection", b"authorization"), (b"authorization", b"Bearer x")]
    assert build_request_headers(block, host=b"up") == [(b"host", b"up")]
    assert (b"authorization", b"Bearer k") in build_request_headers(block, host=b"up", key="k")


def test_u18_a_header_that_repeats_our_key_does_not_come_back() -> None:
    block = [(b"x-debug", b"sent Bearer sk-secret-1 there"), (b"x-fine", b"sk-other")]
    assert build_response_headers(block, "sk-secret-1") == [(b"x-fine", b"sk-other")]
    assert build_response_headers([(b"x", b"not tested")], "test") == [(b"x", b"not tested")], (
        "too short to be a secret"
    )


def test_a_length_beside_a_transfer_encoding_is_not_believed() -> None:
    block = [(b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"7"), (b"etag", b"x")]
    assert build_response_headers(block) == [(b"etag", b"x")]


def test_lookups_do_not_mind_case() -> None:
    block = [(b"Content-Type", b" text/plain "), (b"content-type", b"other"), (b"X-A", b"1")]
    assert find_header(block, b"content-type") == "text/plain"
    assert find_header(block, b"none") == ""
    assert remove_headers(block, b"content-type", b"none") == [(b"X-A", b"1")]
