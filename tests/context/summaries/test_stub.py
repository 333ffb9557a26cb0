"""The parts of a result that stay: true, in their order, and preferably those that stand nowhere else."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.analysis import identifiers, shell_commands
from proxy.context.analysis.file_views import ViewState
from proxy.context.analysis.identifiers import PromptIndex, find_distinct_names
from proxy.context.plan import ContentKind
from proxy.context.summaries.stub import (
    StubLimits,
    StubWriter,
    estimate_stub_chars,
    keep_short_gaps,
    show_line,
)
from tests.context.analysis.runs import RUNS, Run, read_text_outcome
from tests.conversations import assistant, build_view, result, user

CONTENTS: st.SearchStrategy[ContentKind] = st.sampled_from(("view", "other", "unknown"))
FILLER = [f"nothing of note in this line, number {'x' * (n % 7)}" for n in range(60)]


def stub(text: str, before: str = "a prompt", keep: StubLimits | None = None, *, content: ContentKind = "other") -> str:
    view = build_view([user(before), assistant(None, "1"), result("1", text), assistant("I see."), user("Go on")])
    writer = StubWriter(PromptIndex(view), keep or StubLimits())
    return writer.write_stub(view.messages[2], identifiers.find_facts(view.messages[2], None), content=content)


def test_the_first_line_error_lines_and_gaps_stay_in_order() -> None:
    text = "\n".join(["Running the tests", *FILLER, "ValueError: no such thing", *FILLER])
    lines = stub(text).splitlines()
    assert re.fullmatch(rf"\[shortened: \d+ of {len(text)} characters\]", lines[0])
    assert lines[1:] == ["Running the tests", "[... 60 lines]", "ValueError: no such thing", "[... 60 lines]"]


def test_a7_the_id_for_recall_is_shown_where_the_model_can_recall() -> None:
    view = build_view([user("a"), assistant(None, "1"), result("1", "\n".join(FILLER)), assistant("b"), user("c")])
    held = identifiers.find_facts(view.messages[2], None)
    bare = StubWriter(PromptIndex(view), StubLimits()).write_stub(view.messages[2], held, content="other")
    named = StubWriter(PromptIndex(view), StubLimits()).write_stub(
        view.messages[2], held, content="other", message_id="abcdefghij"
    )
    assert named == bare.replace(" characters]", ' characters; recall("abcdefghij")]')
    assert named != bare


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(
    "lines",
    [
        [f"src/module_{n}.py has handler_{n}" for n in range(40)],
        [f"src/module_{n % 7}.py:{n}: handler_{n}" for n in range(40)],
        [f"src/module_{n}.py-{n}- handler_{n}" for n in range(40)],
        [f"item_{n} " + "word " * 80 + f"end_{n}" for n in range(12)],
        [f"na\u00efve_{n}/\u00e9t\u00e9.py \u4e2d\u6587_{n}" for n in range(60)],
        [f"number {n * 977} and id-{n}-x" for n in range(1200)],
    ],
)
def test_the_index_has_the_names_that_a_stub_shows(lines: list[str], number: int) -> None:
    text = "\n".join([*lines[:20], *["ValueError: in core_module.py"] * number, *lines[20:]])
    view = build_view([user("a"), assistant(None, "1"), result("1", text), assistant("b"), user("c")])
    message = view.messages[2]
    held = identifiers.find_facts(message, None)
    name = "abcdefgh22" if number else ""
    shown = StubWriter(PromptIndex(view), StubLimits()).write_stub(message, held, content="other", message_id=name)
    assert set(identifiers.find_replacement_facts(message, shown).names) == set(find_distinct_names(shown))


@pytest.mark.parametrize(
    ("state", "words"),
    [("changed", "edited since: read it again; as it was: "), ("gone", "deleted or moved away since; as it was: ")],
)
def test_a_stub_of_a_file_that_was_changed_since_says_so(state: ViewState, words: str) -> None:
    view = build_view([user("a"), assistant(None, "1"), result("1", "\n".join(FILLER)), assistant("b"), user("c")])
    held = identifiers.find_facts(view.messages[2], None)
    first, *_, last = (
        StubWriter(PromptIndex(view), StubLimits())
        .write_stub(view.messages[2], held, content="view", message_id="abcdefghij", state=state)
        .splitlines()
    )
    assert re.fullmatch(r"\[shortened: \d+ of \d+ characters\]", first)
    assert last == f'[{words}recall("abcdefghij")]'


def test_names_that_stand_nowhere_else_are_listed_and_others_are_not() -> None:
    text = "\n".join(["found", *FILLER, "see src/one.py and src/two.py:7 there", *FILLER])
    assert stub(text).splitlines()[-1] == "[also there: src/one.py src/two.py:7]"
    assert stub(text, before="Look at src/one.py").splitlines()[-1] == "[also there: src/two.py:7]"


def test_the_ids_within_one_long_line_stay() -> None:
    orders = [{"order": f"ORD-{n}", "status": "sent", "note": "left at the door"} for n in range(7000, 7014)]
    told = stub(json.dumps({"orders": orders}))
    assert all(re.search(rf"\bORD-{n}\b", told) for n in range(7000, 7014))
    assert not re.search(r"also there:.* (?:ORD-700[0-2]|ORD-7013|ORD-700|RD-7003)\b", told), "shown, or no whole name"


def test_both_ends_of_one_long_line_stay() -> None:
    """A page in one line has as many names as words: they cost more than they are worth, unlike the ids of JSON."""
    told = stub(" ".join(f"chapter_{n} of book-{n * 7} goes on" for n in range(200)))
    assert "also there" not in told
    assert len(told) < 400


def test_a_report_of_failed_tests_keeps_their_number() -> None:
    """A sub-agent's report is no run of the agent's own, but its failures may not be lost."""
    report = ["## Report", "Status: done", *FILLER, "=== 1 failed, 80 passed in 12.3s ===", "```", *FILLER[:8]]
    assert "=== 1 failed, 80 passed in 12.3s ===" in stub("\n".join(report), content="unknown").splitlines()


def test_the_path_of_several_places_is_listed_once() -> None:
    places = [("src/one.py", 7), ("src/two.py", 3), ("src/one.py", 12), ("src/one.py", 40), ("Makefile", 2)]
    text = "\n".join(["found", *(f"{path}:{n}: {'x' * 80}" for path, n in places), *FILLER])
    assert stub(text).splitlines()[-1] == "[also there: src/one.py:7 :12 :40 src/two.py:3 Makefile:2]"
    narrow = StubLimits(max_name_chars=len("src/one.py:7 :12 :40 "))
    assert stub(text, keep=narrow).splitlines()[-1] == "[also there: src/one.py:7 :12 :40; 2 more]"


def test_a_place_in_a_kept_line_or_another_message_is_not_listed() -> None:
    hits = [f"src/a.go:{n}:func {'x' * 80}" for n in (7, 9, 12)]
    text = "\n".join([*hits, *FILLER])
    assert stub(text).splitlines()[-1] == "[also there: src/a.go:9 :12]", "the first line stays"
    assert stub(text, before="I saw src/a.go:9:func there").splitlines()[-1] == "[also there: src/a.go:12]"


def test_the_path_of_context_around_a_hit_stays() -> None:
    rest = "x" * 80
    context = [
        "--",
        f"src/a.go-6-{rest}",
        f"src/a.go:7:func {rest}",
        f"src/a.go-8-MAX_A {rest}",
        "--",
        f"src/b.go-1-{rest}",
    ]
    text = "\n".join(
        ["found", *context, f"src/b.go-2-{rest}", f"src/b.go:3:MAX_B {rest}", f"src/c.go-9 {rest}", *FILLER]
    )
    assert stub(text).splitlines()[-1] == "[also there: src/a.go:7 src/b.go:3 src/c.go-9 MAX_A MAX_B]"
    assert stub(text, before="src/c.go-9 and MAX_B").splitlines()[-1] == "[also there: src/a.go:7 src/b.go:3 MAX_A]"
    packages = "\n".join(["found", *(f"tool.el-{n}-noarch {rest}" for n in range(3)), *FILLER])
    listed = "[also there: tool.el-0-noarch tool.el-1-noarch tool.el-2-noarch]"
    assert stub(packages).splitlines()[-1] == listed, "no search has found anything"


def test_names_have_room_up_to_a_share_of_the_result() -> None:
    text = "\n".join(["found", *(f"name_{n:04} and other words that fill the line up" for n in range(200))])
    listed = stub(text, keep=StubLimits(max_name_share=0.05)).splitlines()[-1]
    assert 0.04 * len(text) < len(listed) < 0.06 * len(text)
    assert stub(text, keep=StubLimits(max_name_chars=0)).splitlines()[-1] == "[... 200 lines]"


def test_the_imports_of_a_file_stay() -> None:
    text = "\n".join(["1\timport os", "2\tfrom a.b import c", *FILLER])
    assert stub(text, content="view").splitlines()[1:] == ["1\timport os", "2\tfrom a.b import c", "[... 60 lines]"]


@pytest.mark.parametrize(
    "line",
    [
        "LIMIT_07_2_780 = 482910",
        "export const MAX_RETRIES: number = 3;",
        "#define BUFFER_SIZE 1024",
        "static final int POOL_SIZE = 10;",
        "  API_HOST: 'db.example.com',",
        "    95\tMAX_OPEN = 0x1F",
    ],
)
def test_a_constant_stays_with_its_value(line: str) -> None:
    text = "\n".join(["# limits", *FILLER, line, *FILLER])
    assert stub(text, content="view").splitlines()[1:] == ["# limits", "[... 60 lines]", line, "[... 60 lines]"]
    assert line not in stub(text).splitlines(), "only a file's: what a command prints is not looked up in it again"
    assert line not in stub(text, before=identifiers.strip_line_number(line), content="view").splitlines(), (
        "it stands elsewhere"
    )


@pytest.mark.parametrize("line", ["total = MAX_RETRIES", "check(MAX_RETRIES, 3)", "value = 3  # as MAX_RETRIES says"])
def test_a_line_that_only_mentions_a_constant_is_not_kept(line: str) -> None:
    assert line not in stub("\n".join(["# limits", *FILLER, line, *FILLER]), content="view").splitlines()


def test_constants_have_the_room_of_names_and_leave_them_the_rest() -> None:
    told = "the words that a person is shown for it stand in another file"
    text = "\n".join(["# codes", *(line for n in range(300) for line in (f"CODE_{n:03} = {n * 7919}", told, told))])
    shown = stub(text, keep=StubLimits(max_name_share=0.05), content="view")
    kept = [line for line in shown.splitlines() if line.startswith("CODE_")]
    assert kept[0] == "CODE_000 = 0"
    assert 0.04 * len(text) < sum(len(line) + 1 for line in kept) <= 0.05 * len(text)
    assert shown.count("CODE_") <= len(kept) + 1, "and names have what is left"


@pytest.mark.parametrize("content", ["view", "other", "unknown"])
def test_the_one_line_that_is_unlike_the_others_stays_whole(content: ContentKind) -> None:
    steps = [f"{n:02} step {n * 7919:06x} took {n * 37 % 100} ms" for n in range(40)]
    made = "the pump has the id z-f1568f2d16 and the key north"
    shown = stub("\n".join([*steps[:20], made, *steps[20:]]), content=content)
    assert made in shown.splitlines()
    assert len(shown) < 700, "within the room for names"


@pytest.mark.parametrize(
    ("rows", "unlike"),
    [
        ("r{n:<5}| {m:>6}.{d}5 EUR", ["TOTAL |  46712.05 EUR"]),
        ("2026-01-{n:02};{m};0.00;EUR", ["SUM;46712.05;0.00;EUR"]),
        ("{m},{n},ok", ["71,5,DEGRADED"]),
        ("| S-{m} | W{d} | {n} | kg |", ["| TOTAL | all | 780 | kg |"]),
        ("Berlin\tP-{m}\t{n}.50", ["TOTAL\t\t12401.00"]),
        (
            "- listitem [ref=e{n}]: {m} EUR",
            ["- Page URL: /t", "- Page Title: Shop", "- alert: card declined", "- end", "```"],
        ),
    ],
)
def test_the_sum_and_the_exception_of_a_table_stay(rows: str, unlike: list[str]) -> None:
    table = [rows.format(n=n, m=n * 7919 % 997, d=n % 10) for n in range(40)]
    kept = stub("\n".join([*table[:30], *unlike, *table[30:]]), content="unknown").splitlines()
    assert [line for line in unlike[-4:] if line not in kept] == []


def test_a_run_keeps_its_error_that_a_later_run_has_printed_too() -> None:
    """The older run would read as one without the error."""
    ran = "\n".join([*FILLER[:20], "ERROR: could not write data/out.bin", *FILLER[20:]])
    view = build_view(
        [user("a"), assistant(None, "1"), result("1", ran), assistant(None, "2"), result("2", ran), user("b")]
    )
    message, command = view.messages[2], shell_commands.parse_command("./export.sh || true")
    held = identifiers.find_facts(message, None)
    shown = StubWriter(PromptIndex(view), StubLimits()).write_stub(message, held, command=command, content="other")
    assert "ERROR: could not write data/out.bin" in shown.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "a.c:41:17: Fehler: \u00bbbetrag\u00ab nicht deklariert",
        "10:00:04 FEHLER 5 (0x00000005) Datei kopieren: Zugriff verweigert",
        "a.c:41:17: erreur: \u00ab betrag \u00bb non d\u00e9clar\u00e9",
        "a.c:41:17: \u043e\u0448\u0438\u0431\u043a\u0430: \u00abbetrag\u00bb \u043d\u0435",
        "a.c:41:17: \u9519\u8bef\uff1a\u2018betrag\u2019\u672a\u58f0\u660e",
        "\u30a8\u30e9\u30fc: \u63a5\u7d9a\u3067\u304d\u307e\u305b\u3093",
        "\u062e\u0637\u0623: \u0641\u0642\u062f \u0627\u0644\u0627\u062a\u0635\u0627\u0644",
    ],
)
def test_an_error_line_in_another_language_stays(line: str) -> None:
    words = [f"\u00fcber {'x' * n} wird {'y' * (n % 5)} geschrieben" for n in range(40)]
    assert line in stub("\n".join([*words[:20], line, *words[20:]]), content="unknown").splitlines()


def test_many_error_lines_are_the_first_and_the_last_ones() -> None:
    errors = [f"error: number{'x' * n}" for n in range(20)]
    kept = [line for line in stub("\n".join(["start", *errors])).splitlines() if line.startswith("error")]
    assert kept == errors[:4] + errors[-4:]


def test_lines_that_a_later_result_refers_to_stay() -> None:
    view = build_view([user("a"), assistant(None, "1"), result("1", "\n".join(FILLER)), user("b")])
    text = StubWriter(PromptIndex(view), StubLimits()).write_stub(
        view.messages[2], identifiers.find_facts(view.messages[2], None), [(5, 8)], content="view"
    )
    assert text.splitlines()[1:] == [FILLER[0], "[... 4 lines]", *FILLER[5:8], "[... 52 lines]"]


def test_a_line_that_a_later_result_refers_to_stays_to_its_end() -> None:
    lines = [f"line {n} {'of a text ' * (50 if n in (20, 40) else 1)}end" for n in range(60)]
    view = build_view([user("a"), assistant(None, "1"), result("1", "\n".join(lines))])
    message, writer = view.messages[2], StubWriter(PromptIndex(view), StubLimits())
    stub = writer.write_stub(message, identifiers.find_facts(message, None), [(18, 30)], content="other").split("\n")
    assert lines[20] in stub
    assert lines[40] not in stub


def test_the_older_of_two_copies_is_shortened() -> None:
    text = "\n".join(["head", *FILLER, "the id is order_4711 here"])
    view = build_view(
        [user("a"), assistant(None, "1"), result("1", text), assistant(None, "2"), result("2", text), user("b")]
    )
    writer = StubWriter(PromptIndex(view), StubLimits())
    newer = writer.write_stub(view.messages[4], identifiers.find_facts(view.messages[4], None), content="view")
    older = writer.write_stub(view.messages[2], identifiers.find_facts(view.messages[2], None), content="view")
    assert "order_4711" not in newer, "it stands in the older copy still"
    assert "order_4711" in older, "now it would stand nowhere else"


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=60), max_size=40), CONTENTS)
def test_every_kept_line_and_name_was_in_the_result(lines: list[str], content: ContentKind) -> None:
    text = "\n".join(lines)
    there = set(text.splitlines())
    for line in stub(text or "x", content=content).splitlines()[1:]:
        if line.startswith("[also there: ") and line not in there:
            assert all(name in text for name in line[13:-1].partition("; ")[0].split(" "))
        elif line not in there and text:
            assert re.fullmatch(r"\[\.\.\. \d+ lines\]", line), line


def test_the_rough_size_is_of_the_order_of_the_stub() -> None:
    text = "\n".join(["Running", *FILLER, "FAILED tests/a.py::test_b", *FILLER])
    view = build_view([user("a"), assistant(None, "1"), result("1", text)])
    assert len(stub(text)) <= estimate_stub_chars(view.messages[2]) <= len(text)


def test_a_gap_no_longer_than_its_mark_stays() -> None:
    """A blank line between two imports, as editors number it; two of them are as long as the mark."""
    text = "\n".join(["1\tpackage a", "2\t", 'import "fmt"', "3\t", "4\t", "", 'import "os"', *FILLER])
    kept = stub(text, content="view").splitlines()[1:]
    assert kept[:7] == text.splitlines()[:7]
    assert kept[7] == "[... 60 lines]"
    lines = ["a" * 13, "b" * 14]
    held = {1}
    keep_short_gaps([lines[0], "kept", lines[1]], held)
    assert held == {0, 1}, "13 characters are as many as the mark has"


LINES = st.lists(
    st.sampled_from([*FILLER[:3], "see src/a.py", "id_7 and id_8", "an Error: id_7", "import os", "", "x" * 401])
)


CODE = (
    "    65\u2192func runReview(path string) error {",
    '   462\u2192\treturn nil, errors.New("session not found")',
    "    73\t\t\texpectedError: parse,",
    "        except (TypeError, ValueError) as error:",
    "            raise exceptions.ValidationError(",
    "559:class Http404(Exception):",
    "cmd/rewind_test.go:530:\t\tt.Error(expected)",
    "0499dba log error when marshalling fails",
    "  error: string;",
    "LOG_LEVELS = (DEBUG, INFO, ERROR, CRITICAL)",
    "        logger.log(Level.ERROR, message)",
)
REPORTS = (
    "ValueError: no such thing",
    "java.lang.IllegalStateException: no such thing",
    "Caused by: jakarta.mail.SendFailedException: no such thing",
    "E       AssertionError: assert 1 == 2",
    "FAILED tests/a.py::test_b",
    "--- FAIL: TestRewind (0.01s)",
    "Traceback (most recent call last):",
    "panic: runtime error: index out of range",
    "    23\u2192error: invalid sha1 pointer",
    "fatal: ambiguous argument",
    "error[E0308]: mismatched types",
    "src/a.ts(3,4): error TS2304: no such name",
    "src/a.c:3:4: fatal error: a.h",
    "2026/01/02 03:04:05 [error] 12#0: connect() failed",
    "ts=2026-01-02 level=error msg=refused",
    '{"level": "error", "msg": "refused"}',
    '{"level":50,"time":1717000000041,"msg":"refused"}',
    "E0612 10:00:41.000000       1 pool.go:88] connection to db-1.internal:5432 refused",
    "2026-01-02T03:04:05Z E0612 10:00:41.000000       1 pool.go:88] refused",
    "2026-11-25T09:12:31Z ERROR pool exhausted: 40/40 connections in use",
    "2026-11-25 02:40:11,204 [worker-3] CRITICAL batch 1040 was lost",
    "[ERROR] upstream timed out",
    "00:40:00 [ERR] the queue is full",
    "checkout-api-7d9f8b6c4-7mngb   0/1     CrashLoopBackOff   20 (12m ago)   3d",
    "      Reason:       OOMKilled",
    "ls: cannot access 'a.txt': No such file or directory",
)


@pytest.mark.parametrize("content", ["view", "other"])
def test_of_a_file_or_a_search_reported_errors_stay_and_code_that_names_one_does_not(
    content: ContentKind,
) -> None:
    def kept(line: str, content: ContentKind) -> bool:
        return line in stub("\n".join(["head", *FILLER, line, *FILLER]), content=content).splitlines()

    assert [line for line in CODE if kept(line, content)] == []
    assert [line for line in REPORTS if not kept(line, content)] == []
    assert [line for line in (*CODE[:2], *CODE[3:], *REPORTS) if not kept(line, "unknown")] == [], "who knows what ran"
    assert [
        line for line in (*CODE[:2], *CODE[3:]) if line not in run("\n".join(["head", *FILLER, line, *FILLER]))
    ] == []


@given(
    st.integers(0, 60),
    st.sampled_from(["{}", "price {} EUR", '{{"price": {}}}', "<td>{}</td>", "|{}"]),
    st.integers(1, 12),
)
def test_a_long_line_shows_no_half_of_a_number(offset: int, form: str, digits: int) -> None:
    numbers = [str(10**digits + 7 * n) for n in range(120)]
    line = "x" * offset + " " + " ".join(form.format(number) for number in numbers)
    shown = show_line(line)
    assert set(re.findall(r"\d+", shown.replace(found := re.findall(r"\[\.{3} \d+ characters\]", shown)[0], " "))) <= {
        *numbers
    }
    assert len(shown) - len(found) + int(re.findall(r"\d+", found)[0]) == len(line), "the count is exact"
    assert len(shown) <= 300 + len(found)


def test_only_the_final_state_of_a_progress_bar_counts() -> None:
    steps = "\r".join(f"epoch 1: {n}/100 loss={n + 1}.125" for n in range(101))
    text = f"Loading data\n{steps}\nbest checkpoint runs/2026/ckpt-00042.pt\n{steps}\n" + "\n".join(FILLER)
    assert "ckpt-00042.pt" in run(text)
    assert "57/100" not in run(text)
    windows = "\r\n".join(["Loading data", *FILLER, "best checkpoint runs/2026/ckpt-00042.pt", *FILLER])
    assert "ckpt-00042.pt" in run(windows)


def test_a_stub_has_no_colours_and_names_as_they_are_shown() -> None:
    head = ["\x1b[1mStarting\x1b[0m the import", *FILLER, "at \x1b[32m/srv/\x1b[1mload.py\x1b[0m:12"]
    text = "\n".join([*head, '\x1b[0;31mValueError\x1b[0m: time data "31.03.2024" is odd', *FILLER])
    shown = run(text, "python load.py")
    assert shown.splitlines()[1] == "Starting the import"
    assert 'ValueError: time data "31.03.2024" is odd' in shown
    assert "[also there: /srv/load.py:12" in shown
    assert "\x1b" not in shown


@given(LINES, st.lists(st.tuples(LINES, CONTENTS), min_size=1, max_size=4))
def test_a_stub_is_the_same_whether_or_not_its_result_was_looked_at_before(
    lines: list[str], turns: list[tuple[list[str], ContentKind]]
) -> None:
    """Facts remembered of a result depend on its text alone, whatever stood around it when it was first seen."""
    values = [user("a"), assistant(None, "1"), result("1", "\n".join(["head", *lines])), user("b")]
    known = build_view(values).messages[2]
    for others, content in turns:
        fresh = build_view([*values, user("\n".join(others))])
        stubs = [
            StubWriter(PromptIndex(fresh), StubLimits()).write_stub(
                message, identifiers.find_facts(message, None), content=content
            )
            for message in (known, fresh.messages[2])
        ]
        assert stubs[0] == stubs[1]
        assert estimate_stub_chars(known) == estimate_stub_chars(fresh.messages[2])


def run(text: str, command: str = "make test", before: str = "a prompt") -> str:
    view = build_view([user(before), assistant(None, "1"), result("1", text), assistant("I see."), user("Go on")])
    message = view.messages[2]
    return StubWriter(PromptIndex(view), StubLimits()).write_stub(
        message, identifiers.find_facts(message, None), command=shell_commands.parse_command(command), content="other"
    )


@pytest.mark.parametrize(
    "one", [one for one in RUNS if one.must and len(one.output) > 300], ids=lambda one: f"{one.runner}: {one.command}"
)
def test_t4_a_stub_keeps_how_a_run_ended_and_why(one: Run) -> None:
    text = run(one.output, one.command or "make test")
    plain = re.sub(r"\x1b\[\d*m", "", text)
    assert [part for part in one.must if part not in plain] == []


def test_t4_a_failed_run_never_reads_as_a_success() -> None:
    for one in RUNS:
        if one.verdict == "failed":
            text = run(one.output, one.command or "make test", before=one.output)
            again = read_text_outcome(text.partition("\n")[2], shell_commands.parse_command(one.command or "make test"))
            assert again.verdict != "succeeded", one


def test_t4_the_last_lines_that_say_something_stay() -> None:
    kept = run("\n".join(["<returncode>0</returncode>", "<output>", "start", *FILLER, "one", "two", "three", "", "]"]))
    assert kept.splitlines()[1:-2] == [
        "<returncode>0</returncode>", "<output>", "start", "[... 60 lines]", "one", "two", "three",
    ]  # fmt: skip


def test_t4_an_output_in_a_json_object_is_shortened_by_its_own_lines() -> None:
    output = "\n".join(["collected 60 items", *FILLER, "E       assert 1 == 2", *FILLER, "=== 1 failed in 0.1s ==="])
    kept = run(json.dumps({"exit_code": 1, "output": output})).splitlines()[1:]
    assert kept[0] == '{"exit_code":1}'
    assert "E       assert 1 == 2" in kept
    assert kept[-1] == "=== 1 failed in 0.1s ==="


@pytest.mark.parametrize(
    ("front", "first"),
    [
        ("<returncode>0</returncode>\n<output>\nLinking the engine", "Linking the engine"),
        ('{\n  "name": "engine",', '  "name": "engine",'),
        ('[\n  {\n    "id": 4711,', '    "id": 4711,'),
        ("\n-----\nOutput:\nLinking the engine", "Linking the engine"),
    ],
)
def test_t5_the_first_line_is_one_that_says_something(front: str, first: str) -> None:
    assert first in stub("\n".join([front, *FILLER, *FILLER])).splitlines()[1:5]


def test_t6_names_are_listed_by_their_worth_with_how_many_more_there_are() -> None:
    rows = [f"-rw-r--r-- 1 me staff {40000 + n} Mar 12 09:{n:02} src/part_{n:02}.py" for n in range(50)]
    listed = stub("\n".join(["total 8", *rows]), keep=StubLimits(max_name_share=0.12)).splitlines()[-1]
    found = re.fullmatch(r"\[also there: (.*); (\d+) more\]", listed)
    assert found is not None
    assert all(re.fullmatch(r"src/part_\d\d\.py", name) for name in found[1].split())
    assert len(found[1].split()) + int(found[2]) == 150
    text = "\n".join(["head", *FILLER, "on 2024-03-12 the order_4711 of 98765 was in src/a.py", *FILLER])
    assert stub(text).splitlines()[-1] == "[also there: src/a.py order_4711 98765 2024-03-12]"


def test_a_word_that_only_looks_like_a_name_is_not_listed() -> None:
    head = ["Chunk ID: f96be1", "Wall time: 0.1234 seconds", "Process exited with code 0", "Original token count: 5123"]
    ruler = "_" * 20
    rows = [
        "Output:",
        "first",
        *FILLER,
        "..F.E",
        f"{ruler} a_name {ruler}",
        *FILLER,
        "6:from x import y",
        "7:b_name = 1",
    ]
    told = stub("\n".join([*head, *rows, *FILLER]))
    assert "[also there: a_name 7:b_name]" in told


def test_line_numbers_with_leading_zeros_are_not_names() -> None:
    rows = [f"{n:05d}| result = compute_{n}(order, {4000 + n})" for n in range(1, 90)]
    shown = stub("\n".join(rows), keep=StubLimits(max_name_share=0.9), content="view")
    assert "compute_40" in shown
    assert "4040" in shown, "a number of the file is"
    assert "00040" not in shown


def test_what_a_passing_test_has_printed_is_no_error_in_the_stub_of_its_run() -> None:
    logged = (
        "stdout | v/a.test.mjs > cart > logs\nFAIL src/x.js\n",
        "stderr | v/a.test.mjs > cart > logs\nError: 1 failed\n",
    )
    total = " Test Files  1 passed (1)\n      Tests  31 passed (31)"
    for code, kept in ((0, False), (1, True)):
        text = "\n".join([f"Exit code: {code}", " RUN  v2.1.9 /app", "", *logged, *FILLER, total])
        view = build_view([user("a"), assistant(None, "1"), result("1", text), assistant("b"), user("c")])
        made = StubWriter(PromptIndex(view), StubLimits()).write_stub(
            view.messages[2],
            identifiers.find_facts(view.messages[2], None),
            command=shell_commands.parse_command("npx vitest run"),
            content="other",
        )
        assert ("Error: 1 failed" in made) is kept, code
        assert "1 passed (1)" in made
