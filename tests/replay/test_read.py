from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.replay.read import count_requests, read_conversations
from tests.replay.recorded import assistant, assistant_call, make_line, user

TOOLS = [{"type": "function", "function": {"name": "read"}}]


def read(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    return file


def test_each_line_is_a_conversation_and_blank_lines_are_none(tmp_path: Path) -> None:
    file = read(tmp_path, make_line(user("a"), assistant("b"), tools=TOOLS) + "\n\n" + make_line(user("c")) + "\n")
    first, second = read_conversations(file)
    assert (first.id, first.source) == ("one", "runs.jsonl")
    assert first.messages == (b'{"role": "user", "content": "a"}', b'{"role": "assistant", "content": "b"}')
    assert first.tools is not None
    assert b"read" in first.tools
    assert (second.tools, second.times, second.shared_messages) == (None, (), 0)
    assert count_requests([file, file]) == 2


@pytest.mark.parametrize("tools", ["", ', "tools": null', ', "tools": []'])
def test_missing_null_and_empty_tools_are_read_as_none(tmp_path: Path, tools: str) -> None:
    file = read(tmp_path, '{"messages": [{"role": "user", "content": "a"}]' + tools + "}")
    (found,) = read_conversations(file)
    assert (found.tools, found.id) == (None, "line 1")


def test_an_id_may_be_a_number(tmp_path: Path) -> None:
    (found,) = read_conversations(read(tmp_path, '{"id": 7, "messages": [{"role": "user", "content": "a"}]}'))
    assert found.id == "7"


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ("no JSON at all", "line"),
        ("[1, 2]", "line"),
        ('{"id": 1}', "messages"),
        ('{"messages": []}', "messages"),
        ('{"messages": "hello"}', "messages"),
        ('{"messages": [{"content": "a"}]}', "messages[0]"),
        ('{"messages": [{"role": "user", "content": "a"}, 7]}', "messages[1]"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": {"a": 1}}', "tools"),
        ('{"messages": ' + "[" * 100_000, "line"),
    ],
)
def test_a_line_that_is_not_a_conversation_is_reported_with_file_and_line(tmp_path: Path, wrong: str, key: str) -> None:
    file = read(tmp_path, make_line(user("a"), assistant_call(1)) + "\n" + wrong + "\n")
    with pytest.raises(ConfigError) as told:
        count_requests([file])
    assert (told.value.key, told.value.line, told.value.source) == (key, 2, str(file))
    assert len(str(told.value.value)) <= 40


def test_a_file_that_is_not_text_is_reported_too(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"runs\.jsonl:1: line"):
        count_requests([file])


def test_a_folder_an_empty_list_and_a_file_that_cannot_be_read_are_distinguished(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    with pytest.raises(ConfigError, match="this one is an empty list"):
        list(read_conversations(empty))
    with pytest.raises(ConfigError, match=r"this is a folder. Name the files in it, as in .*/\*.jsonl"):
        list(read_conversations(tmp_path))
    with pytest.raises(ConfigError, match="a file that can be read"):
        list(read_conversations(Path("/proc/self/mem")))  # its first page is nobody's


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a file that is there"):
        count_requests([tmp_path / "none.jsonl"])


def test_exported_times_are_those_of_the_messages(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    file = tmp_path / "a.jsonl"
    for given, expected in (([5.0, 9.5], (5.0, 9.5)), ([9, 5], ()), ([5], ()), ("soon", ()), (None, ())):
        file.write_text(json.dumps({"id": "a", "messages": messages, "tools": [{}], "times": given}))
        [one] = read_conversations(file)
        assert one.times == expected
