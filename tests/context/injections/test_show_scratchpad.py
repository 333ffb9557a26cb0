"""The scratchpad at the tail (A10): written once, and again only when it is another."""

from __future__ import annotations

from proxy.context.branch_state import BranchState
from proxy.context.injections.show_scratchpad import ShowScratchpad
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Insert, Plan, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.view import View
from proxy.notes.scratchpad import START, render_scratchpad
from tests.context.agent import load_policy
from tests.conversations import (
    COUNTER,
    PLAIN_MODEL,
    Json,
    assistant,
    build_view,
    call,
    make_request,
    result,
    system,
    user,
)

PAD = "# Plan\n- read\n- write"
LITERAL = Policy("test", schedule="always")


def list_scratchpad_inserts(view: View, chars: int = 8000) -> list[Insert]:
    return list(ShowScratchpad(chars)(view))


def noting(action: str, content: str = "") -> list[Json]:
    """The model's own call of the tool, as it stands in a history that hidden rounds are woven into."""
    arguments = f'{{"action": "{action}", "content": "{content}"}}'
    made = {**assistant(None), "tool_calls": [call("p", "manage_scratchpad", arguments)]}
    return [made, result("p", "saved"), assistant("Noted."), user("on")]


def test_a10_the_scratchpad_is_shown_at_the_tail_and_stays_there_where_edits_last() -> None:
    (insert,) = list_scratchpad_inserts(build_view([user("a")], scratchpad=PAD))
    assert (insert.place, insert.persistent, insert.text) == ("tail", True, "\n\n" + render_scratchpad(PAD, 8000))
    (insert,) = list_scratchpad_inserts(build_view([user("a")], scratchpad=PAD, policy=LITERAL))
    assert not insert.persistent
    assert list_scratchpad_inserts(build_view([user("a")])) == []


def test_a10_text_that_is_in_the_prompt_is_not_repeated() -> None:
    values = [user("a"), assistant("b"), user("c")]
    keys = build_view(values).keys
    stands = {keys[0]: Edit(keys[0], "append", "\n\n" + render_scratchpad(PAD, 8000), "scratchpad", "", 1, 9)}
    state = BranchState(edits=stands)
    assert list_scratchpad_inserts(build_view(values, state=state, scratchpad=PAD)) == []
    (insert,) = list_scratchpad_inserts(build_view(values, state=state, scratchpad=PAD + "\n- rest"))
    assert "- rest" in insert.text
    (literal,) = list_scratchpad_inserts(build_view(values, state=state, scratchpad=PAD, policy=LITERAL))
    assert not literal.persistent, "literal policies make it anew with every request"


def test_a10_text_that_the_model_has_just_written_is_not_shown_to_it_again() -> None:
    values = [user("a"), *noting("update", "one")]
    assert list_scratchpad_inserts(build_view(values, scratchpad="one")) == []
    assert list_scratchpad_inserts(build_view([*values, *noting("append", "two")], scratchpad="one\ntwo")) == []
    assert list_scratchpad_inserts(build_view([*values, *noting("read")], scratchpad="one")) == []
    assert len(list_scratchpad_inserts(build_view(values, scratchpad="one, by the operator"))) == 1
    assert (
        len(list_scratchpad_inserts(build_view([user("a"), *noting("append", "two")], scratchpad="one\ntwo"))) == 1
    ), "never shown what was there"
    gone = build_view(values).keys[1]
    edits = {gone: Edit(gone, "gone", None, "fit_budget", "", 9, 0)}
    assert len(list_scratchpad_inserts(build_view(values, state=BranchState(edits=edits), scratchpad="one"))) == 1, (
        "its call has left the prompt"
    )


def test_a10_a_call_that_cannot_be_read_changes_nothing() -> None:
    broken = {**assistant(None), "tool_calls": [call("p", "manage_scratchpad", "{")]}
    values = [user("a"), *noting("update", "one"), broken, result("p", "error"), user("c")]
    assert list_scratchpad_inserts(build_view(values, scratchpad="one")) == []


def test_a10_the_scratchpad_is_limited_in_characters_and_to_the_room_that_the_budget_leaves() -> None:
    (insert,) = list_scratchpad_inserts(build_view([user("a")], scratchpad="x" * 900), chars=100)
    assert "x" * 100 in insert.text
    assert "x" * 101 not in insert.text
    values = [user("a" * 4000)]
    assert list_scratchpad_inserts(build_view(values, scratchpad="x" * 900, model=Model("m", window=8000))) != []
    assert list_scratchpad_inserts(build_view(values, scratchpad="x" * 900, model=Model("m", window=6000))) == []


def list_sent_raws(plan: Plan) -> list[bytes]:
    assert plan.refusal is None
    assert plan.messages is not None
    return list(plan.messages)


def test_a10_under_thrifty_it_moves_no_prefix() -> None:
    """It is written where it came first, and a new one at the new tail. All in front stays byte for byte."""
    state, before = BranchState(), list[bytes]()
    values: list[Json] = [system("s"), user("a")]
    other = PAD + "\n- more"
    for n, (pad, shown_so_far) in enumerate([("", 0), (PAD, 1), (PAD, 1), (other, 2), (other, 2)]):
        plan = rewrite(
            make_request(values),
            state,
            load_policy("thrifty"),
            PLAIN_MODEL,
            float(n),
            RewriteInputs(COUNTER, scratchpad=pad),
        )
        now = list_sent_raws(plan) if plan.messages else [m.raw for m in make_request(values).messages]
        assert now[: len(before)] == before
        assert b"".join(now).decode().count(START) == shown_so_far
        state, before = state.after_sending(plan, float(n)), now
        values += [assistant("b" * 30, str(n)), result(str(n), f"c{n}")] if n != 2 else [assistant("b"), user("d")]
    assert len(state.edits) == 2


def test_a10_never_in_a_system_message() -> None:
    asked = make_request([system("s"), user("a")])
    for name in ("rolling", "thrifty"):
        first, last = list_sent_raws(
            rewrite(asked, BranchState(), load_policy(name), PLAIN_MODEL, 0.0, RewriteInputs(COUNTER, scratchpad=PAD))
        )
        assert START.encode() not in first
        assert START.encode() in last
