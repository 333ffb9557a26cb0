from __future__ import annotations

import json
from typing import get_args

import pytest

from proxy.settings.model import ToolName
from proxy.tools.registry import MEMO_TOOLS, TOOLS, choose_tool_names, join_definitions
from proxy.tools.stored_history import COLUMNS

ALL = tuple(TOOLS)


def test_every_tool_can_be_named_in_the_settings() -> None:
    assert get_args(ToolName) == ALL


def test_definitions_are_members_of_a_json_array_and_always_the_same_bytes() -> None:
    read = json.loads(b"[" + join_definitions(ALL) + b"]")
    assert [one["function"]["name"] for one in read] == list(ALL)
    assert all(one["type"] == "function" for one in read)
    assert join_definitions(ALL) == join_definitions(ALL)
    assert join_definitions(()) == b""


@pytest.mark.parametrize("name", ALL)
def test_a_definition_is_one_that_any_upstream_takes(name: str) -> None:
    function = json.loads(join_definitions([name]))["function"]
    schema = function["parameters"]
    assert schema["type"] == "object"
    assert set(schema["required"]) <= set(schema["properties"])
    assert set(schema["properties"]) == set(TOOLS[name].arguments_type.__struct_fields__)
    assert len(name) <= 64
    assert function["description"]


def test_the_policy_decides_unless_the_operator_does_and_the_clients_own_win() -> None:
    assert choose_tool_names("policy", ("query_db", "recall"), (), memos=True) == ("recall", "query_db")
    assert choose_tool_names(("save_memo",), ("recall",), (), memos=True) == ("save_memo",)
    assert choose_tool_names((), ("recall",), (), memos=True) == ()
    assert choose_tool_names("policy", ALL, ("recall", "other"), memos=True) == ALL[1:]


def test_memos_are_not_offered_where_they_are_not_open() -> None:
    assert set(choose_tool_names("policy", ALL, (), memos=False)) == set(ALL) - MEMO_TOOLS


def test_the_descriptions_tell_what_a_model_has_to_know() -> None:
    query = TOOLS["query_db"].description
    assert f"messages({', '.join(COLUMNS)})" in query
    assert all(word in query for word in ("Newest first", "LIMIT", "'dropped'", "ignore"))
    assert "before you assume" in TOOLS["retrieve_memos"].description
    save = TOOLS["save_memo"].description
    assert "found or decided" in save
    assert "code itself does not show" in save
