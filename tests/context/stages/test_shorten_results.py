"""The default stage: what goes stale when, what stays of it, and that a stub is honest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.chat import chain
from proxy.chat.media import PER_MEDIUM
from proxy.chat.message import Message, Request
from proxy.context.analysis.result_kinds import find_results
from proxy.context.branch_state import BranchState
from proxy.context.build_view import build_view as build_known_view
from proxy.context.plan import Edit, Proposal, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.stages.shorten_results import ShortenResults
from proxy.context.summaries.stub import StubWriter
from proxy.context.view import View
from proxy.dialects.completions.request import build_prefix_cache, read_message, read_request
from tests.conversations import (
    COUNTER,
    PLAIN_MODEL,
    Json,
    assistant,
    build_view,
    call,
    change_view,
    encode_json,
    result,
    user,
)

LONG = "\n".join(f"line {n} of an output that nobody needs any more" for n in range(400))


def talk(name: str, count: int, text: str = LONG, arguments: str = "{}") -> list[Json]:
    """A prompt and `count` calls of one tool, each with its result; message 2n is the n-th result. No two calls are
    alike."""
    values = [user("a")]
    for n in range(count):
        asked = {**json.loads(arguments), "number": n} if n else json.loads(arguments)
        values += [{**assistant(None), "tool_calls": [call("1", name, json.dumps(asked))]}, result("1", text)]
    return values


def shortened(view: View, stage: ShortenResults | None = None) -> dict[int, Proposal]:
    return {p.index: p for p in (stage or ShortenResults())(view)}


def text_of(proposal: Proposal) -> str:
    assert proposal.write_text is not None
    text = proposal.write_text(frozenset({proposal.index}))
    assert text is not None
    return text


def stale(view: View) -> list[int]:
    return [n for n, p in shortened(view).items() if not p.rider]


def test_command_output_is_stale_once_the_agent_has_answered_to_it() -> None:
    assert stale(build_view(talk("bash", 1, arguments='{"command": "make test"}'))) == []
    assert stale(build_view(talk("bash", 2, arguments='{"command": "make test"}'))) == [2]


def test_a_result_that_is_not_stale_is_not_read() -> None:
    view = build_view(talk("read_file", 6))
    assert shortened(view).keys() == {2, 4, 6}, "others are too new to be cut even in a batch"
    is_read = [any(isinstance(key, tuple) and key[0] == "rough" for key in m.derived_values) for m in view.messages]
    assert [n for n, read in enumerate(is_read) if read] == [2, 4, 6]


def test_small_command_output_stays_three_steps() -> None:
    text = "\n".join(f"output {n}" for n in range(20))
    assert 150 <= build_view(talk("bash", 1, text)).original_tokens[2] < 250
    assert stale(build_view(talk("bash", 3, text))) == []
    assert stale(build_view(talk("bash", 4, text))) == [2]


def test_a_list_of_paths_stays_nine_steps_and_a_very_long_one_does_not() -> None:
    paths = [f"/repo/src/package_{n}/module_{n}.py" for n in range(400)]
    entries = [f"-rw-r--r-- 1 root root {n} Nov 23 08:41 module {n}" for n in range(400)]
    for lines in (paths, entries):
        text = "\n".join(lines[:15])
        assert (
            ShortenResults().big
            <= build_view(talk("glob", 1, text)).original_tokens[2]
            <= ShortenResults().listing_most
        )
        assert stale(build_view(talk("glob", 9, text))) == []
        assert stale(build_view(talk("glob", 10, text))) == [2]
        assert stale(build_view(talk("glob", 2, "\n".join(lines)))) == [2]


def test_a_view_of_a_file_stays_eighteen_steps_and_the_others_go_along_after_three() -> None:
    view = build_view(talk("read_file", 18))
    assert stale(view) == []
    found = shortened(build_view(talk("read_file", 19)))
    assert [n for n, p in found.items() if not p.rider] == [2]
    assert [n for n, p in found.items() if p.rider] == list(range(4, 33, 2)), "three steps old and more, as riders"


def test_each_result_beside_a_view_keeps_it_three_steps_longer() -> None:
    def read_at_once(*texts: str) -> list[Json]:
        calls = [call(str(n), "read_file", json.dumps({"path": f"{n}.py"})) for n in range(len(texts))]
        results = [result(str(n), text) for n, text in enumerate(texts)]
        return [user("a"), {**assistant(None), "tool_calls": calls}, *results]

    three, later = read_at_once(LONG, LONG, LONG), talk("think", 30, "Done.")[1:]
    assert stale(build_view([*three, *later[: 2 * 23]])) == []
    assert stale(build_view([*three, *later[: 2 * 24]])) == [2, 3, 4]
    small = read_at_once(LONG, "not found", "not found")
    assert stale(build_view([*small, *later[: 2 * 18]])) == [2], (
        "results that are too small to be shortened do not count"
    )
    prompt = [assistant("Done."), user("b"), *later[: 2 * 7]]
    assert stale(build_view([*three, *prompt])) == [2, 3, 4], "a new prompt makes them stale as ever"


def act(name: str, **arguments: str) -> list[Json]:
    """A call of a tool, and its result."""
    text = LONG if name == "read_file" else "done"
    return [{**assistant(None), "tool_calls": [call("1", name, json.dumps(arguments))]}, result("1", text)]


def plan(*, edited: str, later: int, prompt: str = "Add a colour to src/ball.py, src/cube.py:12 and `cone.py`") -> View:
    """Three files are read, then one is edited, then `later` calls follow. The results are messages 2, 4, 6 and 8."""
    values = [user(prompt)]
    for name in ("ball.py", "cube.py", "cone.py"):
        values += act("read_file", path=f"/repo/src/{name}")
    values += act("edit_file", path=f"/repo/{edited}", old_string="a", new_string="b")
    for n in range(later):
        values += act("wait_for", job=str(n))
    return build_view(values)


def test_views_of_files_that_the_prompt_names_stay_while_the_agent_changes_them_one_after_another() -> None:
    assert shortened(plan(edited="src/ball.py", later=6)).keys() == {2}, "the others do not even go along"
    assert stale(plan(edited="src/ball.py", later=19)) == [2], "18 steps, and 2 for each of the two files left"
    assert stale(plan(edited="src/ball.py", later=20)) == [2, 4]
    assert stale(plan(edited="src/ball.py", later=21)) == [2, 4, 6]
    few = ShortenResults(planned_most=1)
    assert 4 in shortened(plan(edited="src/ball.py", later=17), few)
    assert 4 not in shortened(plan(edited="src/ball.py", later=16), few)


@pytest.mark.parametrize(
    ("edited", "prompt"),
    [
        ("src/ball.py", "Add a colour to the solids"),
        ("src/ball.py", "Add a colour to the ball.py, as in cube and src/cone"),
        ("notes.md", "Add a colour to src/ball.py, src/cube.py and cone.py"),
    ],
)
def test_views_stay_no_longer_where_the_prompt_names_no_other_file_or_none_of_its_files_was_changed(
    edited: str, prompt: str
) -> None:
    assert shortened(plan(edited=edited, later=6, prompt=prompt)).keys() == {2, 4, 6}
    assert stale(plan(edited=edited, later=18, prompt=prompt)) == [2, 4, 6]


def test_small_results_and_failed_runs_wait_for_their_rent_in_an_eager_policy() -> None:
    def waits(text: str) -> bool:
        view = build_view([*talk("bash", 1, text, '{"command": "make test"}'), assistant("next")])
        return shortened(view)[2].waits_for_rent

    passed = "\n".join(f"tests/test_{n}.py::test_{n} PASSED" for n in range(100))
    assert not waits(f"{passed}\n==== 100 passed in 2.31s ====")
    assert waits(f"{passed}\nFAILED tests/test_x.py::test_x\n==== 1 failed, 100 passed in 2.31s ====")
    few = "\n".join(passed.split("\n")[:12])
    assert 250 <= build_view(talk("bash", 1, few)).original_tokens[2] < 500
    assert waits(few)


def test_a_new_prompt_makes_a_view_stale_sooner() -> None:
    values = [*talk("read_file", 1), assistant("Done."), user("b"), *talk("read_file", 6)[1:]]
    assert stale(build_view(values)) == []
    values = [*talk("read_file", 1), assistant("Done."), user("b"), *talk("read_file", 7)[1:]]
    assert stale(build_view(values)) == [2], "eight steps, one prompt later"
    values = [*talk("read_file", 1), assistant("1."), user("b"), assistant("2."), user("c"), *talk("read_file", 2)[1:]]
    assert stale(build_view(values)) == [2], "four steps, two prompts later"


def test_results_are_due_at_the_same_requests_whether_or_not_the_history_is_known() -> None:
    """The history grows by one message at a time: results that come beside a view, and new prompts, change what is
    known."""
    calls = [call(str(n), "read_file", json.dumps({"path": f"{n}.py"})) for n in range(3)]
    at_once = [{**assistant(None), "tool_calls": calls}, *(result(str(n), LONG) for n in range(3))]
    prompts = [assistant("Done."), user("b"), *talk("bash", 4)[1:], assistant("Done."), user("c")]
    values = [*talk("read_file", 3), *prompts, *at_once, *talk("think", 26, "Done.")[1:]]
    before: Request | None = None
    stage = ShortenResults()
    for end in range(3, len(values) + 1):
        body = encode_json({"model": "m", "messages": values[:end]})
        before = read_request(body, read_message, build_prefix_cache(before) if before is not None else None)
        known, fresh = build_view_of(before), build_view_of(read_request(body, read_message))
        assert [describe(p) for p in stage(known)] == [describe(p) for p in stage(fresh)]


def build_view_of(asked: Request) -> View:
    keys = chain.compute_keys("", asked.messages)
    inputs = RewriteInputs(COUNTER, keys, strategies=["openai"] * len(keys))
    return build_known_view(asked, BranchState(), Policy("test"), PLAIN_MODEL, 0.0, inputs)


def describe(proposal: Proposal) -> tuple[int, int, bool, str, int]:
    return proposal.index, proposal.since, proposal.rider, proposal.reason, proposal.after


@pytest.mark.parametrize(
    ("action", "content"),
    [
        ("I read it.\n\n```bash\ncat a.py\n```", "view"),
        ("I test it.\n\n```bash\npytest -q\n```", "other"),
        ("<function=str_replace_editor>\n<parameter=command>view</parameter>\n</function>", "view"),
        ("I ask it.\n```python\nprint(1)\n```", "unknown"),
    ],
)
def test_output_in_a_user_message_has_the_content_of_the_action_in_text_before_it(action: str, content: str) -> None:
    observed = f"<returncode>0</returncode>\n<output>\n{LONG}\n</output>"
    view = build_view([user("fix it"), assistant(action), user(observed), assistant("Done.")])
    assert [found for _, found, _ in find_results(view)] == [content]
    assert stale(view) == ([2] if content == "other" else [])


def test_only_results_are_shortened_and_small_ones_are_left_alone() -> None:
    view = build_view(talk("bash", 40))
    assert all(view.is_result[n] for n in shortened(view))
    assert shortened(build_view(talk("bash", 40, "ok"))) == {}


def test_a_stub_is_shorter_and_says_how_much_there_was() -> None:
    view = build_view(talk("bash", 40))
    for n, proposal in shortened(view).items():
        text = text_of(proposal)
        assert proposal.action == "text"
        assert text.startswith("[shortened: ")
        assert f" of {len(LONG)} characters]" in text.splitlines()[0]
        assert COUNTER.count_text(text) < view.original_tokens[n]
        assert proposal.reason
        assert view.request_counts[proposal.since] <= view.request_counts[-1]


def test_what_was_shortened_before_is_not_shortened_again() -> None:
    view = build_view(talk("bash", 40))
    found = shortened(view)
    edits = {
        view.keys[n]: Edit(view.keys[n], "text", text_of(p), p.stage, p.reason, 99_999, 9) for n, p in found.items()
    }
    assert shortened(build_view(talk("bash", 40), state=BranchState(edits=edits))) == {}


def test_the_same_view_gives_the_same_stubs() -> None:
    one, other = (shortened(build_view(talk("bash", 40))) for _ in range(2))
    assert {n: text_of(p) for n, p in one.items()} == {n: text_of(p) for n, p in other.items()}


def test_a_batch_is_written_once_for_a_history_and_another_one_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = StubWriter.write_stub

    def counted(self: StubWriter, message: Message, *args: Any, **settings: Any) -> str:
        written.append(message)
        return write(self, message, *args, **settings)

    monkeypatch.setattr(StubWriter, "write_stub", counted)
    values = talk("bash", 5, arguments='{"command": "make test"}')
    for n in (2, 4, 6):  # names of two neighbours and of one alone: the newest of two copies goes
        lines = (f"file_{k} has the name_{n}_{k} and a word that is long enough" for k in range(n * 5, n * 5 + 20))
        values[n] = result("1", "\n".join(lines))

    def texts(view: View, order: Sequence[int], gone: frozenset[int]) -> list[str | None]:
        found = shortened(view, stage)
        return [write_text(gone) for n in order if (write_text := found[n].write_text) is not None]

    view, stage, every = build_view(values), ShortenResults(), frozenset((2, 4, 6))
    first = texts(view, (6, 4, 2), every)
    assert len(written) == 3
    assert texts(view, (6, 4, 2), every) == first
    assert len(written) == 3, "the same messages under the same edits"
    # From the first stub on that is another one, all are written as in a history of its own.
    assert texts(view, (6, 2, 4), every) == texts(build_view(values), (6, 2, 4), every)
    assert texts(view, (4, 2), every - {6}) == texts(build_view(values), (4, 2), every - {6}) != first[1:]
    assert len(written) > 3
    other = change_view(view, offered_tools=frozenset(("recall",)))
    assert all("recall(" in str(text) for text in texts(other, (6, 4, 2), every))


def test_a_sight_that_an_edit_has_made_untrue_does_not_outlive_the_later_one() -> None:
    body = [f"def function_{n}(argument): return compute({n}, argument)" for n in range(60)]
    new = "def function_30(argument): return 999999"
    edit = json.dumps({"path": "a.py", "old": body[30], "new": new})
    after = [new if line == body[30] else line for line in body]
    values = [
        *talk("read_file", 1, f"a.py:31:{body[30]}", '{"path": "a.py"}'),
        *talk("edit_file", 1, "\n".join(after), edit)[1:],
        *[m for _ in range(20) for m in (assistant(None, "9"), result("9", "ok"))],
    ]
    found = shortened(build_view(values))
    assert list(found) == [4], "the first sight is too short to be shortened"
    assert new in text_of(found[4]).split("\n")
    assert body[40] not in text_of(found[4])


def test_no_recall_is_offered_of_a_file_as_it_was_before_an_edit() -> None:
    body = [f"def function_{n}(argument): return compute({n}, argument)" for n in range(60)]
    edit = json.dumps({"path": "a.py", "old": body[30], "new": "def function_30(argument): return 999999"})
    values = [
        *talk("read_file", 1, "\n".join(body), '{"path": "a.py"}'),
        *talk("edit_file", 1, "edited a.py", edit)[1:],
        *talk("read_file", 1, "\n".join(body[::-1]), '{"path": "b.py"}')[1:],
        *[m for _ in range(20) for m in (assistant(None, "9"), result("9", "ok"))],
    ]
    found = shortened(build_view(values, offered=frozenset({"recall"})))
    outdated, current = (text_of(found[n]).splitlines() for n in (2, 6))
    assert "recall" not in outdated[0]
    assert outdated[-1].startswith('[edited since: read it again; as it was: recall("')
    assert "recall" in current[0]
    assert not current[-1].startswith("[edited since")
    assert not any("[edited since" in text_of(p) for p in shortened(build_view(values)).values()), "no tool is named"


def test_a_fork_from_before_an_edit_is_not_told_of_it() -> None:
    body = "\n".join(f"def function_{n}(argument): return compute({n}, argument)" for n in range(60))
    removal = json.dumps({"command": "rm b.py"})
    change = json.dumps({"path": "a.py", "old": "function_30", "new": "other"})
    values = [
        *talk("read_file", 1, body, '{"path": "a.py"}'),
        *talk("read_file", 1, body, '{"path": "b.py"}')[1:],
        *talk("edit_file", 1, "edited a.py", change)[1:],
        *talk("bash", 1, "", removal)[1:],
        *[m for _ in range(20) for m in (assistant(None, "9"), result("9", "ok"))],
    ]
    view = build_view(values, offered=frozenset({"recall"}))
    found = shortened(view)
    remarks = [text_of(found[n]).splitlines()[-1].split(";")[0] for n in (2, 4)]
    assert remarks == ["[edited since: read it again", "[deleted or moved away since"]
    edits = [Edit(view.keys[n], "text", text_of(found[n]), "shorten_results", "", view.tokens[n], 40) for n in (2, 4)]
    state = BranchState(edits={edit.key: edit for edit in edits}, is_new_fork=True)
    for length, ended in ((5, [2, 4]), (7, [4]), (9, [])):
        fork = build_view(values[:length], state=state)
        assert list(ShortenResults().find_ended_edits(fork)) == [view.keys[n] for n in ended]
    old = build_view(values[:5], state=BranchState(edits=state.edits))
    assert list(ShortenResults().find_ended_edits(old)) == [], "later requests are not looked through again"


def test_a_look_up_that_was_made_again_stays_whole_for_twenty_steps() -> None:
    rest = [m for _ in range(19) for m in (assistant(None, "9"), result("9", "ok"))]
    values = [*talk("get_user", 1), *talk("get_user", 1)[1:], *rest]
    assert 4 not in shortened(build_view(values))
    assert 4 in shortened(build_view([*values, assistant(None, "9"), result("9", "ok")]))


def show_screens(count: int, **more: Any) -> list[Json]:
    """A prompt and `count` calls of a tool that shows a screen; message 2n is the n-th result."""
    values = [user([{"type": "text", "text": "a"}, PICTURE])]
    for n in range(count):
        shown = [{"type": "text", "text": f"clicked {n}"}, {**PICTURE, **more}]
        values += [{**assistant(None), "tool_calls": [call("1", "computer", f'{{"n": {n}}}')]}, result("1", shown)]
    return values


PICTURE = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}


def test_all_but_the_newest_screenshots_are_proposed_from_the_time_at_which_they_were_replaced() -> None:
    view = build_view(show_screens(6))
    found = shortened(view)
    assert {n: (one.action, one.since, one.text) for n, one in found.items()} == {
        n: ("images", n + 6, "[older image left out]") for n in (2, 4, 6)
    }
    assert found[2].after == view.tokens[2] - PER_MEDIUM + len("[older image left out]")
    assert shortened(view, ShortenResults(screenshots=0)) == {}
    assert sorted(shortened(view, ShortenResults(screenshots=1))) == [2, 4, 6, 8, 10]


def leave_out_images(values: list[Json], *indexes: int) -> BranchState:
    view = build_view(values)
    remark = "[older image left out]"
    edits = [Edit(view.keys[n], "images", remark, "shorten_results", "", view.tokens[n], 40) for n in indexes]
    return BranchState(edits={edit.key: edit for edit in edits})


def test_images_come_back_where_the_client_has_gone_back_to_them() -> None:
    values, left = show_screens(9), (2, 4, 6, 8)
    state = leave_out_images(values, *left)
    for length, ended in ((19, []), (15, []), (13, [8]), (11, [6, 8]), (9, [4, 6, 8]), (8, [2, 4, 6]), (3, [2])):
        view = build_view(values[:length], state=state)
        assert list(ShortenResults().find_ended_edits(view)) == [view.keys[n] for n in ended]
    assert list(ShortenResults(screenshots=0).find_ended_edits(build_view(values[:9], state=state))) == []
    view = build_view(values)
    gone = BranchState(edits={view.keys[2]: Edit(view.keys[2], "gone", None, "fit", "", 40, 0)})
    assert list(ShortenResults().find_ended_edits(build_view(values[:3], state=gone))) == []


def test_an_image_that_is_out_of_the_prompt_replaces_none() -> None:
    values = show_screens(6)
    key = build_view(values).keys[12]
    gone = Edit(key, "gone", None, "operator", "", 40, 0)
    assert sorted(shortened(build_view(values, state=BranchState(edits={key: gone})))) == [2, 4]


def test_a_result_whose_images_have_left_is_not_proposed_again() -> None:
    values = show_screens(6)
    view = build_view(values)
    edit = Edit(view.keys[2], "images", "[older image left out]", "shorten_results", "", view.tokens[2], 40)
    assert sorted(shortened(build_view(values, state=BranchState(edits={edit.key: edit})))) == [4, 6]
