from __future__ import annotations

from msgspec.structs import replace

from proxy.chat.tokens import TokenCounter
from proxy.context.plan import Edit, RetrievedText
from proxy.notes.memo_matching import Memo
from proxy.sessions.branch import EDIT_BYTES, NODE_BYTES, Branch, LiveSession, LoadedNotes, Lookups, SearchHits
from proxy.sessions.hidden_rounds import HiddenRound
from proxy.sessions.packing import Node
from proxy.store.branch_positions import BranchPosition
from tests.conversations import make_message, user


def branch() -> Branch:
    live_session = LiveSession("me", "s", False)
    made = live_session.branches["t"] = Branch("me", "s", "t", "main", b"", live_session)
    return made


def test_a_stored_position_matches_only_the_branchs_own_moves() -> None:
    one = branch()
    first, second = one.record_move(b"h1", None, 1.0), one.record_move(b"h1", b"a1", 2.0)
    for tip in (first, second):
        assert one.is_at(BranchPosition(tip.tip, tip.answer, tip.last_at, 0, 0))
    assert not one.is_at(BranchPosition(b"h2", None, 3.0, 0, 0))
    assert not one.is_at(BranchPosition(b"h1", b"a1", 2.0, 1, 0)), "an edit that it does not know"
    assert not one.is_at(BranchPosition(b"h1", b"a1", 2.0, 0, 1)), "a state"
    assert one.is_at(BranchPosition(b"", None, 0.0, 0, 0)), "its first row is there, where it stands is on its way"


def test_a_copy_of_its_position_changes_by_itself() -> None:
    one = branch()
    one.record_move(b"h1", None, 1.0)
    before = one.store_position.copy()
    copied = one.store_position.copy()
    assert [copied.number_edit(b"k"), copied.number_edit(b"k"), copied.number_edit(b"j")] == [1, 2, 1]
    copied.moves.clear()
    assert copied.edit_number == 3
    assert one.store_position == before


def test_the_size_of_a_branch_follows_its_messages_edits_answers_and_states() -> None:
    one = branch()
    assert one.live_session.size == 0
    one.live_session.nodes.update((bytes([n]), Node(b"form", "t", True, "openai")) for n in range(10))
    assert one.live_session.size == 10 * NODE_BYTES
    for n in range(3):
        edit = Edit(bytes([n]), "text", "x" * 1000, "mask", "old", 900, 90)
        one.state = replace(one.state, edits={**one.state.edits, edit.key: edit})
    edited = one.size
    assert 3 * (EDIT_BYTES + 1000) <= edited <= 3 * (EDIT_BYTES + 1100)
    one.state = replace(one.state, helper_answers={"a": "y" * 5000})
    assert edited + 5000 <= one.size <= edited + 5100
    one.state = replace(one.state, states=((b"k", "z" * 700),), cache_miss_streak=1)
    assert edited + 5700 <= one.size <= edited + 5900
    assert one.live_session.size == 10 * NODE_BYTES + one.size
    before = one.size
    hits = SearchHits(b"k", (RetrievedText(b"j", "message", "user", "w" * 900),))
    one.lookups = Lookups(hits, LoadedNotes(b"k", 0, "s" * 300, (Memo("m", "c" * 400, (), "", 0.0, 0.0),)))
    assert before + 1600 <= one.size <= before + 1800


def test_hidden_rounds_count_as_long_as_they_are_remembered() -> None:
    live_session = branch().live_session
    first, more = HiddenRound(b"a", b"h", (b"x" * 500,), (b"y" * 50,)), HiddenRound(b"b", b"h", (b"z" * 1000,))
    live_session.put_rounds(b"h", (first,))
    live_session.put_rounds(b"g", ())
    assert live_session.size == 550
    live_session.put_rounds(b"h", (first, more))
    assert live_session.size == 1550
    live_session.forget_rounds()
    assert (live_session.size, live_session.hidden_rounds) == (0, {})


def test_a_branch_knows_the_tokens_of_a_message_only_in_its_form_and_for_its_counter() -> None:
    counter, other = TokenCounter(len), TokenCounter(len)
    known, again = make_message(user("Hello")), make_message(user("Hello"))
    live_session = LiveSession("me", "s", False, token_counter=counter)
    live_session.nodes[b"k"] = Node(known.form, "t", False, "openai", 0.0, 77)
    live_session.nodes[b"new"] = Node(known.form, "t", False, "openai")
    assert live_session.restore_token_count(b"k", again, counter)
    assert counter(again) == 77
    assert counter(known) == 9
    for key, one, token_counter in (
        (b"k", again, other),
        (b"k", make_message(user("Hallo")), counter),
        (b"new", make_message(user("Hello")), counter),
        (b"none", make_message(user("Hello")), counter),
    ):
        assert not live_session.restore_token_count(key, one, token_counter)
        assert not token_counter.has_count(one)
