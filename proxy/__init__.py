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
from typing import TYPE_CHECKING, Any, Final

from proxy.version import VERSION

if TYPE_CHECKING:
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
__version__ = VERSION


_HOMES: Final = {
    "BranchState": "proxy.context.branch_state",
    "rewrite": "proxy.context.pipeline",
    "Plan": "proxy.context.plan",
    "RewriteInputs": "proxy.context.plan",
    "Policy": "proxy.context.policy",
    "compress": "proxy.library",
    "CompressedPrompt": "proxy.library",
}
"""The modules of the names; the others are in `proxy.contrib.reploid`."""


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for. A command, or a script that needs one name, does not wait for all of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "proxy.contrib.reploid")), name)
