"""Loops to plant: of each kind twenty, in other words, with other tools, lengths and things between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from proxy.chat.message import Message
from proxy.context.analysis.lexicon import LoopSettings
from proxy.context.analysis.loops import Loop, LoopDetector
from tests.context.research import make_step, make_tool_call
from tests.conversations import Json, assistant, result, user

PLANS = (
    "I need to look at this again.",
    "Let me PLAN the next steps.",
    "My strategy is to begin at the top.",
    "The best approach: first one, then the other.",
    "Planning to search for it.",
    "We need\nto think.",
)
OTHER = ("Hm.", "That is odd.", "So be it.", "I wonder.", "Interesting!", "Well, well.")
TOOLS = ("search", "grep", "Read", "get_page", "list_files", "query_db", "lookUp", "bash")
ERRORS = (
    "Error: no such table: users",
    "Traceback (most recent call last):\n  File 'x.py', line 1\nModuleNotFoundError: No module named 'numpy'",
    "Exit code 1\ncat: /etc/shadow: Permission denied",
    "<returncode>2</returncode>\n<output>\nbash: foo: command not found\n</output>",
    "fatal: not a git repository",
)


def _word(chance: random.Random, words: tuple[str, ...], *, thinks: bool = True) -> str | None:
    return chance.choice([None, *words]) if thinks else chance.choice(words)


def theme_loop(chance: random.Random) -> list[Json]:
    """Three thoughts of planning; between them calls that say nothing, or the user, behind whom they are the same."""
    values: list[Json] = []
    text = ""
    for n, fresh in enumerate(chance.sample(PLANS, 3)):
        text = text if values and values[-1]["role"] == "user" else fresh
        if chance.random() < 0.4:
            values += make_step(chance.choice(TOOLS), f"new {chance.random()}", text, f"t{n}", n=n)
        else:
            values.append(assistant(text) if chance.random() < 0.7 else assistant(None, reasoning_content=text))
            if chance.random() < 0.4:
                values.append(user("Go on."))
    return values


def repeated_planning(chance: random.Random) -> list[Json]:
    """Three thoughts of whatever kind without a call; behind what the user says the same again."""
    values: list[Json] = []
    text = ""
    for fresh in chance.sample(OTHER, 3):
        text = text if values and values[-1]["role"] == "user" else fresh
        values.append(assistant(text))
        if chance.random() < 0.5:
            values.append(user(chance.choice(["And?", "Go on.", "Yes."])))
    return values


def no_progress(chance: random.Random) -> list[Json]:
    """Five iterations that bring nothing that was not known: other questions, an answer that came before."""
    old = f"Nothing found. {chance.random()}"
    values = make_step(chance.choice(TOOLS), old, None, "n", q="first")
    for n in range(5):
        values += make_step(chance.choice(TOOLS), old, _word(chance, OTHER), f"n{n}", q=f"{n} {chance.random()}")
    return values


def _same(chance: random.Random, times: int) -> list[Json]:
    """The same call with the same result, arguments in another order or with other spaces; reading between."""
    tool, brought = chance.choice(TOOLS), f"the same {chance.random()}"
    path, limit = f"src/{chance.randint(0, 99)}.py", chance.randint(1, 500)
    values: list[Json] = []
    for n in range(times):
        call = make_tool_call(tool, f"s{n}", _word(chance, OTHER), path=path, limit=limit)
        if chance.random() < 0.5:
            call["tool_calls"][0]["function"]["arguments"] = f'{{ "limit":{limit},"path" : "{path}"}}'
        values += [call, result(f"s{n}", brought)]
        if n < times - 1 and chance.random() < 0.4:
            values += make_step(chance.choice(TOOLS), f"other {chance.random()}", None, f"o{n}", path=f"{n}.md")
        if n < times - 1 and chance.random() < 0.2:
            values.append(user("Go on."))
    return values


def same_call(chance: random.Random) -> list[Json]:
    """Three times."""
    return _same(chance, 3)


def same_call_still(chance: random.Random) -> list[Json]:
    """Five times."""
    return _same(chance, 5)


def same_error(chance: random.Random) -> list[Json]:
    """Three calls that fail in the same way; reading between."""
    error = chance.choice(ERRORS)
    values: list[Json] = []
    for n in range(3):
        values += make_step(chance.choice(TOOLS), error, _word(chance, OTHER), f"e{n}", q=chance.random())
        if n < 2 and chance.random() < 0.4:
            values += make_step(chance.choice(TOOLS), f"other {chance.random()}", None, f"o{n}", q=n)
    return values


def cycle(chance: random.Random) -> list[Json]:
    """A round of two to four calls, gone through three times, all with the same results."""
    length = chance.randint(2, 4)
    calls = [(chance.choice(TOOLS), f"{n} {chance.random()}") for n in range(length)]
    values: list[Json] = []
    for turn in range(3):
        for n, (tool, brought) in enumerate(calls):
            values += make_step(tool, brought, _word(chance, OTHER), f"r{turn}{n}", q=n)
    return values


def same_text(chance: random.Random) -> list[Json]:
    """The same words three times, with nothing new between."""
    text = chance.choice(OTHER) + f" {chance.randint(0, 999)}"
    old = f"as before {chance.random()}"
    values = make_step("search", old, None, "x", q="first")
    for n in range(3):
        how = chance.random()
        values += [assistant(text)] if how < 0.5 else make_step(chance.choice(TOOLS), old, text, f"w{n}", q=f"{n}{how}")
        if n < 2 and how < 0.3:
            values.append(user("Go on."))
    return values


PLANTED: dict[str, Callable[[random.Random], list[Json]]] = {
    one.__name__: one
    for one in (theme_loop, same_call_still, cycle, same_call, same_error, same_text, repeated_planning, no_progress)
}
"""Each kind of `loops.LOOP_KINDS` by its name."""


def find_loops_by_request(messages: tuple[Message, ...], settings: LoopSettings) -> Iterator[tuple[int, list[Loop]]]:
    """(n, the loops before the answer messages[n]) for each request of a recorded history, in one pass. The last pair
    is for the request that has no answer yet."""
    detector, is_result = LoopDetector(settings), [message.is_result for message in messages]
    for n, message in enumerate(messages):
        if message.role == "assistant":
            yield n, detector.list_loops()
        detector.read_message(messages, is_result, n)
    yield len(messages), detector.list_loops()
