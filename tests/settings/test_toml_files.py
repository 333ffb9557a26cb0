"""TOML files are read with the line of each key, and their errors name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.settings.toml_files import KeyPath, find_line, format_key_path, read_toml

TEXT = '''# a comment
port = 1
state.ask = "never"   # a dotted key

[limits]
body_mb = 2

[upstreams."main.one"]
models = [
    "a",
    "b",
]
note = """
port = 99
"""
proxy = ""
[[keys]]
name = "x"
[[keys]]
name = "y"
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("port",), 2),
        (("state", "ask"), 3),
        (("limits",), 5),
        (("limits", "body_mb"), 6),
        (("upstreams", "main.one", "models"), 9),
        (("upstreams", "main.one", "models", 1), 9),
        (("upstreams", "main.one", "proxy"), 16),
        (("keys", 1, "name"), 20),
    ],
)
def test_line_is_that_of_the_statement_that_sets_the_key(path: KeyPath, line: int) -> None:
    assert find_line(TEXT, path) == line


def test_line_of_a_missing_key_is_that_of_its_table() -> None:
    assert find_line(TEXT, ("limits", "other")) == 5


def test_line_of_a_key_that_is_nowhere_is_none() -> None:
    assert find_line(TEXT, ("host",)) is None
    assert find_line("", ("host",)) is None


def test_key_paths_are_written_with_dots_and_indices() -> None:
    assert format_key_path(("upstreams", "main", "models", 0)) == "upstreams.main.models[0]"


def test_reading_returns_the_tree_and_the_text(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("port = 1\n")
    assert read_toml(file) == ({"port": 1}, "port = 1\n")
    file.write_text("port = 1\n", "utf-8-sig")
    assert read_toml(file) == ({"port": 1}, "port = 1\n"), "an editor's mark in front is no part of the file"


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("port = 1\nhost = \n")
    with pytest.raises(ConfigError) as caught:
        read_toml(file)
    assert caught.value.line == 2
    assert str(caught.value).startswith(f"{file}:2: ")


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "a.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.toml"):
        read_toml(file)
