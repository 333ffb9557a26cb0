"""`context-proxy stats`: figures of one session or of the whole proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from proxy.cli.asks import Asking, Thread, asks
from proxy.cli.terminal import ago, console, dollars, number, pairs, percent


@asks
def stats(
    asking: Asking,
    session: Annotated[
        str | None, typer.Argument(help="A session's name, - for the one used last; without it the whole proxy.")
    ] = None,
    thread: Thread = None,
) -> None:
    """Show the size of a session's next prompt, by level, and the session's cost. Without a session: figures of the
    proxy."""
    if session is None:
        asking.show(asking.remote.ask("GET", "/api/stats"), _whole)
        return
    path = asking.remote.session(session) + "/stats"
    asking.show(asking.remote.ask("GET", path, thread=thread), _session)


def _session(found: Any) -> None:
    limit = found["limit"]
    used = f"{number(found['sent'])} / {number(limit)} ({percent(found['utilisation'])})" if limit else None
    factor = found["ratio"]
    pairs(
        f"{found['session']}: context",
        {
            "total tokens used": used or f"{number(found['sent'])} of a window that is not known",
            "as the client sends it": f"{number(found['tokens'])} tokens in {found['items']} messages",
            "messages stored": found["messages_stored"],
            "groups": found["groups"],
            "left out, shortened": f"{found['left_out']}, {found['shortened']}",
            "summaries": found["summaries"],
            "compression ratio": f"{factor:.1f}x average",
            "last compression": ago(found["last_compression"]) if found["last_compression"] else "never",
            "retrieved items": found["retrieved"],
            "fetched again": _refetched(found["refetched"], found["exchanges"]),
        },
    )
    if found["levels"]:
        console().print()
        budgets = found["level_budgets"]
        most = {name: f" / {number(budgets[name])}" if name in budgets else "" for name in found["levels"]}
        pairs("level breakdown", {n: f"{number(tokens)}{most[n]} tokens" for n, tokens in found["levels"].items()})
    console().print()
    pairs(
        "requests and money",
        {
            "policy, model": f"{found['policy']}, {found['model']}",
            "requests": found["exchanges"],
            "prompt, answer": f"{number(found['prompt_tokens'])}, {number(found['completion_tokens'])} tokens",
            "cached": f"{number(found['cached_reported'])} reported, {number(found['cached_predicted'])} predicted",
            "cost": _cost(found),
        },
    )
    if found["over_budget"]:
        console().print(f"\n[red]{number(found['over_budget'])} tokens over the budget, with all out that may go[/red]")
    if found["needs_pruning"]:
        console().print("\n[yellow]over 80 % of the window: `context-proxy context prune` makes room[/yellow]")


def _cost(found: Any) -> str:
    """Return the cost paid, with a cost to compare it with: without the proxy, or of the plan if plans were only
    observed."""
    paid = dollars(found["cost"])
    if found["cost_planned"] is None:
        return f"{paid}, without the proxy {dollars(found['cost_without'])}"
    return f"paid {paid}; {found['planned_as'] or 'the plan'} would have paid about {dollars(found['cost_planned'])}"


def _refetched(counts: Mapping[str, int], requests: int) -> str:
    """Return the number of cut results that the model fetched again, by kind, and their share of the requests."""
    if not counts:
        return "none"
    kinds = ", ".join(f"{count} by {kind}" for kind, count in sorted(counts.items()))
    return f"{kinds} ({percent(sum(counts.values()) / max(requests, 1))} of the requests)"


def _whole(found: Any) -> None:
    health = "healthy" if found["healthy"] else f"away: {found['trouble']}"
    pairs(
        f"context-proxy {found['version']}",
        {
            "policy": found["policy"],
            "upstreams": ", ".join(found["upstreams"]),
            "store": f"{health}, {number(found['queued'])} rows queued, {number(found['dropped'])} dropped",
            "live threads": found["live_threads"],
            "spent on helpers today": dollars(found["dollars_spent_today"]),
        },
    )
    if found["figures"]:
        console().print()
        figures = {n.replace("_", " "): number(int(v) if v == int(v) else v) for n, v in found["figures"].items() if v}
        pairs("since it started", figures)
