"""Requests that the proxy signs for AWS: each signature is reckoned again from what arrived."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError
from proxy.settings.load import load_settings
from proxy.upstream import aws_signing
from proxy.upstream.aws_signing import AwsSigner, find_service
from tests.exchange.test_bedrock_stream import ARN, BODY, STREAM_PATH, WHOLE, answer_with
from tests.proxy_server import RawAnswer, make_key, run_proxy
from tests.raw_upstream import Connection, RawRequest, Upstream, connect, run_upstream

auth: Any = pytest.importorskip("botocore.auth", reason="botocore is not installed")
awsrequest: Any = pytest.importorskip("botocore.awsrequest", reason="botocore is not installed")
credentials: Any = pytest.importorskip("botocore.credentials", reason="botocore is not installed")

KEY, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a-token-of-a-session"
SIGNATURE = re.compile(
    rb"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/(\d{8})/([a-z0-9-]+)/([a-z-]+)/aws4_request, "
    rb"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})"
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of the machine that runs the tests, and no question to the metadata of a cloud."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
                 "AWS_DEFAULT_REGION"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def give_credentials(monkeypatch: pytest.MonkeyPatch, region: str = "eu-west-1") -> None:
    for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("SESSION_TOKEN", TOKEN)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_REGION", region)


def check_signature(request: RawRequest, service: str = "bedrock", region: str = "eu-west-1") -> None:
    [value] = request.all(b"authorization")
    found = SIGNATURE.fullmatch(value)
    assert found, value
    assert (found[2].decode(), found[3].decode()) == (region, service)
    method, target, _ = request.line.decode().split(" ")
    names = found[4].decode().split(";")
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(names)
    headers = {name: request.all(name.encode())[0].decode() for name in names}
    made = awsrequest.AWSRequest(method, f"http://{headers['host']}{target}", headers=headers, data=request.body)
    made.context["timestamp"] = headers["x-amz-date"]
    signer = auth.SigV4Auth(credentials.Credentials(KEY, SECRET, TOKEN), service, region)
    text = signer.string_to_sign(made, signer.canonical_request(made))
    assert found[5].decode() == signer.signature(text, made)
    assert request.all(b"x-amz-security-token") == [TOKEN.encode()]


def name_upstream(upstream: Upstream, **more: Any) -> dict[str, Any]:
    return {"bedrock": {"base_url": f"http://127.0.0.1:{upstream.port}", "auth": "aws", **more}}


CLIENTS: list[tuple[bytes, ...]] = [
    (b"authorization: Bearer dummy",),
    (b"authorization: AWS4-HMAC-SHA256 Credential=c", b"x-amz-date: 20200101T000000Z", b"X-Amz-Security-Token: theirs"),
    (b"x-api-key: theirs", b"x-amz-content-sha256: abc", b"cookie: a=b"),
    (),
]


@pytest.mark.parametrize("lines", CLIENTS)
@pytest.mark.parametrize("transport", ["aiohttp", "httpx2"])
async def test_requests_are_signed_whatever_the_client_sent(
    lines: tuple[bytes, ...], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_credentials(monkeypatch)
    profile = f"/model/{ARN.replace('/', '%2F').replace(':', '%3A')}/invoke-with-response-stream"
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy("", policy="thrifty", upstreams=name_upstream(upstream, transport=transport)) as proxy,
    ):
        for path in (STREAM_PATH, profile):
            answer = await proxy.post(BODY, *lines, path=path, key="")
            assert (answer.status, answer.body) == (200, WHOLE)
    assert len(upstream.requests) == 2
    for request in upstream.requests:
        check_signature(request)
        assert json.loads(request.body) == BODY
        assert not any(b"theirs" in value or value == b"a=b" for _, value in request.headers)


async def test_what_passes_unmanaged_is_signed_and_only_what_the_operator_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give_credentials(monkeypatch)
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy(
            "", upstreams=name_upstream(upstream), passthrough={"paths": ["POST /model/*/converse-stream"]}
        ) as proxy,
    ):
        passed = await proxy.post({"messages": []}, path="/model/any.model/converse-stream", key="")
        streamed = await proxy.post(b"x" * 500_000, path="/model/any.model/converse-stream", key="")
        refused = await proxy.post({}, path="/model/any.model/converse", key="")
    assert (passed.status, passed.body, streamed.status) == (200, WHOLE, 200)
    assert refused.status == 403
    assert len(upstream.requests) == 2
    for request in upstream.requests:
        check_signature(request)


async def test_a_caller_shows_the_proxys_key_where_the_proxy_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch)
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy("", upstreams=name_upstream(upstream), keys=[make_key("mine")]) as proxy,
    ):
        statuses = [(await proxy.post(BODY, path=STREAM_PATH, key=key)).status for key in ("mine", "other", "")]
    assert statuses == [200, 401, 401]
    [request] = upstream.requests
    check_signature(request)


def read_message(answer: RawAnswer) -> str:
    return str(json.loads(answer.body)["error"]["message"])


async def test_without_credentials_or_a_region_the_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy("", policy="thrifty", upstreams=name_upstream(upstream)) as proxy,
    ):
        answer = await proxy.post(BODY, path=STREAM_PATH)
        assert answer.status == 502
        assert "no AWS credentials: set AWS_PROFILE" in read_message(answer)
        give_credentials(monkeypatch, region="")
        answer = await proxy.post(BODY, path=STREAM_PATH)
        assert "no AWS region: set AWS_REGION" in read_message(answer)
        give_credentials(monkeypatch)
        assert (await proxy.post(BODY, path=STREAM_PATH)).status == 200, "they are looked for again"
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        assert (await proxy.post(BODY, path=STREAM_PATH)).status == 200, "and kept once they were found"
    assert len(upstream.requests) == 2


async def test_a_profile_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy("", policy="thrifty", upstreams=name_upstream(upstream)) as proxy,
    ):
        answer = await proxy.post(BODY, path=STREAM_PATH)
    assert "nobody" in read_message(answer)


@pytest.mark.parametrize(
    ("host", "service", "region"),
    [
        ("bedrock-runtime.us-west-2.amazonaws.com", "bedrock", "us-west-2"),
        ("Bedrock-Runtime-Fips.us-gov-west-1.amazonaws.com", "bedrock", "us-gov-west-1"),
        ("vpce-1a-2b.bedrock-runtime.eu-central-1.vpce.amazonaws.com", "bedrock", "eu-central-1"),
        ("bedrock-runtime.cn-north-1.amazonaws.com.cn", "bedrock", "cn-north-1"),
        ("bedrock-mantle.us-east-1.api.aws", "bedrock-mantle", "us-east-1"),
        ("aws-external-anthropic.us-east-1.api.aws", "aws-external-anthropic", "us-east-1"),
        ("gateway.example", "bedrock", ""),
    ],
)
def test_the_host_tells_the_service_and_the_region(host: str, service: str, region: str) -> None:
    assert find_service(host) == (service, region)


def test_the_region_of_the_host_goes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch, region="")
    host = "bedrock-runtime.us-west-2.amazonaws.com"
    assert AwsSigner(f"https://{host}", host).find_credentials().access_key == KEY


def test_a_key_and_a_signature_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", "k")
    file = tmp_path / "proxy.toml"
    file.write_text('[upstreams.b]\nbase_url = "https://b.example"\nauth = "aws"\napi_key_env = "K"\n')
    with pytest.raises(ConfigError, match="a request has one credential"):
        load_settings(file)


@pytest.mark.parametrize("transport", ["aiohttp", "httpx2"])
@pytest.mark.parametrize("path", [STREAM_PATH, "/model/any.model/converse"])
async def test_an_error_that_repeats_the_signed_headers_does_not_show_the_token(
    path: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS answers a wrong signature with the headers that it has signed itself."""
    give_credentials(monkeypatch)

    async def refuse(request: RawRequest, connection: Connection) -> None:
        [sent] = request.all(b"x-amz-security-token")
        text = f"The Canonical String should have been: host:b x-amz-security-token:{sent.decode()} "
        body = json.dumps({"message": text}).encode()
        head = b"HTTP/1.1 403 Forbidden\r\ncontent-type: application/json\r\nx-echo: %b\r\n" % sent
        await connection.send(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    async with (
        run_upstream(refuse) as upstream,
        run_proxy(
            "",
            upstreams=name_upstream(upstream, transport=transport),
            passthrough={"paths": ["POST /model/*/converse"]},
        ) as proxy,
    ):
        answer = await proxy.post(BODY, path=path)
    assert answer.status == 403
    assert f"x-amz-security-token:{'*' * len(TOKEN)} " in json.loads(answer.body)["message"]
    assert TOKEN not in str(answer.headers)
    check_signature(upstream.requests[0])


async def test_a_body_that_is_signed_is_held_and_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    give_credentials(monkeypatch)
    monkeypatch.setattr(aws_signing, "MAX_SIGNED_BYTES", 1 << 20)
    paths = {"paths": ["POST /model/*/converse-stream"]}
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy("", upstreams=name_upstream(upstream), passthrough=paths) as proxy,
    ):
        answers = [
            await proxy.post(b"x" * size, path="/model/any.model/converse-stream") for size in (1 << 20, (1 << 20) + 1)
        ]
    assert [answer.status for answer in answers] == [200, 400]
    assert "a body that is signed has 1 MiB at most" in read_message(answers[1])
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("good", [0, 1])
async def test_what_a_program_for_credentials_says_is_for_the_log_alone(
    good: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """good: how often the program gives credentials, which expire at once, before it fails."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    soon = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    given = {"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": SECRET, "SessionToken": TOKEN, "Expiration": soon}
    program, runs = tmp_path / "program.py", tmp_path / "runs"
    program.write_text(f"""import pathlib, sys
runs = pathlib.Path({str(runs)!r})
count = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (count + 1))
sys.exit("what the program says") if count >= {good} else print({json.dumps(given)!r})
""")
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy("", upstreams=name_upstream(upstream)) as proxy,
    ):
        answer = await proxy.post(BODY, path=STREAM_PATH)
    assert answer.status == 502
    assert "no credentials from custom-process: the proxy's log says why" in read_message(answer)
    assert "what the program says" in caplog.text
    assert not upstream.requests


async def test_a_websocket_is_refused_where_the_proxy_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handshake would go out without a signature."""
    give_credentials(monkeypatch)
    head = b"GET /v1/realtime?model=x HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer theirs\r\n"
    keys = b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy("", upstreams=name_upstream(upstream), passthrough={"paths": ["GET /v1/realtime"]}) as proxy,
    ):
        connection = await connect(proxy.port)
        await connection.send(head + b"upgrade: websocket\r\nconnection: Upgrade\r\n" + keys + b"\r\n")
        assert await connection.reader.readline() == b"HTTP/1.1 426 Upgrade Required\r\n"
        connection.writer.transport.abort()
    assert not upstream.requests
