"""Words and patterns that recognise a theme, a failure, a change or a wait; all of them are settings.

The five themes and their words are those of the source of `progressive`. The other patterns were found on recorded
agent traffic and prefer silence: a wrongly recognised change or wait only ends a count.
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
GENERAL_THEME = "general"
"""The theme of every thought without another theme."""

WRITE_WORDS = (
    "add", "append", "apply", "assign", "book", "cancel", "commit", "copy", "create", "delete", "deploy", "drop",
    "edit", "exit", "insert", "install", "kill", "make", "merge", "mkdir", "modify", "move", "new", "patch", "post",
    "publish", "purchase", "push", "put", "remove", "rename", "replace", "reset", "restart", "restore", "rollback",
    "save", "send", "set", "start", "stash", "stop", "submit", "todo", "undo", "update", "upload", "write",
)  # fmt: skip
"""Words in names of tools that change something."""
POLL_WORDS = (
    "await", "heartbeat", "job", "key", "keys", "monitor", "next", "output", "ping", "poll", "progress", "scroll",
    "refresh", "reload", "sleep", "status", "stdin", "wait", "watch",
)  # fmt: skip
"""Words in names of tools that are meant to be called repeatedly."""
ACTING_WORDS = (
    "advance", "back", "click", "drag", "drive", "forward", "jump", "move", "press", "redo", "rotate", "step", "swipe",
    "tap", "turn", "type", "undo", "walk", "zoom",
)  # fmt: skip
"""Words in names of tools that change something, and that are meant to be called repeatedly: each call continues from
where the one before has ended."""
SHELL_ARGUMENTS = ("command", "cmd", "script", "code", "input")
INNER_TOOL_ARGUMENTS = ("tool_name", "tool", "action", "method", "operation", "command")
SHELL_WRITES = (
    r"(?<![\d&<>=-])>>?(?!\s*/dev/null|&|=)"
    r"|(?:^|[\s;&|(`])(?:rm|mv|cp|mkdir|touch|tee|patch|chmod|chown|ln|dd|truncate|kill|pkill|make|rsync|gofmt)\s"
    r"|(?i:\b(?:set|add|clear|new|remove|move|copy|rename)-(?:content|item)\b|\bout-file\b)"
    r"|\b(?:sed|perl|ruby)\s(?:\S+\s){0,4}?-\w*i"
    r"|\bgit\s+(?:-\S+\s+){0,8}(?:add|am|apply|checkout|cherry-pick|clean|clone|commit|fetch|merge|mv|pull|push|rebase|reset|"
    r"restore|revert|rm|stash|switch|worktree|bisect)\b"
    r"|\b(?:pip3?|npm|yarn|pnpm|apt|apt-get|brew|cargo|conda|gem|go|poetry|uv)\s+(?:\S+\s){0,4}?(?:add|ci|get|install|remove|"
    r"uninstall|upgrade|mod|sync)\b"
    r"|\bopen\((?:[^)]{0,200}[,=]\s*)?['\"][wax][bt+]{0,2}['\"]|\bwrite_text\(|<<"
)
SHELL_POLLS = (
    r"(?:^|[\s;&|(])(?:sleep\s+[\d.$]|wait\b|watch\s)|\btail\s+-[fF]\b|\b(?:run|checks)\b.{0,200}?--?watch\b"
    r"|\b(?:kubectl|oc)\s+(?:-\S+\s+\S+\s+){0,8}(?:get|describe|logs|wait|rollout\s+status)\b"
    r"|\b(?:docker|podman)\s+(?:compose\s+)?(?:ps|logs)\b|\bgh\s+(?:run|pr)\s+(?:view|list|checks|status)\b"
    r"|\bsystemctl\s+(?:status|is-active)\b"
    r"|(?i:\bstart-sleep\b|\bwait-(?:process|job|event)\b|\btimeout(?:\.exe)?\s+/t\b)|\bping\s+-n\s+\d+\s+(?:127|localhost)"
)
FAILED_PATTERN = (
    r"\A\s*(?:<\w+>\s*)?(?:error|fatal|exception|traceback|failed|exit code:? [1-9]|<returncode>[1-9]|[\w.]*Error\b)"
)
ERROR_PATTERN = (
    r"(?:Error|Exception)\b|\berrors?:|\bfatal:|\bnot found\b|\bno such\b|\bno module\b|\bdenied\b|\brefused\b"
    r"|\bdoes not exist\b|\bcannot\b|\bcan't\b|\bcould not\b|\bunable to\b|\btimed? ?out\b|\binvalid\b"
    r"|\bnot permitted\b"
)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Settings of loop detection: the words, patterns and thresholds."""

    themes: tuple[Theme, ...] = THEMES
    """Tables with `name` and `words`. A thought has the first theme with a word that begins a word of the thought."""
    looping: tuple[str, ...] = ("planning",)
    """Themes that can loop. `general`, the theme of all other thoughts, would mark most healthy runs as loops."""
    theme_window: int = 3
    """Number of consecutive thoughts of one theme that are a loop."""
    consecutive_threshold: int = 3
    """Number of consecutive thoughts without a tool call that are a loop."""
    results_end_themes: bool = False
    """End a theme loop at a new tool result between thoughts (in the source it goes on)."""
    no_progress: int = 5
    """Number of iterations without a new tool result that are a loop."""
    repeats: int = 3
    """Occurrences that are a loop: of a call with its result, an error, a cycle of calls, or a text."""
    still: int = 5
    """Number of occurrences of the same call with the same result from which the warning is stronger."""
    cycle: int = 4
    """Maximum number of calls in a cycle."""
    polls: tuple[str, ...] = (*POLL_WORDS, *ACTING_WORDS)
    """Words in names of tools that are meant to be called repeatedly."""
    writes: tuple[str, ...] = (*WRITE_WORDS, *ACTING_WORDS)
    """Words in names of tools that change something: an equal call after such a call is no repeat."""
    shell: tuple[str, ...] = SHELL_ARGUMENTS
    """Names of arguments that hold a command."""
    inner: tuple[str, ...] = INNER_TOOL_ARGUMENTS
    """Names of arguments that hold the name of the inner tool, if they have one word; the name of the outer tool is
    then ignored."""
    shell_polls: str = SHELL_POLLS
    """Pattern of commands that wait."""
    shell_writes: str = SHELL_WRITES
    """Pattern of commands that change something."""
    failed: str = FAILED_PATTERN
    """Pattern of the beginning of a failed call's result, if nothing else shows the outcome."""
    error: str = ERROR_PATTERN
    """Pattern of the line that gives the reason in such a result; the last match counts."""

    def __post_init__(self) -> None:
        """Convert the themes of a file's tables, and check the patterns. Raises ConfigError for an invalid one."""
        object.__setattr__(self, "themes", tuple(map(_read_theme, self.themes)))
        for name in ("shell_polls", "shell_writes", "failed", "error"):
            try:
                re.compile(getattr(self, name))
            except re.error as problem:
                raise ConfigError(name, getattr(self, name), f"a regular expression ({problem})") from problem


def _read_theme(given: Any) -> Theme:
    """Return a theme from a file, or from the code. Raises ConfigError if it is invalid."""
    named: Any = (given.get("name"), given.get("words")) if isinstance(given, Mapping) else given
    if isinstance(named, tuple) and len(named) == 2 and isinstance(named[1], list | tuple):
        texts = [named[0], *named[1]]
        if named[1] and all(isinstance(text, str) and text for text in texts):
            return texts[0], tuple(texts[1:])
    raise ConfigError("themes", given, "a table with a `name` and a list `words`")
