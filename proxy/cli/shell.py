"""`context-proxy shell`: runs commands on one session, without the session's name in each command.

A line is a command as on the command line, for example `context window 5`. The shell inserts the session as its
argument. Slash commands of std::slop and of `commands.in_band` mean the same, for example `/message show GID`.
"""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any, Final

import typer
from typer.exceptions import TyperException

from proxy.cli import terminal
from proxy.cli.remote import SHARED_OPTIONS, RemoteCommand, RemoteRefused, remote_command
from proxy.errors import ConfigError, ProxyError

HELP: Final = """\
stats                        where the session stands      add TEXT        a note in the next prompt
build                        the next prompt's body        compress        every edit, with the next request
context show|window N        the next prompt; its window   undo            take back the last group
context drop|restore|pin ID  groups and messages           state show      the model's state; also set, edit
groups list, messages list   what was said                 scratchpad show and all other commands of context-proxy
use SESSION                  another session               help, quit      (a line's --help tells all of it)
"""
ALIASES: Final = {
    ("messages",): ("groups", "list"),
    ("message",): ("groups", "list"),
    ("message", "list"): ("groups", "list"),
    ("message", "show"): ("groups", "show"),
    ("message", "remove"): ("messages", "remove"),
    ("session", "scratchpad"): ("scratchpad", "show"),
    ("state",): ("state", "show"),
    ("scratchpad",): ("scratchpad", "show"),
    ("groups",): ("groups", "list"),
    ("notes",): ("notes", "list"),
}
"""Other words for the beginning of a line: those of std::slop, and command groups without a subcommand."""
TEXT_COMMANDS: Final = frozenset({"add"})
"""Commands whose text is the whole rest of the line, including quotes."""
REFUSED_COMMANDS: Final = frozenset({"serve", "wrap", "doctor", "shell", "docs"})
"""Commands that the shell refuses, since they are not about a session."""


@remote_command
def shell(
    command: RemoteCommand,
    context: typer.Context,
    session: Annotated[str, typer.Argument(help="A session's name; - for the one used last.")] = "-",
) -> None:
    """Work on one session, one command per line, until `quit`."""
    commands: Any = context.find_root().command
    at = _read_session_name(command, session)
    if sys.stdin.isatty():
        import readline  # noqa: F401, PLC0415  # gives input() its history; not there on every system

        terminal.print_text(f"{at}: `help` lists what can be said here, `quit` ends it")
    while True:
        try:
            line = input(f"{terminal.escape_controls(at)}> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line in ("quit", "exit", "/quit", "/exit"):
            return
        if line.split()[:1] == ["use"] and len(line.split()) == 2:
            at = _switch_session(command, line.split()[1], at)
        elif line in ("help", "/help", "?"):
            typer.echo(HELP)
        elif line:
            _run_line(commands, line, at, command)


def _read_session_name(command: RemoteCommand, session: str) -> str:
    found: str = command.client.request("GET", command.client.find_session_path(session))["session"]
    return found


def _switch_session(command: RemoteCommand, session: str, old: str) -> str:
    try:
        return _read_session_name(command, session)
    except RemoteRefused as problem:
        terminal.print_notice(str(problem))
        return old


def _run_line(commands: Any, line: str, session: str, command: RemoteCommand) -> None:
    """Run one line. An error in it is printed, and the shell goes on."""
    words: list[str] = []
    try:
        words = parse_line(commands, line, session)
        shared = ["--url", command.client.url, "--key", command.client.key, "--tenant", command.client.tenant]
        if words and _takes_shared_options(commands, words):
            # After the command and before its arguments, one of which may follow a `--`.
            depth = _count_command_words(commands, words)
            words = [*words[:depth], *shared, *(["--json"] * command.json), *words[depth:]]
        commands.main(words, prog_name="", standalone_mode=False)
    except typer.Abort:
        terminal.print_notice("nothing was done.")
    except TyperException as problem:
        _print_usage_error(problem, " ".join(words[: _count_command_words(commands, words)]))
    except SystemExit:
        return
    except ValueError as problem:  # a quote that is not closed
        terminal.print_notice(f"{problem}.")
    except (ConfigError, ProxyError) as problem:
        terminal.print_notice(str(problem))


def _print_usage_error(problem: TyperException, name: str) -> None:
    """Print an error in a line. The parser's own text shows the command with a session, which the shell inserts."""
    describe = getattr(problem, "format_message", problem.__str__)
    if message := str(describe()).strip():  # empty where the help was printed
        more = f"`{name} --help` tells more." if name else "`help` lists the commands."
        terminal.print_notice(f"{message}{'' if message.endswith(('.', '?')) else '.'} {more}")


def parse_line(commands: Any, line: str, session: str) -> list[str]:
    """Return the words of the command line for a line, with the session inserted. Raises ValueError if a quote is not
    closed, or if the command has no place in the shell."""
    line = line.removeprefix("/")
    first, _, rest = line.partition(" ")
    words = [first, rest.strip()] if first in TEXT_COMMANDS and rest.strip() else shlex.split(line)
    words[0] = words[0].removeprefix("/")
    for length in (2, 1):
        if (known := ALIASES.get(tuple(words[:length]))) and (length == 2 or len(words) == 1 or words[1].isdigit()):
            words = [*known, *words[length:]]
            break
    if words[0] in REFUSED_COMMANDS:
        raise ValueError(f"{words[0]} has no place here")
    depth = _count_command_words(commands, words)
    command = _find_command(commands, words[:depth])
    takes = [p.name for p in getattr(command, "params", ()) if p.param_type_name == "argument"]
    if takes[:1] == ["session"] and "--help" not in words:
        # A session's name that looks like an option is still a name.
        given = [session] if not session.startswith("-") else ["--", session]
        words = [*words[:depth], *given, *words[depth:]]
    return words


def _count_command_words(commands: Any, words: list[str]) -> int:
    """Return the number of words that name the command."""
    depth, at = 0, commands
    while depth < len(words) and words[depth] in getattr(at, "commands", {}):
        at = at.commands[words[depth]]
        depth += 1
    return depth


def _find_command(commands: Any, words: list[str]) -> Any:
    for word in words:
        commands = commands.commands[word]
    return commands


def _takes_shared_options(commands: Any, words: list[str]) -> bool:
    command = _find_command(commands, words[: _count_command_words(commands, words)])
    return {p.name for p in getattr(command, "params", ())} >= set(SHARED_OPTIONS)
