from __future__ import annotations

import msgspec
import pytest

from proxy.operator.response_models import EditReason, PromptMessage
from proxy.sessions.operator_decisions import SessionSettings


def test_settings_survive_json_and_unset_ones_are_left_out() -> None:
    assert msgspec.json.encode(SessionSettings()) == b"{}"
    made = SessionSettings(policy="rolling", window=0, withdrawn=["n1"])
    assert msgspec.json.decode(msgspec.json.encode(made), type=SessionSettings) == made
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"unknown":1}', type=SessionSettings)


def test_a_message_that_is_unchanged_has_no_why_in_its_json() -> None:
    plain = PromptMessage(0, "a", "g", "user", "in", 3, content={"role": "user"})
    assert set(msgspec.to_builtins(plain)) == {"index", "id", "group", "role", "status", "tokens", "content"}
    why = msgspec.structs.replace(plain, status="out", why=EditReason("close_window", "old", "gone", 3, 0))
    assert msgspec.to_builtins(why)["why"]["stage"] == "close_window"
