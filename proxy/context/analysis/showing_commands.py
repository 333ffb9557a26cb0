"""Commands that only show something: their exit code is no outcome of a run, and their output is that of others.

A command is known by its first words. One that has another shell, machine or container run a command is what the
carried command is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_SHOWING = frozenset((
    "cat", "head", "tail", "less", "more", "nl", "sed", "awk", "gawk", "ls", "find", "fd", "tree", "wc", "file",
    "stat", "grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "cut", "sort", "uniq", "tr", "jq", "yq", "diff",
    "cmp", "comm", "column", "echo", "printf", "cd", "pushd", "popd", "pwd", "which", "whereis", "type", "env",
    "printenv", "date", "true", "false", ":", "test", "[", "[[", "read", "xxd", "od", "hexdump", "strings",
    "basename", "dirname", "realpath", "readlink", "export", "set", "unset", "source", ".", "sleep", "tee", "bat",
    "du", "df", "ps", "id", "whoami", "uname", "hostname", "paste", "rev", "tac", "fold", "fmt", "expand", "seq",
    "yes", "md5sum", "sha256sum", "exit", "history", "man", "alias", "shopt", "ulimit", "umask", "trap", "local",
    "declare", "wait", "break", "continue", "return", "zcat", "bzcat", "xzcat", "zless", "journalctl", "dmesg",
    "gc", "sls", "gci", "dir", "findstr",
))  # fmt: skip
"""Commands that show, search, filter or print; their exit code is no outcome of a run."""
TEXT_COMMANDS = frozenset((
    "cat", "head", "tail", "less", "more", "nl", "sed", "awk", "gawk", "grep", "egrep", "fgrep", "zgrep", "rg", "ag",
    "ack", "bat", "zcat", "gc", "sls",
))  # fmt: skip
"""The commands of `_SHOWING` that show the text of files."""
STATE_COMMANDS = frozenset(("cd", "pushd", "popd", "export", "unset", "source", "."))
"""The commands of `_SHOWING` that affect a later command."""
_GIT_SHOWING = frozenset((
    "show", "log", "diff", "status", "blame", "grep", "branch", "ls-files", "rev-parse", "remote", "describe",
    "config", "cat-file", "ls-tree", "reflog", "merge-base", "shortlog", "rev-list", "check-ignore", "show-ref",
    "ls-remote", "for-each-ref",
))  # fmt: skip
_BRANCH_CHANGES = frozenset(("-d", "-D", "-m", "-M", "--delete", "--move"))
_OTHER_SHOWING = {
    "docker": ("logs", "compose logs", "inspect", "ps", "images", "history"),
    "docker-compose": ("logs",),
    "podman": ("logs", "compose logs"),
    "kubectl": ("logs", "describe", "get", "events", "top"),
    "oc": ("logs", "describe", "get"),
    "helm": ("history", "status", "list", "get", "show", "search"),
    "gh": ("run view", "run list", "pr view", "pr checks", "pr diff", "issue view"),
    "glab": ("ci trace", "ci view", "mr view"),
    "systemctl": ("status", "cat", "show"),
    "heroku": ("logs",),
}
"""Commands whose first words after the options only show. The logs that they show are those of other runs."""
_CLOUDS = frozenset(
    ("gcloud", "aws", "az", "doctl", "fly", "flyctl", "vercel", "netlify", "railway", "nomad", "argocd")
)
_CLOUD_SHOWING = re.compile(r"(?:describe|get|list|ls|show|logs?|inspect|status|history)(?:-[\w-]+)?")
"""A word of a cloud client's command, among the first ones, by which the command only shows something."""
_DATABASES = frozenset(("psql", "mysql", "mariadb", "sqlite3", "duckdb", "clickhouse-client"))
REMOTE_CLIENTS = frozenset(("curl", "ssh", *_OTHER_SHOWING, *_CLOUDS, *_DATABASES))
"""Clients of another program or machine."""
_QUERY = re.compile(r"(?:select|show|explain|describe|pragma)_", re.IGNORECASE)
"""The beginning of a quoted query that only reads, as `_mask_quotes` leaves it."""
_SENDS = re.compile(r"-\w*[XdFTOo]|--(?:request|data|json|form|upload|output|remote-name)")
"""Options with which `curl` sends or writes something."""
EXEC_OPTIONS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
"""Options with which `find` runs the command behind them."""
_ACTING = EXEC_OPTIONS | {"-delete", "-fprint", "-fls"}
COMMAND_PREFIXES = frozenset((
    "sudo", "time", "nohup", "xargs", "then", "do", "else", "elif", "if", "while", "until", "command", "exec",
    "builtin", "nice", "stdbuf", "env", "timeout",
))  # fmt: skip
SHELLS = frozenset((
    "bash", "sh", "zsh", "dash",
))  # fmt: skip
_CONTAINERS = frozenset(("docker", "docker-compose", "podman", "kubectl", "oc"))
_VALUED = re.compile(r"-[BbcDEeFIiJLlmOopQRSWwuP]|--(?:env|env-file|workdir|user|index|namespace|container)")
"""Options of these carriers that have a value in the next word."""
_VALUED_IN_FRONT = re.compile(
    r"-[cfgHMnpRs]|--(?:namespace|context|kubeconfig|cluster|server|host|connection|file|project-name|profile|env-file"
    r"|user|token|as|request-timeout|kube-context|repo|region|project|zone|output|format|query|subscription"
    r"|resource-group|account|endpoint-url|machine)"
)
"""Options before a client's command (`kubectl --context prod get`) that have a value in the next word."""
READING_CMDLET = re.compile(
    r"(?:get|select|test|compare|find|show|format|where|sort|group|resolve|search|convertto|convertfrom|split|join"
    r")-[a-z]+|measure-object|write-(?:output|host|error|warning|information|verbose|debug)|out-(?:string|host|null)"
)
"""A cmdlet of PowerShell, in lower case, whose verb says that it shows, filters or prints."""
MAX_CARRIERS = 8
"""Carriers in a row that are looked through."""
SHOWN_MARK, ASKED_MARK = "shown_", "asked_"
"""Beginnings of the word for a carried command that only shows. With `ASKED_MARK` it shows what another program
answers."""


def is_showing(first: str, words: list[str], depth: int = 0) -> bool:
    """True if a simple command only shows something. first: its program. depth: the carriers around it."""
    if first == "git":
        named = [w for n, w in enumerate(words) if n and not w.startswith("-") and words[n - 1] not in ("-C", "-c")]
        return bool(named) and named[0] in _GIT_SHOWING and not (named[0] == "branch" and _BRANCH_CHANGES & {*words})
    if first in _DATABASES:
        return any(map(_QUERY.match, words[1:]))
    given = [word for word in _find_subcommand(words) if not word.startswith("-")]
    if depth < MAX_CARRIERS and (carried := _find_carried(first, words)):
        return carried[0].startswith((SHOWN_MARK, ASKED_MARK)) or is_showing(
            carried[0].rpartition("/")[2], carried, depth + 1
        )
    if first in _OTHER_SHOWING:
        return any(given[: len(shown.split())] == shown.split() for shown in _OTHER_SHOWING[first])
    if first in _CLOUDS:
        return any(map(_CLOUD_SHOWING.fullmatch, given[:3]))
    if first == "curl":
        return not any(map(_SENDS.match, words))
    if first in ("gofmt", "goimports"):  # with `-l` they end with 0 and list the files that are not formatted
        return any(re.match("-[ld]", word) for word in words) and "-w" not in words
    if READING_CMDLET.fullmatch(first.lower()):
        return True
    return first.lower() in _SHOWING and not (
        (first == "sed" and any(w.startswith("-i") or w == "--in-place" for w in words))
        or (first == "find" and not _ACTING.isdisjoint(words))
    )


def _find_carried(first: str, words: Sequence[str]) -> list[str]:
    """Return the words of the command that another shell, machine or container runs, or `find`; empty if none."""
    found: list[str] = []
    if first in SHELLS:
        at = next((n for n, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), len(words))
        found = list(words[at + 1 : at + 2])
    elif first == "find":
        at = next((n for n, word in enumerate(words) if word in EXEC_OPTIONS), len(words))
        found = list(words[at + 1 :])
    elif first == "ssh":
        found = skip_options(words[1:])[1:]
    elif first in _CONTAINERS:
        found = _find_subcommand(words)
        found = found[1:] if found[:1] == ["compose"] else found
        found = found[1:] if found[:1] == ["exec"] else []
        found = found[found.index("--") + 1 :] if "--" in found else skip_options(found)[1:]
    while found[1:] and found[0] in COMMAND_PREFIXES:
        del found[0]
    return found


def _find_subcommand(words: Sequence[str]) -> list[str]:
    """Return the words of a client from its command on, without the options in front (`kubectl -n shop get pods`)."""
    found = skip_options(words[1:], _VALUED_IN_FRONT)
    return ["compose", *skip_options(found[1:], _VALUED_IN_FRONT)] if found[:1] == ["compose"] else found


def skip_options(words: Sequence[str], valued: re.Pattern[str] = _VALUED) -> list[str]:
    """Return the words from the first one that is neither an option nor its value."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if valued.fullmatch(words[at]) else 1
    return list(words[at:])
