"""Questions of the proxy to a helper model: one question, one answer, and its cost; or texts for their vectors.

The result is never an exception: a helper that is down is normal, and the caller goes on without it. A question is sent
once, with one exception. OpenAI's newer models call the limit on an answer's length `max_completion_tokens`, and many
other servers do not know that name. After a refusal that names it, the question is sent once more, and the name is
remembered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import msgspec

from proxy.chat.tokens import PER_MESSAGE, estimate_text_tokens
from proxy.chat.unicode_text import replace_surrogates
from proxy.context.models import Model
from proxy.context.prices import price_usage
from proxy.dialects.usage import Usage
from proxy.stream.completions_answer import AssembledAnswer
from proxy.upstream.client import Target, UpstreamClient, UpstreamRequest
from proxy.upstream.headers import CREDENTIAL_HEADERS, Headers

ANSWER_LIMIT: Final = 4 << 20
"""Bytes of an answer that are read; a text of `max_tokens` is a thousandth of it."""
VECTOR_LIMIT: Final = 128 << 10
"""Bytes for each vector in an answer: 4,096 numbers with all their digits."""
THREADED_PARSE_BYTES: Final = 256 << 10
"""Bytes above which an answer is parsed in a worker thread."""

FLOAT32_MAX: Final = 3.4e38

OLD_LIMIT_FIELD: Final = "max_tokens"
NEW_LIMIT_FIELD: Final = "max_completion_tokens"

UNPAID_OUTCOMES: Final = frozenset({"unreachable", "refused", "failed"})
"""Outcomes for which providers charge nothing. If an answer was lost on its way, its highest possible cost counts."""


@dataclass(frozen=True, slots=True)
class HelperAnswer:
    """The answer of a model.

    outcome: `answered` or a fault. The faults before an answer are unreachable, timeout, broken, refused (4xx) and
    failed (any other status, or an error in the body). The faults of an answer are garbage and cut (by the limit on its
    length). Tokens are as reported, else estimated.
    """

    outcome: str
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0


@dataclass(frozen=True, slots=True)
class EmbeddingAnswer:
    """Vectors in the order of their texts, all of one length; none unless `answered` (see `HelperAnswer`)."""

    outcome: str
    vectors: tuple[tuple[float, ...], ...] = ()
    prompt_tokens: int = 0
    dollars: float = 0.0


@dataclass(frozen=True, slots=True)
class _PostResult:
    """The outcome of a call, and its body if the status was 200."""

    outcome: str
    body: bytes = b""


class _Vector(msgspec.Struct, frozen=True):
    embedding: list[float]
    index: int = -1


class _VectorUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0


class _Embeddings(msgspec.Struct, frozen=True):
    data: list[_Vector]
    usage: _VectorUsage | None = None


def pick_credential_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers by which the client authenticates itself."""
    return [(name, value) for name, value in headers if name.lower() in CREDENTIAL_HEADERS]


def lend_credential(
    client: UpstreamClient, upstream: str, helper_upstream: str, headers: Iterable[tuple[bytes, bytes]]
) -> Headers:
    """Return the credential of a request for questions about it: none for an upstream that is at another place than
    the request's own. A client's key is meant for the provider that it has chosen."""
    return pick_credential_headers(headers) if client.is_same_place(upstream, helper_upstream) else []


@dataclass(frozen=True, slots=True)
class HelperEndpoint:
    """A server of the helper's models."""

    client: UpstreamClient
    target: Target
    timeout_s: float
    """Seconds for a whole answer."""

    async def post(self, path: str, body: dict[str, Any], headers: Headers, limit: int) -> _PostResult:
        """Send one POST of JSON. limit: bytes of its answer. The outcome is as in `HelperAnswer`, or `limit` if the
        name of the length limit was refused."""
        sent = [(b"content-type", b"application/json"), (b"accept", b"application/json"), *headers]
        request = self.client.build_request(
            self.target, UpstreamRequest("POST", path, b"", sent, json.dumps(body).encode())
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                try:
                    response = await self.client.create_http_client(self.target).send(request, stream=True)
                except httpx2.NetworkError:
                    return _PostResult("unreachable")
                answer = await read_at_most(response, limit)
        except (TimeoutError, httpx2.TimeoutException):
            return _PostResult("timeout")
        except httpx2.TransportError:
            return _PostResult("broken")
        if answer is None:
            return _PostResult("garbage")
        status = response.status_code
        if 400 <= status < 500:
            named = OLD_LIMIT_FIELD in body and NEW_LIMIT_FIELD.encode() in answer
            return _PostResult("limit" if named else "refused")
        if status != 200:
            return _PostResult("failed")
        encoded = response.headers.get("content-encoding", "").strip().lower() not in ("", "identity")
        return _PostResult("garbage" if encoded else "answered", answer)


class HelperClient:
    """A model that can be asked. max_tokens: its longest answer."""

    def __init__(self, endpoint: HelperEndpoint, name: str, model: Model, *, max_tokens: int) -> None:
        self.target = endpoint.target
        self.model_name = name
        self._endpoint = endpoint
        self._model = model
        self._max_tokens = max_tokens
        self._limit = OLD_LIMIT_FIELD

    def estimate_max_cost(self, prompt: str) -> float:
        """Return the dollars that the answer may cost at most; 0 if the model's prices are unknown."""
        asked = estimate_text_tokens(prompt) + PER_MESSAGE
        return self._count_dollars(Usage(asked, self._max_tokens, asked + self._max_tokens))

    async def ask(self, prompt: str, headers: Headers) -> HelperAnswer:
        """Ask once. headers: the credential to use if the upstream has no key of its own."""
        reply = await self._post_question(prompt, headers)
        if reply.outcome == "limit":
            self._limit = NEW_LIMIT_FIELD
            reply = await self._post_question(prompt, headers)
        if reply.outcome != "answered":
            outcome = reply.outcome.replace("limit", "refused")
            return HelperAnswer(outcome, dollars=0.0 if outcome in UNPAID_OUTCOMES else self.estimate_max_cost(prompt))
        return self._read(prompt, AssembledAnswer.from_body(reply.body))

    async def _post_question(self, prompt: str, headers: Headers) -> _PostResult:
        question = replace_surrogates(prompt)  # no server accepts them
        body = {
            "model": self.model_name,
            "messages": [{"role": "user", "content": question}],
            self._limit: self._max_tokens,
        }
        return await self._endpoint.post("/v1/chat/completions", body, headers, ANSWER_LIMIT)

    def _read(self, prompt: str, answer: AssembledAnswer) -> HelperAnswer:
        usage = answer.usage
        if usage is None:
            asked, answered = estimate_text_tokens(prompt) + PER_MESSAGE, estimate_text_tokens(answer.text)
            usage = Usage(asked, answered, asked + answered)
        if answer.error is not None and not answer.is_done:
            return HelperAnswer("failed")
        outcome = "answered" if answer.is_done else "garbage"
        if answer.finish_reasons.get(0) == "length" or answer.is_capped:
            outcome = "cut"
        return HelperAnswer(outcome, answer.text, usage.prompt, usage.completion, self._count_dollars(usage))

    def _count_dollars(self, usage: Usage) -> float:
        return usage.dollars if usage.dollars is not None else price_usage(self._model, usage).total


async def embed_texts(
    endpoint: HelperEndpoint, name: str, model: Model, texts: Sequence[str], headers: Headers
) -> EmbeddingAnswer:
    """Return vectors of these texts, from one call. name: of the model. headers: as for `HelperClient.ask`."""
    body = {"model": name, "input": [replace_surrogates(text) for text in texts]}
    limit = ANSWER_LIMIT + VECTOR_LIMIT * len(texts)
    reply = await endpoint.post("/v1/embeddings", body, headers, limit)
    if reply.outcome != "answered":
        return EmbeddingAnswer(reply.outcome)
    large = len(reply.body) > THREADED_PARSE_BYTES
    read = (
        await asyncio.to_thread(_parse_vectors, reply.body, len(texts))
        if large
        else _parse_vectors(reply.body, len(texts))
    )
    if read is None:
        return EmbeddingAnswer("garbage")
    found, tokens = read
    tokens = tokens or sum(map(estimate_text_tokens, texts))
    return EmbeddingAnswer("answered", found, tokens, tokens * (model.input or 0) / 1e6)


def _parse_vectors(body: bytes, count: int) -> tuple[tuple[tuple[float, ...], ...], int] | None:
    """Return (vectors in the order of their texts, tokens reported); None if the body holds anything else."""
    try:
        read = msgspec.json.decode(body, type=_Embeddings)
    except (ValueError, RecursionError):
        return None
    rows = sorted(read.data, key=lambda row: row.index)
    if [row.index for row in rows] != list(range(count)):
        return None
    vectors = tuple(tuple(row.embedding) for row in rows)
    # The comparison excludes NaN too. A number that does not fit 32 bits could not be stored.
    if len({len(vector) for vector in vectors}) != 1 or not all(abs(x) < FLOAT32_MAX for v in vectors for x in v):
        return None
    return (vectors, read.usage.prompt_tokens if read.usage else 0) if vectors[0] else None


async def read_at_most(response: httpx2.Response, limit: int) -> bytes | None:
    """Return the body as received, and close the response; None for a body of more bytes than `limit`."""
    parts: list[bytes] = []
    size = 0
    try:
        async with aclosing(response.aiter_raw()) as raw:
            async for part in raw:
                size += len(part)
                if size > limit:
                    return None
                parts.append(part)
    finally:
        await response.aclose()
    return b"".join(parts)
