"""The effects of a shell command, and what its exit code proves."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.context.analysis import shell_commands
from proxy.context.analysis.shell_commands import (
    EDIT_CALL,
    MAX_PARSED_CHARS,
    MAX_PREFIXES,
    PLAIN_CALL,
    TOOL_RUN,
    ShellCommand,
)


@pytest.mark.parametrize(
    ("text", "proves"),
    [
        ("pytest -q", True),
        ("cd app && FOO=1 timeout -k 5 60 pytest -q 2>&1", True),
        ("pytest | tail", False),
        ("pytest |& tee log", False),
        ("set -o pipefail; pytest | tail", True),
        ("pytest; echo done", False),
        ("pytest || true", False),
        ("pytest && echo done", True),
        ("pytest a; pytest b", False),
        ("pytest a\npytest b", False),
        ("set -e\npytest a\npytest b", True),
        ("pytest &", False),
        ("python - <<'EOF'\na | b; c\nEOF", True),
        ("cat > x.py <<'EOF'\na | b\nEOF\npython x.py", True),
        ("git commit -m 'a; b | c'", True),
        ("for f in *; do python $f; done", False),
        ("if pytest; then echo yes; fi", False),
        ("out=$(pytest)\necho $out", False),
        ("pytest > log 2>&1; cat log", False),
        ("# first\npytest", True),
        ("make test && echo good || echo bad", False),
        ("make test && ls out; git status", False),
        ("set -e; make test && ls out; git status", False),
        ("set -e\nmake\nset +e\nmake test\necho done", False),
        ("set -o errexit; make; set +o errexit; make test; echo done", False),
        ("bash -e prepare.sh; make test; echo done", False),
        ("! make test", False),
        ("[ ! -d out ] && make", True),
        ("bash -c 'make test'", True),
        ("bash -c 'cd app && make test'", True),
        ("bash -c 'set -e; make; make test'", True),
        ("bash -c 'make test | tail -3'", False),
        ("env CI=1 sh -c 'yarn test | cat'", False),
        ('docker compose exec -T web bash -lc "make test; echo done"', False),
        ("ssh host 'make test || true' && ls", False),
        ('ssh host "cd $(pwd); make test"', False),
        ("su - app -c 'make test; true'", False),
        ("eval 'make test || true'", False),
        ('powershell.exe -Command "npm test; exit 0"', False),
        ("ssh host <<'EOF'\nmake test\nls\nEOF", False),
        ("bash <<'EOF'\nset -e\nmake test\nls\nEOF", True),
        ("bash <<A\nbash <<B\nmake\nB\nA", False),
        ("kubectl apply -f - <<'EOF'\na: 1\nb: 2\nEOF", True),
        ("find . -name '*.py' -exec python -m py_compile {} \\;", False),
        ("find . -name '*.py' -exec python -m py_compile {} ';' -print", False),
        ("find a -exec sh -c 'make $1' _ {} \\; -exec touch {} +", False),
        ("find . -name '*.go' -exec gofmt -w {} +", True),
        ("find . -name '*.pyc' -delete", True),
        ("curl -s -X POST http://a/b", False),
        ("curl -sf -X POST http://a/b", True),
        ("curl --fail-with-body -d @a http://a/b", True),
    ],
)
def test_a_code_of_0_proves_what_ran_to_its_own_end(text: str, proves: bool) -> None:
    read = shell_commands.parse_command(text)
    assert (read.kind, read.exit_code_proves) == ("run", proves)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bash -c 'make lint; pytest -q'", (False, False)),
        ("bash -c 'go test ./... | grep ok'", (True, True)),
        ("bash -c 'pytest -q | tail -3'", (True, False)),
        ("bash -c pytest", (True, False)),
    ],
)
def test_a_carried_command_is_cut_or_several_as_it_would_be_alone(text: str, expected: tuple[bool, bool]) -> None:
    found = shell_commands.parse_command(text)
    assert (found.is_single, found.output_cut) == expected


def test_a_filter_that_may_take_the_end_away_cuts() -> None:
    assert [
        shell_commands.parse_command(f"pytest | {tail}").output_cut
        for tail in ("tail", "tee log", "head", "grep x", "sort")
    ] == [False, False, True, True, True]


def test_runs_that_differ_in_what_shows_them_have_the_same_core() -> None:
    texts = ("make test", "make test 2>&1 | tail -3", "make test; echo $?", "make  test > log", "time make test | head")
    assert {shell_commands.parse_command(text).core for text in texts} == {"make test"}
    assert shell_commands.parse_command("make build && make test").core != "make test"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cd pkg/a && make test", "cd pkg/b && make test"),
        ("cd pkg/a && make test", "make test"),
        ("DB=postgres pytest", "DB=sqlite pytest"),
        ("DB=postgres; pytest", "pytest"),
        ("export DB=postgres && pytest", "export DB=sqlite && pytest"),
        ("cat a.txt | python x.py", "cat b.txt | python x.py"),
        ("python - <<'EOF'\nprint(1)\nEOF", "python - <<'EOF'\nprint(2)\nEOF"),
        ("cat > x.py <<'EOF'\na\nEOF\npython x.py", "cat > x.py <<'EOF'\nb\nEOF\npython x.py"),
        ("python -c 'f(1)'", "python -c 'f[1]'"),
        ("pytest $(cat first)", "pytest $(cat second)"),
        ("for f in a b; do pytest $f; done", "for f in c d; do pytest $f; done"),
        ("make a || make b", "make a && make b"),
        ("./run " + "a " * 600 + "1", "./run " + "a " * 600 + "2"),
    ],
)
def test_runs_of_different_things_have_different_cores(one: str, other: str) -> None:
    assert shell_commands.parse_command(one).core != shell_commands.parse_command(other).core
    assert shell_commands.parse_command(one).core == shell_commands.parse_command(one + " | tail -5").core or {
        "$",
        "\n",
    } & set(one)


def test_long_commands_that_differ_at_their_end_are_distinguished() -> None:
    assert (
        shell_commands.parse_command("ls " + "a " * 600 + "1").text
        != shell_commands.parse_command("ls " + "a " * 600 + "2").text
    )


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("str_replace_editor", {"command": "view", "path": "a.py"}, PLAIN_CALL),
        ("str_replace_editor", {"command": "str_replace", "path": "a.py", "old_str": "x"}, EDIT_CALL),
        ("str_replace_based_edit_tool", {"command": "create", "path": "a.py", "file_text": "x"}, EDIT_CALL),
        ("str_replace_based_edit_tool", {"command": "insert", "path": "a.py"}, EDIT_CALL),
        ("text_editor", {"command": "view", "path": "a.py"}, PLAIN_CALL),
    ],
)
def test_a_file_tool_whose_argument_is_called_command_is_not_a_shell(
    name: str, arguments: object, expected: ShellCommand
) -> None:
    assert shell_commands.parse_call(Call("1", name, json.dumps(arguments))) == expected
    assert shell_commands.parse_call(Call("1", "bash", json.dumps(arguments))).kind == "run"


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("Bash", {"command": "make"}, "make"),
        ("shell", {"command": ["bash", "-lc", "make | tail"]}, "make | tail"),
        ("exec", {"cmd": ["make", "all"]}, "make all"),
        ("execute-tool", {"params": {"command": "make"}}, "make"),
        ("run_tests", {"path": "tests"}, ""),
    ],
)
def test_the_command_of_a_call_is_found(name: str, arguments: object, text: str) -> None:
    found = shell_commands.parse_call(Call("1", name, json.dumps(arguments)))
    assert (found.text, found.kind) == (text, "run")


def test_a_tool_that_takes_its_command_as_it_is() -> None:
    assert shell_commands.parse_call(Call("1", "bash", "make all")).text == "make all"
    assert shell_commands.parse_call(Call("1", "bash", "{broken")) == TOOL_RUN


def test_other_tools_have_no_command() -> None:
    assert shell_commands.parse_call(Call("1", "read_file", '{"path": "a"}')) == PLAIN_CALL
    assert shell_commands.parse_call(Call("1", "edit", "[1")) == EDIT_CALL


@pytest.mark.parametrize("name", ["run_sql", "execute_query", "mcp__db__run_query"])
def test_a_tool_that_runs_queries_returns_data(name: str) -> None:
    """Its tables keep their labels in a shortened result; those of a program are its output."""
    assert shell_commands.parse_call(Call("1", name, '{"query": "SELECT 1"}')) == PLAIN_CALL
    assert shell_commands.parse_call(Call("1", "run_job", '{"job": "a"}')) == TOOL_RUN


def test_a_command_that_is_too_long_to_read_proves_nothing() -> None:
    assert not shell_commands.parse_command("x" * (MAX_PARSED_CHARS + 1)).exit_code_proves


@pytest.mark.parametrize(
    "carrier", ["sh -c '", 'ssh h "', 'bash -c "sh -c \\"', "ssh h ", "docker exec c ", "ssh ' ' "]
)
def test_many_carried_commands_take_linear_time(carrier: str) -> None:
    assert shell_commands.parse_command(carrier * (MAX_PARSED_CHARS // len(carrier))).kind in ("run", "look")


@pytest.mark.timed
@pytest.mark.parametrize("piece", ["a&&", "a;", "a|b;", "cd a&&", "sudo ", "a||", "X=1 ", "\\;"])
def test_many_parts_take_linear_time(piece: str) -> None:
    text = piece * (MAX_PARSED_CHARS // len(piece))
    start = time.thread_time()
    for _ in range(10):
        shell_commands.parse_command(text)
    assert time.thread_time() - start < 5, "above 15 s if each run looks through all parts behind it"


def test_only_a_bounded_number_of_prefixes_before_a_command_is_skipped() -> None:
    """Of thousands in a row each took a copy of all behind it."""
    assert shell_commands.parse_command("sudo " * MAX_PREFIXES + "cat a").kind == "look"
    assert shell_commands.parse_command("sudo " * (MAX_PREFIXES + 1) + "cat a").kind == "run"


@given(st.text(st.sampled_from("ab|&;\n'\"<>$()`{}# =-\\"), max_size=60))
def test_any_text_can_be_parsed_as_a_shell_command(text: str) -> None:
    assert shell_commands.parse_command(text).kind in ("run", "look")


@given(
    st.lists(st.sampled_from(["ssh h ", "sh -c ", "'", '"', "cat a", "; ", "docker exec c ", "-- ", "\\"]), max_size=30)
)
def test_any_carried_command_is_read(pieces: list[str]) -> None:
    assert shell_commands.parse_command("".join(pieces)).kind in ("run", "look")


def test_text_for_a_running_command_gets_the_output_of_a_run() -> None:
    assert shell_commands.parse_call(Call("1", "write_stdin", '{"session_id": 44, "chars": ""}')) == TOOL_RUN


def test_a_here_document_without_its_text_takes_linear_time() -> None:
    text = "cat <<" + "A" * (MAX_PARSED_CHARS - 10)
    assert all(shell_commands.parse_command(text).kind == "look" for _ in range(20))
