"""What is taken for a thought, a failure, a change or a loop: words and patterns as data, all of it settings.

The five themes and their words are those of the source of `progressive`. The rest was found on recorded agent traffic,
and errs towards silence: what is wrongly taken for a change or for waiting only ends a count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.errors import ConfigError

Theme = tuple[str, tuple[str, ...]]
"""(name, words)"""

THEMES: tuple[Theme, ...] = (
    ("planning", ("plan", "strategy", "approach", "need to")),
    ("synthesis", ("synthesize", "combine", "overall", "summary")),
    ("search_intent", ("search", "find", "look for")),
    ("read_intent", ("read", "article", "page")),
)
GENERAL = "general"
"""The theme of every thought that has none of the others."""

WRITES = (
    "add", "append", "apply", "assign", "book", "cancel", "commit", "copy", "create", "delete", "deploy", "drop",
    "edit", "exit", "insert", "install", "kill", "make", "merge", "mkdir", "modify", "move", "new", "patch", "post",
    "publish", "purchase", "push", "put", "remove", "rename", "replace", "reset", "restart", "restore", "rollback",
    "save", "send", "set", "start", "stash", "stop", "submit", "todo", "undo", "update", "upload", "write",
)  # fmt: skip
"""Words in names of tools that change something."""
POLLS = (
    "await", "click", "heartbeat", "job", "key", "monitor", "next", "output", "ping", "poll", "press", "progress",
    "scroll", "sleep", "status", "tap", "wait", "watch",
)  # fmt: skip
"""Words in names of tools that are meant to be called again and again."""
SHELL = ("command", "cmd", "script", "code", "input")
INNER = ("tool_name", "tool", "action", "method", "operation", "command")
SHELL_WRITES = (
    r"(?<![\d&<>=-])>>?(?!\s*/dev/null|&|=)"
    r"|(?:^|[\s;&|(`])(?:rm|mv|cp|mkdir|touch|tee|patch|chmod|chown|ln|dd|truncate|kill|pkill|make|rsync|gofmt)\s"
    r"|\b(?:sed|perl|ruby)\s(?:\S+\s){0,4}?-\w*i"
    r"|\bgit\s+(?:-\S+\s+)*(?:add|am|apply|checkout|cherry-pick|clean|clone|commit|fetch|merge|mv|pull|push|rebase|reset|"
    r"restore|revert|rm|stash|switch|worktree)\b"
    r"|\b(?:pip3?|npm|yarn|pnpm|apt|apt-get|brew|cargo|conda|gem|go|poetry|uv)\s+(?:\S+\s){0,4}?(?:add|ci|get|install|remove|"
    r"uninstall|upgrade|mod|sync)\b"
    r"|\bopen\([^)]{0,200}['\"][wax]|\bwrite_text\(|<<"
)
SHELL_POLLS = (
    r"(?:^|[\s;&|(])(?:sleep\s+[\d.$]|wait\b|watch\s)|\btail\s+-[fF]\b|\b(?:run|checks)\b.*--?watch\b"
    r"|\b(?:kubectl|oc)\s+(?:-\S+\s+\S+\s+)*(?:get|describe|logs|wait|rollout\s+status)\b"
    r"|\b(?:docker|podman)\s+(?:compose\s+)?(?:ps|logs)\b|\bgh\s+(?:run|pr)\s+(?:view|list|checks|status)\b"
    r"|\bsystemctl\s+(?:status|is-active)\b"
)
FAILED = (
    r"\A\s*(?:<\w+>\s*)?(?:error|fatal|exception|traceback|failed|exit code:? [1-9]|<returncode>[1-9]|[\w.]*Error\b)"
)
ERROR = (
    r"(?:Error|Exception)\b|\berrors?:|\bfatal:|\bnot found\b|\bno such\b|\bno module\b|\bdenied\b|\brefused\b"
    r"|\bdoes not exist\b|\bcannot\b|\bcan't\b|\bcould not\b|\bunable to\b|\btimed? ?out\b|\binvalid\b"
    r"|\bnot permitted\b"
)


@dataclass(frozen=True, slots=True)
class Signs:
    """What is taken for what: all of it settings."""

    themes: tuple[Theme, ...] = THEMES
    """Tables with `name` and `words`; a thought has the first theme of which a word begins one of its words."""
    looping: tuple[str, ...] = ("planning",)
    """Themes that can loop; `general`, the theme of all other thoughts, would flag most healthy runs."""
    theme_window: int = 3
    """Thoughts in a row of one theme that are a loop."""
    consecutive_threshold: int = 3
    """Thoughts in a row without a tool call that are a loop."""
    results_end_themes: bool = False
    """Thoughts with a new tool result between them are no theme loop (in the source they are one)."""
    no_progress: int = 5
    """Iterations without a new tool result, after which nothing is going on."""
    repeats: int = 3
    """Times that the same call with the same result, the same error, round of calls, or text is a loop."""
    still: int = 5
    """Times from which the same call with the same result is worth a stronger word."""
    cycle: int = 4
    """The most calls that a round may have."""
    polls: tuple[str, ...] = POLLS
    """Words in names of tools that are meant to be called again and again."""
    writes: tuple[str, ...] = WRITES
    """Words in names of tools that change something: what is read before and after is not the same question."""
    shell: tuple[str, ...] = SHELL
    """Arguments that hold a command."""
    inner: tuple[str, ...] = INNER
    """Arguments that say what is really called, where they hold one word; the tool's own name then says nothing."""
    shell_polls: str = SHELL_POLLS
    """Commands that wait."""
    shell_writes: str = SHELL_WRITES
    """Commands that change something."""
    failed: str = FAILED
    """Beginning of the result of a call that failed, where nothing else says how it ended."""
    error: str = ERROR
    """Marks of the line of such a result that says why; the last one counts."""

    def __post_init__(self) -> None:
        """Themes come from a file as tables."""
        object.__setattr__(self, "themes", tuple(map(_theme, self.themes)))
        for name in ("shell_polls", "shell_writes", "failed", "error"):
            try:
                re.compile(getattr(self, name))
            except re.error as problem:
                raise ConfigError(name, getattr(self, name), f"a regular expression ({problem})") from problem


def _theme(given: Any) -> Theme:
    """A theme as it is in a file, or in the code."""
    named: Any = (given.get("name"), given.get("words")) if isinstance(given, Mapping) else given
    if isinstance(named, tuple) and len(named) == 2 and isinstance(named[1], list | tuple):
        texts = [named[0], *named[1]]
        if named[1] and all(isinstance(text, str) and text for text in texts):
            return texts[0], tuple(texts[1:])
    raise ConfigError("themes", given, "a table with a `name` and a list `words`")
