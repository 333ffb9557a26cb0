from __future__ import annotations

import json

from tests.cli.conftest import Shop


def statuses(shop: Shop, session: str) -> list[str]:
    return [group["status"] for group in shop.groups(session)]


def test_a_group_is_dropped_restored_and_pinned(shop: Shop) -> None:
    name = shop.fresh()
    first, second, _ = (group["id"] for group in shop.groups(name))
    assert "still in the store" in shop.ok("context", "drop", name, first, second).out
    assert statuses(shop, name)[:2] == ["dropped", "dropped"]
    assert shop.json("context", "restore", name, first, second)["action"] == "restore"
    assert statuses(shop, name)[:2] == ["in", "in"]
    assert [group["pinned"] for group in shop.groups(name)] == [True, True, False], "what is restored stays"
    shop.ok("context", "unpin", name, second)
    assert [group["pinned"] for group in shop.groups(name)] == [True, False, False]
    shop.ok("context", "pin", name, second)
    assert [group["pinned"] for group in shop.groups(name)] == [True, True, False]


def test_what_is_dropped_stands_in_the_prompt_with_why(shop: Shop) -> None:
    name = shop.fresh()
    group = shop.groups(name)[1]["id"]
    shop.ok("context", "drop", name, group)
    told = shop.ok("context", "show", name).out
    assert "operator" in told
    assert "And the other one?" in told
    assert "dropped" in shop.ok("context", "show", name, "--brief").out
    assert "And the other one?" not in shop.ok("context", "show", name, "--body").out


def test_the_prompt_of_a_past_request_is_shown_byte_for_byte(shop: Shop) -> None:
    exchange = shop.json("sessions", "requests", "talk")[0]["exchange"]
    found = shop.json("context", "show", "talk", "--request", exchange)
    assert found["exchange"] == exchange
    assert shop.ok("context", "show", "talk", "--request", exchange, "--body").out == found["body"]
    assert shop.run("context", "show", "talk", "--request", "nonesuch").code == 1


def test_the_window_holds_and_opens_again(shop: Shop) -> None:
    name = shop.fresh()
    assert "the last 1 groups" in shop.ok("context", "window", name, "1").out
    assert "out" in statuses(shop, name)
    assert "whole history" in shop.ok("context", "window", name, "0").out
    assert statuses(shop, name) == ["in"] * 3


def test_undo_takes_the_last_group(shop: Shop) -> None:
    name = shop.fresh()
    last = shop.groups(name)[-1]["id"]
    assert shop.json("undo", name)["groups"] == [last]
    assert statuses(shop, name)[-1] in ("removed", "dropped")


def test_the_next_request_prunes_compresses_and_rebuilds(shop: Shop) -> None:
    name = shop.fresh()
    assert shop.json("context", "prune", name)["force"] == "prune"
    assert shop.json("compress", name)["force"] == "compress"
    assert shop.json("context", "compress", name)["force"] == "compress"
    assert shop.json("context", "rebuild", name)["how"] == "next_request"
    assert "with the next request" in shop.ok("context", "rebuild", name).out


def test_what_would_break_the_history_is_refused(shop: Shop) -> None:
    name = shop.fresh()
    ran = shop.run("context", "drop", name, shop.groups(name)[0]["id"], "nonesuch")
    assert (ran.code, ran.out) == (1, "")
    assert statuses(shop, name) == ["in"] * 3


def test_json_is_one_document(shop: Shop) -> None:
    assert json.loads(shop.ok("context", "show", "talk", "--json").out)["session"] == "talk"
