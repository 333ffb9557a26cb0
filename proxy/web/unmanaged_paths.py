"""Paths that carry conversations in a format that is passed on unmanaged: the client must be told.

A client whose requests go to such a path keeps its whole history and pays for all of it, without a sign of that. The
answer therefore says so in a header, and the log once for each path.
"""

from __future__ import annotations

import re
from typing import Final

UNMANAGED_HEADER: Final = b"x-context-unmanaged"
"""The header that names the path."""
MAX_LOGGED_PATHS: Final = 100
"""Paths that are logged. There is a limit, because clients choose the paths."""
MAX_PATH_CHARS: Final = 200
"""Characters of a path that are shown."""
_CONVERSATIONAL: Final = re.compile(
    r"/(?:messages|responses|completions|complete|api/chat|api/generate|converse(?:-stream)?"
    r"|invoke(?:-with-response-stream)?|[^/]+:(?:streamG|g)enerateContent)/?$"
)
"""Ends of paths: Anthropic, OpenAI, Ollama, Bedrock, Gemini."""
_OTHER: Final = re.compile(r"/threads/[^/]+/messages/?")
"""The end of a similar path that calls no model: OpenAI's assistants."""


def is_conversational(method: str, path: str) -> bool:
    """True if a request to this path brings a conversation to a model. path: decoded, without the session's part."""
    if method != "POST":
        return False
    return _CONVERSATIONAL.search(path) is not None and _OTHER.search(path) is None
