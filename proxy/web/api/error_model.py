"""Errors of the admin API, in the one shape that every error answer of it has."""

from __future__ import annotations

import json
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from proxy.errors import (
    BadRequest,
    NotFound,
    ProxyError,
    StoreUnavailable,
    Unavailable,
    Unprocessable,
)
from proxy.web.error_responses import render_error


class ErrorDetails(BaseModel):
    """The error: `code` for programs, `message` for people, `hint` for the remedy."""

    message: str
    type: str
    code: str
    hint: str = ""


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetails


STATUSES: Final = {
    400: "The request cannot be read.",
    401: "No key, or one that is not known.",
    403: "A key for something else, or a page of another site.",
    404: "There is no such thing, or it is another tenant's.",
    409: "The name stands for more than one, or it cannot be done as things are.",
    413: "The body is over limits.body_mb.",
    415: "The body is not said to be JSON.",
    422: "The request can be read, and says what cannot be.",
    429: "As much of this as may run at once is running.",
    503: "The store is away.",
}

ERROR_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorBody, "description": text} for status, text in STATUSES.items()
}
"""For `responses=` of a route."""


def make_error_response(error: ProxyError, status: int | None = None) -> Response:
    """Return the error as an answer."""
    headers = {"retry-after": "1"} if error.status in (429, 503) else {}
    return Response(render_error(error, separate_hint=True), status or error.status, headers, "application/json")


def register_error_handlers(app: FastAPI) -> None:
    """Register handlers that answer every error of this app in this shape."""

    @app.exception_handler(ProxyError)
    async def own(_: Request, error: Exception) -> Response:
        if isinstance(error, StoreUnavailable):
            return make_error_response(
                Unavailable("the store does not answer", hint="GET /readyz says why. Try again later.")
            )
        assert isinstance(error, ProxyError)  # noqa: S101  # what this is registered for
        return make_error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101  # what this is registered for
        return make_error_response(_read_validation_error(error))

    @app.exception_handler(HTTPException)
    async def routing(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  # what this is registered for
        if error.status_code == 404:
            return make_error_response(NotFound("there is no such route", hint="GET /api/openapi.json has them all."))
        if error.status_code == 405:
            problem = BadRequest("this route has no such method", hint="GET /api/openapi.json has them all.")
            return make_error_response(problem, 405)
        return make_error_response(BadRequest(str(error.detail)), error.status_code)

    @app.exception_handler(Exception)
    async def mistake(_: Request, __: Exception) -> Response:
        return make_error_response(ProxyError("the proxy failed; this is a mistake in it", hint="Its log says where."))

    @app.exception_handler(RecursionError)
    async def nested(_: Request, __: Exception) -> Response:
        return make_error_response(BadRequest("the body is nested too deeply"))


def _read_validation_error(error: RequestValidationError) -> ProxyError:
    """Return the first error of a validation. The given value is not repeated: it may be a secret in the wrong
    place."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return BadRequest("the body is not JSON", hint=json.dumps(str(first.get("ctx", {}).get("error", "")))[1:-1])
    return Unprocessable(f"{where}: {first['msg']}", hint="GET /api/openapi.json has what each route takes.")
