"""Other proxies, each as its makers ship it, in an environment of its own, in front of the same upstream.

`make bench-peers` installs them the first time, in the versions given here. A peer that cannot be installed or started
gets a row with the reason. Nothing is downloaded at run time: Headroom runs without the model that it would download.
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
from tests.benchmarks.driver import UnexpectedAnswer, run_client, send_lines
from tests.benchmarks.overhead import LARGE, SMALL
from tests.benchmarks.rows import Row, compare_servers, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import (
    BARE,
    PROXY,
    NotStarted,
    Server,
    start_bare,
    start_proxy,
    start_upstream,
    stop_process,
)
from tests.benchmarks.traffic import make_short
from tests.raw_upstream import free_port

VENVS = Path(__file__).resolve().parents[2] / ".venvs"
INSTALL_TIMEOUT_S, START_TIMEOUT_S = 900, 90
"""Seconds that a peer may take to install, and to start."""
LITELLM = """
model_list:
  - model_name: "*"
    litellm_params: {model: "openai/*", api_base: "http://127.0.0.1:UPSTREAM/v1", api_key: "sk-bench"}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another proxy. package: with its version. PORT, UPSTREAM and HOME (a temporary folder) are replaced in command,
    headers, files and environment."""

    name: str
    package: str
    program: str
    command: tuple[str, ...]
    headers: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder that it is installed in."""
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
    """Install a peer, unless it is installed. Raises NotStarted with the reason."""
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
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise NotStarted(f"not installed within {INSTALL_TIMEOUT_S} s") from None
        if done.returncode:
            raise NotStarted(f"not installed: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")


@contextmanager
def start_peer(peer: Peer, upstream_port: int) -> Iterator[Server]:
    """Run a peer; yield its server once it answers. Raises NotStarted."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:

        def fill_in(text: str) -> str:
            filled = text.replace("PROGRAM", str(peer.folder / peer.program)).replace("PORT", str(port))
            return filled.replace("UPSTREAM", str(upstream_port)).replace("HOME", home)

        for name, text in peer.files.items():
            (Path(home) / name).write_text(fill_in(text))
        given = {key: fill_in(value) for key, value in peer.environment.items()}
        log = Path(home) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [fill_in(word) for word in peer.command],
                stdout=out, stderr=out, stdin=subprocess.DEVNULL, text=True, env={**os.environ, "HOME": home, **given},
            )  # fmt: skip
        try:
            server = Server(peer.name, process.pid, port, headers=fill_in(peer.headers).encode())
            wait_until_ready(server, process, log)
            yield server
        finally:
            stop_process(process)


def wait_until_ready(server: Server, process: subprocess.Popen[str], log: Path) -> None:
    """Wait until a peer relays an answer of the upstream. Raises NotStarted."""
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            run_client(lambda: asyncio.wait_for(send_lines(server, [[make_short("first").body()]]), 20))
            return
        except (OSError, UnexpectedAnswer, TimeoutError) as error:
            if process.poll() is not None or time.monotonic() > end:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise NotStarted(f"does not start: {error} {last}"[:300]) from None
            time.sleep(0.5)


def measure_small(servers: list[Server], clients: int, scope: Scope) -> list[Row]:
    """Measure requests of 1 KB."""
    return measure_requests(servers, SMALL, clients, scope)


def measure_large(servers: list[Server], clients: int, scope: Scope) -> list[Row]:
    """Measure requests of 218 KB."""
    return measure_requests(servers, LARGE, clients, scope)


def measure_requests(servers: list[Server], size: int, clients: int, scope: Scope) -> list[Row]:
    """Measure microseconds per request of a conversation that goes on."""
    each = scope.choose_count(max(2, 96 // clients) if size == SMALL else max(1, 24 // clients), 2)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(-1, scope.rounds):
        load = overhead.make_load("grows", size, clients, each, f"p{size // 1000}_{clients}_{number + 1}")
        for server in rotate_order(servers, number):
            spent[server.name].append(overhead.run_load(server, load)[0].total / load.requests * 1e6)
    spent = {name: values[1:] for name, values in spent.items()}
    return compare_servers(
        {"case": f"{size // 1000} KB, grows", "clients": clients, "requests": each * clients}, "us", spent
    )


def measure_streams(servers: list[Server], clients: int, scope: Scope) -> list[Row]:
    """Measure milliseconds per stream."""
    each = scope.choose_count(max(1, 16 // clients), 1)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(-1, scope.rounds):
        sent = streams.make_bodies(SMALL, 0, clients, each, f"p{clients}_{number + 1}")
        for server in rotate_order(servers, number):
            streams.run_round(server, sent, 0, spent)
    spent = {name: values[1:] for name, values in spent.items()}
    return compare_servers({"case": "1 KB, stream", "clients": clients, "streams": each * clients}, "ms", spent)


CASES: tuple[tuple[str, int, Callable[[list[Server], int, Scope], list[Row]]], ...] = (
    ("1 KB, grows", 1, measure_small),
    ("1 KB, grows", 16, measure_small),
    ("218 KB, grows", 1, measure_large),
    ("218 KB, grows", 16, measure_large),
    ("1 KB, stream", 1, measure_streams),
    ("1 KB, stream", 16, measure_streams),
)


def measure_beside_bare(made: AbstractContextManager[Server], up: Server, scope: Scope) -> list[Row]:
    """Measure all cases of a server beside the bare pass-through. A case that fails gets a row with the reason."""
    rows: list[Row] = []
    with start_bare(up.port) as simple, made as other:
        for case, clients, measure in CASES:
            try:
                rows += measure([simple, other], clients, scope)
            except UnexpectedAnswer as error:
                rows.append(make_failed_row(case, clients, other.name, error))
    return rows


def make_failed_row(case: str, clients: int, name: str, error: Exception) -> Row:
    """Return a row with the reason why there is no figure."""
    return {"case": case, "clients": clients, "server": name, "failed": " ".join(str(error).split())[:300]}


def run(scope: Scope) -> list[Row]:
    """Measure the proxy and each peer alone beside the bare pass-through, so that a failure affects no other peer."""
    rows: list[Row] = []
    for peer in (None, *PEERS):
        name = PROXY if peer is None else peer.name
        if not scope.selects(name):
            continue
        try:
            with start_upstream() as up:
                if peer is not None:
                    install(peer)
                found = measure_beside_bare(
                    start_proxy(up.port) if peer is None else start_peer(peer, up.port), up, scope
                )
        except (NotStarted, OSError) as error:
            rows += [make_failed_row(case, clients, name, error) for case, clients, _ in CASES]
            continue
        rows += [row for row in found if row["server"] != BARE or peer is None]
    return rows
