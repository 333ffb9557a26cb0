"""Report the progress to the model: its iteration, tools used and pages read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from proxy.context.analysis.iteration import read_iteration
from proxy.context.analysis.streams import find_research
from proxy.context.plan import Insert
from proxy.context.stage import Injection
from proxy.context.view import View
from proxy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReportProgress(Injection):
    """Insert `[PROGRESS: Iteration 7/30 | 3 tools used | 2 pages read]` at the tail, from the fifth iteration on."""

    since: int = 5
    """The first iteration that is reported."""
    max_iterations: int = 30
    """Maximum number of iterations, if the request has no `x-context-max-iterations`."""
    pages: str = "read|get|fetch|open|browse"
    """Pattern for the beginning of a word in the names of tools whose calls count as pages."""

    def __post_init__(self) -> None:
        """Validate the pattern, which comes from a file. Raises ConfigError if it is invalid."""
        try:
            re.compile(self.pages)
        except re.error as problem:
            raise ConfigError("injections.report_progress.pages", self.pages, f"a pattern ({problem})") from problem

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield this request's note: the calls answered since the prompt, and those of them that read a page."""
        at = read_iteration(view, self.max_iterations)
        if at.number < self.since:
            return
        done = find_research(view, at.start, self.pages)
        tools, pages = _render_count(done.call_count, "tool"), _render_count(len(done.page_calls), "page")
        text = f"[PROGRESS: Iteration {at.number}/{at.maximum} | {tools} used | {pages} read]"
        yield Insert("tail", "report_progress", f"\n\n{text}", may_stand_alone=True)


def _render_count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
