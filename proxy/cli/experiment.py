"""`context-proxy report`: the savings as an experiment shows them, against the sessions of the control arm."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from proxy.cli.remote import RemoteCommand, remote_command
from proxy.cli.terminal import TableColumn, format_count, print_table, print_text

DAY_S = 86_400


@remote_command
def report(
    command: RemoteCommand,
    days: Annotated[float, typer.Option(min=0.01, help="Sessions used within this number of days.")] = 90.0,
) -> None:
    """Compare the sessions of the control arm with all others: dollars, requests, latency (`experiment.control`)."""
    command.show(
        command.client.request("GET", "/api/report", since=max(0.0, time.time() - days * DAY_S)), _print_report
    )


NO_EXPERIMENT: Final = (
    "No experiment is set, so there are no two groups of sessions to compare. Put these two lines into the file that"
    " `context-proxy serve --config FILE` reads, and one session in ten runs without the proxy's edits:\n\n"
    "[experiment]\ncontrol = 0.1\n\n"
    "What was saved without a comparison: `context-proxy stats`, and the dashboard's overview."
)


def _print_report(result: Any) -> None:
    sessions = result["control_sessions"] + result["managed_sessions"]
    if not result["share"] and not sessions:
        print_text(NO_EXPERIMENT)
        return
    if not sessions:
        print_text(
            "Not known yet: no session has an arm so far. The control arm gets"
            f" {result['share']:.0%} of the sessions that begin from now on."
        )
        return
    print_text(result["verdict"])
    print_text(
        f"{format_count(result['control_sessions'], 'session')} in the control arm,"
        f" {result['managed_sessions']} managed"
        + (f", {result['mixed']} in both and not counted" if result["mixed"] else "")
        + (f", {result['unpriced']} without a bill" if result["unpriced"] else "")
        + (
            f", {result['partly_billed']} with a bill of a part of their requests"
            if result.get("partly_billed")
            else ""
        )
        + (
            f"; the control arm has {result['share']:.0%} of new sessions"
            if result["share"]
            else "; no experiment is set"
        )
    )
    print_table(result["figures"], COLUMNS)
    for arm, money in result["predictions"].items():
        print_text(f"{arm}: {money['predicted']:.4f} dollars predicted, {money['reported']:.4f} reported")
    if result.get("pings"):
        print_text(
            f"{format_count(result['pings'], 'ping')} kept the cache of managed sessions warm"
            f" ({result['pings_dollars']:.4f} dollars, which are in the figures)"
        )
    for loss in result["losses"]:
        causes = "; ".join(
            cause["cause"] + ("" if cause["dollars"] is None else f" ({cause['dollars']:.4f} dollars)")
            for cause in loss["causes"]
        )
        print_text(
            f"{loss['session']} cost {loss['dollars']:.4f} dollars,"
            f" an estimated {loss['without']:.4f} without the proxy: {causes}"
        )


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _format_interval(interval: Any) -> str:
    if interval["low"] is None:
        return _format_number(interval["value"])
    return (
        f"{_format_number(interval['value'])} [{_format_number(interval['low'])}, {_format_number(interval['high'])}]"
    )


def _render_difference(figure: Any) -> str:
    difference = figure["difference"]
    if difference["value"] is None:
        return "-"
    if not figure["relative"]:
        return _format_interval(difference)
    return f"{difference['value']:+.1%} [{difference['low']:+.1%}, {difference['high']:+.1%}]"


COLUMNS = (
    TableColumn("", lambda figure: figure["name"], is_never_cut=True),
    TableColumn("control [95 %]", lambda figure: _format_interval(figure["control"])),
    TableColumn("managed [95 %]", lambda figure: _format_interval(figure["managed"])),
    TableColumn("difference [95 %]", _render_difference),
    TableColumn("known", lambda figure: "yes" if figure["known"] else "no"),
)
