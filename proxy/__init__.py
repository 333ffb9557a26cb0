"""context-proxy: keeps an LLM agent's context small, cheap and truthful.

The public names of the library. `compress` shortens the messages of a script as the proxy would:

    from proxy import compress

    sent = compress(messages, model="gpt-5").messages

`rewrite` is the function that the proxy runs, for notebooks, tests and other programs:

    from proxy import BranchState, Policy, RewriteInputs, rewrite

    plan = rewrite(request, BranchState(), policy, model, now, RewriteInputs(count_tokens))

Functions over a plain list of messages, in the shapes of REPLOID's context manager:
`prune_context`, `summarize_context`, `get_context_stats`, `auto_manage_context`, `estimate_tokens`,
`score_context_importance`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from proxy.library import CompressedPrompt, compress

__all__ = [
    "BranchState",
    "CompressedPrompt",
    "Plan",
    "Policy",
    "RewriteInputs",
    "auto_manage_context",
    "compress",
    "estimate_tokens",
    "get_context_stats",
    "prune_context",
    "rewrite",
    "score_context_importance",
    "summarize_context",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load `compress` when it is asked for: it reads settings and models, which no other name here needs."""
    if name not in ("compress", "CompressedPrompt"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("proxy.library"), name)
