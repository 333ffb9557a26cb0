"""Vectors of messages, each made once: read from the store, else made by the upstream's /v1/embeddings, in batches.

Off by default. A caller gets the vectors that are available. A text whose vector could not be made is left out, and its
relevance is then judged by words.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from proxy.context.models import find_model
from proxy.errors import StoreUnavailable
from proxy.exchange.services import Services
from proxy.helper.helper_client import EmbeddingAnswer, HelperEndpoint, embed_texts, pick_credential_headers
from proxy.store.derived import EmbeddingRow
from proxy.upstream.client import Target
from proxy.upstream.headers import Headers

KIND = "embedding"
"""The kind under which embeddings are counted, among the kinds of questions."""

MAX_CHARS = 16_000
"""Characters of a text that are embedded: models take some 8,000 tokens, and the beginning shows the subject."""


async def load_vectors(
    services: Services, tenant: str, session: str, texts_by_form: Mapping[bytes, str], headers: Headers
) -> dict[bytes, tuple[float, ...]]:
    """Return the vectors of these texts by the form of their message, for as many as are available. An error of the
    store or of the upstream gives fewer vectors.

    It waits for the upstream, up to `helper.timeout_s` for each batch, so a request runs it in its own task. headers:
    the headers of the client's request, used if the upstream has no key in the settings."""
    settings = services.settings.embeddings
    target = next((t for t in services.client.targets if t.name == settings.upstream), None)
    texts = {form: text[:MAX_CHARS] for form, text in texts_by_form.items() if text.strip()}
    if not settings.enabled or target is None or not texts:
        return {}
    try:
        stored = await services.store.read_embeddings(tenant, session, settings.model, list(texts))
    except StoreUnavailable:
        _count(services, "store")
        return {}
    vectors = {form: _unpack(raw) for form, raw in stored.items()}
    missing = [form for form in texts if form not in vectors]
    breaker = services.embeddings_breaker
    if missing and (breaker.is_open(tenant) or breaker.open_calls >= services.settings.helper.concurrency):
        _count(services, "resting" if breaker.is_open(tenant) else "queue_full")
        return vectors
    breaker.open_calls += 1
    try:
        for at in range(0, len(missing), settings.batch):
            batch = missing[at : at + settings.batch]
            answer = await _embed_batch(services, tenant, target, [texts[form] for form in batch], headers or [])
            breaker.record_call(answer.outcome, tenant)
            if answer.outcome != "answered":
                break  # the next batch would fare no better, and nobody should wait for it
            # Unpack the stored form, so that a relevance does not depend on the process that made the vector.
            packed = {form: _pack(vector) for form, vector in zip(batch, answer.vectors, strict=True)}
            vectors.update((form, _unpack(raw)) for form, raw in packed.items())
            now = services.now()
            services.store.put(
                [EmbeddingRow(tenant, session, settings.model, form, raw, now) for form, raw in packed.items()]
            )
    finally:
        breaker.open_calls -= 1
    return vectors


async def _embed_batch(
    services: Services, tenant: str, target: Target, texts: Sequence[str], headers: Headers
) -> EmbeddingAnswer:
    """Embed one batch, paid from the helper's budget and counted."""
    name = services.settings.embeddings.model
    model = find_model(services.models, name)
    # No tokenizer makes more tokens than there are bytes.
    worst = sum(len(text.encode("utf-8", "replace")) for text in texts) * (model.input or 0) / 1e6
    try:
        if not await services.helper_budget.reserve(services.store, tenant, worst):
            return _count_answer(services, EmbeddingAnswer("over_budget"))
    except StoreUnavailable:
        return _count_answer(services, EmbeddingAnswer("store"))
    answer = EmbeddingAnswer("cancelled", dollars=worst)
    try:
        shown = [] if target.key is not None else pick_credential_headers(headers)
        endpoint = HelperEndpoint(services.client, target, services.settings.helper.timeout_s)
        answer = await embed_texts(endpoint, name, model, texts, shown)
    finally:
        services.store.put(
            services.helper_budget.settle_reserve(tenant, KIND, worst, (answer.prompt_tokens, 0), answer.dollars)
        )
        _count_answer(services, answer)
    return answer


def _count_answer(services: Services, answer: EmbeddingAnswer) -> EmbeddingAnswer:
    _count(services, "kept" if answer.outcome == "answered" else answer.outcome)
    services.metrics.helper_dollars_total.labels(kind=KIND).inc(answer.dollars)
    services.metrics.helper_tokens_total.labels(kind=KIND).inc(answer.prompt_tokens)
    return answer


def _count(services: Services, outcome: str) -> None:
    services.metrics.helper_total.labels(kind=KIND, outcome=outcome).inc()


def _pack(vector: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)


def _unpack(raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // 4}f", raw)
