"""Properties of every plan, on drawn conversations that grow request by request: see agent.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings

from proxy.chat.message import Message
from proxy.context import validate
from proxy.context.injections import activity_record
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import ACTION_STRENGTH, Edit
from proxy.context.policy import GAP_REMARK
from proxy.dialects.completions.request import read_request, write_request
from proxy.notes import memo_matching, scratchpad, state_block
from tests.context.agent import LONG, POLICIES, Story, Turn, load_policy, stories
from tests.conversations import COUNTER, PLAIN_MODEL, assistant, result, user

pytestmark = pytest.mark.slow

EACH = pytest.mark.parametrize("policy", POLICIES)


def read_sent_messages(turn: Turn) -> list[Message]:
    """The messages that go out, read from the body as upstream would."""
    return list(read_request(write_request(turn.request, turn.plan.messages)).messages)


def stand(turn: Turn) -> list[Message | None]:
    """Each of the client's messages as it goes out, None where it is gone."""
    out = iter(read_sent_messages(turn))
    edits = turn.plan.edits
    gone = [not m.is_system and (e := edits.get(k)) is not None and e.action == "gone"
            for m, k in zip(turn.request.messages, turn.plan.keys, strict=True)]  # fmt: skip
    return [None if is_gone else next(out) for is_gone in gone]


def unpaired(messages: Sequence[Message]) -> list[str]:
    """The faults that a strict upstream would find in calls and results, found in another way than validate.py does."""
    wrong: list[str] = []
    at = 0
    while at < len(messages):
        calls = sorted(c.id for c in messages[at].calls)
        end = at + 1
        while end < len(messages) and messages[end].is_result:
            end += 1
        results = sorted(m.call_id or "" for m in messages[at + 1 : end])
        if calls != results or messages[at].is_result:
            wrong.append(f"{at}: {calls} answered by {results}")
        at = end
    return wrong


def assert_valid_and_pairs_kept(turn: Turn, story: Story) -> None:
    assert turn.plan.refusal is None, turn.plan.notes
    out = read_sent_messages(turn)
    assert unpaired(out) == []
    mine = {m.form: m for m in turn.request.messages}
    outs = [validate.PlannedMessage(mine.get(m.form, m), m.text, bool(m.calls)) for m in out]
    strict = Model(alternate=story.model.alternate, after_tool=story.model.after_tool)
    broken = validate._find_violations(outs, strict)
    before = validate._find_violations(
        [validate.PlannedMessage(m, m.text, bool(m.calls)) for m in turn.request.messages], strict
    )
    assert set(broken) <= set(before)


def assert_system_messages_and_last_user_message_kept(turn: Turn) -> None:
    found = stand(turn)
    last_user = max(n for n, m in enumerate(turn.request.messages) if m.role == "user")
    for n, (came, goes) in enumerate(zip(turn.request.messages, found, strict=True)):
        if came.is_system or n == last_user:
            assert goes is not None
            assert goes.text.startswith(came.text)
    assert found[-1] is not None


def assert_untouched_messages_are_the_very_bytes_in_their_order(turn: Turn) -> None:
    inserted = {n for n, _ in turn.plan.placed_inserts}
    for n, (came, goes) in enumerate(zip(turn.request.messages, stand(turn), strict=True)):
        if n not in inserted and (came.is_system or turn.plan.keys[n] not in turn.plan.edits):
            assert goes is not None
            assert goes.raw == came.raw
    if turn.plan.messages is None:
        assert write_request(turn.request, turn.plan.messages) is turn.request.body


def assert_sizes_and_predictions_are_those_of_what_goes_out(turn: Turn, previous: Turn | None, story: Story) -> None:
    plan, out = turn.plan, read_sent_messages(turn)
    head = COUNTER.count_tools(turn.request.tools)
    assert plan.before == head + sum(map(COUNTER, turn.request.messages))
    own = sum(
        n == -1 for n, _ in plan.placed_inserts
    )  # a message of ours weighs 4 more, its texts lose the newlines before
    slack = 4 + 2 * own if own else 0  # a message of ours weighs 4 itself, its texts lose the newlines before
    assert abs(plan.after - head - sum(map(COUNTER, out))) <= slack
    assert len(plan.marks) == len(plan.sizes) == len(out)
    assert 0 <= plan.predicted <= plan.after
    if previous is None or turn.now - previous.now > story.model.ttl_s or story.model.cache == "none":
        assert plan.predicted == 0
        return
    same = head
    for mine, theirs, size in zip(plan.marks, previous.plan.marks, plan.sizes, strict=False):
        if mine != theirs:
            break
        same += size
    assert plan.predicted == (same // story.model.block * story.model.block if same >= story.model.min else 0)


def assert_prefix_moves_only_when_an_edit_is_made(before: Turn, after: Turn) -> None:
    """The bytes of all messages but the last of a prompt stand in the next, and that one's up to our text at its end.

    With `state_place = "system"` the literal texts behind the system prompt move it too, when they change: there
    the leading system message is left out.
    """
    if any(key in set(before.plan.keys) for key in (e.key for e in after.plan.new_edits)):
        return
    one, other = read_sent_messages(before), read_sent_messages(after)
    if any(n == -1 for n, _ in before.plan.placed_inserts):
        one.pop()  # a message of ours at the end is made anew each time
    skip = (
        1
        if any(i.place == "system" and n == 0 for n, i in (*before.plan.placed_inserts, *after.plan.placed_inserts))
        else 0
    )
    last = len(one) - 1
    tailed = any(i.place == "tail" and n != -1 for n, i in before.plan.placed_inserts)
    for n in range(skip, len(one)):
        if n == last and tailed:
            assert one[n].text.startswith(other[n].text)
        else:
            assert one[n].raw == other[n].raw


def assert_edits_are_repeated_byte_for_byte_or_superseded_by_stronger(before: Turn, after: Turn) -> None:
    earlier = dict(zip(before.plan.keys, zip(before.request.messages, stand(before), strict=True), strict=True))
    later = dict(zip(after.plan.keys, zip(after.request.messages, stand(after), strict=True), strict=True))
    ours = {before.plan.keys[n] for n, _ in before.plan.placed_inserts} | {
        after.plan.keys[n] for n, _ in after.plan.placed_inserts
    }
    for key, edit in before.plan.edits.items():
        now = after.plan.edits[key]
        if now != edit:
            assert now in after.plan.new_edits
            text = now.action == edit.action == "text"
            shorter = text and bare(now) < edit.after  # a note that came at the same time is on top
            # Of a reference to lines that have left since, what it says is not true any more.
            corrected = text and now.stage == "refer_repeats" and "which has left" in (now.text or "")
            noted = now.text is not None and edit.text is not None and now.text.startswith(edit.text)
            assert ACTION_STRENGTH[now.action] > ACTION_STRENGTH[edit.action] or shorter or noted or corrected
        elif key not in ours:
            one, other = earlier[key][1], later[key][1]
            assert (one.raw if one else None) == (other.raw if other else None)
    assert set(after.plan.new_edits) <= set(after.plan.edits.values())


@EACH
@settings(max_examples=24)
@given(story=stories())
def test_every_plan_is_valid_and_keeps_what_it_promises(policy: str, story: Story) -> None:
    """Each conversation is played once, and all that holds is looked for in it: playing takes longer than looking."""
    chosen = load_policy(policy)
    turns = story.play(chosen)
    for previous, turn in zip((None, *turns), turns, strict=False):
        assert_valid_and_pairs_kept(turn, story)
        assert_system_messages_and_last_user_message_kept(turn)
        assert_untouched_messages_are_the_very_bytes_in_their_order(turn)
        assert_sizes_and_predictions_are_those_of_what_goes_out(turn, previous, story)
        if previous is not None and not chosen.literal:
            assert_prefix_moves_only_when_an_edit_is_made(previous, turn)
            assert_edits_are_repeated_byte_for_byte_or_superseded_by_stronger(previous, turn)


@EACH
@settings(max_examples=12)
@given(story=stories())
def test_the_same_input_gives_the_same_bytes(policy: str, story: Story) -> None:
    """Also where nothing is known of the history: each request went on from the one before."""
    for turn in story.play(load_policy(policy)):
        came, chosen = read_request(turn.request.body), load_policy(policy)
        again = rewrite(came, turn.state, chosen, story.model, turn.now, turn.beside)
        assert again.messages == turn.plan.messages
        fields = set(turn.plan.__struct_fields__) - {"messages"}
        assert {f: getattr(again, f) for f in fields} == {f: getattr(turn.plan, f) for f in fields}


def bare(edit: Edit) -> int:
    """Tokens of the message under this edit, but for notes of ours at its end."""
    text = edit.text or ""
    return edit.after - COUNTER.count_text(text[len(text) - kept(text) :])


def kept(text: str) -> int:
    """Characters of the notes of ours with which an edit's text ends: they come on top of what fits the budget."""
    heads = (
        *(
            state_block.render_recap("").partition("\n")[0],
            activity_record.HEADING.partition("{")[0],
            scratchpad.START,
            memo_matching.HEAD,
        ),
        GAP_REMARK.strip(),
    )
    return len(text) - min((at for head in heads if (at := text.find("\n\n" + head)) >= 0), default=len(text))


NOTED = Story(
    [
        assistant("Welcome!"), user("Prompt 0: "), assistant(None, "c1"), result("c1", ""),
        assistant(None, "c1"), result("c1", LONG[:1500]),
        assistant(None, "c1", "c2"), result("c1", ""), result("c2", LONG[:5500]),
        assistant("Let me look.", "c1", "c2"), result("c1", ""), result("c2", LONG[:900]),
        assistant(None, "c1", "c2", "c3"), result("c1", ""), result("c2", LONG[:60]), result("c3", LONG[:310]),
    ],
    [2, 4, 6, 9, 12, 16],
    replace(PLAIN_MODEL, window=6_000),
    [1.0],
    [False],
    told=True,
)  # fmt: skip
"""With the last request the scratchpad and a memo come on top of a prompt that fits, `rolling` under `when_it_pays`."""


@EACH
@settings(max_examples=12)
@given(story=stories(window=[2_000, 6_000]))
@example(NOTED)
def test_a_prompt_over_its_budget_is_fitted_or_said_to_be_over(policy: str, story: Story) -> None:
    for turn in story.play(load_policy(policy)):
        budget = int((story.model.window or 0) * load_policy(policy).budget)
        added = sum(len(i.text) for _, i in turn.plan.placed_inserts)
        added += sum(kept(e.text or "") for e in turn.plan.new_edits)
        noted = any(n.kind == "over_budget" for n in turn.plan.notes)
        assert turn.plan.after - added <= budget or noted
