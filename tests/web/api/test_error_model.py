from __future__ import annotations

from fastapi import FastAPI
from fastapi.testclient import TestClient

from proxy.errors import Conflict, StoreUnavailable
from proxy.web.api.json_answers import ERROR_RESPONSES, register_error_handlers


def app() -> FastAPI:
    made = FastAPI(openapi_url=None)
    register_error_handlers(made)

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
