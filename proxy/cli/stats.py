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


def _print_session_stats(found: Any) -> None:
    limit = found["limit"]
    used = (
        f"{format_number(found['sent'])} / {format_number(limit)} ({format_percent(found['utilisation'])})"
        if limit
        else None
    )
    factor = found["ratio"]
    print_pairs(
        f"{found['session']}: context",
        {
            "total tokens used": used or f"{format_number(found['sent'])} of a window that is not known",
            "as the client sends it": f"{format_count(found['tokens'], 'token')}"
            f" in {format_count(found['items'], 'message')}",
            "messages stored": found["messages_stored"],
            "groups": found["groups"],
            "left out, shortened": f"{found['left_out']}, {found['shortened']}",
            "summaries": found["summaries"],
            "compression ratio": f"{factor:.1f}x average",
            "last compression": format_age(found["last_compression"]) if found["last_compression"] else "never",
            "retrieved items": found["retrieved"],
            "fetched again": _describe_refetches(found["refetched"], found["exchanges"]),
        },
    )
    if found["levels"]:
        make_console().print()
        budgets = found["level_budgets"]
        most = {name: f" / {format_number(budgets[name])}" if name in budgets else "" for name in found["levels"]}
        print_pairs(
            "level breakdown", {n: f"{format_number(tokens)}{most[n]} tokens" for n, tokens in found["levels"].items()}
        )
    make_console().print()
    print_pairs(
        "requests and money",
        {
            "policy, model": f"{found['policy']}, {found['model']}",
            "requests": format_number(found["exchanges"])
            + " (the newest; no older one is added up)" * found.get("more", False),
            "prompt, answer": f"{format_number(found['prompt_tokens'])} tokens,"
            f" {format_number(found['completion_tokens'])} tokens",
            "cached": f"{format_number(found['cached_reported'])} reported,"
            f" {format_number(found['cached_predicted'])} predicted",
            "cost": _describe_cost(found),
        },
    )
    if found["over_budget"]:
        make_console().print(
            f"\n[red]{format_number(found['over_budget'])} tokens over the budget, with all out that may go[/red]"
        )
    if found["needs_pruning"]:
        make_console().print("\n[yellow]over 80 % of the window: `context-proxy context prune` makes room[/yellow]")


def _describe_cost(found: Any) -> str:
    """Return the cost paid, with a cost to compare it with: without the proxy, or of the plan if plans were only
    observed."""
    count = found.get("unbilled", 0)  # a proxy that runs already may be older
    left = f" ({format_count(count, 'request')} without a bill: no usage reported)" if count else ""
    if found["cost"] is None:
        return f"unknown: the model has no price, or no usage was reported{left}"
    paid = format_dollars(found["cost"])
    if found["cost_planned"] is None:
        return f"{paid}, without the proxy about {format_dollars(found['cost_without'])}{left}"
    return (
        f"paid {paid}; {found['planned_as'] or 'the plan'} would have paid about"
        f" {format_dollars(found['cost_planned'])}{left}"
    )


def _describe_refetches(counts: Mapping[str, int], requests: int) -> str:
    """Return the number of cut results that the model fetched again, by kind, and their share of the requests."""
    if not counts:
        return "none"
    kinds = ", ".join(f"{count} by {kind}" for kind, count in sorted(counts.items()))
    return f"{kinds} ({format_percent(sum(counts.values()) / max(requests, 1))} of the requests)"


def _print_details(found: Any) -> None:
    health = "healthy" if found["healthy"] else f"away: {found['trouble']}"
    print_pairs(
        f"context-proxy {found['version']}",
        {
            "policy": found["policy"],
            "upstreams": ", ".join(found["upstreams"]),
            "store": f"{health}, {format_count(found['queued'], 'row')} queued,"
            f" {format_number(found['dropped'])} dropped",
            "live branches": found["live_branches"],
            "spent on helpers today": format_dollars(found["dollars_spent_today"]),
        },
    )
    if found["figures"]:
        make_console().print()
        figures = {_name_figure(n): _format_figure(n, v) for n, v in found["figures"].items() if v}
        print_pairs("since it started", figures)


def _name_figure(name: str) -> str:
    """Return the name of a figure for people: `context_tokens.sent` is "context tokens, sent"."""
    return name.replace("_", " ").replace(".", ", ")


def _format_figure(name: str, value: float) -> str:
    """Return a figure of the proxy. Dollars have more than two places: a request often costs less than a cent."""
    return format_dollars(value) if "dollars" in name else format_number(int(value) if value == int(value) else value)
