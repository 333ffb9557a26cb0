"""The built-in injections: inserts of the proxy in a prompt, which are no part of the history. One file each."""

from __future__ import annotations

from proxy.context.injections.activity_record import ReportActivity
from proxy.context.injections.count_down import CountDown
from proxy.context.injections.quote_memos import QuoteMemos
from proxy.context.injections.reflect import Reflect
from proxy.context.injections.report_progress import ReportProgress
from proxy.context.injections.retrieve import Retrieve
from proxy.context.injections.show_scratchpad import ShowScratchpad
from proxy.context.injections.warn_of_loops import WarnOfLoops

BUILT_IN_INJECTIONS: dict[str, type] = {
    "show_scratchpad": ShowScratchpad,
    "quote_memos": QuoteMemos,
    "report_progress": ReportProgress,
    "activity_record": ReportActivity,
    "warn_of_loops": WarnOfLoops,
    "count_down": CountDown,
    "retrieve": Retrieve,
    "reflect": Reflect,
}
"""Classes of the built-in injections, by their names in policy files."""
