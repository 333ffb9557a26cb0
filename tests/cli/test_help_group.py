from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from proxy.cli.main import app


@pytest.mark.parametrize("words", [(), ("sessions",), ("context",)])
def test_a_list_of_commands_has_each_description_in_one_piece(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "400"}).output
    group: Any = get_command(app)
    for word in words:
        group = group.commands[word]
    for command in group.commands.values():
        assert " ".join((command.help or "").split("\n\n")[0].split()) in shown
