"""Programs that call a tool are read as that call: Codex's `exec` in its code mode."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.context.analysis import identifiers
from proxy.context.analysis.code_mode import MAX_PROGRAM_CHARS, read_program_call
from proxy.context.analysis.moved_files import FileChange, read_patch_changes
from proxy.context.analysis.outcome import read_outcome
from proxy.context.analysis.output_wrappers import find_first_line
from proxy.context.analysis.shell_commands import parse_call
from proxy.dialects.completions.request import read_message

RUN = (
    'const r = await tools.exec_command({cmd:"pytest -q \\"a b\\"","workdir":"/w",yield_time_ms:1000, tty: true}); '
    "text(r.output)"
)
PATCH = (
    'const patch = "*** Begin Patch\\n*** Update File: src/a.py\\n@@\\n-x = \\"1\\"\\n+x = 2\\n*** End Patch";\n'
    "text(await tools.apply_patch(patch));"
)


def make_call(program: str, *, plain: bool) -> Call:
    """A call as Responses has it (plain), or as chat completions has it."""
    return Call("c1", "exec", program if plain else json.dumps({"input": program}))


def test_the_arguments_of_the_tool_are_read() -> None:
    assert read_program_call(RUN) == {
        "cmd": 'pytest -q "a b"', "workdir": "/w", "yield_time_ms": 1000, "tty": True
    }  # fmt: skip


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "json"])
def test_a_program_that_runs_a_command_is_that_command(plain: bool) -> None:
    found = parse_call(make_call(RUN, plain=plain))
    assert (found.kind, found.text) == ("run", 'pytest -q "a b"')
    shown = parse_call(make_call('text((await tools.exec_command({cmd: "cat a.py | head"})).output)', plain=plain))
    assert shown.kind == "look"


@pytest.mark.parametrize(
    ("first", "output", "verdict"),
    [
        ("Script completed", "3 passed in 0.10s", "succeeded"),
        ("Script completed", "1 failed, 2 passed in 0.10s", "failed"),
        ("Script running with cell ID 11", "3 passed in 0.10s", "unknown"),
    ],
)
def test_the_output_of_a_command_is_read_within_the_words_of_the_program(first: str, output: str, verdict: str) -> None:
    text = f"{first}\nWall time 5.0 seconds\nOutput:\n\n{output}\n"
    result = read_message(json.dumps({"role": "tool", "tool_call_id": "c1", "content": text}).encode())
    assert read_outcome(result, parse_call(make_call(RUN, plain=True))).verdict == verdict
    assert find_first_line(text) == (output if first == "Script completed" else first)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "json"])
def test_a_program_that_writes_to_a_running_command_is_not_a_command(plain: bool) -> None:
    found = parse_call(make_call('const r = await tools.write_stdin({session_id:7,chars:""}); text(r)', plain=plain))
    assert (found.kind, found.text) == ("run", "")


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "json"])
def test_a_patch_in_a_program_names_its_files(plain: bool) -> None:
    assert read_patch_changes(make_call(PATCH, plain=plain).arguments) == [FileChange("edited", "src/a.py")]


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it\\'s'", "it's"),
        ("'a \"b\"'", 'a "b"'),
        ("`a\nb`", "a\nb"),
        ('"\\u00e9"', "\u00e9"),
        ('"a\ud800"', "a?"),
        ("`${x}`", None),
    ],
)
def test_texts_are_read_in_each_kind_of_quotes(literal: str, value: str | None) -> None:
    assert (read_program_call("tools.exec_command({cmd: " + literal + "})") or {}).get("cmd") == value


@pytest.mark.parametrize(
    "program",
    [
        "a word about tools. Nothing more",
        "await tools.exec_command({cmd:'a'}); await tools.exec_command({cmd:'b'})",
        "tools.apply_patch(found)",
        RUN + " " * MAX_PROGRAM_CHARS,
    ],
    ids=["prose", "two calls", "a patch from elsewhere", "too long"],
)
def test_a_program_that_is_not_a_single_call_is_not_read(program: str) -> None:
    assert read_program_call(program) is None
    assert identifiers.parse_arguments(json.dumps({"input": program})) == {"input": program}


def test_arguments_that_only_name_tools_are_not_programs() -> None:
    given = {"path": "tools.py", "text": RUN}
    assert identifiers.parse_arguments(json.dumps(given)) == given


@given(st.text(alphabet="tools.x({a:\"'`\\}$ \n1", max_size=200))
def test_any_text_can_be_read_as_a_program_without_an_exception(text: str) -> None:
    read_program_call(text)
    read_program_call("tools.run({" + text)


@pytest.mark.parametrize(
    "program",
    [
        "tools.a(x " + '\\"' * 30_000,
        "tools.a({x: '" + r"\\" * 30_000 + "'})",
        "tools.a({x: '" + r"\n" * 30_000 + "'})",
        "tools.a(" + "`'\"" * 30_000,
    ],
    ids=["escaped quotes", "backslashes", "escapes", "quotes"],
)
def test_a_row_of_escapes_takes_linear_time(program: str) -> None:
    """In quadratic time the first two took 6 and 20 s, in which no other request was read."""
    began = time.thread_time()
    read_program_call(program)
    assert time.thread_time() - began < 2


def test_quotes_of_another_kind_are_kept_within_a_text() -> None:
    assert read_program_call(r"""tools.a({x: 'say "a" \"b\" c:\\'})""") == {"x": 'say "a" "b" c:\\'}
