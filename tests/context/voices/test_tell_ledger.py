"""The ledger at the tail: once per batch, short, and kept where it was written (G8)."""

from __future__ import annotations

from proxy.context.plan import Edit, Insert, View
from proxy.context.session import Session
from proxy.context.voices.tell_ledger import TellLedger
from tests.conversations import WEIGH, Json, assistant, call, look, result, user


def talk(count: int) -> list[Json]:
    values: list[Json] = [user("a")]
    for n in range(count):
        values += [
            {**assistant(None), "tool_calls": [call("1", "read", f'{{"path": "src/{n}.py"}}')]},
            result("1", "x"),
        ]
    return [*values, user("b")]


def left(count: int, gone: int, note: str = "") -> View:
    """A view of `count` reads, the first `gone` of whose results have been shortened."""
    view = look(talk(count))
    edits = {
        view.keys[n]: Edit(view.keys[n], "text", "stub", "shorten_results", "", 9, 1) for n in range(2, 2 * gone + 1, 2)
    }
    if note:
        edits[view.keys[1]] = Edit(view.keys[1], "append", note, "ledger", "", 9, 9)
    return look(talk(count), session=Session(edits=edits))


def said(view: View, **settings: int) -> list[Insert]:
    return list(TellLedger(**settings)(view))


def test_g8_it_is_told_with_the_first_batch_and_stays_where_it_was_put() -> None:
    assert said(left(30, 0)) == []
    (first,) = said(left(30, 1))
    assert "src/0.py" in first.text
    (insert,) = said(left(30, 24))
    assert (insert.place, insert.kept) == ("tail", True)
    assert "24 results" in insert.text
    assert "src/23.py" in insert.text
    assert "src/25.py" not in insert.text, "only what has left"


def test_g8_it_is_not_told_again_before_as_much_has_left_once_more() -> None:
    (first,) = said(left(60, 24))
    assert said(left(60, 40, first.text)) == []
    (again,) = said(left(60, 48, first.text))
    assert "48 results" in again.text


def test_g8_it_has_at_most_its_tokens() -> None:
    (insert,) = said(left(60, 48), tokens=150)
    assert 100 < WEIGH.count(insert.text) <= 150
    assert said(left(60, 48), tokens=1) == []
