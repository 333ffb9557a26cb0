"""Rules of the rounds of one answer that hold for the relays of Messages and of Gemini alike."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.notes.state_block import HEADINGS
from tests.stream import gemini_rounds, messages_rounds

BOTH = pytest.mark.parametrize("wire", [messages_rounds, gemini_rounds], ids=["messages", "gemini"])
HIDING: dict[str, Any] = {"hidden_tools": frozenset({"recall"}), "hold_text": True}
NOTE = "### STATE\nGoal: ship it\nContext: a test\nResolved: nothing"


@BOTH
def test_text_before_a_hidden_call_leaves_with_the_text_after_it_and_never_with_a_clients_call(wire: Any) -> None:
    first = wire.stream(wire.text("Hm. "), wire.own_call("o"))
    out, relay = wire.run([first], **HIDING)
    assert b"Hm." not in out
    assert (relay.goes_on, relay.terminal, relay.shown_calls) == (True, b"", 0)
    assert [call.name for call in relay.hidden_calls] == ["recall"]
    out, relay = wire.run([first, wire.stream(wire.text("So."))], **HIDING)
    assert "".join(wire.shapes(wire.read(out))) == "Hm. So."
    assert not relay.goes_on
    out, relay = wire.run([first, wire.stream(wire.text("So."), wire.call("a"))], **HIDING)
    assert wire.shapes(wire.read(out)) == ["So.", "a"]
    assert relay.shown_calls == 1


@BOTH
def test_an_answer_that_is_ended_early_has_its_text_and_an_end(wire: Any) -> None:
    first = wire.stream(wire.text("Hm."), wire.own_call("o"))
    out, relay = wire.run([first], stop=True, **HIDING)
    assert wire.shapes(wire.read(out)) == ["Hm."]
    assert (relay.goes_on, relay.answer.is_done) == (False, True)


@BOTH
def test_blocks_and_usage_are_reported_over_all_rounds_and_of_each(wire: Any) -> None:
    rounds = [wire.stream(wire.text(NOTE), wire.own_call("o")), wire.stream(wire.text(f"So.\n\n{NOTE}"))]
    out, relay = wire.run(rounds, withheld=HEADINGS, **HIDING)
    assert b"STATE" not in out
    assert len(relay.blocks) == 2
    assert relay.other_blocks == []
    assert relay.round_usage.completion < relay.answer.usage.completion
    assert "STATE" not in relay.build_round_message().decode()
