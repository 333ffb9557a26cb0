"""One list of the models of several upstreams, asked over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from proxy.metrics import Metrics
from proxy.upstream.client import UpstreamClient
from proxy.upstream.transport import read_targets
from proxy.web import list_models
from tests.proxy_server import RunningProxy, make_key, make_settings, parse_answer, run_proxy
from tests.raw_upstream import Connection, RawRequest, Script, Upstream, run_upstream, send_raw

GPT: Final = {"object": "list", "data": [{"id": "gpt-5", "object": "model", "created": 7, "owned_by": "openai"},
                                         {"id": "claude-lookalike", "object": "model"}]}  # fmt: skip
DATE: Final = "2026-01-01T00:00:00Z"
CLAUDE: Final[dict[str, Any]] = {
    "data": [{"type": "model", "id": "claude-x", "display_name": "X", "created_at": DATE},
             {"type": "model", "id": "other", "display_name": "O", "created_at": DATE}],
    "has_more": False, "first_id": "claude-x", "last_id": "other",
}  # fmt: skip
GEMINI: Final[dict[str, Any]] = {
    "models": [{"name": "models/gemini-3", "displayName": "Three"}, {"name": "models/aqa"}]
}


def answer(body: object, status: bytes = b"200 OK", after: float = 0.0) -> Script:
    """A provider that says this to everything."""

    async def say(_request: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(after)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nx-of: provider\r\ncontent-length: %d\r\n\r\n"
        await connection.send(head % (status, len(data)), data)

    return say


class Team:
    """A proxy with three providers, each with a key of the operator unless `keyless`."""

    def __init__(self, proxy: RunningProxy, providers: Mapping[str, Upstream]) -> None:
        self.proxy = proxy
        self.providers = providers

    async def ask(self, path: str, *lines: bytes) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        head = b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" % path.encode()
        found = parse_answer(await send_raw(self.proxy.port, head + b"".join(x + b"\r\n" for x in lines) + b"\r\n"))
        return found.status, json.loads(found.body)

    def last(self, name: str) -> RawRequest:
        """The last request that a provider got."""
        return self.providers[name].requests[-1]


@asynccontextmanager
async def run_team(
    monkeypatch: pytest.MonkeyPatch, *, keyless: bool = False, scripts: Mapping[str, Script] | None = None, **tree: Any
) -> AsyncIterator[Team]:
    said = {"openai": answer(GPT), "anthropic": answer(CLAUDE), "google": answer(GEMINI)} | dict(scripts or {})
    patterns = {"openai": ["gpt-*"], "anthropic": ["claude-*"], "google": ["gemini-*"]}
    async with AsyncExitStack() as stack:
        providers, upstreams = {}, {}
        for name, script in said.items():
            providers[name] = await stack.enter_async_context(run_upstream(script))
            monkeypatch.setenv(f"KEY_{name}", f"sk-operator-{name}")
            upstreams[name] = {
                "base_url": f"http://127.0.0.1:{providers[name].port}" + ("" if name == "google" else "/v1"),
                "models": patterns[name],
                "strategy": {"google": "gemini"}.get(name, name),
            } | ({} if keyless else {"api_key_env": f"KEY_{name}"})
        yield Team(await stack.enter_async_context(run_proxy("", upstreams=upstreams, **tree)), providers)


async def test_one_list_has_the_models_of_each_upstream_that_the_routing_sends_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_team(monkeypatch, keys=[make_key("cp-team")]) as team:
        status, found = await team.ask("/v1/models?limit=1", b"authorization: Bearer cp-team")
        assert status == 200
        # `claude-lookalike` would go to Anthropic, `other` and `aqa` to OpenAI.
        assert [(one["id"], one["object"], one["owned_by"]) for one in found["data"]] == [
            ("gpt-5", "model", "openai"), ("claude-x", "model", "anthropic"), ("gemini-3", "model", "google"),
        ]  # fmt: skip
        assert team.last("openai").line == b"GET /v1/models HTTP/1.1"
        assert team.last("anthropic").line == b"GET /v1/models?limit=1000 HTTP/1.1"
        assert team.last("google").line == b"GET /v1beta/models?pageSize=1000 HTTP/1.1"
        assert team.last("anthropic").all(b"anthropic-version") == [b"2023-06-01"]
        for name, header in (("openai", b"authorization"), ("anthropic", b"x-api-key"), ("google", b"x-goog-api-key")):
            assert team.last(name).all(header)[0].removeprefix(b"Bearer ") == b"sk-operator-" + name.encode()
            assert b"cp-team" not in team.last(name).raw
        assert team.proxy.count("model_lists_left_out_total", upstream="openai") == 0
        status, _ = await team.ask("/v1/models")
        assert status == 401


async def test_the_list_has_the_form_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_team(monkeypatch) as team:
        _, found = await team.ask("/v1/models", b"anthropic-version: 2023-06-01")
        assert [(one["id"], one["type"]) for one in found["data"]] == [("gpt-5", "model"), ("claude-x", "model")]
        assert (found["first_id"], found["last_id"], found["has_more"]) == ("gpt-5", "claude-x", False)
        assert found["data"][1] == CLAUDE["data"][0]
        assert not team.providers["google"].requests
        _, found = await team.ask("/v1beta/models?pageSize=1&pageToken=a")
        # The first provider has no list in this form, as OpenAI: its own form is read all the same.
        assert [one["name"] for one in found["models"]] == ["models/gpt-5", "models/gemini-3"]
        _, again = await team.ask("/v1/models", b"x-goog-api-client: google-genai-sdk/3")
        assert again == found
        assert {one.line for one in team.providers["google"].requests} == {b"GET /v1beta/models?pageSize=1000 HTTP/1.1"}
        assert len(team.providers["anthropic"].requests) == 1


async def test_an_upstream_that_fails_or_is_slow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_models, "LIST_S", 0.3)
    for script in (
        answer({"error": {}}, b"500 No"), answer({"error": {}}, b"401 No"), answer(b"<html>"), answer(GPT, after=30.0),
        answer(b"[" + b"1," * 300_000 + b"1]"),
    ):  # fmt: skip
        async with run_team(monkeypatch, scripts={"openai": script}) as team:
            async with asyncio.timeout(10):
                status, found = await team.ask("/v1/models")
            assert status == 200
            assert [one["id"] for one in found["data"]] == ["claude-x", "gemini-3"]
            assert team.proxy.count("model_lists_left_out_total", upstream="openai") == 1
            assert team.proxy.count("model_lists_left_out_total", upstream="google") == 0


async def test_if_all_fail_the_first_answer_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"error": {"message": "of the provider"}}
    others = {"anthropic": answer({}, b"500 No"), "google": answer({}, b"403 No")}
    async with run_team(monkeypatch, scripts={"openai": answer(refused, b"418 Odd"), **others}) as team:
        assert await team.ask("/v1/models") == (418, refused)
    monkeypatch.setattr(list_models, "LIST_S", 0.3)
    async with run_team(monkeypatch, scripts={"openai": answer(GPT, after=30.0), **others}) as team:
        status, found = await team.ask("/v1/models")
        assert status == 504
        assert "'openai' gave no list in 0.3 s" in found["error"]["message"]


async def test_credentials_of_the_client_go_to_the_first_upstream_of_its_wire_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_team(monkeypatch, keyless=True) as team:
        for path, line, name in (
            ("/v1/models", b"authorization: Bearer sk-mine", "openai"),
            ("/v1/models", b"anthropic-version: 2023-06-01\r\nx-api-key: sk-mine", "anthropic"),
            ("/v1beta/models?key=sk-mine", b"x-goog-api-key: sk-mine", "google"),
        ):
            await team.ask(path, line, b"cookie: sk-mine", b"x-other-key: sk-mine")
            assert b"sk-mine" in team.last(name).raw
            for other in {"openai", "anthropic", "google"} - {name}:
                assert all(b"sk-mine" not in one.raw for one in team.providers[other].requests[-1:]), (path, other)
            for provider in team.providers.values():
                provider.requests.clear()


async def test_one_model_comes_from_the_upstream_of_its_chat_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {"anthropic": answer(CLAUDE["data"][0]), "google": answer(GEMINI["models"][0])}
    async with run_team(monkeypatch, scripts=scripts) as team:
        status, found = await team.ask("/v1/models/claude-x", b"anthropic-version: 2023-06-01")
        assert (status, found) == (200, CLAUDE["data"][0])
        _, found = await team.ask("/v1/models/claude-x")
        assert (found["id"], found["object"], found["owned_by"]) == ("claude-x", "model", "anthropic")
        assert team.last("anthropic").all(b"anthropic-version") == [b"2023-06-01"]
        _, found = await team.ask("/v1beta/models/gemini-3")
        assert found == GEMINI["models"][0]
        _, found = await team.ask("/v1/models/gemini-3")
        assert found["id"] == "gemini-3"
        assert team.last("google").line == b"GET /v1beta/models/gemini-3 HTTP/1.1"
        # Clients of Google's stable paths are told apart by a header.
        _, found = await team.ask("/v1/models/gemini-3", b"x-goog-api-client: google-genai-sdk/3")
        assert found == GEMINI["models"][0]
        assert team.last("google").line == b"GET /v1beta/models/gemini-3 HTTP/1.1"
        _, found = await team.ask("/v1/models/nobody")
        assert team.last("openai").line == b"GET /v1/models/nobody HTTP/1.1"


def test_a_known_host_is_asked_in_its_own_form_whatever_its_strategy() -> None:
    for host, form in (("api.anthropic.com", "messages"), ("generativelanguage.googleapis.com", "gemini")):
        target = next(iter(read_targets(make_settings("", upstreams={"a": {"base_url": f"https://{host}/v1"}}))))
        assert target.strategy == "openai"
        assert list_models.is_translated(target, "completions", "/v1/models/a")
        assert not list_models.is_translated(target, form, "/v1beta/models/a")  # type: ignore[arg-type]


def test_a_list_names_no_model_of_a_provider_that_is_known_not_to_speak_the_format() -> None:
    hosts = ("https://api.openai.com/v1", "https://api.anthropic.com/v1", "https://openrouter.ai/api/v1",
             "https://generativelanguage.googleapis.com/v1beta/openai")  # fmt: skip
    upstreams = {urlsplit(base).hostname or "": {"base_url": base} for base in hosts}
    client = UpstreamClient(make_settings("", upstreams=upstreams), Metrics())
    _, claude, other, google = client.targets
    assert list_models.select_asked(client, "completions") == [*client.targets]
    assert list_models.select_asked(client, "messages") == [claude, other]
    assert list_models.select_asked(client, "gemini") == [other, google]


async def test_what_names_no_model_goes_to_the_first_upstream_of_its_wire_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the credentials of a provider go to that provider."""
    async with run_team(monkeypatch, keyless=True) as team:
        for path, line, name in (
            ("/v1/files", b"authorization: Bearer sk-mine", "openai"),
            ("/v1/messages/batches", b"anthropic-version: 2023-06-01\r\nx-api-key: sk-mine", "anthropic"),
            ("/v1/files?limit=1", b"x-api-key: sk-mine\r\nanthropic-version: 2023-06-01", "anthropic"),
            ("/v1beta/files", b"x-goog-api-key: sk-mine", "google"),
            ("/v1beta/cachedContents?key=sk-mine", b"x-a: sk-mine", "google"),
            ("/upload/v1beta/files", b"x-a: sk-mine", "google"),
            ("/v1beta/openai/files", b"authorization: Bearer sk-mine", "openai"),
        ):
            await team.ask(path, line)
            assert {one for one, at in team.providers.items() if at.requests} == {name}, path
            assert b"sk-mine" in team.last(name).raw
            for provider in team.providers.values():
                provider.requests.clear()


async def test_a_model_in_the_path_of_a_request_that_is_passed_on_chooses_its_upstream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_team(monkeypatch, keyless=True) as team:
        body = {"model": "models/gemini-embedding-001", "requests": []}
        for model, name in (("gemini-embedding-001", "google"), ("gpt-embed", "openai")):
            await team.proxy.post(body, path=f"/v1beta/models/{model}:batchEmbedContents")
            assert {one for one, at in team.providers.items() if at.requests} == {name}
            for provider in team.providers.values():
                provider.requests.clear()


async def test_with_the_operators_key_a_closed_list_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_team(monkeypatch, passthrough={"paths": ["POST /v1/embeddings"]}) as team:
        for path in ("/v1/models", "/v1beta/models", "/v1/models/gpt-5"):
            assert (await team.ask(path))[0] == 403
        assert not any(provider.requests for provider in team.providers.values())


async def test_a_single_upstreams_list_is_passed_on_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{ "data" :[ {"id":"b"} ,{"id": "a"}],"has_more":true }'
    async with run_upstream(answer(body)) as one, run_upstream(answer({})) as two:
        helper = {"base_url": f"http://127.0.0.1:{two.port}/v1", "models": []}
        main = {"base_url": f"http://127.0.0.1:{one.port}/v1"}
        for upstreams in ({"main": main}, {"main": main, "helper": helper}):
            async with run_proxy("", upstreams=upstreams) as proxy:
                head = b"GET /v1/models?limit=2 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                found = parse_answer(await send_raw(proxy.port, head))
                assert found.body == body
                assert found.header("x-of") == "provider"
        assert [each.line for each in one.requests] == [b"GET /v1/models?limit=2 HTTP/1.1"] * 2
        assert not two.requests
