"""Images of tool results that newer ones have replaced: old screenshots, and the older one of two equal calls.

An agent that works on a screen sees it again after each action, and needs the last few images. The loops that the
makers of such models publish keep as many (Anthropic's computer-use demo 3, in batches; Google's computer-use preview
3). Any other image stays until the same call has returned a newer one. A drawing that was read from a file is needed
for as long as the agent works by it, and another page or part of the file is another image.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from proxy.chat.media import find_images
from proxy.context.analysis import identifiers, refetch
from proxy.context.analysis.refetch import ResultSource
from proxy.context.view import View

REMARK = "[older image left out]"
"""The text that stands in for an image."""

_SCREEN_WORDS = frozenset((
    "browser", "click", "computer", "drag", "goto", "hover", "key", "navigate", "press", "screen", "screenshot",
    "scroll", "swipe", "tap", "type", "wait",
))  # fmt: skip
"""Words in the names of tools that act on a screen and return what it shows then."""
_SCREEN = "screen"


def find_replaced_images(view: View, results: Sequence[int], newest: int) -> Iterator[tuple[int, int]]:
    """Yield (index of a result whose images were replaced, index of the result that replaced them), the newest first.

    results: indexes of results with images, in order. newest: number of screenshots that stay. The newest images of all
    stay too, and those that the model has not answered yet: one step may have returned many."""
    sources, requests = refetch.find_sources(view), view.request_counts
    shown = [n for n in reversed(results) if n in sources and find_images(view.messages[n]) and not view.leaves_out(n)]
    newer: dict[str, list[int]] = defaultdict(list)
    for count, n in enumerate(shown):
        series = _name_series(sources[n])
        kept = newest if series == _SCREEN else 1
        if count >= newest and len(newer[series]) >= kept and requests[n] < requests[-1]:
            yield n, max(newer[series][-kept], shown[count - newest])
        newer[series].append(n)


def _name_series(source: ResultSource) -> str:
    """The name of the images of which each new one replaces an older one."""
    words = identifiers.split_tool_name(source.canonical_call.partition(" ")[0])
    is_file = source.action == "shows" and source.path
    return _SCREEN if words & _SCREEN_WORDS and not is_file else source.canonical_call
