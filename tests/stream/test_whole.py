from __future__ import annotations

from proxy.stream.whole import join_rounds, read_round

CALL = b'{"id":"a","type":"function","function":{"name":"recall","arguments":"{}"}}'
THEIRS = b'{"id":"b","type":"function","function":{"name":"read","arguments":"{}"}}'
BODY = b'{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[%s]},"finish_reason":"tool_calls"}]}'  # noqa: E501


def test_calls_of_ours_are_found_and_taken_out() -> None:
    hidden = frozenset({"recall"})
    assert read_round(BODY % CALL, hidden).goes_on
    assert not read_round(BODY % (CALL + b"," + THEIRS), hidden).goes_on
    assert join_rounds([BODY % (CALL + b"," + THEIRS)], hidden) == BODY % THEIRS
