"""`context-proxy serve`: starts the server, and prints its address and examples of requests.

One process, one event loop (uvloop), HTTP parsed in C (httptools). The socket is opened before anything else. A port
that is taken is therefore reported at once, and nothing has to be undone. The lines are printed once the server answers
requests, so that they work when they are copied.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated

import typer
import uvicorn
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.cli.check import Config, Db, Host, PolicyName, Port, Upstream, read_settings
from proxy.cli.key import write_plane_keys
from proxy.cli.logs import set_up_logging
from proxy.cli.sample import check_empty, fill_store
from proxy.errors import ConfigError
from proxy.settings.load import DEMO, Settings, mask_password
from proxy.web.app import create_app
from proxy.web.metrics_listener import MetricsServer, create_metrics_app
from proxy.web.server import make_connection_class

log = logging.getLogger(__name__)

SPARE_FILES = 100
"""Files in addition to connections: the store, its log, the listener, children of tools."""
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
    try:
        Path(settings.keys_dir).mkdir(mode=0o700, exist_ok=True)
        made = write_plane_keys(Path(settings.keys_dir), "default")
    except (OSError, ConfigError) as problem:
        raise ConfigError("keys_dir", settings.keys_dir, f"a folder to write in ({problem})") from None
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
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            return  # uvicorn raises it again after everything was closed in order
        except SystemExit:
            # uvicorn's own code for a failed start is 3; why it failed has been logged.
            raise typer.Exit(0 if server.started else 2) from None


def raise_file_limit(wanted: int) -> None:
    """Raise the number of files that this process may open, as far as the system allows. Each client and each upstream
    takes one file, and the usual 1,024 are fewer than the limits allow."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now == resource.RLIM_INFINITY or now >= wanted:
        return
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    if allowed < wanted:
        log.warning("%d files may be open at once, limits.connections may need %d: see ulimit -n", allowed, wanted)


THREAD_SWITCH_S = 0.001
"""Seconds for which a thread may keep the others waiting. While long requests are planned, each row that the store's
writer writes waits for this time. With the usual 5 ms, a burst of long conversations had no edit stored in time."""


def tune_collector() -> None:
    """Exempt all present objects from garbage collection, since they stay as long as the process, and make collections
    rare."""
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
            sys.setswitchinterval(THREAD_SWITCH_S)
            if self._announces:
                print_address(self._settings, make_base_url(*self._address), Console(), self._made_keys)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the server. After the notice, event streams end at once. All other answers have time to end, until a
        second signal."""
        await self._give_notice()
        self._app.drain()
        open_answers = self._app.concurrency.taken
        hurrying = asyncio.create_task(self._hurry())
        try:
            await super().shutdown(sockets)
        finally:
            hurrying.cancel()
            if self._metrics_server is not None:
                await self._metrics_server.stop()
        log.info(
            "drained: %d answers were open, %d of them were broken off", open_answers, self._app.concurrency.broken_off
        )

    async def _give_notice(self) -> None:
        """Keep serving for `drain.notice_s` with /readyz at 503, so that no load balancer meets a closed port. Ctrl-C
        has no notice, since no load balancer depends on a terminal."""
        self._app.announce_stop()
        notice = self._settings.drain.notice_s if self._captured_signals[-1:] == [signal.SIGTERM] else 0.0
        if notice:
            log.info("told to stop: serving for %g s more, not ready", notice)
        until = asyncio.get_running_loop().time() + notice
        while not self._told_again and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  as in _hurry
            await asyncio.sleep(0.05)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's own
        """Record a signal. The first one asks for an orderly stop. Another one, of either kind, ends the wait for
        answers. Rows that are queued for the store are written in both cases."""
        self._captured_signals.append(sig)
        self._told_again = self.should_exit
        self.should_exit = True

    async def _hurry(self) -> None:
        while not self._told_again:  # noqa: ASYNC110  a signal handler may not touch an event
            await asyncio.sleep(0.05)
        log.warning("told to stop once more: open answers are broken off")
        for task in list(self.server_state.tasks):
            task.cancel()


def open_listener(host: str, port: int, *, has_keys: bool = False) -> socket.socket:
    """Return a bound socket. has_keys: True if keys are configured. Raises ConfigError if the address is not of this
    machine, is taken, or is open to others without keys."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError("host", host, f"an address or name of this machine ({error})") from None
    if not has_keys and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        allowed = (
            "127.0.0.1, ::1 or localhost: others could reach anything else, and no keys are configured "
            "(`context-proxy key` makes one and prints its [[keys]] entry)"
        )
        raise ConfigError("host", host, allowed)
    try:
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise ConfigError("port", port, f"a port that is free on {host} ({os.strerror(error.errno or 0)})") from None


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
    settings: Settings, url: str, console: Console, made_keys: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Print the settings of the server and examples of requests, in lines that can be copied. made_keys: new keys by
    plane, which are shown this once."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("listening", Text(url, style="cyan"))
    table.add_row("dashboard", Text(url.removesuffix("/v1") + "/dashboard/", style="cyan"))
    if settings.metrics_port:
        host = settings.metrics_host or settings.host
        table.add_row("metrics", Text(f"{make_base_url(host, settings.metrics_port).removesuffix('/v1')}/metrics"))
    table.add_row("policy", Text(settings.policy))
    table.add_row("store", Text(mask_password(settings.db)))
    keys = len(settings.keys)
    table.add_row("keys", Text(str(keys) if keys else "none: only this machine is served"))
    if settings.keys_dir:
        table.add_row("", Text(f"made in {settings.keys_dir}: data.key is for agents, admin.key for people"))
    for name, target in settings.active_upstreams.items():
        where = "the built-in scripted model" if target.base_url == DEMO else target.base_url
        table.add_row("upstream", Text(f"{name}: {where} ({', '.join(target.models)})"))
    console.print("\n[bold]agent-context-proxy[/bold]")
    console.print(table)
    if made_keys:
        console.print("\n[dim]the new keys, shown only now: for agents, then for the dashboard and the commands[/dim]")
        for variable, plane in (("CONTEXT_KEY", "data"), ("CONTEXT_PROXY_KEY", "admin")):
            console.print(Text(f"export {variable}={made_keys[plane]}"), soft_wrap=True, highlight=False)
    for title, lines in make_examples(settings, url):
        console.print(f"\n[dim]{title}[/dim]")
        # Neither wrapped nor coloured, since people copy these lines.
        console.print(Text(lines), soft_wrap=True, highlight=False)
    console.print()


def make_examples(settings: Settings, url: str) -> list[tuple[str, str]]:
    """Return (title, text) of a curl line and of a few lines of Python, both of which work as they are."""
    first = next(iter(settings.active_upstreams.values()))
    demo = first.base_url == DEMO
    plain = [model for model in first.models if not set(model) & set("*?[")]
    model = DEMO if demo else plain[0] if plain else "gpt-5-mini"
    keyless = demo or first.read_api_key() is not None
    key_header = "" if keyless else ' -H "Authorization: Bearer $OPENAI_API_KEY"'
    key_argument = ', api_key="unused"' if keyless else ""
    imports = "from openai import OpenAI\n"
    if settings.keys:
        # Not CONTEXT_PROXY_KEY: that variable is for the proxy's own commands, in the same environment.
        key_header += ' -H "x-context-key: $CONTEXT_KEY"'
        key_argument += ', default_headers={"x-context-key": environ["CONTEXT_KEY"]}'
        imports = "from os import environ\n" + imports
    question = f'"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]'
    curl = f"curl -s {url}/chat/completions -H 'Content-Type: application/json'{key_header} -d '{{{question}}}'"
    arguments = f'model="{model}", messages=[{{"role": "user", "content": "Hello"}}]'
    python = (
        f"{imports}"
        f'client = OpenAI(base_url="{url}"{key_argument})\n'
        f"print(client.chat.completions.create({arguments}).choices[0].message.content)"
    )
    return [("try it with curl", curl), ("or from Python (pip install openai)", python)]
