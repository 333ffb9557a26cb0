"""Wire formats, one folder each: their requests, their rules and their answers. Pure.

`read_stored_message` reads a stored message by the strategy that it was stored with.
"""

from __future__ import annotations

from proxy.chat import json_spans
from proxy.chat.message import Message
from proxy.dialects.completions import request as completions
from proxy.dialects.gemini import request as gemini


def read_stored_message(raw: bytes, strategy: str) -> Message:
    """The stored message, read by its strategy. Raises NotManaged if `raw` is a message of neither format.

    A message stored for Gemini may have come in as chat completions, which every client of the proxy speaks. Its
    `parts` member distinguishes the two.
    """
    if (
        strategy in ("gemini", "gemini_gca")
        and json_spans.find_member(raw, "parts")
        and not json_spans.find_member(raw, "content")
    ):
        return gemini.read_message(raw)
    return completions.read_message(raw)
