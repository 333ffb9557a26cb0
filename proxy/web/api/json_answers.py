"""Answers of the admin API: structs of lower layers, described to OpenAPI and written as JSON, and errors.

A struct is described once, at its definition. Here it becomes the model that FastAPI documents, field by field. The two
therefore cannot drift apart.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.exceptions import HTTPException

from proxy.errors import (
    BadRequest,
    Conflict,
    NotFound,
    ProxyError,
    StoredPartMissing,
    StoreUnavailable,
    Unavailable,
    Unprocessable,
)
from proxy.web.api.stored_text import clean_json
from proxy.web.error_responses import render_error

_MADE: dict[type, type[BaseModel]] = {}


def describe(hint: Any) -> Any:
    """Return a type with the model of each struct in its place: the struct's fields with their types and defaults, and
    its docstring. Examples are those of its constant `EXAMPLES`."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _describe_struct(hint)
    origin, args = get_origin(hint), get_args(hint)
    if not args or origin is Literal:
        return hint
    inner = tuple(describe(arg) for arg in args)
    if origin in (Union, types.UnionType):
        return Union[inner]  # noqa: UP007  # of types that are known only now
    return origin[inner] if origin is not None else hint


def _describe_struct(kind: type[msgspec.Struct]) -> type[BaseModel]:
    if kind not in _MADE:
        hints = get_type_hints(kind)
        fields: dict[str, Any] = {
            field.name: (describe(hints[field.name]), _find_default(field)) for field in msgspec.structs.fields(kind)
        }
        config = ConfigDict(protected_namespaces=())
        if examples := getattr(kind, "EXAMPLES", None):
            config["json_schema_extra"] = {"examples": examples}
        _MADE[kind] = create_model(kind.__name__, __config__=config, __doc__=kind.__doc__, **fields)
    return _MADE[kind]


def _find_default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        made: Callable[[], Any] = field.default_factory
        return Field(default_factory=made)
    return ...


def render(value: Any) -> Response:
    """Return a struct, or structs in lists, as an answer."""
    try:
        body = msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError):  # half a surrogate pair, which a text from JSON can hold
        body = msgspec.json.encode(clean_json(msgspec.to_builtins(value)))
    return Response(body, media_type="application/json")


# Errors of the admin API, in the one shape that every error answer of it has.


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
    async def answer_proxy_error(_: Request, error: Exception) -> Response:
        if isinstance(error, StoredPartMissing):
            return make_error_response(
                Conflict(
                    "a part of this is not in the store any more: it was deleted while it was in use, or never stored",
                    hint="What is being deleted is gone in a moment. List the messages to see what is left.",
                )
            )
        if isinstance(error, StoreUnavailable):
            return make_error_response(
                Unavailable("the store does not answer", hint="GET /readyz says why. Try again later.")
            )
        assert isinstance(error, ProxyError)  # noqa: S101  # what this is registered for
        return make_error_response(error)

    @app.exception_handler(RequestValidationError)
    async def answer_invalid_values(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101  # what this is registered for
        return make_error_response(_read_validation_error(error))

    @app.exception_handler(HTTPException)
    async def answer_routing_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  # what this is registered for
        if error.status_code == 404:
            return make_error_response(NotFound("there is no such route", hint="GET /api/openapi.json has them all."))
        if error.status_code == 405:
            problem = BadRequest("this route has no such method", hint="GET /api/openapi.json has them all.")
            return make_error_response(problem, 405)
        return make_error_response(BadRequest(str(error.detail)), error.status_code)

    @app.exception_handler(Exception)
    async def answer_unexpected_error(_: Request, __: Exception) -> Response:
        return make_error_response(ProxyError("the proxy failed; this is a mistake in it", hint="Its log says where."))

    @app.exception_handler(RecursionError)
    async def answer_nested_body(_: Request, __: Exception) -> Response:
        return make_error_response(BadRequest("the body is nested too deeply"))


def _read_validation_error(error: RequestValidationError) -> ProxyError:
    """Return the first error of a validation. The given value is not repeated: it may be a secret in the wrong
    place."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "json_invalid":
        return BadRequest("the body is not JSON", hint=json.dumps(str(first.get("ctx", {}).get("error", "")))[1:-1])
    return Unprocessable(f"{where}: {first['msg']}", hint="GET /api/openapi.json has what each route takes.")
