from __future__ import annotations

import json

import pytest

from proxy.chat.media import PER_MEDIUM
from proxy.replay import atoms
from proxy.replay.atoms import WireTokenCounter
from tests.replay.recorded import assistant, assistant_call, messages, tool_result


def test_values_are_the_leaves_of_arguments_without_null_and_truth() -> None:
    arguments = json.dumps({"a": ["x", {"b": 1.5}], "c": None, "d": True, "e": 7})
    assert atoms.read_values(arguments) == ["x", "1.5", "7"]
    assert atoms.read_values("no JSON") == ["no JSON"]
    assert atoms.read_values("[" * 100_000) == ["[" * 100_000]


def test_atoms_name_something_and_plain_words_do_not() -> None:
    (message,) = messages(
        assistant_call(1, path="src/a.py", note="change nothing else", n=12345, tag="fix-it", to="a@b.c", x="v1")
    )
    assert atoms.find_atoms(message) == {"src/a.py", "12345", "a@b.c"}
    (message,) = messages(assistant_call(1, q="id=AB-12 and ٣٤٥٦x7"))
    assert atoms.find_atoms(message) == {"AB-12"}


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("a.py", True),
        ("see src/a.py now", True),
        ("xa.py", False),
        ("a.pyc", False),
        ("_a.py", False),
        ("éa.py", False),
        ("xa.py and (a.py)", True),
        ("", False),
    ],
)
def test_an_atom_is_found_only_as_a_whole_word(text: str, there: bool) -> None:
    assert atoms.has_atom("a.py", text) is there


def test_every_place_of_an_atom_is_found_even_where_it_overlaps_itself() -> None:
    assert list(atoms.find_atom_positions("./.", "./././.")) == [0, 2, 4]


def test_lines_lose_indentation_and_listing_numbers_and_short_lines_do_not_count() -> None:
    long = "a line that is long enough to be quoted"
    text = f"  12→    {long}\n 7\t{long} b\n3: {long} c\n4|{long} d\r\n99 {long}\nshort\n" + " " * 40
    assert list(atoms.split_lines(text)) == [long, f"{long} b", f"{long} c", f"{long} d", f"99 {long}"]
    assert list(atoms.split_lines("x" * 24)) == ["x" * 24]
    assert list(atoms.split_lines("12:" + "x" * 23)) == []


def test_the_text_of_a_message_includes_the_arguments_of_its_calls() -> None:
    told, called, brought = messages(assistant("a  b\n c"), assistant_call(1, path="p/q", n=1), tool_result(1, "r"))
    assert atoms.collect_text(told) == "a  b\n c"
    assert atoms.collapse_text(told) == "a b c"
    assert atoms.collect_text(called) == "\np/q\n1"
    assert atoms.collect_text(brought) == "r"


def test_a_message_is_measured_as_the_model_reads_it() -> None:
    told, called, brought = messages(assistant("hello"), assistant_call(7, path="p"), tool_result(7, "text"))
    assert atoms.render_message(told) == "<|assistant|>hello"
    assert atoms.render_message(brought) == "<|tool|>[c7]text"
    call = {"function": {"arguments": '{"path": "p"}', "name": "read"}, "id": "c7", "type": "function"}
    assert atoms.render_message(called) == "<|assistant|>" + json.dumps(call)
    ruler = WireTokenCounter(len)
    assert ruler(told) == len("<|assistant|>hello")
    image = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}
    (shown,) = messages({**tool_result(7, ""), "content": [{"type": "text", "text": "text"}, image]})
    assert ruler(shown) == ruler(brought) + PER_MEDIUM
    assert ruler.count_tools(None) == 0
    assert ruler.count_tools(b'[{"b":1,"a":2}]') == len('[{"a": 2, "b": 1}]')
    assert atoms.render_tools(b"[1") == "[1"


def test_texts_are_counted_once_and_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    ruler = WireTokenCounter(count)
    assert ruler.count_text("abc") == ruler.count_text("abc") == 3
    assert counted == ["abc"]
    monkeypatch.setattr(atoms, "MAX_REMEMBERED_CHARS", 5)
    ruler.count_text("defg")
    ruler.count_text("abc")
    assert counted == ["abc", "defg", "abc"]
