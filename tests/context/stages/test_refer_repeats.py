"""References in place of lines that stand further up, byte for byte."""

from __future__ import annotations

import re

from proxy.chat.key import public_id
from proxy.context.plan import Edit, Proposal, View
from proxy.context.session import Session
from proxy.context.stages.refer_repeats import ReferRepeats, referred
from proxy.context.stages.shorten_results import ShortenResults
from tests.conversations import Json, assistant, call, look, result, user

FILE = [f"{n}\tdef function_{n}(argument_{n}): return compute_{n}(argument_{n})" for n in range(80)]


def reading(*texts: str) -> list[Json]:
    step = {**assistant(None), "tool_calls": [call("1", "read", '{"path": "/a/b.py"}')]}
    return [user("a"), *[m for text in texts for m in (step, result("1", text))]]


def proposals(view: View) -> dict[int, Proposal]:
    return {p.index: p for p in ReferRepeats()(view)}


def test_a_file_read_again_refers_to_the_first_time() -> None:
    view = look(reading("\n".join(FILE), "\n".join(["changed", *FILE[10:70], "end"])))
    (found,) = proposals(view).values()
    assert found.index == 4
    name = public_id(view.keys[2])
    assert (found.text or "").splitlines() == [
        "changed",
        f'[60 lines: as lines 11-70 of result {name}, read {{"path": "/a/b.py"}}]',
        "end",
    ]


def test_the_original_can_be_put_together_again_from_the_reference() -> None:
    first, again = "\n".join(FILE), "\n".join(["x", *FILE[:30], "y", *FILE[40:], "z"])
    view = look(reading(first, again))
    text = proposals(view)[4].text or ""
    lines = first.splitlines()

    def put_back(match: re.Match[str]) -> str:
        return "\n".join(lines[int(match[1]) - 1 : int(match[2])])

    assert re.sub(r"\[\d+ lines: as lines (\d+)-(\d+) of result [^\n]*\]", put_back, text) == again


def test_only_what_is_new_is_looked_at() -> None:
    text = "\n".join(FILE)
    assert proposals(look([*reading(text, text), assistant("I see."), user("b")])) == {}


def test_short_runs_and_small_results_stay() -> None:
    assert proposals(look(reading("\n".join(FILE), "\n".join([*FILE[:6], *["other line of this result"] * 60])))) == {}
    assert proposals(look(reading("\n".join(FILE), "\n".join(FILE[:4])))) == {}


def test_a_result_that_was_edited_is_not_referred_to() -> None:
    text = "\n".join(FILE)
    view = look(reading(text, text))
    edit = Edit(view.keys[2], "text", "a stub", "shorten_results", "", 999, 9)
    assert proposals(look(reading(text, text), session=Session(edits={edit.key: edit}))) == {}


def test_lines_that_are_referred_to_stay_when_their_result_is_shortened() -> None:
    values = reading("\n".join(FILE), "\n".join(["changed", *FILE[10:30], *["other"] * 9]))
    found = proposals(look(values))[4]
    key = look(values).keys[4]
    edits = {key: Edit(key, "text", found.text, "refer_repeats", "", 999, found.after)}
    later = [*values, *[m for _ in range(20) for m in (assistant(None, "9"), result("9", "ok"))]]
    view = look(later, session=Session(edits=edits))
    assert referred(view) == {public_id(view.keys[2]).encode(): [(10, 30)]}
    stub = next(p for p in ShortenResults()(view) if p.index == 2)
    assert stub.write is not None
    text = stub.write(frozenset({2}))
    assert all(line in text for line in FILE[10:30])
    assert FILE[40] not in text
