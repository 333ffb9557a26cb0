from __future__ import annotations

import json
from typing import Literal

from msgspec import Struct

from proxy.web.api.json_answers import describe, render


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


def test_what_is_sent_fits_the_model() -> None:
    value = Outer(Inner("x"), [Inner("y")], {"z": Inner("w")})
    body = bytes(render(value).body)
    assert describe(Outer).model_validate_json(body).model_dump() == {
        "inner": {"name": "x"}, "many": [{"name": "y"}], "named": {"z": {"name": "w"}}, "kind": "a", "maybe": None,
        "more": [],
    }  # fmt: skip


def test_half_a_surrogate_pair_is_sent_as_a_question_mark() -> None:
    assert json.loads(bytes(render({"items": [Inner("a\ud800b")]}).body)) == {"items": [{"name": "a?b"}]}
