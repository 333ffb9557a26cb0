from __future__ import annotations

import json

from tests.cli.conftest import CommandRunner


def test_messages_are_listed_filtered_and_found(shop: CommandRunner) -> None:
    found = shop.json("messages", "list", "talk")
    assert [m["seq"] for m in shop.json("messages", "list", "talk", "--newest", "-n", "2")] == [
        m["seq"] for m in found[:-3:-1]
    ]
    assert {m["role"] for m in shop.json("messages", "list", "talk", "--role", "tool")} == {"tool"}
    assert [m["text"] for m in shop.json("messages", "list", "talk", "--text", "other one", "--role", "user")]
    best = shop.json("messages", "search", "talk", "other one")[0]
    assert "other one" in best["text"]
    assert best["id"] in shop.ok("messages", "search", "talk", "other one").out
    assert "nothing has these words" in shop.ok("messages", "search", "talk", "zebra").out


def test_a_message_is_shown_whole_with_what_was_decided(shop: CommandRunner) -> None:
    name = shop.fresh()
    one = shop.json("messages", "list", name, "--role", "tool")[0]
    shop.ok("context", "pin", name, one["group"])
    told = shop.ok("messages", "show", name, one["id"]).out
    assert told.count("a line of the log") == 40
    assert "pin by operator" in told
    assert shop.run("messages", "show", name, "nonesuch").code == 1


def test_what_is_removed_is_gone_for_good(shop: CommandRunner) -> None:
    name = shop.fresh()
    group = shop.groups(name)[1]
    assert shop.run("messages", "remove", name, group["id"], given="n\n").code == 1
    assert shop.groups(name)[1]["status"] == "in"
    assert "removed for good" in shop.ok("messages", "remove", name, group["id"], "--yes").out
    assert "And the other one?" not in json.dumps(shop.json("messages", "list", name, "--group", group["id"]))


def test_what_steers_a_terminal_is_shown_and_not_done(shop: CommandRunner) -> None:
    text = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil"
    shop.world.chat("steering", [{"role": "user", "content": text}])
    one = shop.json("messages", "list", "steering")[0]
    for words in (("messages", "list"), ("context", "show"), ("groups", "list"), ("messages", "show", one["id"])):
        told = shop.ok(*words[:2], "steering", *words[2:]).out
        assert not set(told) & set("\x1b\x07\x9b\u202e")
        assert "\\x1b" in told
    assert shop.ok("messages", "list", "steering", "--json").out.isascii()
