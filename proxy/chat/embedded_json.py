"""JSON inside of a message's strings: the arguments of calls, and tool results that are JSON.

`SizeLimits.values` does not count this JSON, since prose and code are full of commas as well. So each text has a bound
of its own. A text that is too long, or may have too many values, is treated as plain text. Decoding is one call that no
other thread interrupts: 12 MB of empty lists held the event loop for 2 s.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from proxy.chat.size_limits import count_values

MAX_CHARS: Final = 1 << 20
"""Characters; the longest file that an agent writes in one call has a tenth of them."""
MAX_VALUES: Final = 20_000
"""Values, each of which follows a comma or an opening bracket. As many empty lists are decoded in 2 ms."""


def decode_embedded(text: str, kind: Any = Any) -> Any:
    """The JSON value in a text, decoded as `kind`. Raises ValueError or RecursionError if the text is no JSON of that
    kind, is too long, or has too many values."""
    if len(text) > MAX_CHARS:
        raise ValueError("too long to be decoded")
    if (
        len(text) > MAX_VALUES
        and text.count(",") + text.count("[") + text.count("{") > MAX_VALUES  # a quick count, strings included
        and count_values(text.encode("utf-8", "surrogatepass"), MAX_VALUES) > MAX_VALUES
    ):
        raise ValueError("too many values to be decoded")
    return msgspec.json.decode(text, type=kind)
