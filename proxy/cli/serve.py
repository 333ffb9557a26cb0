"""`context-proxy serve`: starts the server, and prints its address and examples of requests.

One process, one event loop (uvloop), HTTP parsed in C (httptools). The socket is opened before anything else. A port
that is taken is therefore reported at once, and nothing has to be undone. The lines are printed once the server answers
requests, so that they work when they are copied.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated, TextIO

import typer
import uvicorn

from proxy.cli.check import Config, Db, Host, PolicyName, Port, Upstream, read_settings, resolve_host
from proxy.cli.logs import set_up_logging
from proxy.cli.wire_formats import find_plain_model, find_wire_format
from proxy.errors import ConfigError, describe_cause
from proxy.settings.load import Settings, copy_environment, mask_password
from proxy.settings.model import DEMO
from proxy.version import VERSION
from proxy.web.app import create_app
from proxy.web.metrics_listener import MetricsServer, create_metrics_app
from proxy.web.server import make_connection_class

log = logging.getLogger(__name__)

SPARE_FILES = 100
"""Files in addition to connections: the store, its log, the listener, children of tools."""
BACKLOG = 2048
"""Connections that may wait until the event loop accepts them."""
GC_THRESHOLDS = (20_000, 10, 100)
"""Thresholds of the garbage collector. They count new objects per visit of the young ones, such visits per visit of the
older ones, and those per visit of all. The usual (700, 10, 10) visits all objects of live sessions every few hundred
requests. This stops the event loop: 120 ms measured with one history of 4,000 messages. Requests leave next to no
cycles behind, and sessions none: reference counts free them."""


def serve(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    upstream: Upstream = None,
    db: Db = None,
    policy: PolicyName = None,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Fill an empty store with recorded sessions; without --db one that is removed."),
    ] = False,
) -> None:
    """Start the proxy. Each option is also an environment variable: CONTEXT_PROXY_PORT and so on."""
    flags = {"host": host, "port": port, "upstream": upstream, "policy": policy}
    if not sample:
        _serve(*read_with_keys(config, db=db, **flags))
        return
    from proxy.cli.sample import check_empty, fill_store  # noqa: PLC0415  the demo's scripts, for this option alone

    with tempfile.TemporaryDirectory(prefix="context-proxy-") as folder:
        file = db or str(Path(folder) / "sample.sqlite3")
        check_empty(file)
        settings, made_keys = read_with_keys(config, db=file, **flags)
        typer.echo(f"{asyncio.run(fill_store(settings))} recorded requests were played into {file}")
        _serve(settings, made_keys)


def read_with_keys(config: Path | None, **flags: object) -> tuple[Settings, dict[str, str]]:
    """Return the settings, and the keys by plane that were made in `keys_dir` just now. Raises ConfigError."""
    settings = read_settings(config, **flags)
    if not settings.keys_dir or settings.keys:
        return settings, {}
    # The C library's crypt and the reader of the settings' sources.
    from proxy.cli.key import write_plane_keys  # noqa: PLC0415  for a container's first start alone

    try:
        Path(settings.keys_dir).mkdir(mode=0o700, exist_ok=True)
        made = write_plane_keys(Path(settings.keys_dir), "default")
    except OSError as problem:
        raise ConfigError("keys_dir", settings.keys_dir, f"a folder to write in ({describe_cause(problem)})") from None
    return read_settings(config, **flags), made


def _serve(settings: Settings, made_keys: Mapping[str, str] = MappingProxyType({})) -> None:
    listener = open_listener(settings.host, settings.port, has_keys=bool(settings.keys))
    metrics_listener = open_metrics_listener(settings)
    set_up_logging(settings.log_level, settings.access_log)
    raise_file_limit(2 * settings.limits.connections + SPARE_FILES)
    with listener:
        server = AnnouncingServer(settings, listener, metrics_listener=metrics_listener, made_keys=made_keys)
        # uvicorn drains at a SIGTERM and then raises it again. An orderly stop on request is no failure.
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
        # A terminal that is closed tells the same. nohup has it ignored, and so it stays.
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            signal.signal(signal.SIGHUP, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            return  # uvicorn raises it again after everything was closed in order
        except SystemExit:
            # uvicorn's own code for a failed start is 3; why it failed has been logged.
            raise typer.Exit(0 if server.started else 2) from None


def raise_file_limit(needed: int) -> None:
    """Raise the number of files that this process may open, as far as the system allows. Each client and each upstream
    takes one file, and the usual 1,024 are fewer than the limits allow."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == resource.RLIM_INFINITY or now >= needed:
        return
    allowed = needed if most == resource.RLIM_INFINITY else min(needed, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    if allowed < needed:
        log.warning("%d files may be open at once, limits.connections may need %d: see ulimit -n", allowed, needed)


THREAD_SWITCH_S = 0.001
"""Seconds for which a thread may keep the others waiting. While long requests are planned, each row that the store's
writer writes waits for this time. With the usual 5 ms, a burst of long conversations had no edit stored in time."""


def tune_collector() -> None:
    """Exempt all present objects from garbage collection, as they stay, and make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class AnnouncingServer(uvicorn.Server):
    """A uvicorn server that prints its address once it listens."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        *,
        announces: bool = True,
        metrics_listener: socket.socket | None = None,
        made_keys: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """announces: True if the address is printed. metrics_listener: the socket of `metrics_port`. made_keys: keys
        by plane that nobody has seen yet."""
        self._app = create_app(settings)
        super().__init__(
            uvicorn.Config(
                self._app,
                loop="uvloop",
                http=make_connection_class(settings, self._app.services.metrics),  # httptools, with deadlines
                ws="none",  # a connection of `http` hands a WebSocket over by itself
                lifespan="on",
                log_config=None,  # the proxy's own log, on stderr
                access_log=False,  # /metrics and the store know more, and no path is logged
                proxy_headers=False,  # a header that anybody can send never decides who the client is
                server_header=False,  # the upstream's own headers pass
                date_header=False,
                timeout_graceful_shutdown=max(1, round(settings.timeouts.drain_s)),
            )
        )
        metrics = self._app.services.metrics
        probes = create_metrics_app(self._app.probes, settings, metrics)
        self._metrics_server = (
            MetricsServer(probes, settings, metrics, metrics_listener) if metrics_listener is not None else None
        )
        self._settings = settings
        self._announces = announces
        self._made_keys = made_keys
        self._told_again = False
        self._address: tuple[str, int] = listener.getsockname()[:2]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server, then print its address."""
        await super().startup(sockets)
        if self.started:
            if self._metrics_server is not None:
                await self._metrics_server.start()
            tune_collector()
            self._app.lazy_api.on_built = gc.freeze  # it stays as well
            sys.setswitchinterval(THREAD_SWITCH_S)
            if self._announces:
                print_address(self._settings, make_base_url(*self._address), sys.stdout, self._made_keys)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the server: event streams end at once, other answers by themselves or at a second signal."""
        await self._give_notice()
        self._app.drain()
        await self._stop_listening(sockets or [])
        open_answers = self._app.concurrency.taken
        second_signal = asyncio.create_task(self._cancel_on_second_signal())
        try:
            await super().shutdown(sockets)
        finally:
            second_signal.cancel()
            if self._metrics_server is not None:
                await self._metrics_server.stop()
        log.info(
            "drained: %d answers were open, %d of them were broken off", open_answers, self._app.concurrency.broken_off
        )

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Accept the connections that wait for it, then close the port: a close resets those that still wait. Each
        gets its `Connection` before uvicorn tells all of them to end."""
        for listener in sockets:
            for _ in range(BACKLOG):
                if not _has_waiting_connection(listener):
                    break
                await asyncio.sleep(0)  # uvloop accepts one in each round
        for server in self.servers:
            server.close()
        await asyncio.sleep(0)

    async def _give_notice(self) -> None:
        """Keep serving for `drain.notice_s` with /readyz at 503, so that no load balancer meets a closed port. Ctrl-C
        has no notice, since no load balancer depends on a terminal."""
        self._app.announce_stop()
        notice = self._settings.drain.notice_s if self._captured_signals[-1:] == [signal.SIGTERM] else 0.0
        if notice:
            log.info("told to stop: serving for %g s more, not ready", notice)
        until = asyncio.get_running_loop().time() + notice
        while not self._told_again and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  a signal sets it
            await asyncio.sleep(0.05)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's own
        """Record a signal. The first one asks for an orderly stop. Another one, of either kind, ends the wait for
        answers. Rows that are queued for the store are written in both cases."""
        self._captured_signals.append(sig)
        self._told_again = self.should_exit
        self.should_exit = True

    async def _cancel_on_second_signal(self) -> None:
        while not self._told_again:  # noqa: ASYNC110  a signal handler may not touch an event
            await asyncio.sleep(0.05)
        log.warning("told to stop once more: open answers are broken off")
        for task in list(self.server_state.tasks):
            task.cancel()


def _has_waiting_connection(listener: socket.socket) -> bool:
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


def open_listener(host: str, port: int, *, has_keys: bool = False) -> socket.socket:
    """Return a bound socket. has_keys: True if keys are configured. Raises ConfigError if the address is not of this
    machine, is taken, or is open to others without keys."""
    family, address = resolve_host(host, port, has_keys=has_keys)
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        if error.errno == errno.EADDRINUSE:
            why += "; stop the program that serves there, or give another port"
        raise ConfigError("port", port, f"a port that is free on {host} ({why})") from None


def open_metrics_listener(settings: Settings) -> socket.socket | None:
    """Return a bound socket for `metrics_port`; None if it is 0. Raises ConfigError as `open_listener`."""
    if not settings.metrics_port:
        return None
    try:
        return open_listener(settings.metrics_host or settings.host, settings.metrics_port, has_keys=True)
    except ConfigError as problem:
        raise ConfigError(f"metrics_{problem.key}", problem.value, problem.allowed) from None


def make_base_url(host: str, port: int) -> str:
    """Return the base URL for a client's SDK. An address that means all of them is shown as this machine's own."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared, not listened on
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def print_address(
    settings: Settings, url: str, out: TextIO, made_keys: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Print the settings of the server and examples of requests, in lines that can be copied. made_keys: new keys by
    plane, which are shown this once."""
    # Not with rich: for a dozen lines it would take 3 MB of this process for as long as it runs.
    environment = copy_environment()
    coloured = out.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    bold, dim, cyan, plain = ("\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[0m") if coloured else ("", "", "", "")
    rows = list(_list_facts(settings, url))
    width = max(len(name) for name, _ in rows)
    lines = [f"\n{bold}context-proxy{plain} {VERSION}"]
    for name, value in rows:
        colour = cyan if value.startswith(url.removesuffix("/v1")) else ""
        lines.append(f"{bold}{name:{width}}{plain}  {colour}{value}{plain if colour else ''}")
    if made_keys:
        lines.append(f"\n{dim}the new keys, shown only now: for agents, then for the dashboard and the commands{plain}")
        for variable, plane in (("CONTEXT_KEY", "data"), ("CONTEXT_PROXY_KEY", "admin")):
            lines.append(f"export {variable}={made_keys[plane]}")
    for title, text in make_examples(settings, url):
        lines += [f"\n{dim}{title}{plain}", text]
    out.write("\n".join(lines) + "\n\n")
    out.flush()


def _list_facts(settings: Settings, url: str) -> Iterator[tuple[str, str]]:
    """Yield what the server is, each with its name."""
    yield "listening", url
    yield "dashboard", url.removesuffix("/v1") + "/dashboard/"
    if settings.metrics_port:
        host = settings.metrics_host or settings.host
        yield "metrics", f"{make_base_url(host, settings.metrics_port).removesuffix('/v1')}/metrics"
    yield "policy", settings.policy
    yield "store", mask_password(settings.db)
    yield "keys", str(len(settings.keys)) if settings.keys else "none: only this machine is served"
    if settings.keys_dir:
        yield "", f"made in {settings.keys_dir}: data.key is for agents, admin.key for people"
    for name, target in settings.active_upstreams.items():
        where = "the built-in scripted model" if target.base_url == DEMO else target.base_url
        yield "upstream", f"{name}: {where} ({', '.join(target.models)})"


def make_examples(settings: Settings, url: str) -> list[tuple[str, str]]:
    """Return (title, text) of a curl line and of a client's lines, which work as they are in the upstream's format."""
    first = next(iter(settings.active_upstreams.values()))
    wire_format = find_wire_format(first)
    model = find_plain_model(first)
    keyless = first.base_url == DEMO or bool(first.auth) or first.read_api_key() is not None
    headers = wire_format.make_headers("" if keyless else f"${wire_format.key_variables[0]}")
    arguments = ', api_key="unused"' if keyless else ""
    imports = ""
    if settings.keys:
        # Not CONTEXT_PROXY_KEY: that variable is for the proxy's own commands, in the same environment.
        headers["x-context-key"] = "$CONTEXT_KEY"
        arguments += ', default_headers={"x-context-key": environ["CONTEXT_KEY"]}'
        imports = "from os import environ\n"
    root = url.removesuffix("/v1")
    path, body = wire_format.make_request(model, "Hello", 0)
    shown = "".join(f' -H "{name}: {value}"' for name, value in headers.items())
    question = json.dumps(body)
    curl = f"curl -s {root}{wire_format.version}{path} -H 'Content-Type: application/json'{shown} -d '{question}'"
    title, _, lines = wire_format.client.partition("\n")
    client = lines.format(url=root, model=model, arguments=arguments)
    return [("try it with curl", curl), (title, (imports if "environ" in client else "") + client)]
