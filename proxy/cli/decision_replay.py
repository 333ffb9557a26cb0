"""`context-proxy replay --ask`: the questions of a decision replay, its progress bar and its report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import typer

from proxy.cli.progress_bar import show_progress
from proxy.cli.terminal import format_count, format_percent, print_pairs, print_text, write_report
from proxy.context.models import find_model
from proxy.errors import ConfigError
from proxy.metrics import Metrics
from proxy.replay.ask_model import DecisionFile, ModelAsker
from proxy.replay.decisions import DecisionPoint, DecisionReport, list_points
from proxy.replay.play import ReplaySettings
from proxy.replay.read import RecordedConversation
from proxy.settings.load import Settings
from proxy.upstream.client import UpstreamClient

SHOWN = 20
"""Points with differing answers that are listed."""


def find_points(
    settings: Settings, conversations: Iterator[RecordedConversation], match: ReplaySettings, model_name: str
) -> list[DecisionPoint]:
    """Return the requests with new edits. Raises ConfigError if there are none, if several policies are named, or if
    the model has no prices."""
    if find_model(settings.load_models(), model_name).input is None:
        raise ConfigError("--ask", model_name, "a model with prices, since --dollars is kept (`models_file`)")
    contenders = [one for one in match.contenders if one.policy is not None]
    if len(contenders) != 1:
        raise ConfigError("--policy", ", ".join(one.label for one in contenders), "one policy with --ask")
    points = list(list_points(conversations, contenders[0], match, model_name))
    if not points:
        raise ConfigError(
            "FILE", "the recordings", f"conversations that {contenders[0].label} edits: there is nothing to ask"
        )
    return points


def ask_points(
    settings: Settings, points: Sequence[DecisionPoint], model_name: str, dollars: float, answers: Path | None
) -> DecisionReport:
    """Ask about each point, with a progress bar on a terminal."""
    model = find_model(settings.load_models(), model_name)
    file = DecisionFile(answers)

    async def ask(move: Callable[[float], None]) -> DecisionReport:
        client = UpstreamClient(settings, Metrics())
        try:
            return await ModelAsker(client, model_name, model, dollars, file).ask_all(points, lambda: move(1))
        finally:
            await client.close()

    with show_progress(f"asking {model_name}", len(points)) as move:
        try:
            return asyncio.run(ask(move))
        except KeyboardInterrupt:
            kept = f"; {answers} has the answers so far" if answers is not None else ""
            typer.echo(f"context-proxy: stopped{kept}", err=True)
            raise typer.Exit(130) from None


def print_decisions(report: DecisionReport, json: Path | None) -> None:
    """Print the report, or write it as JSON."""
    if json is not None:
        write_report(json, report)
    if str(json) == "-":
        return
    interval = "" if report.low is None or report.high is None else f" [{report.low:+.3f}, {report.high:+.3f}]"
    print_pairs(
        "agreement of the next action",
        {
            "full with full": format_percent(report.full_with_full),
            "full with managed": format_percent(report.full_with_managed),
            "managed with managed": format_percent(report.managed_with_managed),
            "difference": "-" if report.difference is None else f"{report.difference:+.3f}{interval}",
            "requests compared": f"{report.points} of {format_count(report.conversations, 'conversation')}",
            "left out by the budget": report.left,
            "questions that failed": report.failed,
            "answers that looked something up first": report.lookups,
            "dollars": f"{report.dollars:.4f}",
        },
    )
    if report.differing:
        print_text("full answers agree with each other and with no managed one at:")
        for name in report.differing[:SHOWN]:
            print_text(f"  {name}")
