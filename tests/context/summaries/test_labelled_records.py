"""Detection of results that are records; the kept part of a record has its labels."""

from __future__ import annotations

import json

import pytest

from proxy.chat.message import Message
from proxy.context.analysis.identifiers import PromptIndex, find_text_facts
from proxy.context.analysis.shell_commands import EDIT_CALL, PLAIN_CALL, TOOL_RUN
from proxy.context.summaries.labelled_records import is_record, select_lines
from proxy.context.summaries.stub import StubLimits, StubWriter
from tests.conversations import build_view, make_message, result, user

CUSTOMER = {
    "customer": "C4755",
    "tier": "silver",
    "card_on_file": "8841",
    "orders": [{"order": f"O-{n:05d}", "amount_cents": 1000 + 37 * n, "items": n} for n in range(20)],
}
JSON = json.dumps(CUSTOMER, indent=1)
MANIFEST = "\n".join(f"key_{n}: value-{n * 7}" for n in range(40))
TABLE = "\n".join([f"{'NODE':<16}{'ADDRESS':<18}STATE", *(f"node-{n:<11}10.0.0.{n:<11}ready" for n in range(30))])
CODE = "\n".join(f"def function_{n}(value):\n    if value > {n}:\n        return compute(value)\n" for n in range(10))


def make_result(text: str) -> Message:
    return make_message(result("1", text))


FOREIGN = "\n".join(
    (
        *(
            "\u00d6ffnung: 9-17",
            "\u041a\u043b\u0438\u0435\u043d\u0442: \u041e\u041e\u041e",
            "\u0413\u043e\u0440\u043e\u0434: \u0422\u0443\u043b\u0430",
        ),
        *(
            "\u5ba2\u6237\uff1a\u738b\u82b3",
            "\u57ce\u5e02: \u6df1\u5733",
            "\u0627\u0644\u0639\u0645\u064a\u0644: \u0644\u064a\u0644\u0649",
        ),
    )
)


@pytest.mark.parametrize("text", [JSON, MANIFEST, TABLE, FOREIGN])
def test_json_fields_and_tables_are_records(text: str) -> None:
    assert is_record(make_result(text), PLAIN_CALL)


LISTING = "\n".join(f"{n:5d}\tx = {n}" for n in range(20))


@pytest.mark.parametrize("text", [CODE, "a: 1\nb: 2", "Some words.\n" * 20, "error: no\n" * 20, LISTING])
def test_code_prose_and_short_texts_are_none(text: str) -> None:
    assert not is_record(make_result(text), PLAIN_CALL)


def test_output_of_a_command_and_the_echo_of_an_edit_are_not_records() -> None:
    assert not is_record(make_result(MANIFEST), TOOL_RUN)
    assert not is_record(make_result(MANIFEST), EDIT_CALL)


def test_lines_stay_from_the_first_on_while_there_is_room() -> None:
    lines = MANIFEST.split("\n")
    assert select_lines(lines, sum(len(line) + 1 for line in lines[:5])) == set(range(5))
    assert select_lines(["a" * 400, "b: 1"], 100) == {1}


def test_the_stub_of_a_record_has_labels_and_no_bare_names() -> None:
    values = [user("x"), result("1", JSON)]
    view = build_view(values)
    one = view.messages[1]
    told = StubWriter(PromptIndex(view), StubLimits(max_name_share=0.15)).write_stub(
        one, find_text_facts(one.text), content="view", message_id="abcdefghij"
    )
    assert '"tier": "silver"' in told
    assert '"order": "O-00000",\n   "amount_cents": 1000,' in told
    assert "also there" not in told
    assert len(told) < 0.4 * len(JSON)


@pytest.mark.parametrize(
    ("line", "is_cells"),
    [
        ("O-00001  paid    1,037", True),
        ("O-00001\tpaid\t1,037", True),
        ("O-00001 | paid | 1,037 |", True),
        ("| O-00001 | paid on 3 May | 1,037 |", True),
        ("| O-00001 | 3 |", True),
        ("| | 3 |", True),
        ("|O-00001|" + "a long text" * 9 + "|", False),
        ("| O-00001 |", False),
        ("The order was paid on time.", False),
        ("O-00001  paid", False),
    ],
)
def test_rows_of_a_table_are_recognised_by_their_cells(line: str, is_cells: bool) -> None:
    assert is_record(make_message(result("1", "\n".join([line] * 10))), PLAIN_CALL) is is_cells


@pytest.mark.parametrize(
    "line", [" " * 1_000_000 + "x", "\t" * 1_000_000, "a" + "  b" * 300_000 + "\t\tx", "[" * 1_000_000 + "x"]
)
def test_a_long_line_is_read_in_linear_time(line: str) -> None:
    assert not is_record(make_message(result("1", "\n".join([line] * 8))), PLAIN_CALL)


def test_a_field_has_its_label_at_the_beginning() -> None:
    """Blanks behind a word took 40 times the time of other text: 0.4 s a MB, in which no other request was read."""
    lines = [f"key{n}{' ' * 400}: value" for n in range(10)]
    assert not is_record(make_result("\n".join(lines)), PLAIN_CALL)
    assert is_record(make_result("\n".join(" ".join(line.split()) for line in lines)), PLAIN_CALL)
