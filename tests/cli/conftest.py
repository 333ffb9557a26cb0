"""A running proxy with keys and conversations, and commands that are run against it as a person runs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli.main import app
from tests.web.api import conftest as api
from tests.web.api.conftest import ProxyWithData


@dataclass(frozen=True)
class EndedCommand:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class CommandRunner:
    """The proxy, and commands for it."""

    world: ProxyWithData

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.world.proxy.port}"

    def run(
        self, *words: str, key: str = "cp-acme-admin", url: str = "", given: str | None = None, **more: str
    ) -> EndedCommand:
        """One command line; given: what comes in on stdin; more: further variables."""
        env = {"CONTEXT_PROXY_URL": url or self.url, "CONTEXT_PROXY_KEY": key, "COLUMNS": "80", "TERM": "dumb"}
        done = CliRunner().invoke(app, list(words), input=given, env=env | more)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return EndedCommand(done.exit_code, done.stdout, done.stderr)

    def ok(self, *words: str, **more: Any) -> EndedCommand:
        """The same, for one that has to end well and quietly."""
        ran = self.run(*words, **more)
        assert (ran.code, ran.err) == (0, ""), ran
        if "─" in ran.out and "--json" not in words:  # a table, or a heading with pairs
            assert all(len(line) <= 80 for line in ran.out.splitlines()), ran.out
        return ran

    def json(self, *words: str, **more: Any) -> Any:
        """The output as JSON: one document and nothing else."""
        return self.ok(*words, "--json", **more).json()

    def fresh(self) -> str:
        return self.world.fresh()

    def groups(self, session: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("groups", "list", session)
        return found


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandRunner]:
    for world in api._made(str(tmp_path_factory.mktemp("shop") / "a.sqlite3")):
        yield CommandRunner(world)
