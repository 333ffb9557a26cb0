from __future__ import annotations

from tests.cli.conftest import Shop


def test_groups_are_listed_and_the_last_ones_alone(shop: Shop) -> None:
    name = shop.fresh()
    found = shop.groups(name)
    assert [group["title"] for group in found] == ["Read the log.", "And the other one?", "Thank you."]
    told = shop.ok("groups", "list", name).out
    assert all(group["id"] in told for group in found)
    assert shop.json("groups", "list", name, "1") == found[-1:]
    assert "no group" in shop.ok("groups", "list", name, "--status", "dropped").out
    assert shop.run("groups", "list", name, "--status", "odd").code == 2


def test_a_group_is_shown_in_full(shop: Shop) -> None:
    name = shop.fresh()
    group = shop.groups(name)[0]
    found = shop.json("groups", "show", name, group["id"])
    assert [m["group"] for m in found if m["role"] != "system"] == [group["id"]] * group["messages"]
    told = shop.ok("groups", "show", name, group["id"]).out
    assert told.count("a line of the log") >= 40
    assert "→ read_file(" in told
    assert shop.run("groups", "show", name, "nonesuch").code == 1
