"""Readers of untrusted bytes, each as a function that raises if something is wrong, and a generator of such bytes.

An input is made from samples that make sense and a few changes: bytes flipped, cut out, doubled, a piece of another
sample, or one of the words that mean something to the reader. A coverage-guided fuzzer can be given the same functions:
`atheris.Setup(sys.argv, TARGETS["sse"].read)`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from proxy.chat.message import Request
from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.dialects.completions.request import read_request, write_request
from proxy.errors import NotManaged, ProxyError
from proxy.notes import state_block
from proxy.notes.state_block import HEADINGS
from proxy.settings.load import Settings
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.block_filter import remove_blocks
from proxy.stream.completions_answer import AssembledAnswer
from proxy.stream.completions_body import join_rounds, read_round
from proxy.stream.completions_relay import CompletionsRelay
from proxy.stream.sse import SseParser
from proxy.upstream.headers import build_request_headers, build_response_headers
from proxy.web.cors import BrowserRules
from proxy.web.limits import check_head
from tests.context.agent import load_policy
from tests.conversations import INPUTS, PLAIN_MODEL, assistant, encode_json, result, system, user
from tests.faults.test_content import ODD
from tests.stream.test_fuzz import PIECES, STREAMS


@dataclass(frozen=True)
class Target:
    """read: what is tried. samples and words: what inputs are made of. made: a sample drawn anew for each input."""

    read: Callable[[bytes], None]
    samples: tuple[bytes, ...]
    words: tuple[bytes, ...]
    made: Callable[[random.Random], bytes] | None = None


def read_stream(data: bytes) -> None:
    """Cut anyhow a stream has the same events, and they account for every byte."""
    cut = data[0] if data else 0
    whole, parted = SseParser(), SseParser()
    expected = whole.feed(data) + whole.flush()
    found = parted.feed(data[:cut]) + parted.feed(data[cut:]) + parted.flush()
    assert b"".join([event.raw for event in found]) == b"".join([event.raw for event in expected]) == data
    # Where a cut stands between CR and LF, the LF is an event of its own that says nothing.
    assert [e.data for e in found if e.data is not None] == [e.data for e in expected if e.data is not None]


def relay_stream(data: bytes) -> None:
    """Whatever comes is passed on; without options byte for byte."""
    options = data[0] if data else 0
    withhold, drop, hide = bool(options & 1), bool(options & 2), bool(options & 4)
    relay = CompletionsRelay(
        RelayOptions(
            withheld=HEADINGS if withhold else (), drop_usage=drop, hidden_tools=frozenset({"recall"} if hide else ())
        )
    )
    out = relay.feed(data[: len(data) // 2]) + relay.feed(data[len(data) // 2 :]) + relay.end()
    out += (relay.end_answer() if relay.goes_on else b"") + relay.terminal
    assert withhold or drop or hide or out == data
    relay.answer.build_message()


def read_whole(data: bytes) -> None:
    """An answer's body: what is taken out of it, and what it is taken for."""
    visible, _ = remove_blocks(data)
    found = AssembledAnswer.from_body(visible)
    if found is not None:
        found.build_message()
    read_round(data, frozenset({"recall"}))
    join_rounds([data, data], frozenset({"recall"}))


def _request(data: bytes) -> Request | None:
    try:
        found = read_request(data)
    except NotManaged:
        return None
    again = read_request(write_request(found, [m.raw for m in found.messages]))
    assert [m.raw for m in again.messages] == [m.raw for m in found.messages]
    return found


def read_chat(data: bytes) -> None:
    """A request's body is read or is not; one that is read is written again as it came."""
    _request(data)


@cache
def _policies() -> tuple[Any, ...]:
    return tuple(
        load_policy(name) for name in ("thrifty", "rolling", "importance", "summarize", "reflective", "hierarchical")
    )


def plan_chat(data: bytes) -> None:
    """A request that was read can be planned, twice with what was decided before, and what comes of it can be read."""
    found = _request(data)
    if found is None:
        return
    policy = _policies()[len(data) % len(_policies())]
    session = BranchState()
    for now in (0.0, 1000.0):
        plan = rewrite(found, session, policy, PLAIN_MODEL, now, INPUTS)
        if plan.messages is not None:
            read_request(write_request(found, plan.messages))
        session = session.after_sending(plan, now)


def _lines(data: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (line.partition(b":") for line in data.split(b"\n"))]


HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
"""RFC 9110 7.6.1, written down once more: what is tried is not asked what is right."""


def filter_headers(data: bytes) -> None:
    """No header of one connection travels further, none of ours either, and there is one Host and one length."""
    came = _lines(data)
    sent = build_request_headers(came, host=b"up", key="sk-of-the-proxy", length=7, identity=bool(len(data) & 1))
    names = [name for name, _ in sent]
    assert names.count(b"host") == names.count(b"content-length") == names.count(b"authorization") == 1
    assert not [n for n in names if n in HOP_BY_HOP or n == b"expect" or n.startswith(b"x-context-")]
    back = build_response_headers(came, "sk-of-the-proxy")
    assert not [n for n, _ in back if n in HOP_BY_HOP]
    assert not [v for _, v in back if b"sk-of-the-proxy" in v]


_BROWSERS = BrowserRules(Settings())


def check_names(data: bytes) -> None:
    """Host and Origin are refused with words of ours, or are names that only we can have."""
    headers = [(name.lower(), value) for name, value in _lines(data)]
    scope: dict[str, Any] = {"headers": headers, "path": "/api/x", "query_string": b"", "method": "POST"}
    try:
        check_head(scope, 65536)
        _BROWSERS.check_host(scope)
        _BROWSERS.check_origin(scope)
        _BROWSERS.check_content_type(scope)
    except ProxyError:
        return
    [host] = [value for name, value in headers if name == b"host"]
    assert b"evil" not in host.partition(b".localhost")[0], host


def find_blocks(data: bytes) -> None:
    """Return the rest of a text, and its blocks; a text without a heading stays as it is."""
    text = data.decode("utf-8", "replace")
    left, blocks = state_block.split_blocks(text)
    assert blocks or left == text
    for block in blocks:
        state_block.shorten_body(block.body, 100)


CHATS = (
    encode_json({"model": "m", "messages": [system(), user("Hé 1"), assistant(None, "c1"), result("c1", "x\n" * 300)]}),
    encode_json({"model": "m", "stream": True, "stream_options": {"include_usage": True}, "messages": [user("a")] * 3}),
    encode_json(
        {"messages": [m for n in range(9) for m in (user(f"{n}"), assistant("", "c"), result("c", "e" * 700))]}
    ),
    encode_json({"tools": [{"function": {"name": "run"}}], "messages": [user([{"type": "text", "text": "a"}])]}),
    *(body for body in ODD.values() if len(body) < 10_000),
)  # fmt: skip
JSON = (
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN", b"1e999", b"-0", b'"\\ud83d"', b"\\u0000",
    b"\xef\xbb\xbf",
    b'"role":"tool"', b'"role":"system"', b'"tool_calls":[{}]', b'"content":[{"type":"text"}]', b'"tool_call_id":"c1"',
    b'"messages":[]', b"[" * 1500, b"\xff", b'"stream_options":1', b'"content":', b'"function_call":{"name":"f"}',
    b"\\",
)  # fmt: skip
SAID = tuple(
    encode_json(one)
    for one in (
        *(system(), system(""), system([{"type": "text", "text": "a"}]), user("a"), user("long " * 300), user(None)),
        *(user([{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "b"}]), user([])),
        *(assistant("said"), assistant(None, "c1"), assistant("", "c1", "c2"), assistant(None, "c2"), assistant(None)),
        *(result("c1", "error: no such file\n" * 60), result("c1", ""), result("c2", [{"type": "text", "text": "x"}])),
        *(result("c9", "an orphan"), result("c2", "### STATE\nGoal: x\n"), assistant("### STATE\nGoal: y\n\n# Next")),
        *({"role": "developer", "content": "d"}, {"role": "critic", "content": {"a": 1}}, {"role": "tool"}),
        *({"role": "function", "name": "c1", "content": "f"}, {"role": "assistant", "function_call": {"name": "f"}}),
        *({"role": "assistant", "tool_calls": [{}]}, {"role": "assistant", "tool_calls": "c1", "content": 7}),
        *({"role": "user", "content": "\0", "name": None}, {"role": "assistant", "tool_calls": [], "refusal": "no"}),
    )
)


def talk(chance: random.Random) -> bytes:
    """Messages that make sense one by one, in an order that need not; now and then a byte is wrong."""
    body = b'{"model":"m","messages":[' + b",".join(chance.choices(SAID, k=1 + chance.randrange(24))) + b"]}"
    if chance.random() < 0.1:
        at = chance.randrange(len(body))
        body = body[:at] + chance.choice(JSON) + body[at + chance.randrange(2) :]
    return body


HEADS = (
    b"Host: localhost:8080\nAuthorization: Bearer a\nConnection: close, x-secret\nX-Secret: 1\nContent-Length: 3",
    b"host: 127.0.0.1\norigin: http://127.0.0.1\nsec-fetch-site: same-origin\ncontent-type: application/json",
    b"host: [::1]:8080\ntransfer-encoding: chunked\nTE: trailers\naccept-encoding: gzip\nx-context-key: k",
    b"host: evil.example\norigin: null\nauthorization: a\nauthorization: b\nexpect: 100-continue",
    b"host: a.localhost\nconnection: host, authorization, content-length\nproxy-authorization: x\nkeep-alive: 5",
)
FIELDS = (
    b"\n", b":", b"host", b"Host: evil.com", b"evil", b"localhost", b".localhost", b"[::1]", b"127.0.0.1", b"@",
    b"#", b"/",
    b"\r", b"\0", b" ", b"\t", b"connection: ", b"transfer-encoding", b"content-length", b"x-context-", b"Bearer ",
    b"\xff",
    b"origin: http://", b"null", b"sk-of-the-proxy", b",", b":99999", b"%", b"[", b"]", b"[1:", b"application/json",
)  # fmt: skip
BODIES = tuple(
    encode_json(
        {"choices": [{"index": n, "finish_reason": "stop", "message": m} for n, m in enumerate(found)], "usage": {}}
    )
    for found in (
        [assistant("### STATE\nGoal: x\n\nSaid.")],
        [assistant("a", "c1"), assistant(None, "c2", "c3")],
        [{**assistant("b"), "tool_calls": [{"id": "r", "function": {"name": "recall", "arguments": "{}"}}]}],
    )
)
TEXTS = (
    b"### STATE\nGoal: x\n- done\n\n# Next\ntext",
    "Hé\n```\n### STATE\nno\n```\n### STATE\nyes".encode(),
    b"## Step 1\n### State of things\n~~~\n### STATE",
)
MARKS = (
    b"### STATE",
    b"\n",
    b"```",
    b"~~~",
    b"#",
    b" ",
    b"\r\n",
    b"\t",
    b"\xc3",
    b"STATE",
    b"### ",
    b"\x0b",
    b"\xe2\x80\xa8",
)

TARGETS = {
    "sse": Target(read_stream, tuple(STREAMS), tuple(PIECES)),
    "relay": Target(relay_stream, tuple(STREAMS), tuple(PIECES)),
    "headers": Target(filter_headers, HEADS, FIELDS),
    "names": Target(check_names, HEADS, FIELDS),
    "chat": Target(read_chat, CHATS, JSON),
    "planner": Target(plan_chat, CHATS, JSON, talk),
    "answer": Target(read_whole, BODIES, JSON),
    "blocks": Target(find_blocks, TEXTS, MARKS),
}


def inputs(target: Target, count: int, chance: random.Random) -> Iterator[bytes]:
    """So many, the samples as they are among them."""
    draw, pick = chance.randrange, chance.choice
    yield from target.samples[:count]
    for _ in range(count - len(target.samples)):
        if target.made is not None:
            yield target.made(chance)
            continue
        data = bytearray(pick(target.samples))
        if len(data) > 1200:  # a part of a long one, which is read in less time
            start = draw(len(data) - 600)
            data = data[start : start + 600] if draw(4) else data
        for _ in range(1 + draw(5)):
            at, kind = draw(len(data) + 1), draw(6)
            if kind == 0:
                data[at:at] = pick(target.words)
            elif kind == 1:
                data[at : at + 1 + draw(30)] = pick(target.words)
            elif kind == 2:
                del data[at : at + 1 + draw(60)]
            elif kind == 3 and at < len(data):
                data[at] = draw(256)
            elif kind == 4:
                data[at:at] = data[at : at + 1 + draw(80)]
            else:
                other = pick(target.samples)
                start = draw(len(other) or 1)
                data[at:at] = other[start : start + 1 + draw(80)]
        yield bytes(data)


def run(target: Target, count: int, seed: int) -> None:
    """Raises AssertionError with the first input that was read wrongly, or at which something was raised."""
    for number, data in enumerate(inputs(target, count, random.Random(seed))):
        try:
            target.read(data)
        except Exception as problem:
            raise AssertionError(f"input {number} of seed {seed}: {data!r}") from problem
