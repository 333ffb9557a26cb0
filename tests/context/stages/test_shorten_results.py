"""The contract of the default stage: stubs that are honest and shorter, and the newest results whole."""

from __future__ import annotations

from proxy.context.plan import Edit, Proposal, View
from proxy.context.session import Session
from proxy.context.stages.shorten_results import ShortenResults
from tests.conversations import WEIGH, Json, assistant, look, result, user

LONG = "\n".join(f"line {n} of an output that nobody needs any more" for n in range(400))


def talk(results: int, text: str = LONG) -> list[Json]:
    return [user("a"), *[m for _ in range(results) for m in (assistant(None, "1"), result("1", text))]]


def shortened(view: View, stage: ShortenResults) -> dict[int, Proposal]:
    return {p.index: p for p in stage(view)}


def text_of(proposal: Proposal) -> str:
    return (proposal.write(frozenset({proposal.index})) if proposal.write else proposal.text) or ""


def test_the_newest_results_stay_whole() -> None:
    stage = ShortenResults(keep=3)
    assert shortened(look(talk(3)), stage) == {}
    assert set(shortened(look(talk(9)), stage)) <= set(range(1, 14))
    assert set(shortened(look(talk(40)), stage)) <= set(range(1, 2 * 37 + 1))
    assert shortened(look(talk(40)), stage) != {}


def test_only_results_are_shortened() -> None:
    view = look(talk(40))
    assert all(view.is_result[n] for n in shortened(view, ShortenResults(keep=3)))


def test_a_stub_is_shorter_and_says_how_much_is_missing() -> None:
    view = look(talk(40))
    for n, proposal in shortened(view, ShortenResults(keep=3)).items():
        text = text_of(proposal)
        assert proposal.action == "text"
        assert 0 < len(text) < len(LONG)
        assert WEIGH.count(text) < view.whole[n]
        assert any(word.strip("[],.").isdigit() for word in text.split("\n")[-1].split())
        assert proposal.reason
        assert view.requests[proposal.since] <= view.requests[-1]


def test_what_is_small_is_left_alone() -> None:
    assert shortened(look(talk(40, "ok")), ShortenResults(keep=3)) == {}


def test_what_was_shortened_before_is_not_shortened_again() -> None:
    view = look(talk(40))
    found = shortened(view, ShortenResults(keep=3))
    edits = {
        view.keys[n]: Edit(view.keys[n], "text", text_of(p), p.stage, p.reason, 99_999, 9) for n, p in found.items()
    }
    assert shortened(look(talk(40), session=Session(edits=edits)), ShortenResults(keep=3)) == {}


def test_the_same_view_gives_the_same_stubs() -> None:
    one = shortened(look(talk(40)), ShortenResults(keep=3))
    other = shortened(look(talk(40)), ShortenResults(keep=3))
    assert {n: text_of(p) for n, p in one.items()} == {n: text_of(p) for n, p in other.items()}
