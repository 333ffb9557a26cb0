"""context-proxy: keeps an LLM agent's context small, cheap and truthful.

The public names of the library: the same `rewrite` that the proxy runs, for notebooks, tests and other programs.

    from proxy import BranchState, Policy, RewriteInputs, rewrite

    plan = rewrite(request, BranchState(), policy, model, now, RewriteInputs(count_tokens))

Functions over a plain list of messages, in the shapes of REPLOID's context manager:
`prune_context`, `summarize_context`, `get_context_stats`, `auto_manage_context`, `estimate_tokens`,
`score_context_importance`.
"""

from __future__ import annotations

from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.policy import Policy
from proxy.contrib.reploid import (
    auto_manage_context,
    estimate_tokens,
    get_context_stats,
    prune_context,
    score_context_importance,
    summarize_context,
)

__all__ = [
    "BranchState",
    "Plan",
    "Policy",
    "RewriteInputs",
    "auto_manage_context",
    "estimate_tokens",
    "get_context_stats",
    "prune_context",
    "rewrite",
    "score_context_importance",
    "summarize_context",
]
__version__ = "0.1.0"
