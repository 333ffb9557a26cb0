"""context-proxy: keeps an LLM agent's context small, cheap and truthful.

The library's face: the same `rewrite` that the proxy runs, for notebooks, tests and other programs.

    from proxy import Policy, Session, rewrite

    plan = rewrite(request, Session(), policy, model, now, weigh=weigh)
"""

from __future__ import annotations

from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan
from proxy.context.policy import Policy
from proxy.context.session import Session

__all__ = ["Plan", "Policy", "Session", "rewrite"]
__version__ = "0.1.0"
