"""Others beside the proxy, each as its makers ship it, in an environment of its own, in front of the same upstream.

They are installed when first asked for (`make bench-peers`), at the versions that stand here. What cannot be
installed or does not start has a row that says why. Nothing is fetched at run time: Headroom goes without the model
that it would download.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks import overhead, streams
from tests.benchmarks.driver import Broken, drive, send
from tests.benchmarks.overhead import LARGE, SMALL
from tests.benchmarks.rows import Row, compared, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, PROXY, NotStarted, Server, bare, proxy, stop, upstream
from tests.benchmarks.traffic import short
from tests.postgres import free_port

VENVS = Path(__file__).resolve().parents[2] / ".venvs"
INSTALLING, STARTING = 900, 90
"""Seconds that each may take."""
LITELLM = """
model_list:
  - model_name: "*"
    litellm_params: {model: "openai/*", api_base: "http://127.0.0.1:UPSTREAM/v1", api_key: "sk-bench"}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """package: with its version. command: what starts it; PORT, UPSTREAM and HOME (a folder that is thrown away) are
    filled in, here, in headers and in the environment."""

    name: str
    package: str
    program: str
    command: tuple[str, ...]
    headers: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Its environment."""
        return VENVS / f"bench-{self.name.split()[0].lower()}"


PEERS = (
    Peer(
        "Portkey gateway 1.15.2",
        "@portkey-ai/gateway@1.15.2",
        "node_modules/@portkey-ai/gateway/build/start-server.js",
        ("node", "PROGRAM", "--port=PORT", "--headless"),
        "x-portkey-provider: openai\r\nx-portkey-custom-host: http://127.0.0.1:UPSTREAM/v1\r\n",
    ),
    Peer(
        "LiteLLM proxy 1.106.2",
        "litellm[proxy]==1.106.2",
        "bin/litellm",
        ("PROGRAM", "--config", "HOME/config.yaml", "--host", "127.0.0.1", "--port", "PORT", "--telemetry", "False"),
        environment={
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
        files={"config.yaml": LITELLM},
    ),
    Peer(
        "Headroom 0.42.0",
        "headroom-ai[proxy]==0.42.0",
        "bin/headroom",
        ("PROGRAM", "proxy", "--port", "PORT", "--no-rate-limit"),
        environment={
            "OPENAI_TARGET_API_URL": "http://127.0.0.1:UPSTREAM",
            "HF_HUB_OFFLINE": "1",
            "HEADROOM_TELEMETRY": "off",
        },
    ),
)


def install(peer: Peer) -> None:
    """Unless it is there. Raises NotStarted with the reason where it cannot be."""
    if (peer.folder / peer.program).exists():
        return
    if peer.package.startswith("@"):
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise NotStarted("node and npm are not here")
        peer.folder.mkdir(parents=True, exist_ok=True)
        commands = [[npm, "install", "--no-audit", "--no-fund", "--prefix", str(peer.folder), peer.package]]
    else:
        pip = [str(peer.folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        commands = [[sys.executable, "-m", "venv", str(peer.folder)], [*pip, peer.package]]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLING)
        except subprocess.TimeoutExpired:
            raise NotStarted(f"not installed within {INSTALLING} s") from None
        if done.returncode:
            raise NotStarted(f"not installed: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")


@contextmanager
def running(peer: Peer, upstream_port: int) -> Iterator[Server]:
    """Once it answers. Raises NotStarted."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:

        def meant(text: str) -> str:
            filled = text.replace("PROGRAM", str(peer.folder / peer.program)).replace("PORT", str(port))
            return filled.replace("UPSTREAM", str(upstream_port)).replace("HOME", home)

        for name, text in peer.files.items():
            (Path(home) / name).write_text(meant(text))
        given = {key: meant(value) for key, value in peer.environment.items()}
        log = Path(home) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [meant(word) for word in peer.command],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, text=True, env={**os.environ, "HOME": home, **given},
            )  # fmt: skip
        try:
            server = Server(peer.name, process.pid, port, headers=meant(peer.headers).encode())
            wait(server, process, log)
            yield server
        finally:
            stop(process)


def wait(server: Server, process: subprocess.Popen[str], log: Path) -> None:
    """Until it answers as the upstream does."""
    end = time.monotonic() + STARTING
    while True:
        try:
            drive(lambda: asyncio.wait_for(send(server, [[short("first").body()]]), 20))
            return
        except (OSError, Broken, TimeoutError) as error:
            if process.poll() is not None or time.monotonic() > end:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise NotStarted(f"does not start: {error} {last}"[:300]) from None
            time.sleep(0.5)


def small(servers: list[Server], clients: int, scope: Scope) -> list[Row]:
    """Requests of 1 KB."""
    return requests(servers, SMALL, clients, scope)


def large(servers: list[Server], clients: int, scope: Scope) -> list[Row]:
    """Requests of 218 KB."""
    return requests(servers, LARGE, clients, scope)


def requests(servers: list[Server], size: int, clients: int, scope: Scope) -> list[Row]:
    """Microseconds a request of a conversation that goes on."""
    each = scope.few(max(2, 96 // clients) if size == SMALL else max(1, 24 // clients), 2)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(-1, scope.rounds):
        this = overhead.load("grows", size, clients, each, f"p{size // 1000}_{clients}_{number + 1}")
        for server in turned(servers, number):
            spent[server.name].append(overhead.ran(server, this)[0].all / this.requests * 1e6)
    spent = {name: values[1:] for name, values in spent.items()}
    return compared({"case": f"{size // 1000} KB, grows", "clients": clients, "requests": each * clients}, "us", spent)


def streamed(servers: list[Server], clients: int, scope: Scope) -> list[Row]:
    """Milliseconds a stream."""
    each = scope.few(max(1, 16 // clients), 1)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(-1, scope.rounds):
        sent = streams.lines(SMALL, 0, clients, each, f"p{clients}_{number + 1}")
        for server in turned(servers, number):
            streams.one_round(server, sent, 0, spent)
    spent = {name: values[1:] for name, values in spent.items()}
    return compared({"case": "1 KB, stream", "clients": clients, "streams": each * clients}, "ms", spent)


CASES: tuple[tuple[str, int, Callable[[list[Server], int, Scope], list[Row]]], ...] = (
    ("1 KB, grows", 1, small),
    ("1 KB, grows", 16, small),
    ("218 KB, grows", 1, large),
    ("218 KB, grows", 16, large),
    ("1 KB, stream", 1, streamed),
    ("1 KB, stream", 16, streamed),
)


def beside(made: AbstractContextManager[Server], up: Server, scope: Scope) -> list[Row]:
    """All cases of one beside the bare one's. A case that it cannot answer has a row that says so."""
    rows: list[Row] = []
    with bare(up.port) as simple, made as other:
        for case, clients, measure in CASES:
            try:
                rows += measure([simple, other], clients, scope)
            except Broken as error:
                rows.append(failed(case, clients, other.name, error))
    return rows


def failed(case: str, clients: int, name: str, error: Exception) -> Row:
    """Why there is no figure."""
    return {"case": case, "clients": clients, "server": name, "failed": " ".join(str(error).split())[:300]}


def run(scope: Scope) -> list[Row]:
    """Each by itself beside the bare one, so that one that fails takes no other with it; the proxy likewise."""
    rows: list[Row] = []
    for peer in (None, *PEERS):
        name = PROXY if peer is None else peer.name
        if not scope.wants(name):
            continue
        try:
            with upstream() as up:
                if peer is not None:
                    install(peer)
                found = beside(proxy(up.port) if peer is None else running(peer, up.port), up, scope)
        except (NotStarted, OSError) as error:
            rows += [failed(case, clients, name, error) for case, clients, _ in CASES]
            continue
        rows += [row for row in found if row["server"] != BARE or peer is None]
    return rows
