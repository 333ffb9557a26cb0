"""Warnings about x-context-* request headers whose value is not understood: such a header changes nothing.

The answer names these headers in `x-context-warning`, and the log names each once. Only headers with known values are
checked: a stage of a third party may read others.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final, get_args

from proxy.context.analysis.call_batches import ReflectionMode
from proxy.context.analysis.iteration import Urgency
from proxy.metrics import Metrics

log = logging.getLogger(__name__)

MAX_LOGGED_WARNINGS: Final = 100
"""Limit on the warnings that are logged: clients choose the values."""
SHOWN_CHARS: Final = 40
"""Characters of a value that are shown."""
YES: Final = ("1", "true", "yes", "on")
NO: Final = ("", "0", "false", "no", "off")


def find_warnings(options: Mapping[str, str], policies: Collection[str]) -> tuple[str, ...]:
    """Return the faults of the x-context-* headers. options: values by the rest of the name."""
    allowed: dict[str, Iterable[str]] = {
        "policy": sorted(policies),
        "urgency": get_args(Urgency),
        "reflect": get_args(ReflectionMode),
        "pin": (*YES, *(word for word in NO if word)),
    }
    warnings = []
    for name, words in allowed.items():
        given = options.get(name, "")
        value = given if name == "policy" else given.lower()
        if value and value not in words:
            warnings.append(f"x-context-{name}: {_render_value(given)} is none of {', '.join(words)}")
    given = options.get("max-iterations", "")
    if given and not (given.isascii() and given.isdigit() and len(given) < 10 and int(given) > 0):
        warnings.append(f"x-context-max-iterations: {_render_value(given)} is no number from 1 on")
    return tuple(warnings)


def report(warnings: Iterable[str], logged: set[str], metrics: Metrics) -> None:
    """Count the warnings, and log those that are not yet in `logged`, to which they are added."""
    for text in warnings:
        metrics.ignored_headers_total.labels(header=text.partition(":")[0]).inc()
        if text not in logged and len(logged) < MAX_LOGGED_WARNINGS:
            logged.add(text)
            log.warning("a request header is not understood: %s", text)


def _render_value(value: str) -> str:
    """Return a value in a form that can be in a header and a log line."""
    cut = value if len(value) <= SHOWN_CHARS else value[:SHOWN_CHARS] + "..."
    return "'" + "".join(one if one.isascii() and one.isprintable() else "?" for one in cut) + "'"
