"""The words of the replies; what the commands do is shown through the running proxy in test_inband.py."""

from __future__ import annotations

import pytest

from proxy.exchange.inband import is_reply
from proxy.operator import inband_commands
from proxy.operator.inband_commands import HELP
from tests.operator.agent import talking


async def test_every_reply_is_known_as_one_and_an_error_says_what_to_do() -> None:
    async with talking("thrifty") as talk:
        for line in ("/undo", "/messages", "/context show", "no command", "/message show none"):
            assert is_reply(await inband_commands.run_command(talk.parts, talk.tenant, "s", line))
        text = await inband_commands.run_command(talk.parts, talk.tenant, "s", "/message show none")
        assert "has no group 'none'" in text
        assert "List its groups." in text
        assert HELP in await inband_commands.run_command(talk.parts, talk.tenant, "s", "no command")
        assert "no session" in await inband_commands.run_command(talk.parts, "stranger", "s", "/undo")


async def test_a_list_is_a_table_with_tokens_and_status() -> None:
    async with talking("thrifty") as talk:
        head, *lines = (await inband_commands.run_command(talk.parts, talk.tenant, "s", "/message list 2")).splitlines()
        assert head.startswith("[context-proxy] group")
        assert len(lines) == 2
        assert all(" in " in line and "14" in line and "Prompt number" in line for line in lines)


async def test_calls_are_shown_and_a_long_reply_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking("thrifty") as talk:
        whole = await inband_commands.run_command(talk.parts, talk.tenant, "s", "/context show")
        assert '-> {"id":"call_000000000"' in whole
        monkeypatch.setattr(inband_commands, "MAX_REPLY_CHARS", 100)
        assert "cut here" in await inband_commands.run_command(talk.parts, talk.tenant, "s", "/context show")
