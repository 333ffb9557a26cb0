"""Vectors of messages, each made once: read from the store, else made by the upstream's /v1/embeddings, in batches.

Off by default. A caller gets the vectors that are available. A text whose vector could not be made is left out, and its
relevance is then judged by words.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from proxy.context.prices import find_model
from proxy.errors import StoreUnavailable
from proxy.exchange.parts import Parts
from proxy.store.derived import VectorRow
from proxy.upstream.asks import Vectors, credential, embed
from proxy.upstream.client import Target
from proxy.upstream.headers import Headers

KIND = "embedding"
"""The kind under which embeddings are counted, among the kinds of questions."""

LONGEST = 16_000
"""Characters of a text that are embedded: models take some 8,000 tokens, and the beginning shows the subject."""


async def vectors(
    parts: Parts, tenant: str, session: str, texts_by_form: Mapping[bytes, str], headers: Headers | None = None
) -> dict[bytes, tuple[float, ...]]:
    """Return the vectors of these texts by the form of their message, for as many as are available. Never raises on
    purpose.

    It waits for the upstream, up to `helper.timeout_s` for each batch, so a request runs it in a task of its own.
    headers: those of the request that it is done for, used where the upstream has no key of its own.
    """
    settings = parts.settings.embeddings
    target = next((t for t in parts.client.targets if t.name == settings.upstream), None)
    wanted = {form: text[:LONGEST] for form, text in texts_by_form.items() if text.strip()}
    if not settings.enabled or target is None or not wanted:
        return {}
    try:
        stored = await parts.store.vectors(tenant, session, settings.model, list(wanted))
    except StoreUnavailable:
        _count(parts, "store")
        return {}
    found = {form: _unpacked(raw) for form, raw in stored.items()}
    missing = [form for form in wanted if form not in found]
    patience = parts.patience
    if missing and (patience.resting or patience.busy >= parts.settings.helper.concurrency):
        _count(parts, "resting" if patience.resting else "queue_full")
        return found
    patience.busy += 1
    try:
        for at in range(0, len(missing), settings.batch):
            batch = missing[at : at + settings.batch]
            made = await _made(parts, target, [wanted[form] for form in batch], headers or [])
            patience.note(made.outcome)
            if made.outcome != "answered":
                break  # the next batch would fare no better, and nobody should wait for it
            # Unpack the stored form, so that a relevance does not depend on the process that made the vector.
            packed = {form: _packed(vector) for form, vector in zip(batch, made.vectors, strict=True)}
            found.update((form, _unpacked(raw)) for form, raw in packed.items())
            now = parts.now()
            parts.store.put(
                [VectorRow(tenant, session, settings.model, form, raw, now) for form, raw in packed.items()]
            )
    finally:
        patience.busy -= 1
    return found


async def _made(parts: Parts, target: Target, texts: Sequence[str], headers: Headers) -> Vectors:
    """Embed one batch, paid from the helper's budget and counted."""
    name = parts.settings.embeddings.model
    model = find_model(parts.models, name)
    # No tokenizer makes more tokens than there are bytes.
    worst = sum(len(text.encode("utf-8", "replace")) for text in texts) * (model.input or 0) / 1e6
    try:
        if not await parts.purse.reserve(parts.store, worst):
            return _counted(parts, Vectors("over_budget"))
    except StoreUnavailable:
        return _counted(parts, Vectors("store"))
    made = Vectors("cancelled", dollars=worst)
    try:
        shown = [] if target.key is not None else credential(headers)
        timeout_s = parts.settings.helper.timeout_s
        made = await embed(parts.client, target, name, model, texts, shown, timeout_s=timeout_s)
    finally:
        parts.store.put([parts.purse.settle(KIND, worst, (made.prompt_tokens, 0), made.dollars)])
        _counted(parts, made)
    return made


def _counted(parts: Parts, made: Vectors) -> Vectors:
    _count(parts, "kept" if made.outcome == "answered" else made.outcome)
    parts.metrics.helper_dollars_total.labels(kind=KIND).inc(made.dollars)
    parts.metrics.helper_tokens_total.labels(kind=KIND).inc(made.prompt_tokens)
    return made


def _count(parts: Parts, outcome: str) -> None:
    parts.metrics.helper_total.labels(kind=KIND, outcome=outcome).inc()


def _packed(vector: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)


def _unpacked(raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // 4}f", raw)
