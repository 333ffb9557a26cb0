"""Answers of the admin API: structs of lower layers, described to OpenAPI and written as JSON.

A struct is described once, at its definition. Here it becomes the model that FastAPI documents, field by field. The two
therefore cannot drift apart.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from proxy.web.api.pagination import clean_json

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
            field.name: (describe(hints[field.name]), _default(field)) for field in msgspec.structs.fields(kind)
        }
        config = ConfigDict(protected_namespaces=())
        if examples := getattr(kind, "EXAMPLES", None):
            config["json_schema_extra"] = {"examples": examples}
        _MADE[kind] = create_model(kind.__name__, __config__=config, __doc__=kind.__doc__, **fields)
    return _MADE[kind]


def _default(field: msgspec.structs.FieldInfo) -> Any:
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
