"""References in place of lines that stand further up, byte for byte; listings with fewer line numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from proxy.chat.chain import public_id
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit, Proposal
from proxy.context.stages.refer_repeats import ReferRepeats, is_page_fault
from proxy.context.stages.shorten_results import ShortenResults
from proxy.context.summaries.references import find_referred_lines
from proxy.context.view import View
from tests.conversations import Json, assistant, build_view, call, result, user

ROWS = [f"def function_{n}(argument_{n}): return compute_{n}(argument_{n})" for n in range(1, 81)]
FILE = [f"{n:6}\t{row}" for n, row in enumerate(ROWS, 1)]
POINTER = re.compile(
    r"\[(\d+) lines(?: \(\d+-\d+\))?: as lines (\d+)-(\d+)(?: \(\d+-\d+\))? of (?:result|call) \w+[^\n]*\]"
)


def reading(*texts: str) -> list[Json]:
    """A file that is read again and again, by calls with other arguments each time."""
    values = [user("a")]
    for n, text in enumerate(texts):
        asked = json.dumps({"path": "/a/b.py", "offset": n})
        values += [{**assistant(None), "tool_calls": [call("1", "read", asked)]}, result("1", text)]
    return values


def running(*texts: str) -> list[Json]:
    """The same of a command that is run again and again: nothing is fetched a second time."""
    step = {**assistant(None), "tool_calls": [call("1", "bash", '{"command": "make"}')]}
    return [user("a"), *[m for text in texts for m in (step, result("1", text))]]


def proposals(view: View) -> dict[int, Proposal]:
    return {p.index: p for p in ReferRepeats()(view)}


def make_plan(values: list[Json]) -> tuple[View, dict[bytes, Edit]]:
    """The edits of a conversation whose every request was planned; the view of the last request with them."""
    edits: dict[bytes, Edit] = {}
    for end in range(1, len(values) + 1):
        if end < len(values) and values[end]["role"] != "assistant":
            continue
        view = build_view(values[:end], state=BranchState(edits=dict(edits)))
        for p in ReferRepeats()(view):
            edits[view.keys[p.index]] = Edit(view.keys[p.index], p.action, p.text, p.stage, p.reason, 999, p.after)
    return build_view(values, state=BranchState(edits=dict(edits))), edits


def texts(view: View) -> dict[int, str]:
    """The text of each result as it goes out."""
    found = {}
    for n, message in enumerate(view.messages):
        edit = view.find_edit(n)
        if message.is_result:
            found[n] = edit.text or "" if edit else message.text
    return found


def put_back(text: str, earlier: str) -> str:
    """The text with its references replaced by the lines of the earlier text that they name."""
    lines = earlier.split("\n")
    return POINTER.sub(lambda match: "\n".join(lines[int(match[2]) - 1 : int(match[3])]), text)


def test_a_file_read_again_refers_to_the_first_time() -> None:
    view = build_view(reading("\n".join(FILE), "\n".join(["changed", *FILE[10:70], "end"])))
    (found,) = proposals(view).values()
    assert found.index == 4
    name, asked = public_id(view.keys[2]), 'read {"path": "/a/b.py", "offset": 0}'
    assert (found.text or "").split("\n") == [
        "changed",
        f"[60 lines (11-70): as lines 11-70 of result {name}, 1 step before this: {asked}]",
        "end",
    ]


def test_a_pointer_says_how_many_steps_ago_and_which_numbers_are_there() -> None:
    part = [f"{n:6}\t{row}" for n, row in enumerate(ROWS[30:], 131)]
    values = reading("\n".join(part), "nothing", "\n".join([FILE[29], *FILE[30:]]))
    view = build_view(values)
    text = proposals(view)[6].text or ""
    assert (
        f"[50 lines (31-80): as lines 1-50 (131-180) of result {public_id(view.keys[2])}, 2 steps before this" in text
    )


@pytest.mark.parametrize("end", ["\n", "", "\n\n", "\r\n"])
@pytest.mark.parametrize("odd", ["", "\x0b", "\x0c", "\u2028", "\u2029", "\x85", " ", "\r"])
def test_the_original_can_be_put_together_again_byte_for_byte(end: str, odd: str) -> None:
    first = "\n".join([*ROWS[:40], f"odd{odd}line of forty characters or more {odd}", *ROWS[40:]]) + end
    for again in (first, first.rstrip(), first + "\n", first.replace(ROWS[5], ROWS[5] + " "), "x\n" + first):
        view = build_view(running(first, again))
        text = proposals(view)[4].text if 4 in proposals(view) else None
        assert text is None or put_back(text, first) == again
        assert (text is not None) == (odd in ("", " ")), "a text whose lines others count otherwise is not referred to"
        assert text is None or text.endswith("\n") == again.endswith("\n"), "the end of the last line stays"


def test_blanks_at_the_end_of_a_line_make_another_line() -> None:
    first = "\n".join(ROWS)
    text = proposals(build_view(running(first, first.replace(ROWS[40], ROWS[40] + "\t"))))[4].text or ""
    assert text.split("\n")[1] == ROWS[40] + "\t"
    assert len(text.split("\n")) == 3


def test_a_line_before_a_listing_has_no_number() -> None:
    echo = "\n".join(["The file was edited. It reads now, from line 31 on:", *FILE[30:60], "(end)"])
    view, _ = make_plan(running(echo, echo + "\n"))
    pointer = texts(view)[4]
    assert POINTER.match(pointer)
    assert pointer.startswith("[32 lines (31-60): as lines 1-32 (31-60) of result ")


def test_a_listing_keeps_every_tenth_number_and_all_its_lines() -> None:
    (found,) = proposals(build_view(reading("\n".join(FILE)))).values()
    out = (found.text or "").split("\n")
    assert [n for n, line in enumerate(out, 1) if line == FILE[n - 1]] == [1, 10, 20, 30, 40, 50, 60, 70, 80]
    assert [line.partition("\t")[2] or line for line in out] == ROWS
    assert proposals(build_view(reading("\n".join(ROWS)))) == {}


def test_a_file_read_beside_its_write_was_written_in_this_step() -> None:
    written = json.dumps({"path": "/a/b.py", "content": "\n".join(ROWS) + "\n"})
    read = json.dumps({"path": "/a/b.py"})
    values = [
        user("a"),
        {**assistant(None), "tool_calls": [call("1", "write", written), call("2", "read", read)]},
        result("1", "Written."),
        result("2", "\n".join(FILE) + "\n"),
    ]
    view = build_view(values)
    (found,) = proposals(view).values()
    name = public_id(view.keys[1])
    assert (found.text or "").startswith(
        f"[80 lines (1-80): as lines 1-80 of call {name}, content, in this step: write "
    )


def test_a_table_with_a_column_of_numbers_keeps_them() -> None:
    table = "\n".join(f"{n}\t{row}" for n, row in enumerate(ROWS, 1))
    assert proposals(build_view(running(table))) == {}, "a shell that prints numbers set to the left"
    values = reading(table)
    assert 2 in proposals(build_view(values)), "a tool's view of a file"
    values[1]["tool_calls"][0]["function"]["arguments"] = '{"path": "/a/b.tsv"}'
    assert proposals(build_view(values)) == {}
    values[2]["content"] = "\n".join(FILE)
    assert 2 in proposals(build_view(values)), "numbers set to the right are the tool's"


def test_lines_are_the_same_whatever_their_numbers() -> None:
    shifted = [f"{n:6}\t{row}" for n, row in enumerate(ROWS, 8)]
    view = build_view(reading("\n".join(FILE), "\n".join(["     7\tnew = 1", *shifted])))
    assert (proposals(view)[4].text or "").split("\n")[1].startswith("[80 lines (8-87): as lines 1-80 of result ")
    plain = build_view(running("\n".join(ROWS), "\n".join(FILE)))
    assert "as lines 1-80 of result" in (proposals(plain)[4].text or ""), "a listing of what was printed before"


def test_a_file_read_after_it_was_written_refers_to_the_call() -> None:
    written = {"path": "/a/b.py", "content": "\n".join(ROWS) + "\n"}
    values = [
        user("a"),
        {**assistant(None), "tool_calls": [call("1", "write", json.dumps(written))]},
        result("1", "Written."),
        *reading("\n".join(FILE) + "\n")[1:],
    ]
    view = build_view(values)
    (found,) = proposals(view).values()
    assert (found.text or "").startswith(
        f"[80 lines (1-80): as lines 1-80 of call {public_id(view.keys[1])}, content, 1 step before this: write "
    )
    assert (found.text or "").endswith("]\n")
    plain = [*values[:-1], result("1", "\n".join(ROWS))]
    assert proposals(build_view(plain)) == {}, "what a shell prints is not compared with what was written"


def test_only_what_is_new_is_looked_at() -> None:
    text = "\n".join(FILE)
    assert proposals(build_view([*reading(text, text), assistant("I see."), user("b")])) == {}


def test_short_runs_and_small_results_stay() -> None:
    other = ["other line of this result"] * 60
    assert proposals(build_view(running("\n".join(ROWS), "\n".join([*ROWS[:6], *other])))) == {}
    assert proposals(build_view(running("\n".join(ROWS), "\n".join(ROWS[:4])))) == {}


def test_a_result_that_was_edited_is_not_referred_to() -> None:
    text = "\n".join(ROWS)
    view = build_view(running(text, text))
    edit = Edit(view.keys[2], "text", "a stub", "shorten_results", "", 999, 9)
    assert proposals(build_view(running(text, text), state=BranchState(edits={edit.key: edit}))) == {}


def test_a_pointer_never_points_to_what_has_pointers_but_to_a_thinned_listing() -> None:
    view, edits = make_plan(reading("\n".join(FILE), *["\n".join([*FILE[n:], f"end {n}"]) for n in (1, 2, 3)]))
    named = {name for found in edits.values() for name in re.findall(r"of result (\w+)", found.text or "")}
    assert named == {public_id(view.keys[2])}
    assert view.find_edit(2) is not None


def test_a_recalled_text_is_neither_referred_to_nor_shortened() -> None:
    text = "\n".join(ROWS)
    recalled = {**assistant(None), "tool_calls": [call("1", "recall", '{"id": "abcdefghij"}')]}
    values = [*running(text), recalled, result("1", text), *running(text)[1:]]
    view, edits = make_plan(values)
    assert view.find_edit(4) is None
    named = {name for found in edits.values() for name in re.findall(r"of result (\w+)", found.text or "")}
    assert named == {public_id(view.keys[2])}


def test_a_repeated_call_is_answered_whole_once_a_pointer_has_answered_it() -> None:
    step = [{**assistant(None), "tool_calls": [call("1", "read", '{"path": "/a"}')]}, result("1", "\n".join(ROWS))]
    view, _ = make_plan([user("a"), *step * 12])
    whole = [n for n, text in texts(view).items() if text == "\n".join(ROWS)]
    assert whole == [n for n in range(2, 26, 2) if n != 4], "one pointer, and no other for twenty steps"


def test_twenty_steps_after_a_pointer_there_may_be_another() -> None:
    step = [{**assistant(None), "tool_calls": [call("1", "read", '{"path": "/a"}')]}, result("1", "\n".join(ROWS))]
    between = [m for n in range(21) for m in (assistant(None, "9"), result("9", f"ok {n}"))]
    view, _ = make_plan([user("a"), *step * 2, *between, *step])
    assert "[80 lines: as lines 1-80" in texts(view)[len(view.messages) - 1]


def test_a_shortened_result_that_is_fetched_again_stays_whole() -> None:
    values = reading("\n".join(FILE), "\n".join(["other", *FILE]), "\n".join(["third", *FILE]))
    view = build_view(values)
    stub = Edit(view.keys[4], "text", "a stub", "shorten_results", "", 999, 9)
    seen = build_view(values, state=BranchState(edits={stub.key: stub}))
    assert is_page_fault(seen, 6, 20)
    assert proposals(seen) == {}
    assert not is_page_fault(view, 6, 20)


def test_lines_that_are_referred_to_stay_when_their_result_is_shortened() -> None:
    values = reading("\n".join(FILE), "\n".join(["changed", *FILE[10:30], *["other"] * 9]))
    found = proposals(build_view(values))[4]
    key = build_view(values).keys[4]
    edits = {key: Edit(key, "text", found.text, "refer_repeats", "", 999, found.after)}
    later = [*values, *[m for _ in range(20) for m in (assistant(None, "9"), result("9", "ok"))]]
    view = build_view(later, state=BranchState(edits=edits))
    assert find_referred_lines(view) == {public_id(view.keys[2]).encode(): [(10, 30)]}
    stub = next(p for p in ShortenResults()(view) if p.index == 2)
    assert stub.write_text is not None
    text = stub.write_text(frozenset({2})) or ""
    assert all(line in text for line in FILE[10:30])
    assert FILE[40] not in text


def test_a_new_reference_names_a_text_that_is_not_cut_with_it() -> None:
    view = build_view(running("\n".join(ROWS), "\n".join(["other", *ROWS[40:]]), "\n".join(["third", *ROWS])))
    found = proposals(view)
    late = next(p for p in ReferRepeats()(build_view(running("\n".join(ROWS), "x", "\n".join(["third", *ROWS])))))
    assert late.write_text is not None
    assert late.write_text(frozenset({4, 6})) == late.text, "nothing of its target is cut"
    assert late.write_text(frozenset({2, 6})) is None
    (proposal,) = (p for n, p in found.items() if n == 6)
    assert proposal.write_text is not None
    first, second = (public_id(view.keys[n]) for n in (2, 4))
    assert f"of result {first}" in (proposal.write_text(frozenset({6})) or "")
    text = proposal.write_text(frozenset({2, 6})) or ""
    assert f"[40 lines: as lines 2-41 of result {second}" in text, "the later part stands in the other one"
    assert ROWS[10] in text.split("\n")


def test_a_scripted_reader_that_takes_the_marks_can_read_every_pointer() -> None:
    marks = json.loads((Path(__file__).parents[2] / "recorded" / "marks.json").read_text())
    written = {"path": "/a/b.py", "content": "\n".join(ROWS)}
    part, shifted = FILE[20:], [f"{n:6}\t{row}" for n, row in enumerate(ROWS, 8)]
    own = [user("a"), {**assistant(None), "tool_calls": [call("1", "write", json.dumps(written))]}, result("1", "ok")]
    edits = [
        *make_plan([*own, *reading("\n".join(FILE))[1:]])[1].values(),
        *make_plan(reading("\n".join(part), "\n".join(shifted)))[1].values(),
        *make_plan(running("\n".join(ROWS), "\n".join(ROWS)))[1].values(),
    ]
    pointers = [line for e in edits for line in (e.text or "").split("\n") if line.startswith("[")]
    assert len(pointers) == 3
    for line in pointers:
        found = re.match(marks["POINTER"], line)
        assert found is not None
        assert int(found[1]) == int(found[3]) - int(found[2]) + 1
        assert found[5].startswith(("read {", "write {", "bash {"))


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        ("make", ["make: *** [all] Error 2", "[The command completed with exit code 2.]"]),
        ("pytest -q", ["=== 1 failed, 79 passed in 0.10s ==="]),
    ],
)
def test_the_outcome_of_a_run_stays_in_its_own_result(command: str, ends: list[str]) -> None:
    text = "\n".join([*ROWS, *ends])
    step = {**assistant(None), "tool_calls": [call("1", "bash", json.dumps({"command": command}))]}
    view, _ = make_plan([user("a"), step, result("1", text), step, result("1", text)])
    assert texts(view)[4].splitlines()[0].startswith("[80 lines")
    assert texts(view)[4].splitlines()[-1] == ends[-1]
    assert put_back(texts(view)[4], text) == text
    look = {**assistant(None), "tool_calls": [call("1", "bash", '{"command": "cat a.log"}')]}
    view, _ = make_plan([user("a"), look, result("1", text), look, result("1", text)])
    assert len(texts(view)[4].splitlines()) == 1


def test_another_part_of_a_file_is_another_page() -> None:
    first, other = (
        "\n".join(ROWS),
        "\n".join(f"def other_{n}(argument_{n}): return {n} * argument_{n}" for n in range(60)),
    )
    values = reading(first, first, other)
    edit = next(iter(make_plan(reading(first, first))[1].values()))
    view = build_view(values, state=BranchState(edits={edit.key: edit}))
    assert not is_page_fault(view, 6, 20), "nothing of it was taken"
    again = build_view(reading(first, first, first), state=BranchState(edits={edit.key: edit}))
    assert is_page_fault(again, 6, 20)
