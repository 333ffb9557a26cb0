"""`context-proxy replay`: compares policies on recorded conversations, so that a user's own traffic decides.

The input is read and checked before anything is played. The table goes to stdout. The progress bar goes to stderr, and
only if stderr is a terminal.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, get_args
from urllib.parse import urlsplit

import typer

from proxy.cli.check import Config, Db, complete_policy, read_settings
from proxy.cli.decision_replay import ask_points, find_points, print_decisions
from proxy.cli.progress_bar import show_progress
from proxy.cli.terminal import REPORT_STARTS, make_console, write_file, write_report
from proxy.context.models import Model, find_model, with_long_cache
from proxy.context.policy import Policy, ScheduleName, with_schedule
from proxy.errors import ConfigError, StoreRefused, StoreUnavailable
from proxy.replay import stored
from proxy.replay.baselines import BASELINES
from proxy.replay.html_report import render_html
from proxy.replay.play import Contender, ReplaySettings
from proxy.replay.plot import render_svg
from proxy.replay.read import RecordedConversation, count_requests, read_conversations
from proxy.replay.report import NOTHING, ReplayReport, ReportBuilder
from proxy.replay.score import PricePair
from proxy.replay.table import print_report
from proxy.replay.work import play_conversations
from proxy.settings.load import Settings, mask_password
from proxy.store import open_for_reports
from proxy.store.reads import Store
from proxy.web.app import make_policies

DEFAULT_MODEL = "replay"
DEFAULT_PRICE_PAIRS = ("1/0.5", "1/0.25", "1/0.1")
"""Price pairs that are reported in addition to the model's own pair."""
SCHEDULES = tuple(name for name in get_args(ScheduleName) if name != "provider")
"""A replay has no provider that could clear results itself."""

Files = Annotated[
    list[str] | None,
    typer.Argument(help="Recordings of any format, - for stdin; with --from-store also sessions' names."),
]
FromStore = Annotated[
    bool, typer.Option("--from-store", help="Play what the store holds: the sessions named, or all where none is.")
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        autocompletion=complete_policy,
        help="NAME or NAME:SCHEDULE, several times; a SCHEDULE of `all` is each of them, a NAME of `all` every policy, "
        "`baselines` plain ones to compare with. Without it: every policy as it is. Doing nothing is always there.",
    ),
]
PricePairs = Annotated[
    list[str] | None,
    typer.Option(
        "--prices",
        help="WRITE/READ in units of an input token (1.25/0.1), several times. Policies decide by the first. Without "
        "it: the model's own, and some to compare with.",
    ),
]
ModelName = Annotated[
    str, typer.Option("--model", help="The model with its prices, window and cache rule: a name as in requests.")
]
LongCache = Annotated[
    bool,
    typer.Option(
        "--long-cache",
        help="Write the cache for the longer lifetime of the model's provider, at its price. Policies decide by it.",
    ),
]
KeepAlivePings = Annotated[
    int,
    typer.Option(
        min=0,
        max=20,
        help="Keep the cache warm with every policy: the most pings after each answer (`cache.keep_alive_pings`). "
        "Doing nothing has none; `--policy passthrough` has nothing but pings. Recordings without times have none.",
    ),
]
Window = Annotated[int | None, typer.Option(min=1, help="Tokens of the context window, in place of the model's.")]
PlayState = Annotated[
    bool, typer.Option("--play-state", help="Let the played model write a STATE block where it is asked for one.")
]
Json = Annotated[Path | None, typer.Option("--json", help="Write the report here as JSON; - for stdout, alone.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw effective cost against lines kept, as SVG.")]
Html = Annotated[
    Path | None, typer.Option("--html", help="Write a page with charts and tables that can be sent to others.")
]
AskModel = Annotated[
    str | None,
    typer.Option(
        "--ask",
        help="Ask this model for its next action with the full and with the managed prompt, twice each. It is asked at "
        "the requests with new edits of one --policy, over the configured upstream.",
    ),
]
Dollars = Annotated[float, typer.Option("--dollars", min=0.0, help="With --ask: the most that this run may spend.")]
Answers = Annotated[
    Path | None,
    typer.Option("--answers", help="With --ask: a JSONL file of the answers. A later run goes on from there."),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes; without it as many as there are cores, 4 at most.")]


def replay(
    files: Files = None,
    from_store: FromStore = False,
    policy: Policies = None,
    prices: PricePairs = None,
    model: ModelName = DEFAULT_MODEL,
    window: Window = None,
    long_cache: LongCache = False,
    keep_alive_pings: KeepAlivePings = 0,
    play_state: PlayState = False,
    json: Json = None,
    plot: Plot = None,
    html: Html = None,
    jobs: Jobs = None,
    ask: AskModel = None,
    dollars: Dollars = 1.0,
    answers: Answers = None,
    config: Config = None,
    db: Db = None,
) -> None:
    """Play recorded conversations under several policies, offline, and show the cost and the losses of each policy."""
    settings = read_settings(config, db=db)
    for target in (json, plot, html, answers):
        if target is not None and (not target.parent.is_dir() or target.is_dir()):
            raise ConfigError("OUT", str(target), "a file in a folder that is there")
    for target in filter(None, (json, plot, html)):
        _check_not_recording(target)
    name = ask if ask is not None and model == DEFAULT_MODEL else model
    pairs, decided = read_price_pairs(prices or [], _find_model(settings, name, long_cache=long_cache))
    if window is not None:
        decided = replace(decided, window=window)
    wanted = [settings.policy] if ask is not None and not policy else policy or []
    match = ReplaySettings(
        read_contenders(wanted, make_policies(settings)), decided, pairs, play_state, keep_alive_pings
    )
    try:
        if ask is not None:
            with _find_conversations(settings, files or [], from_store) as (_, conversations):
                points = find_points(settings, conversations, match, ask)
            print_decisions(ask_points(settings, points, ask, dollars, answers), json)
            return
        with _find_conversations(settings, files or [], from_store) as (number, conversations):
            report = _play(conversations, number, match, jobs or min(4, os.cpu_count() or 1))
    except StoreUnavailable as problem:
        raise StoreRefused(f"{mask_password(settings.db)} cannot be read to its end: {problem}") from problem
    except BrokenProcessPool:
        typer.echo("context-proxy: a worker was ended from outside (out of memory?); try a lower --jobs", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("context-proxy: stopped; nothing was written", err=True)
        raise typer.Exit(130) from None
    if not report.requests:
        what = ("FILE", ", ".join(files)) if files else ("db", mask_password(settings.db))
        raise ConfigError(*what, "conversations with an answer to a user message: nothing could be played")
    _show_report(report, json=json, plot=plot, html=html)


def _show_report(report: ReplayReport, *, json: Path | None, plot: Path | None, html: Path | None) -> None:
    """Write the files that are wanted, and print the tables if stdout has nothing else."""
    if plot is not None:
        write_file(plot, render_svg(report))
    if html is not None:
        write_file(html, render_html(report))
    if json is not None:
        write_report(json, report)
    if str(json) != "-":
        print_report(report, make_console())


def _check_not_recording(target: Path) -> None:
    """Raise ConfigError if a report would be written over what is none, for example over the first of the recordings
    where the name of the report was forgotten."""
    try:
        with target.open("rb") as file:
            beginning = file.read(len(max(REPORT_STARTS, key=len)))
    except OSError:
        return  # none is there yet; one that cannot be read is refused when it is written
    if beginning and not beginning.startswith(REPORT_STARTS):
        raise ConfigError("OUT", str(target), "a new file, or a report to be replaced: what is there is no report")


def _find_model(settings: Settings, name: str, *, long_cache: bool) -> Model:
    """Return the model, with its longer cache lifetime if asked for. ConfigError if it has only one."""
    model = find_model(settings.load_models(), name)
    if not long_cache:
        return model
    if model.w_long is None:
        raise ConfigError("--model", name, "a model with two lifetimes (w_long in its row), for --long-cache")
    return with_long_cache(model)


def _play(
    conversations: Iterator[RecordedConversation], number: int | None, match: ReplaySettings, jobs: int
) -> ReplayReport:
    sums = ReportBuilder(match)
    with (
        show_progress(f"{len(match.contenders)} policies, requests", number) as move,
        closing(play_conversations(conversations, match, jobs)) as played,
    ):
        for one in played:
            before = sums.request_count
            sums.add_result(one)
            move(sums.request_count - before)
    return sums.build_report()


@contextmanager
def _find_conversations(
    settings: Settings, names: list[str], from_store: bool
) -> Iterator[tuple[int | None, Iterator[RecordedConversation]]]:
    """Yield (number of requests, None for a store's; the conversations). Raises ConfigError and StoreRefused."""
    files = [Path(name) for name in names if not from_store or Path(name).is_file()]
    if not from_store:
        if not files:
            raise ConfigError("FILE", None, "recordings, - for stdin, or --from-store")
        with _spool_stdin(files) as spooled:
            yield count_requests(spooled), (one for file in spooled for one in read_conversations(file))
        return
    sessions = [name for name in names if not Path(name).is_file()]
    # An event loop of its own: the code that asks for the conversations one by one runs on none.
    with asyncio.Runner() as runner:
        store = runner.run(open_for_reports(settings.db))
        try:
            places = runner.run(stored.find_sessions(store, sessions))
            in_files = (one for file in files for one in read_conversations(file))
            count_requests(files)  # a file that cannot be played is reported before anything is
            yield None, itertools.chain(in_files, _read_stored(runner, store, places, _name_store(settings.db)))
        finally:
            runner.run(store.close())


@contextmanager
def _spool_stdin(files: list[Path]) -> Iterator[list[Path]]:
    """Yield the files, with a copy of stdin in place of -: every file is read twice."""
    with tempfile.TemporaryDirectory(prefix="context-proxy-") as folder:
        copied = Path(folder) / "stdin"
        if Path("-") in files:
            with copied.open("wb") as target:
                shutil.copyfileobj(sys.stdin.buffer, target)
        try:
            yield [copied if file == Path("-") else file for file in files]
        except ConfigError as problem:  # nobody knows the copy's name
            value, source = ("stdin" if one == str(copied) else one for one in (problem.value, problem.source))
            raise ConfigError(problem.key, value, problem.allowed, line=problem.line, source=str(source)) from None


def _name_store(db: str) -> str:
    """Return the name of a store's file or database, without its folder, host and password."""
    return Path(urlsplit(db).path if "://" in db else db).name


def _read_stored(
    runner: asyncio.Runner, store: Store, places: list[stored.StoredSession], source: str
) -> Iterator[RecordedConversation]:
    async def read_next(branches: object) -> RecordedConversation | None:
        return await anext(branches, None)  # type: ignore[call-overload,no-any-return]  # an async generator

    for place in places:
        branches = stored.read_branches(store, place, source)
        while (one := runner.run(read_next(branches))) is not None:
            yield one


def read_contenders(wanted: list[str], policies: dict[str, Policy]) -> tuple[Contender, ...]:
    """Return the contenders, `nothing` first. Raises ConfigError if a name is not known."""
    contenders = {NOTHING: Contender(NOTHING)}
    for text in wanted or ["all"]:
        name, _, schedule = text.partition(":")
        if schedule and schedule not in (*SCHEDULES, "all"):
            raise ConfigError("--policy", text, "a schedule of " + ", ".join((*SCHEDULES, "all")))
        for each in _list_policy_names(name, policies):
            for contender in _list_contenders(each, schedule, policies):
                contenders.setdefault(contender.label, contender)
    return tuple(contenders.values())


def _list_policy_names(name: str, policies: dict[str, Policy]) -> list[str]:
    if name == "all":
        return [each for each, policy in policies.items() if policy.mode == "rewrite"]
    if name == "baselines":
        return list(BASELINES)
    if name in policies or name in BASELINES or name == NOTHING:
        return [name]
    raise ConfigError("--policy", name, "one of " + ", ".join(["all", "baselines", NOTHING, *policies, *BASELINES]))


def _list_contenders(name: str, schedule: str, policies: dict[str, Policy]) -> Iterator[Contender]:
    policy = policies.get(name)
    if policy is None:
        yield Contender(name, None, name if name in BASELINES else "")
        return
    wanted = [s for s in SCHEDULES if schedule in (s, "all")] or [policy.schedule]
    for each in wanted:
        label = name if each == policy.schedule else f"{name}:{each}"
        yield Contender(label, with_schedule(policy, each))


def read_price_pairs(texts: list[str], model: Model) -> tuple[tuple[PricePair, ...], Model]:
    """Return (the price pairs of the report, the model with the first one). Raises ConfigError for other texts."""
    own = f"{model.w:g}/{model.r:g}"
    pairs = tuple(dict.fromkeys(_parse_price_pair(text) for text in texts or [own, *DEFAULT_PRICE_PAIRS]))
    return pairs, replace(model, w=pairs[0][0], r=pairs[0][1])


def _parse_price_pair(text: str) -> PricePair:
    write, _, cached = text.partition("/")
    try:
        pair = float(write), float(cached)
    except ValueError:
        pair = -1.0, -1.0
    if not (0 < pair[0] < 1e6 and 0 <= pair[1] <= pair[0]):
        raise ConfigError("--prices", text, "WRITE/READ such as 1.25/0.1, READ at most WRITE")
    return pair
