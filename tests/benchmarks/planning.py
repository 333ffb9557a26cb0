"""Processor time of `rewrite`, by policy and length of the conversation, with warm caches.

The conversation of an agent with one tool grows to each length, with 2,000 characters per message. The figure is the
median of 15 plans of its next request, with every message known. The window of the model grows with the conversation
and is always too small, so that every policy has to act. The aim is 4 ms for 400 messages of 800 KB, and linear growth
up to 4,000 messages.
"""

from __future__ import annotations

import json
import time

from proxy.chat import chain
from proxy.chat.message import Request
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import RewriteInputs
from proxy.context.policy import Policy
from proxy.exchange.message_cache import MessageCache
from proxy.settings.load import load_settings
from proxy.web.app import make_policies
from tests.benchmarks.rows import Row, compare_servers
from tests.benchmarks.scope import Scope

LENGTHS = (10, 40, 100, 400, 1000, 4000)
RUNS = 15
WINDOW_PER_MESSAGE = 250
"""Tokens of the window per message. A message has 380."""


def make_history(messages: int) -> list[Row]:
    """The history of an agent that reads a new file with every step."""
    found: list[Row] = [
        {"role": "system", "content": "You are careful."},
        {"role": "user", "content": "Mend the build."},
    ]
    for step in range((messages - 2) // 2):
        call = {"id": f"call_{step:09}", "type": "function"}
        inner = {"name": "read_file", "arguments": json.dumps({"path": f"src/module_{step}.py", "why": "x" * 1700})}
        lines = (f"{n}\tdef handler_{step}_{n}(request): return process_{n}(request)" for n in range(36))
        found.append({"role": "assistant", "content": "Next.", "tool_calls": [{**call, "function": inner}]})
        found.append({"role": "tool", "tool_call_id": call["id"], "content": "\n".join(lines)})
    return found


def measure(policy: Policy, messages: int, runs: int) -> list[float]:
    """Milliseconds of processor time for one more request of a conversation of that length."""
    cache, token_counter, model = (
        MessageCache(1 << 30),
        TokenCounter(estimate_text_tokens),
        Model(window=messages * WINDOW_PER_MESSAGE),
    )
    values, state = make_history(messages), BranchState()
    # The request before, whose edits and prompt are remembered; then the request that is measured.
    request, keys, state = _plan_request(cache, values[:-2], state, policy, model, token_counter)
    request, keys, state = _plan_request(cache, values, state, policy, model, token_counter)
    taken = []
    for _ in range(runs):
        began = time.process_time()
        rewrite(request, state, policy, model, 2.0, RewriteInputs(token_counter, keys=keys))
        taken.append((time.process_time() - began) * 1000)
    return taken


def _plan_request(
    cache: MessageCache,
    values: list[Row],
    state: BranchState,
    policy: Policy,
    model: Model,
    token_counter: TokenCounter,
) -> tuple[Request, list[bytes], BranchState]:
    request, _ = cache.get_request(json.dumps({"model": "bench", "messages": values}).encode())
    keys = chain.compute_keys("bench", request.messages)
    plan = rewrite(request, state, policy, model, 1.0, RewriteInputs(token_counter, keys=keys))
    return request, keys, state.after_sending(plan, 1.0)


def run(scope: Scope) -> list[Row]:
    """Measure every policy that rewrites."""
    policies = make_policies(load_settings(None, {}))
    rows = []
    for name in (name for name in policies if policies[name].mode == "rewrite"):
        if not scope.selects(name):
            continue
        for messages in LENGTHS[: scope.choose_count(len(LENGTHS), 2)]:
            taken = measure(policies[name], messages, scope.choose_count(RUNS, 2))
            known = {"case": name, "server": "", "messages": f"{messages:,}"}
            rows += [{**row, "server": ""} for row in compare_servers(known, "ms", {"": taken})]
    return rows
