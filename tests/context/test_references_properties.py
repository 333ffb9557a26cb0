"""A reference in an outgoing result names lines that go out with the same prompt, whatever the same plan cuts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.chat.chain import public_id
from proxy.chat.tokens import TokenCounter
from proxy.context.operator_edits import OperatorDecisions
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, RewriteInputs
from proxy.dialects.completions.request import read_message, read_request, write_request
from tests.context.agent import Story, Turn, load_policy
from tests.conversations import COUNTER, PLAIN_MODEL, Json, assistant, call, result, user

SOME = settings(max_examples=20)
POLICIES = sorted(
    f"{file.stem}/{schedule}"
    for file in (Path(__file__).parents[2] / "config" / "policies").glob("*.toml")
    for schedule in ("always", "over_budget", "when_it_pays")
    if "refer_repeats" in file.read_text()
)
"""Each policy that refers, under each schedule."""
EACH = pytest.mark.parametrize("policy", POLICIES)
REFERENCE = re.compile(r"^\[\d+ lines[^:\n]*: as lines (\d+)-(\d+)[^\n]*? of result (\w{10})", re.MULTILINE)
POINTER = re.compile(r"\[\d+ lines[^:\n]*: as lines (\d+)-(\d+)[^\n]*? of (result|call) (\w{10})")
NUMBER = re.compile(r"^ *\d+\t")
FILES = [
    [f"def {name}_{n}(argument_{n}): return {name}({n}, {'x' * (350 if n % 40 == 7 else 20)})" for n in range(90)]
    for name in ("parse", "render", "store")
]


def step(tool: str, asked: Json, text: str) -> list[Json]:
    return [{**assistant(None), "tool_calls": [call("1", tool, json.dumps(asked))]}, result("1", text)]


def read_file_step(file: int, start: int, end: int, *, numbered: bool, tool: str) -> list[Json]:
    lines = FILES[file][start:end]
    text = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(lines, start + 1)) if numbered else "\n".join(lines)
    return step(tool, {"path": f"/src/{file}.py", "offset": start, "limit": end - start}, text)


@st.composite
def steps(draw: st.DrawFn) -> list[Json]:
    kind = draw(st.sampled_from(["look", "look", "look", "output", "small"]))
    if kind == "look":
        start = draw(st.sampled_from([0, 0, 10, 40]))
        end = draw(st.sampled_from([50, 70, 90]))
        tool = draw(st.sampled_from(["bash", "read", "lookup"]))
        return read_file_step(draw(st.integers(0, 2)), start, end, numbered=draw(st.booleans()), tool=tool)
    count = 300 if kind == "output" else 2
    seed = draw(st.integers(0, 999))
    return step("bash", {"command": f"make {seed}"}, "\n".join(f"step {n} of {seed} has run" for n in range(count)))


@st.composite
def readers(draw: st.DrawFn, window: int | None) -> Story:
    values: list[Json] = []
    stops: list[int] = []
    for n in range(draw(st.integers(1, 3))):
        values.append(user(f"Prompt {n}"))
        stops.append(len(values))
        for made in draw(st.lists(steps(), min_size=1, max_size=14)):
            values += made
            stops.append(len(values))
        values.append(assistant("Done."))
    pauses = draw(st.lists(st.sampled_from([1.0, 1.0, 1.0, 1000.0]), min_size=1, max_size=6))
    return Story(values, stops, replace(PLAIN_MODEL, window=window), pauses, [False], draw(st.booleans()))


def bare(text: str) -> list[str]:
    return [NUMBER.sub("", line) for line in text.split("\n")]


def missing(turn: Turn, edits: Iterable[Edit]) -> list[str]:
    """Lines that references of these edits name and that their result does not bear in this prompt."""
    places = {public_id(k): n for n, k in enumerate(turn.plan.keys)}
    lost = []
    for edit in edits:
        for first, last, name in REFERENCE.findall(edit.text or ""):
            message = turn.request.messages[places[name]]
            now = turn.plan.edits.get(turn.plan.keys[places[name]])
            out = message.text if now is None or now.action == "append" else now.text or ""
            out_lines = set(bare(out))
            lost += [line for line in bare(message.text)[int(first) - 1 : int(last)] if line not in out_lines]
    return lost


def repeat_after(between: int, tool: str) -> Story:
    """A repeat arrives on a cold cache when its first sight has just become stale."""
    first, again = (read_file_step(0, start, 90, numbered=False, tool=tool) for start in (0, 10))
    values = [user("a"), *first, *[m for n in range(between) for m in step("bash", {"command": f"echo {n}"}, "ok")]]
    values += again
    return Story(values, [*range(1, len(values) + 1, 2)], PLAIN_MODEL, [1.0] * (between + 2) + [1000.0], [False])


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["thrifty", "thrifty/over_budget", "thrifty/always"])
@SOME
@given(story=readers(None))
@example(repeat_after(0, "bash"))
@example(repeat_after(3, "lookup"))
def test_the_lines_of_every_reference_go_out_where_it_says(policy: str, story: Story) -> None:
    for turn in story.play(load_policy(policy)):
        assert missing(turn, turn.plan.edits.values()) == []


def dangling(turn: Turn) -> list[str]:
    """References in what goes out that name what is not whole in it and do not say that it has left."""
    there = {public_id(k): n for n, k in enumerate(turn.plan.keys)}
    out = dict(zip(there, texts(turn), strict=True))
    lost = []
    for name, text in out.items():
        own = turn.request.messages[there[name]].text.split("\n")
        for line in (text or "").split("\n"):
            found = None if line in own else POINTER.match(line)
            if found is None:
                continue
            first, last, kind, target = int(found[1]) - 1, int(found[2]), found[3], found[4]
            if kind == "call":
                lost += [line] * (out[target] is None)
                continue
            whole = bare(turn.request.messages[there[target]].text)[first:last]
            lost += [line] * (not set(whole) <= set(bare(out[target] or "")))
    return lost


def texts(turn: Turn) -> list[str | None]:
    """Each of the client's messages as it goes out; None where it has left, or its calls have."""
    edits = [turn.plan.edits.get(k) for k in turn.plan.keys]
    out = iter(read_request(write_request(turn.request, turn.plan.messages)).messages)
    gone = [e is not None and e.action == "gone" and not m.is_system
            for e, m in zip(edits, turn.request.messages, strict=True)]  # fmt: skip
    stand = [None if is_gone else next(out) for is_gone in gone]
    return [None if m is None or (e and e.action == "text_only") else m.text for m, e in zip(stand, edits, strict=True)]


def repeats(window: int | None) -> Story:
    """A file that was read for an older prompt and again for the last one, which goes on until the older has to go."""
    values = [user("a"), *read_file_step(0, 0, 90, numbered=False, tool="read"), assistant("Done."), user("b")]
    values += read_file_step(0, 0, 90, numbered=False, tool="bash")
    for n in range(12):
        values += step("bash", {"command": f"make {n}"}, f"step {n} has run\n" * 20)
    stops = [n for n, value in enumerate(values) if value["role"] == "assistant"]
    return Story(values, stops, replace(PLAIN_MODEL, window=window), [1.0], [False])


def repeat_of_what_has_left() -> Story:
    """A file is read again when a reference to its first sight says that this has left."""
    first, other = (read_file_step(file, 0, 50, numbered=False, tool="bash") for file in (0, 1))
    values = [user("a"), *first, *first, *other, *first, assistant("Done.")]
    return Story(values, [1, 3, 5, 7, 9], replace(PLAIN_MODEL, window=9_000), [1.0], [False])


@pytest.mark.slow
@EACH
@SOME
@given(story=readers(9_000) | readers(4_000) | readers(None), window=st.sampled_from([None, None, 1, 2]))
@example(repeats(12_000), None)
@example(repeats(None), 1)
@example(repeat_of_what_has_left(), None)
def test_no_reference_names_what_is_not_whole_in_the_same_prompt(policy: str, story: Story, window: int | None) -> None:
    operator_decisions = None if window is None else OperatorDecisions(window=window)
    for turn in story.play(load_policy(policy), operator_decisions):
        assert dangling(turn) == []


@pytest.mark.parametrize(("window", "groups"), [(12_000, 0), (None, 1)])
def test_a_reference_to_what_has_left_says_so(window: int | None, groups: int) -> None:
    turns = repeats(window).play(load_policy("thrifty"), OperatorDecisions(window=groups) if groups else None)
    said = re.compile(r"\[90 lines: lines 1-90 of result \w{10}, which has left\]")
    found = [text for turn in turns for text in texts(turn) if text and said.fullmatch(text)]
    assert found
    assert set(found) == {found[0]}, "the same from then on"
    assert [turn for turn in turns if dangling(turn)] == []


def test_a_reference_to_what_has_left_names_the_call_that_brings_it_back() -> None:
    turn = repeats(None).play(load_policy("thrifty"))[6]
    session, can = msgspec.structs.replace(turn.state, decisions=OperatorDecisions(window=1)), frozenset({"recall"})
    plan = rewrite(
        turn.request, session, load_policy("thrifty"), PLAIN_MODEL, turn.now, RewriteInputs(COUNTER, offered_tools=can)
    )
    (edit,) = [edit for edit in plan.new_edits if edit.stage == "refer_repeats"]
    name = public_id(plan.keys[2])
    assert edit.text == f'[90 lines: lines 1-90 of result {name}, which has left; recall("{name}")]'
    assert edit.after < session.edits[edit.key].after, "it is superseded by a shorter text"


def test_a_mark_that_would_make_the_message_longer_names_no_call_and_is_counted_as_it_is() -> None:
    dear = TokenCounter(lambda text: COUNTER.count_text(text) + 100 * text.count("recall("))
    turn = repeats(None).play(load_policy("thrifty"))[6]
    session, can = msgspec.structs.replace(turn.state, decisions=OperatorDecisions(window=1)), frozenset({"recall"})
    plan = rewrite(
        turn.request, session, load_policy("thrifty"), PLAIN_MODEL, turn.now, RewriteInputs(dear, offered_tools=can)
    )
    (edit,) = [edit for edit in plan.new_edits if edit.stage == "refer_repeats"]
    assert edit.text == f"[90 lines: lines 1-90 of result {public_id(plan.keys[2])}, which has left]"
    assert edit.after <= session.edits[edit.key].after
    (sent,) = [raw for raw in plan.messages or () if b"which has left" in raw]
    assert edit.after == dear(read_message(sent))


def test_a_repeat_is_sent_whole_where_its_first_sight_is_shortened_with_the_same_plan() -> None:
    story = repeat_after(0, "bash")
    turns = story.play(load_policy("thrifty"))
    last = turns[-1]
    first = last.plan.edits[last.plan.keys[2]]
    assert first in last.plan.new_edits, "the first sight is shortened with this request"
    assert first.stage == "shorten_results"
    assert last.plan.keys[-1] not in last.plan.edits
