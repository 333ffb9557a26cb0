"""A running proxy with keys of every plane and two tenants, each with a conversation; and one call after the other."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.notes.memo_matching import Memo
from proxy.tools import stored_memos
from tests.postgres import drop_database, new_store_database
from tests.proxy_server import RunningProxy, make_key, run_proxy_in_thread

TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}]


@dataclass(frozen=True)
class ApiAnswer:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ProxyWithData:
    """The proxy and what is in it. ids: what the placeholders of paths stand for."""

    proxy: RunningProxy
    ids: dict[str, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = "cp-acme-admin", **headers: str
    ) -> ApiAnswer:
        """One call. headers: with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named.setdefault("x-context-key", key)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        if raw is not None or method in ("POST", "PUT", "PATCH"):
            named.setdefault("content-type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port, timeout=60)
        try:
            connection.request(method, path, raw, named)
            answer = connection.getresponse()
            return ApiAnswer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def chat(self, session: str, messages: list[dict[str, Any]], tenant: str = "acme", **more: Any) -> dict[str, Any]:
        """One request of an agent; the answer's message."""
        got = self.ask(
            "POST",
            "/v1/chat/completions",
            {"model": "demo", "messages": messages, **more},
            key=f"cp-{tenant}-data",
            x_context_session=session,
        )
        assert got.status == 200, got.body
        found: dict[str, Any] = got.json()["choices"][0]["message"]
        return found

    def converse(self, session: str, tenant: str = "acme") -> list[dict[str, Any]]:
        """A conversation of three prompts with tool calls; its history."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": "You are careful."}]
        for prompt in ("Read the log.", "And the other one?", "Thank you."):
            messages.append({"role": "user", "content": prompt})
            for _ in range(6):
                answer = self.chat(session, messages, tenant, tools=TOOLS)
                messages.append(answer)
                if not answer.get("tool_calls"):
                    break
                ids = [call["id"] for call in answer["tool_calls"]]
                messages += [{"role": "tool", "tool_call_id": i, "content": "a line of the log\n" * 40} for i in ids]
        return messages

    def fresh(self) -> str:
        """A session of its own, with a conversation in it."""
        name = f"fresh-{next(self.numbers)}"
        self.converse(name)
        return name

    def named(self, session: str, note: str | None = None) -> dict[str, str]:
        """The values of the placeholders in this session."""
        base = f"/api/sessions/{session}"
        exchange = self.ask("GET", base + "/exchanges").json()["items"][0]
        message = self.ask("GET", base + "/messages?role=assistant").json()["items"][0]
        note = note or self.ask("POST", base + "/notes", {"text": "A note."}).json()["id"]
        return {
            "session": session, "exchange": exchange["exchange"], "branch": exchange["branch"],
            "message": message["id"], "group": message["group"], "note": note, "tenant": "acme",
        }  # fmt: skip

    def fill(self, path: str, session: str | None = None) -> str:
        """The path with ids in the place of placeholders."""
        ids = dict(self.ids)
        if session is not None:
            ids["session"] = session
        return path.format(**ids)

    def memo(self, tenant: str = "acme") -> str:
        """A stored memo's id."""
        name = f"memo{next(self.numbers)}"
        memo = Memo(name, "The tests need PostgreSQL 14, since 13 lacks a function.", ("tests",), "talk", 1.0, 1.0)
        self.proxy.put_beside([stored_memos.make_memo_row(tenant, memo)])
        return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every call is made on both stores, but for modules in which it makes no difference."""
    if "proxy" in metafunc.fixturenames and not getattr(metafunc.module, "ON_ONE_STORE", False):
        backends = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]
        metafunc.parametrize("proxy", backends, indirect=True, scope="module")


@pytest.fixture(scope="module")
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyWithData]:
    if getattr(request, "param", "sqlite") == "sqlite":
        db = str(tmp_path_factory.mktemp("proxy") / "a.sqlite3")
        yield from _made(db)
        return
    db = asyncio.run(new_store_database(request.getfixturevalue("postgres")))
    try:
        yield from _made(db)
    finally:
        asyncio.run(drop_database(db))


def _made(db: str) -> Iterator[ProxyWithData]:
    keys = [
        make_key(f"cp-{name}-{plane}", tenant, plane)
        for name, tenant in (("acme", "acme"), ("other", "other"))
        for plane in ("data", "admin", "read", "metrics")
    ]
    keys += [make_key(f"cp-all-{plane}", "*", plane) for plane in ("admin", "read")]
    with run_proxy_in_thread("demo", db=db, policy="thrifty", keys=keys) as proxy:
        made = ProxyWithData(proxy)
        made.converse("talk")
        made.converse("theirs", "other")
        made.ids = made.named("talk", "nobody")
        made.ids["memo"] = made.memo()
        yield made
