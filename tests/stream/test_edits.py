from __future__ import annotations

from proxy.stream.assemble import Answer
from proxy.stream.edits import Edits
from proxy.stream.sse import Event


def test_where_nothing_is_to_be_taken_out_the_bytes_stay() -> None:
    answer = Answer()
    edits = Edits(
        answer, withhold=False, headings=(), drop_usage=False, hidden=frozenset({"f"}), before=None, limit=1000
    )
    data = b'{"choices":[{"index":0,"delta":{"content":"a"}}]}'
    out: list[bytes] = []
    assert not edits.take(Event(b"data: " + data + b"\n\n", data), out)
    assert out == [b"data: " + data + b"\n\n"]
    assert answer.text == "a"
