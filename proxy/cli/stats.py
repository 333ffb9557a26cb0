"""`context-proxy stats`: figures of one session or of the whole proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from proxy.cli.remote import (
    Branch,
    RemoteCommand,
    remote_command,
)
from proxy.cli.terminal import (
    format_age,
    format_count,
    format_dollars,
    format_number,
    format_percent,
    make_console,
    print_pairs,
)


@remote_command
def stats(
    command: RemoteCommand,
    session: Annotated[
        str | None, typer.Argument(help="A session's name, - for the one used last; without it the whole proxy.")
    ] = None,
    branch: Branch = None,
) -> None:
    """Show the size of a session's next prompt, by level, and the session's cost. Without a session: figures of the
    proxy."""
    if session is None:
        command.show(command.client.request("GET", "/api/stats"), _print_details)
        return
    path = command.client.find_session_path(session) + "/stats"
    command.show(command.client.request("GET", path, branch=branch), _print_session_stats)


def _print_session_stats(session: Any) -> None:
    limit = session["limit"]
    used = (
        f"{format_number(session['sent'])} / {format_number(limit)} ({format_percent(session['utilisation'])})"
        if limit
        else None
    )
    factor = session["ratio"]
    print_pairs(
        f"{session['session']}: context",
        {
            "total tokens used": used or f"{format_number(session['sent'])} of a window that is not known",
            "as the client sends it": f"{format_count(session['tokens'], 'token')}"
            f" in {format_count(session['items'], 'message')}",
            "messages stored": session["messages_stored"],
            "groups": session["groups"],
            "left out, shortened": f"{session['left_out']}, {session['shortened']}",
            "summaries": session["summaries"],
            "compression ratio": f"{factor:.1f}x average",
            "last compression": format_age(session["last_compression"]) if session["last_compression"] else "never",
            "retrieved items": session["retrieved"],
            "fetched again": _describe_refetches(session["refetched"], session["exchanges"]),
        },
    )
    if session["levels"]:
        make_console().print()
        budgets = session["level_budgets"]
        most = {name: f" / {format_number(budgets[name])}" if name in budgets else "" for name in session["levels"]}
        print_pairs(
            "level breakdown",
            {n: f"{format_number(tokens)}{most[n]} tokens" for n, tokens in session["levels"].items()},
        )
    make_console().print()
    print_pairs(
        "requests and money",
        {
            "policy, model": f"{session['policy']}, {session['model']}",
            "requests": format_number(session["exchanges"])
            + " (the newest; no older one is added up)" * session.get("more", False),
            "prompt, answer": f"{format_number(session['prompt_tokens'])} tokens,"
            f" {format_number(session['completion_tokens'])} tokens",
            "cached": f"{format_number(session['cached_reported'])} reported,"
            f" {format_number(session['cached_predicted'])} predicted",
            "cost": _describe_cost(session),
            **({"of these, pings": _describe_pings(session)} if session.get("pings") else {}),
        },
    )
    if session["over_budget"]:
        make_console().print(
            f"\n[red]{format_number(session['over_budget'])} tokens over the budget, with all out that may go[/red]"
        )
    if session["needs_pruning"]:
        make_console().print("\n[yellow]over 80 % of the window: `context-proxy context prune` makes room[/yellow]")


def _describe_cost(session: Any) -> str:
    """Return the cost paid, and without the proxy, or of the plan if plans were only observed."""
    count = session.get("unbilled", 0)  # a proxy that runs already may be older
    unbilled = f" ({format_count(count, 'request')} without a bill: no usage reported)" if count else ""
    if session["cost"] is None:
        return f"unknown: the model has no price, or no usage was reported{unbilled}"
    paid = format_dollars(session["cost"])
    if session["cost_planned"] is None:
        return f"{paid}, without the proxy about {format_dollars(session['cost_without'])}{unbilled}"
    return (
        f"paid {paid}; {session['planned_as'] or 'the plan'} would have paid about"
        f" {format_dollars(session['cost_planned'])}{unbilled}"
    )


def _describe_pings(session: Any) -> str:
    """Return the number of pings that kept the cache warm, and their cost."""
    paid = "" if session["cost"] is None else f", {format_dollars(session['pings_cost'])}"
    return f"{format_count(session['pings'], 'ping')} that kept the cache warm{paid}"


def _describe_refetches(counts: Mapping[str, int], requests: int) -> str:
    """Return the number of cut results that the model fetched again, by kind, and their share of the requests."""
    if not counts:
        return "none"
    kinds = ", ".join(f"{count} by {kind}" for kind, count in sorted(counts.items()))
    return f"{kinds} ({format_percent(sum(counts.values()) / max(requests, 1))} of the requests)"


def _print_details(overview: Any) -> None:
    health = "healthy" if overview["healthy"] else f"away: {overview['trouble']}"
    print_pairs(
        f"context-proxy {overview['version']}",
        {
            "policy": overview["policy"],
            "upstreams": ", ".join(overview["upstreams"]),
            "store": f"{health}, {format_count(overview['queued'], 'row')} queued,"
            f" {format_number(overview['dropped'])} dropped",
            "live branches": overview["live_branches"],
            "spent on helpers today": format_dollars(overview["dollars_spent_today"]),
        },
    )
    if overview["figures"]:
        make_console().print()
        figures = {_name_figure(n): _format_figure(n, v) for n, v in overview["figures"].items() if v}
        print_pairs("since it started", figures)


def _name_figure(name: str) -> str:
    """Return the name of a figure for people: `context_tokens.sent` is "context tokens, sent"."""
    return name.replace("_", " ").replace(".", ", ")


def _format_figure(name: str, value: float) -> str:
    """Return a figure of the proxy. Dollars have more than two places: a request often costs less than a cent."""
    return format_dollars(value) if "dollars" in name else format_number(int(value) if value == int(value) else value)
