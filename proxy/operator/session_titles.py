"""Titles of sessions: the beginning of what the user said first."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from proxy.exchange.services import Services

TITLE_CHARS: Final = 120
_AGENT_CONTEXT: Final = re.compile(
    r"<(system-reminder|environment_context|user_instructions|environment_details|command-message|local-command-\w+)>"
    r".*?(</\1>|\Z)",
    re.DOTALL,
)
"""Blocks that agents put into a user's message and that the user did not write."""
_TAG: Final = re.compile(r"</?[A-Za-z][\w-]*>")
_TEXT_START: Final = re.compile(rb'"(?:content|text)"\s*:\s*"')


async def read_title(services: Services, tenant: str, session: str) -> str:
    """Return the session's title; "" where the user has said nothing. StoreUnavailable passes through.

    Not cached: a message can be removed permanently, and then its title goes too.
    """
    for body in await services.store.read_first_prompts(tenant, session):
        title = make_title(read_text(body))
        if title:
            return title
    return ""


def make_title(text: str, limit: int = TITLE_CHARS) -> str:
    """Return a text's beginning in one line, without tags and without what an agent has put in front."""
    plain = " ".join(_TAG.sub(" ", _AGENT_CONTEXT.sub(" ", text)).split())
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def read_text(body: bytes) -> str:
    """Return the text of a message's JSON, which may be cut off."""
    try:
        message: Any = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return _read_cut_text(body)
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _read_cut_text(body: bytes) -> str:
    found = _TEXT_START.search(body)
    if found is None:
        return ""
    text = body[found.end() :].decode("utf-8", "ignore")
    text = re.split(r'(?<!\\)(?:\\\\)*"', text, maxsplit=1)[0]
    return text.replace("\\n", "\n").replace('\\"', '"')
