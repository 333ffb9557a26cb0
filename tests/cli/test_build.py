from __future__ import annotations

from tests.cli.conftest import Shop


def test_e8_what_is_built_is_the_request_that_would_go_out(shop: Shop) -> None:
    built = shop.run("build", "talk").json()
    shown = shop.json("context", "show", "talk")
    assert built["messages"][0] == {"role": "system", "content": "You are careful."}
    assert shop.run("build", "talk").out == shown["body"] + "\n"
    assert shop.json("build", "talk")["tokens_after"] == shown["tokens_after"]
    assert "You are careful." in shop.ok("build", "talk", "--text").out
