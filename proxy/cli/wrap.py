"""`context-proxy wrap`: runs a coding agent behind the proxy, and says at the end what was saved.

If no proxy runs that leads to the agent's upstream, one is started in this process for as long as the agent runs. It
lives in a thread: it ends with this process, however this process ends. The agent is pointed at it by variables and
arguments of this one run (`agents`), so that nothing has to be undone in a file. What wrap prints goes to stderr, since
stdout is the agent's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from proxy.cli.agents import AGENTS, AgentSetup, AgentSurroundings, AgentUpstream, read_agent
from proxy.cli.check import Config, Db, PolicyName, read_settings
from proxy.cli.logs import set_up_logging
from proxy.cli.remote import DEFAULT_URL, AdminClient, RemoteRefused, RemoteUnreachable
from proxy.cli.serve import AnnouncingServer, open_listener
from proxy.cli.terminal import format_count, format_dollars, print_notice
from proxy.errors import ConfigError, StoreRefused
from proxy.settings.load import Settings, copy_environment, find_data_folder
from proxy.store.sqlite_files import FileLock

START_S: Final = 30.0
"""Limit in seconds on the start of an agent's proxy, and on its end."""
SETTLE_S: Final = 5.0
"""Seconds for which the last requests of an agent that has ended are waited for."""
FORWARDED_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
TERMINAL_SIGNALS: Final = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the agent itself as well."""
MAX_STORES: Final = 100
"""Agents that run at once, each with a proxy and its own store."""


def _complete_agent(incomplete: str) -> list[str]:
    return [name for name in AGENTS if name.startswith(incomplete)]


def wrap(
    agent: Annotated[
        str,
        typer.Argument(
            help="The agent: " + ", ".join(AGENTS) + ".", show_default=False, autocompletion=_complete_agent
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the agent, after --.")] = None,
    upstream: Annotated[
        str, typer.Option(help="The upstream's base URL, in place of the one that the agent asks by itself.")
    ] = "",
    policy: PolicyName = None,
    url: Annotated[
        str, typer.Option("--proxy", envvar="CONTEXT_PROXY_URL", help="A running proxy to use, without keys.")
    ] = "",
    db: Db = None,
    config: Config = None,
) -> None:
    """Run a coding agent behind the proxy, and print what was saved at the end. Its settings files stay as they are."""
    given = tuple(arguments or ())
    given = given[1:] if given[:1] == ("--",) else given
    surroundings = AgentSurroundings(copy_environment(), Path.cwd(), given)
    setup = read_agent(agent, surroundings, upstream)
    program = shutil.which(agent, path=surroundings.environment.get("PATH"))
    if program is None:
        raise ConfigError("AGENT", agent, f"a program that is installed: there is no `{agent}` on the PATH")
    with find_or_start_proxy(setup, url, config, upstream=upstream, policy=policy, db=db) as used:
        print_notice(f"{agent} runs behind {used.url}, which leads to {used.leads_to}.")
        for line in (*used.notes, *setup.notes):
            print_notice(line)
        began = time.time()
        environment = {**surroundings.environment, **setup.fill_environment(used.url)}
        code = run_agent([program, *setup.fill_arguments(used.url), *given], environment)
        for line in describe_savings(read_savings(used.url, began)):
            print_notice(line)
        print_notice(used.afterwards)
    raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class UsedProxy:
    """The proxy that an agent uses. url: its address without /v1."""

    url: str
    leads_to: str
    """The addresses of its upstreams."""
    afterwards: str
    """The sentence for the end: where the requests can be looked at."""
    notes: tuple[str, ...] = ()


@contextmanager
def find_or_start_proxy(
    setup: AgentSetup, url: str, config: Path | None, *, upstream: str, policy: str | None, db: str | None
) -> Iterator[UsedProxy]:
    """Yield a running proxy that leads to the agent's upstream. It is the named proxy, or the proxy at the usual
    address. Otherwise a proxy is started and ended here. Raises ConfigError and StoreRefused."""
    asked_before = next((one.base_url for one in setup.upstreams if _leads_here(one.base_url)), "")
    if url or asked_before:
        address = (url or asked_before).rstrip("/").removesuffix("/v1")
        yield _describe_running_proxy(address, read_overview(address, named=True), policy)
        return
    wants_own = policy is not None or db is not None or config is not None or is_signed(setup.upstreams)
    running = None if wants_own else read_overview(DEFAULT_URL, named=False)
    if running is not None and _leads_to(running, setup.upstreams):
        yield _describe_running_proxy(DEFAULT_URL, running, None)
        return
    settings = make_settings(setup.upstreams, config, upstream=upstream, policy=policy, db=db)
    with start_proxy(settings) as address:
        targets = ", ".join(dict.fromkeys(one.base_url for one in settings.active_upstreams.values()))
        yield UsedProxy(
            address,
            f"{targets} with the policy {settings.policy}",
            f"The requests are in {settings.db}; `context-proxy serve --db {settings.db}` shows them.",
            (f"Its dashboard is at {address}/dashboard/ as long as the agent runs.",),
        )


def _leads_here(base: str) -> bool:
    """True if an address of this machine is a context-proxy."""
    is_local = base.startswith(("http://127.0.0.1:", "http://localhost:", "http://[::1]:"))
    return is_local and read_overview(base.rstrip("/").removesuffix("/v1"), named=False) is not None


def read_overview(url: str, *, named: bool) -> Any:
    """Return what a running proxy tells of itself. If there is none, or if it wants a key: None, or ConfigError if a
    person has named it."""
    try:
        overview = AdminClient(url, seconds=SETTLE_S).request("GET", "/api/stats")
    except (RemoteUnreachable, RemoteRefused) as problem:
        if named:
            raise ConfigError("url", url, f"a running proxy without keys ({problem})", source="--proxy") from None
        return None
    return overview if isinstance(overview, dict) and isinstance(overview.get("targets"), list) else None


def is_signed(upstreams: Iterable[AgentUpstream]) -> bool:
    """True if the proxy has to sign requests: no other proxy is known to do so."""
    return any(one.auth for one in upstreams)


def _leads_to(overview: Any, upstreams: tuple[AgentUpstream, ...]) -> bool:
    """True if a running proxy sends everything to where the agent would send it."""
    running = [(one["base_url"].rstrip("/").removesuffix("/v1"), tuple(one["models"])) for one in overview["targets"]]
    return running == [(one.base_url.rstrip("/").removesuffix("/v1"), one.models) for one in upstreams]


def _describe_running_proxy(url: str, overview: Any, policy: str | None) -> UsedProxy:
    if policy is not None:
        raise ConfigError("policy", policy, f"nothing for a proxy that runs already: it has {overview['policy']}")
    targets = ", ".join(dict.fromkeys(one["base_url"] for one in overview["targets"]))
    return UsedProxy(
        url,
        f"{targets} with the policy {overview['policy']}",
        f"The requests are at {url}/dashboard/.",
        ("That proxy ran already. What others send through it meanwhile is in the sums too.",),
    )


def make_settings(
    upstreams: tuple[AgentUpstream, ...], config: Path | None, *, upstream: str, policy: str | None, db: str | None
) -> Settings:
    """Return the settings of a proxy for one agent: the user's, on a free port of this machine. Upstreams that the
    configuration names go before those of the agent. Raises ConfigError and StoreRefused."""
    flags: dict[str, object] = {"host": "127.0.0.1", "port": 0, "policy": policy}
    user = read_settings(config, **flags, db=db)
    if user.keys:
        raise ConfigError("keys", "...", "none: wrap's own proxy serves this machine alone, and the agent has no key")
    if upstream and not is_signed(upstreams):
        flags["upstream"] = upstream
    elif upstream or not (user.upstream or user.upstreams):
        for one in upstreams:
            flags[f"upstreams.{one.name}.base_url"] = one.base_url
            flags[f"upstreams.{one.name}.models"] = one.models
            flags[f"upstreams.{one.name}.auth"] = one.auth
    if db is None and user.db == Settings.model_fields["db"].default:
        flags["db"] = str(find_free_store(make_data_folder()))
    else:
        flags["db"] = user.db
    return read_settings(config, **flags)


def make_data_folder() -> Path:
    """Return the folder of wrap's stores and its log, which is there then. Raises StoreRefused if it cannot be used."""
    folder = find_data_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise StoreRefused(
            f"the folder {folder} cannot be used: {error.strerror}.",
            hint="Set XDG_DATA_HOME to a folder that this user may write to.",
        ) from None


def find_free_store(folder: Path) -> Path:
    """Return a store that no process uses. The usual one keeps the sessions of all runs; others are for agents that run
    at the same time. Raises StoreRefused."""
    for number in range(1, MAX_STORES + 1):
        file = folder / ("wrap.sqlite3" if number == 1 else f"wrap-{number}.sqlite3")
        try:
            with hold_store(file):
                return file
        except StoreRefused:
            continue
    raise StoreRefused(f"all {MAX_STORES} stores in {folder} are in use.", hint="Name another one with --db.")


@contextmanager
def hold_store(file: Path) -> Iterator[None]:
    """Hold the lock of a SQLite store. Raises StoreRefused if another process has it."""
    lock = FileLock(file)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def start_proxy(settings: Settings) -> Iterator[str]:
    """Run a proxy in a thread, and yield its address without /v1. Raises StoreRefused if it does not start."""
    log_file = make_data_folder() / "wrap.log"
    if "://" not in settings.db and settings.db != ":memory:" and Path(settings.db).parent.is_dir():
        with hold_store(Path(settings.db)):
            pass  # another process's store is refused here in its own words, and not in the log alone
    # The terminal is the agent's.
    set_up_logging(settings.log_level, settings.access_log, log_file)
    with open_listener(settings.host, settings.port) as listener:
        server = AnnouncingServer(settings, listener, announces=False)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="proxy")
        thread.start()
        until = time.monotonic() + START_S
        while not server.started and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not server.started:
            reason = find_last_error(log_file)
            raise StoreRefused(f"the proxy did not start{reason and ': ' + reason}", hint=f"Its log is {log_file}.")
        host, port = listener.getsockname()[:2]
        try:
            yield f"http://{host}:{port}"
        finally:
            server.should_exit = True
            thread.join(START_S)


def find_last_error(log_file: Path) -> str:
    """Return the text of the last error in a log of ours, which says why a start was refused; "" if there is none."""
    try:
        lines = log_file.read_text("utf-8", "replace").splitlines()[-20:]
    except OSError:
        return ""
    errors = [line.partition(" error ")[2] for line in lines if " error " in line]
    return next((one for one in reversed(errors) if "startup failed" not in one), "")


def run_agent(command: list[str], environment: Mapping[str, str]) -> int:
    """Run the agent in this terminal, and return its exit code; 128 and the number of a signal that ended it. Signals
    to this process go on to the agent. A signal of the terminal is not sent again: the agent has it already."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        elif child.poll() is None and not (number in TERMINAL_SIGNALS and _is_in_foreground()):
            child.send_signal(number)

    before = {
        signal_number: signal.signal(signal_number, forward)
        for signal_number in (*FORWARDED_SIGNALS, *TERMINAL_SIGNALS)
    }
    try:
        child = subprocess.Popen(command, env=dict(environment))  # noqa: S603  # the user's own choice
        for number in early:
            forward(number, None)
        code = child.wait()
    except OSError as problem:
        raise ConfigError("AGENT", command[0], f"a program that can be started ({problem.strerror})") from None
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
    return code if code >= 0 else 128 - code


def _is_in_foreground() -> bool:
    """True if the terminal's signals come to this process and to the agent alike."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


def read_savings(url: str, since: float) -> Any:
    """Return the sums of the requests since a moment, once the last of them are stored; None if the proxy is gone. The
    first answer of the admin API may take seconds on a busy machine, since it is loaded for it."""
    client = AdminClient(url, seconds=START_S)
    until = time.monotonic() + SETTLE_S
    try:
        while True:
            is_idle = not client.request("GET", "/api/stats")["queued"]
            found = client.request("GET", "/api/savings", since=since)
            if (is_idle and not found["open_requests"]) or time.monotonic() > until:
                return found
            time.sleep(0.05)
    except (RemoteUnreachable, RemoteRefused) as problem:
        print_notice(str(problem))
        return None


def describe_savings(savings: Any) -> list[str]:
    """Return the sentences that tell the sums to a person."""
    if savings is None:
        return ["What was saved is not known: the proxy does not answer."]
    if not savings["requests"]:
        return ["No request of the agent came through the proxy, so nothing was saved."]
    before, after = savings["tokens_before"], savings["tokens_after"]
    left_out = before - after
    share = f" ({left_out / before:.0%})" if before else ""
    requests = format_count(savings["requests"], "request")
    lines = [f"{requests}; {left_out:,} of {before:,} prompt tokens were left out{share}."]
    failed = savings.get("failed", 0)  # a proxy that runs already may be older
    priced = savings["requests"] - savings["unpriced"] - savings["without_usage"] - savings["open_requests"] - failed
    if priced:
        saved = savings["cost_without"] - savings["cost"]
        by = " by the provider's cache" if saved > 0 and not left_out else ""  # marks of the proxy are the reason
        verb = "saved" + by if saved >= 0 else "more than without the proxy"
        lines.append(
            f"{format_dollars(savings['cost'])} paid in place of about {format_dollars(savings['cost_without'])}: "
            f"{format_dollars(abs(saved))} {verb}."
        )
    unknowns = [
        (savings["unpriced"], "no price is known for " + ", ".join(savings["unpriced_models"])),
        (savings["without_usage"], "the answer reported no usage"),
        (savings["open_requests"], "the answer has not ended"),
    ]
    lines += [f"Dollars are unknown for {count:,} of the requests: {why}." for count, why in unknowns if count]
    if failed:
        lines.append(f"{failed:,} of the requests failed, and the agent was told why.")
    if savings["more"]:
        lines.append("There are more sessions than were added up.")
    return lines
