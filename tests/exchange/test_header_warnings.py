from __future__ import annotations

import pytest

from proxy.exchange import header_warnings
from proxy.exchange.header_warnings import find_warnings
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

POLICIES = ["rolling", "thrifty"]
WARNING = "x-context-warning"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("policy", "thrify", "x-context-policy: 'thrify' is none of rolling, thrifty"),
        ("policy", "Thrifty", "x-context-policy: 'Thrifty' is none of rolling, thrifty"),
        ("urgency", "loud", "x-context-urgency: 'loud' is none of off, gentle, firm"),
        ("reflect", "helpr", "x-context-reflect: 'helpr' is none of off, inline, helper"),
        ("pin", "tru", "x-context-pin: 'tru' is none of 1, true, yes, on, 0, false, no, off"),
        ("max-iterations", "ten", "x-context-max-iterations: 'ten' is no number from 1 on"),
        ("max-iterations", "0", "x-context-max-iterations: '0' is no number from 1 on"),
        ("max-iterations", "-3", "x-context-max-iterations: '-3' is no number from 1 on"),
        ("policy", "a\x1b\u00e4" + "b" * 99, f"x-context-policy: 'a??{'b' * 37}...' is none of rolling, thrifty"),
    ],
)
def test_a_value_that_says_nothing_is_named_with_what_is_allowed(name: str, value: str, told: str) -> None:
    assert find_warnings({name: value}, POLICIES) == (told,)


@pytest.mark.parametrize(
    "options",
    [{}, {"policy": "rolling"}, {"urgency": "Firm"}, {"reflect": "OFF"}, {"pin": "TRUE"}, {"pin": "0"},
     {"max-iterations": "12"}, {"policy": ""}, {"of-a-stage-of-mine": "anything"}],
)  # fmt: skip
def test_known_header_values_cause_no_warning(options: dict[str, str]) -> None:
    assert find_warnings(options, POLICIES) == ()


@pytest.mark.parametrize("stream", [True, False])
async def test_the_answer_names_a_mistyped_value_and_the_log_does_once(
    stream: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_warnings, "MAX_LOGGED_WARNINGS", 2)
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, policy="progressive") as proxy,
    ):
        agent = Agent(proxy, stream=stream)
        assert (await agent.say("Hello")).header(WARNING) is None
        for _ in range(2):
            found = await agent.say("Go on", b"x-context-urgency: loud", b"x-context-max-iterations: many")
            told = found.header(WARNING)
            assert told is not None
            assert "x-context-urgency: 'loud' is none of" in told
            assert "x-context-max-iterations: 'many'" in told
        assert "none of" in ((await agent.say("And?", b"x-context-policy: thrify")).header(WARNING) or "")
    said = [record.getMessage() for record in caplog.records if "is not understood" in record.getMessage()]
    assert len(said) == 2, "a client cannot fill the log with values of its own"
