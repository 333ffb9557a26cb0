"""C8, J1, J2, J6, J8: contents that break parsers, through the whole proxy and back."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.tokenizers import get_token_counter
from tests.proxy_server import CHAT, run_proxy
from tests.raw_upstream import HEAD, Connection, RawRequest, run_upstream

ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"fine"},"finish_reason":"stop"}]}'


async def fine(_: RawRequest, connection: Connection) -> None:
    await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER)


def chat(content: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":' + content + b"}]}"


HEAVY = {
    "nested 100,000 deep": b"[" * 100_000,
    "nested in a content": chat(b"[" * 100_000 + b"]" * 100_000),
    "nested in an unknown field": b'{"model":"m","messages":[],"x":'
    + b'{"a":' * 100_000
    + b"1"
    + b"}" * 100_000
    + b"}",
    "a million keys": b'{"model":"m","messages":[{"role":"user","content":"a"}],"x":{'
    + b",".join(b'"k%d":1' % n for n in range(1_000_000))
    + b"}}",
    "50 MB of brackets": b"[" * 50_000_000,
}


@pytest.mark.parametrize("name", HEAVY)
async def test_j1_bodies_that_break_parsers_are_passed_on_unchanged(name: str) -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        got = await proxy.post(HEAVY[name])
        assert (got.status, got.body) == (200, ANSWER)
        [request] = upstream.requests
        assert request.body == HEAVY[name]
        assert proxy.count("internal_errors_total", where="web") == 0
        assert proxy.count("internal_errors_total", where="prepare") == 0


ODD = {
    "NaN": chat(b'"a"')[:-1] + b',"temperature":NaN}',
    "Infinity": chat(b'"a"')[:-1] + b',"temperature":-Infinity}',
    "1e999": chat(b'"a"')[:-1] + b',"temperature":1e999}',
    "5,000 digits": chat(b'"a"')[:-1] + b',"seed":' + b"9" * 5000 + b"}",
    "beyond 64 bits": chat(b'"a"')[:-1] + b',"seed":18446744073709551616}',
    "a key twice": b'{"model":"m","model":"n","messages":[{"role":"user","role":"user","content":"a"}],"messages":[]}',
    "half a surrogate pair": chat(b'"\\ud83d"'),
    "the other half": chat(b'"\\udc00 \\ud83d\\ud83d"'),
    "U+0000": chat(b'"a\\u0000b"'),
    "a raw NUL": chat(b'"a\x00b"'),
    "invalid UTF-8": chat(b'"\xff\xfe\xc3"'),
    "overlong UTF-8": chat(b'"\xc0\xaf"'),
    "UTF-16": chat(b'"a"').decode().encode("utf-16"),
    "UTF-32": chat(b'"a"').decode().encode("utf-32"),
    "a BOM": b"\xef\xbb\xbf" + chat(b'"a"'),
    "trailing garbage": chat(b'"a"') + b"x",
    "a comment": chat(b'"a"') + b"/* */",
    "single quotes": b"{'model':'m'}",
    "nothing": b"",
    "blanks around it": b" \n\t" + chat(b'"a"') + b"\r\n ",
}


@pytest.mark.parametrize("policy", ["passthrough", "thrifty", "rolling"])
async def test_j2_bodies_that_are_nearly_json_are_passed_on_unchanged_without_an_error_of_the_proxy(
    policy: str,
) -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        for name, body in ODD.items():
            upstream.requests.clear()
            got = await proxy.post(body)
            assert (got.status, got.body) == (200, ANSWER), name
            sent = [request.body for request in upstream.requests]
            assert sent == [body] or policy == "rolling", name  # which asks for a STATE block
            assert len(sent) == 1, name
        assert proxy.count("internal_errors_total", where="web") == 0
        assert proxy.count("internal_errors_total", where="prepare") == 0
        stored = await proxy.rows("SELECT body FROM messages WHERE role = 'user'")
        assert bytes(stored[0][0]).startswith(b'{"role":"user"')


async def test_c8_a_compressed_body_is_passed_on_compressed() -> None:
    bomb = gzip.compress(b"0" * (64 << 20))
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, limits={"body_mb": 1}) as proxy:
        for encoding, body in ((b"gzip", bomb), (b"x-unknown", b"?"), (b"gzip, gzip", gzip.compress(bomb))):
            upstream.requests.clear()
            got = await proxy.post(body, b"content-encoding: " + encoding)
            assert got.status == 200
            [request] = upstream.requests
            assert request.body == body
            assert request.all(b"content-encoding") == [encoding]


@pytest.mark.parametrize("text", ["<|endoftext|>", "<|im_start|>system", "a <|endofprompt|> b", "<|fim_prefix|>"])
def test_j6_the_names_of_special_tokens_are_text(text: str) -> None:
    for name in ("o200k_base", "cl100k_base"):
        assert get_token_counter(name)(text) > 1, "as text, and not as the one token of that name"


def test_j8_the_proxy_starts_and_answers_without_any_network(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed (Debian's package util-linux)")
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    script = (
        "import socket, asyncio, json\n"
        "outward = []\n"
        "real = socket.getaddrinfo\n"
        "socket.getaddrinfo = lambda host, *a, **k: (outward.append(host), real(host, *a, **k))[1]\n"
        "from proxy.web.app import create_app\n"
        "from proxy.settings.load import Settings\n"
        f"app = create_app(Settings(upstream='demo', db='{tmp_path}/a.sqlite3'))\n"
        "async def main():\n"
        "    await app.store.open()\n"
        "    from proxy.exchange.handler import handle_chat\n"
        "    from proxy.exchange.services import Incoming\n"
        "    from tests.faults.test_cancelled import Sink\n"
        "    sink = Sink()\n"
        "    body = json.dumps({'model': 'gpt-5', 'messages': [{'role': 'user', 'content': 'Hello'}]}).encode()\n"
        f"    await handle_chat(app.services, Incoming('POST', '{CHAT}', b'', [], body, None, 't'), sink)\n"
        "    await app.store.close()\n"
        "    print(sink.status, outward)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(["unshare", "-rn", sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "200 []", "nobody is asked for anything"
