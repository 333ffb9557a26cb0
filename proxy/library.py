"""`compress`: messages shortened as the proxy would shorten them, for a script without a server.

It is the same `rewrite` with the same policies, models and token counts. Nothing is stored and no upstream is asked.
The caller has the originals, and keeps the state between two calls.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from proxy.chat.message import Request
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.branch_state import BranchState
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.models import Model, find_model
from proxy.context.operator_edits import OperatorDecisions
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.policy import Policy, read_policy
from proxy.context.stages import BUILT_IN_STAGES
from proxy.dialects.completions.request import read_request
from proxy.settings.load import Settings
from proxy.tokenizers import get_token_counter

DEFAULT_POLICY = "thrifty"


@dataclass(frozen=True, slots=True)
class CompressedPrompt:
    """The result of `compress`."""

    messages: list[dict[str, Any]]
    """The messages to send."""
    tokens_before: int
    tokens_after: int
    changed: tuple[int, ...]
    """Indices of the messages that came and are shortened or left out."""
    stages: tuple[str, ...]
    """Names of the stages whose edits are in force."""
    state: BranchState
    """The state for the next call with the same conversation."""


def compress(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str = "",
    policy: str | Policy = DEFAULT_POLICY,
    tools: Sequence[Mapping[str, Any]] = (),
    state: BranchState | None = None,
) -> CompressedPrompt:
    """Shorten a conversation in the form of chat completions.

    Without a state, every edit that the policy proposes is made: nothing of the prompt is in a provider's cache yet.
    With the state of the call before, its edits are repeated byte for byte, and others are made when they pay by the
    model's prices. model: a name as the provider has it, for window, prices and tokenizer. policy: a name, or a policy
    of your own. tools: definitions that are sent too; they are counted.

    Raises NotManaged for messages that cannot be read, ConfigError for an unknown policy.
    """
    known = find_model(_load_models(), model)
    used = _load_policy(policy) if isinstance(policy, str) else policy
    used = replace(used, injections=(), ask="never", tools=(), offer="never")
    body: dict[str, Any] = {"model": model, "messages": list(messages)}
    if tools:
        body["tools"] = list(tools)
    request = read_request(msgspec.json.encode(body))
    counter = _make_counter(known.tokenizer)
    before = state or BranchState(decisions=OperatorDecisions(forced_action="compress"))
    now = time.time()
    plan = rewrite(request, before, used, known, now, RewriteInputs(counter))
    shortened = [msgspec.json.decode(raw) for raw in plan.messages] if plan.messages is not None else None
    after = msgspec.structs.replace(before, decisions=None).after_sending(plan, now)
    return CompressedPrompt(
        messages=shortened if shortened is not None else [dict(message) for message in messages],
        tokens_before=plan.before,
        tokens_after=plan.after if shortened is not None else plan.before,
        changed=_find_changed(request, plan),
        stages=tuple(dict.fromkeys(edit.stage for edit in plan.edits.values())),
        state=after,
    )


def _find_changed(request: Request, plan: Plan) -> tuple[int, ...]:
    if plan.messages is None:
        return ()
    sent = dict(zip(plan.sources, plan.messages, strict=True))
    return tuple(n for n, message in enumerate(request.messages) if sent.get(n) != message.raw)


@functools.cache
def _load_models() -> tuple[Model, ...]:
    return Settings().load_models()


@functools.cache
def _load_policy(name: str) -> Policy:
    return read_policy(Settings().read_policy_table(name), BUILT_IN_STAGES, BUILT_IN_INJECTIONS, source=name)


@functools.cache
def _make_counter(tokenizer: str) -> TokenCounter:
    return TokenCounter(estimate_text_tokens if tokenizer == "estimate" else get_token_counter(tokenizer))
