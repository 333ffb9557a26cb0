from __future__ import annotations

import pytest

from tests.cli.conftest import Shop


def test_sessions_are_listed_used_last_first(shop: Shop) -> None:
    name = shop.fresh()
    assert shop.json("sessions", "list")[0]["session"] == name
    assert [row["session"] for row in shop.json("sessions", "search", name)] == [name]
    assert name in shop.ok("sessions", "list").out
    assert shop.json("sessions", "list", "--days", "0") == []
    assert "no session" in shop.ok("sessions", "search", "nobody is called so").out


def test_whose_a_session_is_stands_there_where_there_are_several(shop: Shop) -> None:
    assert "tenant" not in shop.ok("sessions", "list").out
    assert "tenant" in shop.ok("sessions", "list", key="cp-all-read").out


def test_a_session_is_shown_with_its_threads(shop: Shop) -> None:
    found = shop.json("sessions", "show", "talk")
    assert found["session"] == "talk"
    told = shop.ok("sessions", "show", "talk").out
    assert found["threads"][0]["thread"] in told
    assert "as the policy says" in told


def test_what_is_named_is_set_and_unset_again(shop: Shop) -> None:
    name = shop.fresh()
    shop.ok("sessions", "settings", name, "--window", "3", "--urgency", "firm", "--policy", "thrifty")
    assert shop.json("sessions", "settings", name) == {"policy": "thrifty", "window": 3, "urgency": "firm"}
    found = shop.json("sessions", "settings", name, "--unset", "window", "--unset", "urgency")
    assert found == {"policy": "thrifty", "window": -1} or found == {"policy": "thrifty"}
    shop.ok("context", "prune", name)
    assert "prune" in shop.ok("sessions", "settings", name).out


@pytest.mark.parametrize("wrong", [("--policy", "nonesuch"), ("--unset", "nonesuch"), ("--window", "-2")])
def test_what_cannot_be_set_is_told(shop: Shop, wrong: tuple[str, str]) -> None:
    ran = shop.run("sessions", "settings", "talk", *wrong)
    assert (ran.code, ran.out) == (2, ""), ran
    assert ran.err


def test_a_session_is_deleted_when_one_says_so(shop: Shop) -> None:
    name = shop.fresh()
    assert shop.run("sessions", "delete", name, given="n\n").code == 1
    assert shop.json("sessions", "show", name)["session"] == name
    ran = shop.run("sessions", "delete", name, given="y\n")
    assert ran.code == 0, ran
    assert "nothing of it is left" in ran.out
    assert shop.run("sessions", "show", name).code == 1


@pytest.mark.parametrize("what", ["threads", "requests", "iterations", "summaries"])
def test_what_was_recorded_of_a_session_is_listed(shop: Shop, what: str) -> None:
    found = shop.json("sessions", what, "talk")
    told = shop.ok("sessions", what, "talk").out
    assert isinstance(found, list)
    if what == "requests":
        assert found[0]["exchange"] in told
    if what == "threads":
        assert found[0]["thread"] in told
        assert "newest" in told
