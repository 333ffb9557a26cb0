"""A plan depends on its own conversation alone, whatever others have derived from messages with the same bytes.

Messages are read once for all conversations and tenants, and remember what was derived from them. So a value that
depends on more than the message has to be kept under all of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from proxy.chat.chain import compute_keys
from proxy.chat.message import Message
from proxy.context.branch_state import BranchState
from proxy.context.operator_edits import OperatorDecisions
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.dialects.completions.request import read_message, read_request
from tests.context.agent import load_policy
from tests.conversations import COUNTER, PLAIN_MODEL, Json, assistant, call, encode_json, result, system, user

POLICIES = (
    "thrifty", "rolling", "progressive", "reflective", "importance", "summarize", "hierarchical", "chat",
)  # fmt: skip
ROWS = [
    "\n".join(f"row {k} {n} of src/module_{n}.py has the token {n * 7919:x}" for n in range(size))
    for k, size in enumerate((3, 30, 120, 120))
]
RESULTS = [*ROWS, "ok", "FAILED tests/test_a.py::test_x - AssertionError\n1 failed, 3 passed in 1.2s"]
CALLS = [
    ("read_file", {"path": "src/module_1.py"}),
    ("bash", {"command": "pytest -q"}),
    ("bash", {"command": "rm src/module_1.py"}),
    ("lookup", {"id": "cust_1234"}),
]
ASKED = [
    "fix the parser in src/module_1.py",
    "now write a poem about ships",
    "back to the first task: module_3",
    "go on",
]
ANSWERS = ["I will look.", "Done: the parser was wrong.", "I decided to use src/module_2.py."]


def draw_conversation(random_source: random.Random) -> list[Json]:
    """A conversation of messages that others have too, with the same ids of calls."""
    draw = random_source.choice
    values = [system("Be good.")] * draw([0, 1, 1, 3])
    for _group in range(random_source.randint(2, 4)):
        values.append(user(draw(ASKED)))
        for _step in range(random_source.randint(0, 4)):
            name, arguments = draw(CALLS)
            called = call(f"call_{draw([0, 1])}", name, json.dumps(arguments))
            values += [{**assistant(draw(ANSWERS)), "tool_calls": [called]}, result(called["id"], draw(RESULTS))]
        values.append(assistant(draw(ANSWERS)))
    return [*values, user(draw(ASKED))]


def make_plan(values: list[Json], tenant: str, policy: str, read: Callable[[bytes], Message], window: int) -> Plan:
    request = read_request(encode_json({"model": "m", "messages": values, "tools": [{"type": "function"}]}), read)
    state = BranchState(decisions=OperatorDecisions(forced_action="compress"))
    inputs = RewriteInputs(COUNTER, keys=compute_keys(tenant, request.messages), offered_tools=frozenset({"recall"}))
    return rewrite(request, state, load_policy(policy), replace(PLAIN_MODEL, window=window), 1e9, inputs)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_is_the_same_whoever_has_read_its_messages_before(policy: str) -> None:
    drawn = random.Random(1)
    for _ in range(50):
        others, own = draw_conversation(drawn), draw_conversation(drawn)
        window, tenant = drawn.choice([9_000, 20_000]), drawn.choice(["one", "other"])
        alone, shared = cache(read_message), cache(read_message)
        make_plan(others, "one", policy, shared, window)
        before, after = (make_plan(own, tenant, policy, read, window) for read in (alone, shared))
        assert (after.messages, after.edits) == (before.messages, before.edits)
