"""The functions of REPLOID's context manager over a plain history, for programs without a proxy.

A history is a list of dicts, in the form of chat completions or in that of the source (`{"role", "parts": [...]}`). A
result has the source's shapes and names. It holds the same dict objects that were given, and none of them is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from proxy.chat import group
from proxy.chat.message import Message
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.models import Model, find_model
from proxy.context.ranking import importance
from proxy.context.ranking.importance import DEFAULT_WEIGHTS, ImportanceWeights
from proxy.context.ranking.removable_units import find_units, select_best
from proxy.context.summaries import summary
from proxy.dialects.completions import request as completions
from proxy.dialects.gemini import request as gemini
from proxy.errors import NotManaged

PlainMessage = Mapping[str, Any]
PlainHistory = Sequence[PlainMessage]

SOURCE_MODELS = (
    Model("gemini-2.5-flash*", window=1_000_000),
    Model("claude-4[.-]5*", window=200_000),
    Model("claude-*-4[.-]5*", window=200_000),
    Model("gpt-5*", window=128_000),
    Model("*", window=100_000),
)
"""The source's limits. Limits of other models, for example those of config/models.toml, are passed as `models`."""

TARGET_SHARE = 0.8
"""Largest share of a model's limit that a prompt should have."""


class PruneStats(TypedDict):
    """Tokens before and after, messages removed and kept."""

    original: int
    final: int
    itemsRemoved: int
    itemsKept: int


class PrunedHistory(TypedDict):
    """The messages that stay, the messages that are removed, and the numbers of both."""

    pruned: PlainHistory
    removed: PlainHistory
    stats: PruneStats


class SummaryCounts(TypedDict):
    """Number of messages that the summary replaces, and number of messages kept, system messages not counted."""

    summarizedItems: int
    keptItems: int


class SummarizedHistory(TypedDict):
    """The history with the summary in it, and the summary as its own message."""

    summarized: PlainHistory
    summary: PlainMessage | None
    stats: SummaryCounts


class ContextFillLevel(TypedDict):
    """The fill level of a context."""

    items: int
    tokens: int
    limit: int
    utilizationPercent: float
    needsPruning: bool


_WEIGH = TokenCounter(estimate_text_tokens)


def read_item(item: PlainMessage) -> Message:
    """The message that a dict of either form holds. Raises NotManaged if the dict is no message."""
    if "parts" not in item:
        return completions.read_message(_encode_item(item))
    parts = item["parts"]
    if not isinstance(parts, list | tuple):
        raise NotManaged("shape", "parts that are no list")
    plain = [{"text": part} if isinstance(part, str) else part for part in parts]
    return gemini.read_message(_encode_item({**item, "parts": plain}))


def _encode_item(item: PlainMessage) -> bytes:
    try:
        return msgspec.json.encode(item)
    except (TypeError, ValueError, RecursionError) as problem:
        raise NotManaged("shape", f"a message that is no JSON: {problem}") from problem


def estimate_tokens(content: str | PlainMessage | PlainHistory, *, token_counter: TokenCounter = _WEIGH) -> int:
    """Tokens of a text, of a message, or of a history. token_counter: a counter in place of the estimate."""
    if isinstance(content, str):
        return token_counter.count_text(content)
    if isinstance(content, Mapping):
        return token_counter(read_item(content))
    return sum(token_counter(read_item(item)) for item in content)


def score_context_importance(
    item: PlainMessage, index: int, total_items: int, *, weights: ImportanceWeights = DEFAULT_WEIGHTS
) -> float:
    """The importance of a message, 0 to 100.

    index: its position (from 0) among the messages that are no system messages. total_items: how many of these there
    are.
    """
    return importance.score_message(read_item(item), index, total_items, weights)


def score_history(history: PlainHistory, *, weights: ImportanceWeights = DEFAULT_WEIGHTS) -> list[float]:
    """The score of each message of a history."""
    return importance.score_messages([read_item(item) for item in history], weights)


def find_limit(model_name: str, models: Sequence[Model] = ()) -> int:
    """The limit of a model in tokens: from `models`, else from the source's list, which ends in one for all."""
    known = find_model(models, model_name)
    own = known.own.get("importance", {}).get("window")
    return own or known.window or find_model(SOURCE_MODELS, model_name).window or 0


def prune_context(
    history: PlainHistory,
    max_tokens: int | None = None,
    model_name: str = "default",
    *,
    models: Sequence[Model] = (),
    weights: ImportanceWeights = DEFAULT_WEIGHTS,
    token_counter: TokenCounter = _WEIGH,
) -> PrunedHistory:
    """Keep all system messages, the newest message, and the best of the others that fit into `max_tokens`.

    max_tokens: 80 % of the model's limit if it is None. Steps stay whole. A history that fits comes back as it is.
    """
    budget = int(find_limit(model_name, models) * TARGET_SHARE) if max_tokens is None else max_tokens
    messages = [read_item(item) for item in history]
    tokens = [token_counter(message) for message in messages]
    total = sum(tokens)
    if total <= budget:
        return _make_pruned_history(history, history, [], total, total)
    steps = group.split_steps(messages)
    units = find_units(messages, steps, after_tool="user", alternate=False)
    last = len(messages) - 1
    must = [n for n, u in enumerate(units) if u.message_indexes[-1] == last or messages[u.message_indexes[0]].is_system]
    scored = importance.score_messages(messages, weights)
    kept = select_best(units, tokens, scored, must, budget, range(len(units)))
    stay = {i for n in kept for i in units[n].message_indexes}
    pruned = [item for i, item in enumerate(history) if i in stay]
    removed = [item for i, item in enumerate(history) if i not in stay]
    return _make_pruned_history(pruned, pruned, removed, total, sum(tokens[i] for i in stay))


def _make_pruned_history(
    pruned: PlainHistory, kept: PlainHistory, removed: PlainHistory, original: int, final: int
) -> PrunedHistory:
    stats: PruneStats = {
        "original": original, "final": final, "itemsRemoved": len(removed), "itemsKept": len(kept),
    }  # fmt: skip
    return {"pruned": pruned, "removed": removed, "stats": stats}


def auto_manage_context(
    history: PlainHistory,
    model_name: str = "default",
    *,
    models: Sequence[Model] = (),
    token_counter: TokenCounter = _WEIGH,
) -> PrunedHistory:
    """Prune the history to 80 % of the model's limit if it is over that; else `pruned` is `history` itself."""
    return prune_context(history, None, model_name, models=models, token_counter=token_counter)


def get_context_stats(
    history: PlainHistory,
    model_name: str = "default",
    *,
    models: Sequence[Model] = (),
    token_counter: TokenCounter = _WEIGH,
) -> ContextFillLevel:
    """The fill level of a model's context with this history."""
    limit = find_limit(model_name, models)
    tokens = estimate_tokens(history, token_counter=token_counter)
    return {
        "items": len(history),
        "tokens": tokens,
        "limit": limit,
        "utilizationPercent": 100 * tokens / limit,
        "needsPruning": tokens > int(limit * TARGET_SHARE),
    }


def summarize_context(history: PlainHistory, max_items: int = 10, *, text: str | None = None) -> SummarizedHistory:
    """Replace all but the last `max_items` messages by the summary `text`, or by a count of messages if it is not
    given.

    System messages stay and do not count; no step is cut. The summary is written at the end of the first user message
    that stays. If no user message stays, the summary is its own message in front. A summary has to be shorter than
    the messages that it replaces, and not empty. Else the history comes back as it is, and `summary` is None.
    """
    messages = [read_item(item) for item in history]
    first = _find_first_kept(messages, max_items)
    old = [n for n in range(first) if not messages[n].is_system]
    text_of_old = summary.render_count(messages[n] for n in old) if text is None else text
    accepted = summary.accept_summary(text_of_old, sum(summary.count_chars(messages[n]) for n in old)) if old else None
    kept = [n for n in range(first, len(messages)) if not messages[n].is_system]
    if accepted is None:
        everything = len(old) + len(kept)
        return {"summarized": history, "summary": None, "stats": {"summarizedItems": 0, "keptItems": everything}}
    bearer = next((n for n in kept if messages[n].role == "user"), None)
    message = _make_message("parts" in history[old[0]], accepted)
    summarized: list[PlainMessage] = []
    for n, item in enumerate(history):
        if bearer is None and kept and n == kept[0]:
            summarized.append(message)
        if n == bearer:
            summarized.append(_with(item, accepted))
        elif messages[n].is_system or n >= first:
            summarized.append(item)
    if not kept:
        summarized.append(message)
    return {
        "summarized": summarized,
        "summary": message,
        "stats": {"summarizedItems": len(old), "keptItems": len(kept)},
    }


def _find_first_kept(messages: Sequence[Message], keep: int) -> int:
    """The index at which the last `keep` messages begin; no step is cut."""
    count, first = 0, len(messages)
    for step in reversed(group.split_steps(messages)):
        if count >= keep:
            break
        if not messages[step.start].is_system:
            count += step.end - step.start
            first = step.start
    return first


def _make_message(has_parts: bool, text: str) -> PlainMessage:
    return {"role": "user", "parts": [{"text": text}]} if has_parts else {"role": "user", "content": text}


def _with(item: PlainMessage, text: str) -> PlainMessage:
    """The message with a text after its own."""
    if "parts" in item:
        plain = bool(item["parts"]) and isinstance(item["parts"][0], str)
        return {**item, "parts": [*item["parts"], text if plain else {"text": text}]}
    content = item.get("content")
    if isinstance(content, list | tuple):
        return {**item, "content": [*content, {"type": "text", "text": text}]}
    return {**item, "content": f"{content}\n\n{text}" if content else text}
