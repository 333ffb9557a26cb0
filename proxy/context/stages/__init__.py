"""The stages, in the order in which they are listed in the README. One file, one stage."""

from __future__ import annotations

from proxy.context.stages.close_window import CloseWindow
from proxy.context.stages.fit_budget import FitBudget
from proxy.context.stages.isolate_tools import IsolateTools
from proxy.context.stages.shorten_results import ShortenResults
from proxy.context.stages.truncate_results import TruncateResults

BUILT_IN: dict[str, type] = {
    "isolate_tools": IsolateTools,
    "close_window": CloseWindow,
    "truncate_results": TruncateResults,
    "shorten_results": ShortenResults,
    "fit_budget": FitBudget,
}
"""Every stage of ours by its name in policy files, metrics and notes."""
