from __future__ import annotations

import json
from typing import Literal

from fastapi import FastAPI
from fastapi.testclient import TestClient
from msgspec import Struct

from proxy.errors import Conflict, StoredPartMissing, StoreUnavailable
from proxy.web.api.json_answers import ERROR_RESPONSES, describe, register_error_handlers, render


class Inner(Struct, frozen=True):
    """Within."""

    name: str


class Outer(Struct, frozen=True, omit_defaults=True):
    """Around."""

    inner: Inner
    many: list[Inner]
    named: dict[str, Inner]
    kind: Literal["a", "b"] = "a"
    maybe: Inner | None = None
    more: list[str] = []


def test_a_model_has_the_fields_of_its_struct_and_those_within() -> None:
    schema = describe(Outer).model_json_schema()
    assert schema["description"] == "Around."
    assert schema["required"] == ["inner", "many", "named"]
    assert set(schema["$defs"]) == {"Inner"}
    assert schema["properties"]["kind"]["enum"] == ["a", "b"]
    assert describe(Outer) is describe(Outer)


def test_an_encoded_struct_fits_its_described_model() -> None:
    value = Outer(Inner("x"), [Inner("y")], {"z": Inner("w")})
    body = bytes(render(value).body)
    assert describe(Outer).model_validate_json(body).model_dump() == {
        "inner": {"name": "x"}, "many": [{"name": "y"}], "named": {"z": {"name": "w"}}, "kind": "a", "maybe": None,
        "more": [],
    }  # fmt: skip


def test_half_a_surrogate_pair_is_sent_as_a_question_mark() -> None:
    assert json.loads(bytes(render({"items": [Inner("a\ud800b")]}).body)) == {"items": [{"name": "a?b"}]}


def app() -> FastAPI:
    made = FastAPI(openapi_url=None)
    register_error_handlers(made)

    @made.get("/part")
    async def part() -> None:
        raise StoredPartMissing("messages of a stored exchange are missing")

    @made.get("/conflict")
    async def conflict() -> None:
        raise Conflict("two of them", hint="Say which.")

    @made.get("/away")
    async def away() -> None:
        raise StoreUnavailable("no such table: canary")

    @made.get("/deep")
    async def deep() -> None:
        raise RecursionError

    @made.get("/mistake")
    async def mistake() -> None:
        raise KeyError("canary")

    @made.get("/number/{n}")
    async def number(n: int) -> int:
        return n

    return made


def test_every_problem_has_one_shape() -> None:
    client = TestClient(app(), raise_server_exceptions=False)
    for path, status, code in (
        ("/conflict", 409, "conflict"),
        ("/away", 503, "unavailable"),
        ("/deep", 400, "invalid_request"),
        ("/nothing", 404, "not_found"),
        ("/mistake", 500, "proxy_error"),
        ("/number/canary", 422, "unprocessable"),
    ):
        got = client.get(path)
        error = got.json()["error"]
        assert (got.status_code, error["code"]) == (status, code)
        assert set(error) == {"message", "type", "code", "hint"}
        assert "canary" not in got.text, "neither the store's words nor what was given"
    assert client.get("/away").headers["retry-after"] == "1"
    assert client.post("/conflict").status_code == 405
    assert client.get("/conflict").json()["error"]["message"] == "two of them"


def test_every_status_is_described() -> None:
    assert set(ERROR_RESPONSES) == {400, 401, 403, 404, 409, 413, 415, 422, 429, 503}


def test_a_part_that_is_gone_is_not_a_store_that_is_away() -> None:
    got = TestClient(app()).get("/part")
    assert (got.status_code, got.json()["error"]["code"]) == (409, "conflict")
    assert "not in the store any more" in got.json()["error"]["message"]
    assert "retry-after" not in got.headers
