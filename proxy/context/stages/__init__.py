"""The built-in stages, one file each, in the order in which docs/reference/stages.md lists them."""

from __future__ import annotations

from proxy.context.stages.close_window import CloseWindow
from proxy.context.stages.compress_levels import CompressLevels
from proxy.context.stages.distil_results import DistilResults
from proxy.context.stages.drop_unimportant import DropUnimportant
from proxy.context.stages.fit_budget import FitBudget
from proxy.context.stages.isolate_tools import IsolateTools
from proxy.context.stages.refer_repeats import ReferRepeats
from proxy.context.stages.shorten_arguments import ShortenArguments
from proxy.context.stages.shorten_results import ShortenResults
from proxy.context.stages.summarize_old import SummarizeOld
from proxy.context.stages.truncate_results import TruncateResults
from proxy.context.stages.window_by_iteration import WindowByIteration

BUILT_IN_STAGES: dict[str, type] = {
    "isolate_tools": IsolateTools,
    "close_window": CloseWindow,
    "truncate_results": TruncateResults,
    "window_by_iteration": WindowByIteration,
    "refer_repeats": ReferRepeats,
    "shorten_results": ShortenResults,
    "shorten_arguments": ShortenArguments,
    "compress_levels": CompressLevels,
    "distil_results": DistilResults,
    "drop_unimportant": DropUnimportant,
    "summarize_old": SummarizeOld,
    "fit_budget": FitBudget,
}
"""Classes of the built-in stages, by their names in policy files, metrics and notes."""
