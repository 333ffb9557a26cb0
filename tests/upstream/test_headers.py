from __future__ import annotations

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.headers import (
    ANTHROPIC_KEY,
    AUTHORIZATION,
    AZURE_KEY,
    GOOGLE_KEY,
    GOOGLE_PATH,
    HOP_BY_HOP,
    Redactor,
    build_request_headers,
    build_response_headers,
    choose_key_header,
    find_header,
    list_key_encodings,
    remove_headers,
    remove_overrides,
)

NAMES = st.one_of(
    st.text(string.ascii_letters + "-", min_size=1, max_size=12).map(str.encode),
    st.sampled_from([*sorted(HOP_BY_HOP), b"Host", b"Authorization", b"X-Context-Session", b"Accept", b"X-Twice"]),
)
VALUES = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"authorization", b"close, X-Twice", b" keep-alive ,accept", b","])
)
BLOCKS = st.lists(st.tuples(NAMES, VALUES), max_size=12)

SECRET = b"sk-sk-operator"


def list_connection_headers(block: list[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        part.strip().lower() for name, value in block if name.lower() == b"connection" for part in value.split(b",")
    }


@given(BLOCKS)
def test_h3_end_to_end_headers_reach_upstream_unchanged_in_order_and_with_duplicates(
    block: list[tuple[bytes, bytes]],
) -> None:
    stopped = HOP_BY_HOP | list_connection_headers(block) | {b"host", b"content-length", b"expect"}
    kept = [
        (name.lower(), value)
        for name, value in block
        if name.lower() not in stopped and not name.lower().startswith(b"x-context-")
    ]
    assert build_request_headers(block, host=b"up", length=3) == [(b"host", b"up"), *kept, (b"content-length", b"3")]


@given(BLOCKS)
def test_h3_end_to_end_headers_reach_the_client_unchanged_in_order_and_with_duplicates(
    block: list[tuple[bytes, bytes]],
) -> None:
    stopped = HOP_BY_HOP | list_connection_headers(block)
    kept = [(name.lower(), value) for name, value in block if name.lower() not in stopped]
    assert build_response_headers(block) == [header for header in kept if not header[0].startswith(b"x-context-")]


@given(BLOCKS, st.booleans())
def test_no_header_of_the_proxy_and_no_other_authorization_reaches_upstream(
    block: list[tuple[bytes, bytes]], identity: bool
) -> None:
    out = build_request_headers(block, host=b"up", key="sk-own", identity=identity)
    assert [value for name, value in out if name == b"authorization"] == [b"Bearer sk-own"]
    assert not any(name.startswith(b"x-context-") for name, _ in out)
    if identity:
        assert [value for name, value in out if name == b"accept-encoding"] == [b"identity"]


def test_a_replaced_header_keeps_its_position() -> None:
    block = [(b"a", b"1"), (b"Authorization", b"Bearer x"), (b"b", b"2"), (b"authorization", b"Bearer y")]
    assert build_request_headers(block, host=b"up", key="k") == [
        (b"host", b"up"), (b"a", b"1"), (b"authorization", b"Bearer k"), (b"b", b"2"),
    ]  # fmt: skip


def test_a_connection_header_cannot_remove_the_proxys_authorization() -> None:
    block = [(b"connection", b"authorization"), (b"authorization", b"Bearer x")]
    assert build_request_headers(block, host=b"up") == [(b"host", b"up")]
    assert (b"authorization", b"Bearer k") in build_request_headers(block, host=b"up", key="k")


def test_u18_a_response_header_that_repeats_the_key_is_removed() -> None:
    block = [(b"x-debug", b"sent Bearer sk-secret-1 there"), (b"x-fine", b"sk-other")]
    assert build_response_headers(block, "sk-secret-1") == [(b"x-fine", b"sk-other")]
    assert build_response_headers([(b"x", b"not tested")], "test") == [(b"x", b"not tested")], (
        "too short to be a secret"
    )


def test_a_length_beside_a_transfer_encoding_is_ignored() -> None:
    block = [(b"Transfer-Encoding", b"chunked"), (b"Content-Length", b"7"), (b"etag", b"x")]
    assert build_response_headers(block) == [(b"etag", b"x")]


def test_header_names_are_found_in_any_case() -> None:
    block = [(b"Content-Type", b" text/plain "), (b"content-type", b"other"), (b"X-A", b"1")]
    assert find_header(block, b"content-type") == "text/plain"
    assert find_header(block, b"none") == ""
    assert remove_headers(block, b"content-type", b"none") == [(b"X-A", b"1")]


def redact_in_pieces(body: bytes, sizes: list[int]) -> bytes:
    redactor, out = Redactor([SECRET]), b""
    for size in sizes:
        out += redactor.feed(body[:size])
        body = body[size:]
    return out + redactor.feed(body) + redactor.end()


@pytest.mark.parametrize(
    "body", [SECRET, b"a" + SECRET + b"b", SECRET * 3, b"sk-" + SECRET, b"sk-sk-sk-operator sk-op", b"sk-sk-operato"]
)
def test_a_secret_is_redacted_however_a_body_is_cut_and_the_length_stays(body: bytes) -> None:
    chance = random.Random(3)
    wanted = body.replace(SECRET, b"*" * len(SECRET))
    for cut in range(len(body) + 1):
        assert redact_in_pieces(body, [cut]) == wanted
    for _ in range(50):
        assert redact_in_pieces(body, [chance.randrange(4) for _ in range(30)]) == wanted


def test_only_bytes_that_might_begin_the_secret_are_held() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"nothing of it") == b"nothing of it"
    assert redactor.feed(b"but sk-sk") == b"but "
    assert redactor.feed(b"ating") == b"sk-skating"


def test_a_key_is_redacted_in_each_of_its_encodings_however_the_body_is_cut() -> None:
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


def test_a_key_for_google_is_sent_in_googles_header_without_another_credential() -> None:
    came = [(b"authorization", b"Bearer mine"), (b"x-goog-api-key", b"mine"), (b"a", b"b")]
    out = build_request_headers(came, host=b"up", key="k", key_header=GOOGLE_KEY)
    assert out == [(b"host", b"up"), (b"x-goog-api-key", b"k"), (b"a", b"b")]
    assert build_request_headers(came, host=b"up", key="k") == [
        (b"host", b"up"), (b"authorization", b"Bearer k"), (b"a", b"b"),
    ]  # fmt: skip
    assert build_request_headers(came, host=b"up") == [(b"host", b"up"), *came]


def test_a_key_stands_in_one_header_and_the_clients_credentials_in_none() -> None:
    came = [(b"authorization", b"Bearer a"), (b"x-api-key", b"b"), (b"api-key", b"c"), (b"x-goog-api-key", b"d")]
    for header in (AUTHORIZATION, ANTHROPIC_KEY, AZURE_KEY, GOOGLE_KEY):
        value = b"Bearer k" if header == AUTHORIZATION else b"k"
        assert build_request_headers(came, host=b"up", key="k", key_header=header) == [
            (b"host", b"up"),
            (header, value),
        ]
        assert build_request_headers([], host=b"up", key="k", key_header=header) == [(b"host", b"up"), (header, value)]


ANTHROPIC, AZURE = "api.anthropic.com", "team.openai.azure.com"


@pytest.mark.parametrize(
    ("host", "path", "key", "header"),
    [
        (ANTHROPIC, "/v1/messages", "sk-ant-api03-x", ANTHROPIC_KEY),
        (ANTHROPIC, "/v1/models", "sk-ant-api03-x", ANTHROPIC_KEY),
        (ANTHROPIC, "/v1/messages", "sk-ant-oat01-x", AUTHORIZATION),
        (ANTHROPIC, "/v1/chat/completions", "sk-ant-api03-x", AUTHORIZATION),
        (AZURE, "/openai/deployments/gpt-5/chat/completions", "0123abc", AZURE_KEY),
        (AZURE, "/v1/responses", "0123abc", AZURE_KEY),
        (AZURE, "/v1/responses", "eyJhbGciOiJub25lIn0.e30.", AUTHORIZATION),
        ("team.services.ai.azure.com", "/v1/messages", "0123abc", ANTHROPIC_KEY),
        ("api.openai.com", "/v1/chat/completions", "sk-x", AUTHORIZATION),
        ("api.openai.com.evil.example", "/v1/messages", "sk-x", AUTHORIZATION),
        ("openrouter.ai", "/v1/messages", "sk-or-x", AUTHORIZATION),
        ("generativelanguage.googleapis.com", "/v1beta/models/g:generateContent", "AIza", GOOGLE_KEY),
        ("aiplatform.googleapis.com", "/v1/publishers/google/models/g:generateContent", "ya29.x", AUTHORIZATION),
    ],
)
def test_each_provider_gets_its_key_where_it_looks_for_it(host: str, path: str, key: str, header: bytes) -> None:
    assert choose_key_header(path, key, host=host, strategy="openai") == header
    assert choose_key_header(path, key, host=host, strategy="openai", key_header="api-key") == AZURE_KEY


def test_a_gateway_that_is_anthropics_kind_gets_its_key_as_anthropic_does() -> None:
    assert choose_key_header("/v1/messages", "k", host="gateway.lan", strategy="anthropic") == ANTHROPIC_KEY
    assert choose_key_header("/model/m/invoke", "k", host="gateway.lan", strategy="anthropic") == AUTHORIZATION


@pytest.mark.parametrize(
    ("path", "is_googles"),
    [
        ("/v1beta/models/gemini-3-pro:generateContent", True),
        ("/v1beta/models", True),
        ("/v1/publishers/google/models/g:streamGenerateContent", True),
        ("/v1beta/openai/chat/completions", False),
        ("/v1/chat/completions", False),
    ],
)
def test_googles_own_paths_are_recognised(path: str, is_googles: bool) -> None:
    assert bool(GOOGLE_PATH.search(path)) is is_googles


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        (b"alt=sse&key=AIza", b"alt=sse"),
        (b"KEY=a&%6bey=b&$userProject=c&api-version=1", b"api-version=1"),
        (b"api_key=a&api-key=b&access_token=c&subscription-key=d&$httpMethod=e", b""),
        (b"a=1;key=b&c=d", b"c=d"),
        (b"keys=1&monkey=2&a=key=3", b"keys=1&monkey=2&a=key=3"),
        (b"&&a", b"&&a"),
        (b"", b""),
    ],
)
def test_a_query_goes_on_without_the_clients_credentials_where_the_operators_key_stands(
    query: bytes, kept: bytes
) -> None:
    assert remove_overrides(query) == kept
