"""Wire formats, one per file; nothing above this folder, `stream` and `web` knows a wire field by name.

`read_stored` reads a stored message by the strategy that it was stored with.
"""

from __future__ import annotations

from proxy.chat import slices
from proxy.chat.dialects import completions, gemini
from proxy.chat.message import Message


def read_stored_message(raw: bytes, strategy: str) -> Message:
    """The stored message, read by its strategy. Raises NotManaged if `raw` is a message of neither format.

    A message stored for Gemini may have come in as chat completions, which every client of the proxy speaks. Its
    `parts` member distinguishes the two.
    """
    if (
        strategy in ("gemini", "gemini_gca")
        and slices.find_member(raw, "parts")
        and not slices.find_member(raw, "content")
    ):
        return gemini.read_message(raw)
    return completions.read_message(raw)
