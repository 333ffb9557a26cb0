from __future__ import annotations

from proxy.replay import message_forms


def test_texts_are_found_at_any_depth() -> None:
    assert (
        message_forms.read_text([{"type": "text", "text": "a"}, "b", {"content": [{"text": "c"}]}, {"x": 1}])
        == "a\nb\nc"
    )
    assert message_forms.read_text(None) == ""


def test_calls_in_a_row_are_one_message_and_a_result_ends_it() -> None:
    items = [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "text"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "output_text", "text": "done"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
    ]
    first, result, last = message_forms.read_items(items)
    assert [one["function"]["name"] for one in first["tool_calls"]] == ["f", "g"]
    assert (result, last) == (
        {"role": "tool", "tool_call_id": "b", "content": "done"}, {"role": "assistant", "content": "Well."},
    )  # fmt: skip


def test_older_objects_of_langchain_are_read_too() -> None:
    old = {"type": "ai", "data": {"content": "Hi.", "additional_kwargs": {"tool_calls": [{"id": "a"}]}}}
    assert list(message_forms.read_chat([{"type": "human", "data": {"content": "Hello"}}, old, 7])) == [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi.", "tool_calls": [{"id": "a"}]},
    ]  # fmt: skip
