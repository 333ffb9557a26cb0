from __future__ import annotations

import json
from itertools import pairwise, takewhile
from typing import Any

import pytest

from proxy import CompressedPrompt, compress
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.dialects.completions.request import read_message
from proxy.errors import ConfigError, NotManaged


def conversation(turns: int) -> list[dict[str, Any]]:
    """An agent that lists one folder after the other."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Find the fault."},
    ]  # fmt: skip
    for turn in range(turns):
        call = {"name": "list_directory", "arguments": json.dumps({"path": f"src/part{turn}"})}
        asked = {"id": f"c{turn}", "type": "function", "function": call}
        listed = "\n".join(f"src/part{turn}/module_{n}.py" for n in range(150))
        messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": listed})
    return messages


def test_messages_are_shortened_at_once_where_no_cache_holds_them() -> None:
    messages = conversation(30)
    made = compress(messages, model="gpt-5")
    assert isinstance(made, CompressedPrompt)
    assert made.tokens_after < 0.6 * made.tokens_before
    assert [m["role"] for m in made.messages] == [m["role"] for m in messages]
    assert made.messages[:2] == messages[:2]
    assert made.messages[-1] == messages[-1]
    assert "shorten_results" in made.stages
    assert made.changed == tuple(n for n, message in enumerate(messages) if made.messages[n] != message)


def test_a_later_call_with_the_state_repeats_its_edits_byte_for_byte() -> None:
    first = compress(conversation(30), model="gpt-5")
    later = compress(conversation(32), model="gpt-5", state=first.state)
    assert later.messages[: len(first.messages)] == first.messages
    assert later.tokens_after > first.tokens_after


def test_a_short_conversation_comes_back_as_it_is() -> None:
    messages = conversation(1)
    made = compress(messages)
    assert made.messages == messages
    assert (made.changed, made.tokens_after) == ((), made.tokens_before)


def test_compress_counts_tool_definitions() -> None:
    tool = {"type": "function", "function": {"name": "list_directory", "description": "Lists a folder. " * 20}}
    plain, with_tools = compress(conversation(1)), compress(conversation(1), tools=[tool])
    assert with_tools.tokens_before > plain.tokens_before + 50


def test_a_policy_is_chosen_by_name_and_adds_no_text_of_its_own() -> None:
    made = compress(conversation(30), policy="passthrough")
    assert made.messages == conversation(30)
    rolling = compress([*conversation(30), {"role": "user", "content": "Well?"}], policy="rolling")
    assert "STATE" not in json.dumps(rolling.messages)
    with pytest.raises(ConfigError):
        compress(conversation(1), policy="nobody")


def test_messages_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(NotManaged):
        compress([{"content": "no role"}])


PICTURE = {"type": "image_url", "image_url": {"url": "https://x/wanted.png"}}
LEFT_OUT = {"type": "text", "text": "[older image left out]"}


def screen_steps(count: int) -> list[list[dict[str, Any]]]:
    """The histories of an agent that works on a screen: each step adds a call and a screenshot. One picture is the
    user's."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "As here:"}, PICTURE]}]
    histories = []
    for step in range(count):
        arguments = json.dumps({"action": "click", "coordinate": [step, step]})
        asked = {"id": f"c{step}", "type": "function", "function": {"name": "computer", "arguments": arguments}}
        screen = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{step:04}"}}
        shown = [{"type": "text", "text": "clicked"}, screen]
        messages.append({"role": "assistant", "content": "I click.", "tool_calls": [asked]})
        messages.append({"role": "tool", "tool_call_id": f"c{step}", "content": shown})
        histories.append([*messages])
    return histories


def price(prompts: list[list[dict[str, Any]]]) -> float:
    """The cost of these prompts in input tokens, with a cache of prefixes and Anthropic's prices."""
    count, total, before = TokenCounter(estimate_text_tokens), 0.0, list[dict[str, Any]]()
    for prompt in prompts:
        sizes = [count(read_message(json.dumps(message).encode())) for message in prompt]
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, before, strict=False))
        served = sum(sizes[: sum(1 for _ in pairs)])
        total += 0.1 * served + 1.25 * (sum(sizes) - served)
        before = prompt
    return total


def slide(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with all but the last three screenshots left out."""
    tools = [n for n, message in enumerate(messages) if message["role"] == "tool"][:-3]
    return [{**m, "content": [m["content"][0], LEFT_OUT]} if n in tools else m for n, m in enumerate(messages)]


@pytest.mark.parametrize(("steps", "in_batches", "sliding"), [(40, 0.68, 1.14), (80, 0.45, 0.74)])
def test_old_screenshots_leave_in_batches_and_the_last_three_never(
    steps: int, in_batches: float, sliding: float
) -> None:
    """The shares are those of docs/concepts/what-a-shortened-result-keeps.md."""
    histories = screen_steps(steps)
    made = compress(histories[0], model="claude-sonnet-4-5")
    prompts = [made.messages]
    for messages in histories[1:]:
        made = compress(messages, model="claude-sonnet-4-5", state=made.state)
        prompts.append(made.messages)
        assert made.messages[0] == messages[0]
        assert made.messages[-6:] == messages[-6:]
    moved = sum(after[: len(before)] != before for before, after in pairwise(prompts))
    assert 2 <= moved <= steps // 8
    assert made.messages[2] == slide(histories[-1])[2]
    direct = price(histories)
    assert price(prompts) / direct == pytest.approx(in_batches, abs=0.01)
    assert price([slide(one) for one in histories]) / direct == pytest.approx(sliding, abs=0.01)
