"""One list of the models of several upstreams, for clients that list them before they choose.

Each upstream is asked in its own form, all at the same time. The list has each model at the upstream to which its chat
requests go. An upstream that fails or is slow is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from proxy.dialects.model_lists import (
    ListedModel,
    ListForm,
    read_model,
    read_model_list,
    select_routed,
    write_model,
    write_model_list,
)
from proxy.errors import ProxyError, UpstreamTimeout
from proxy.metrics import Metrics
from proxy.upstream.client import SUCCESS_STATUSES, TOO_MANY_REQUESTS, Target, UpstreamClient, UpstreamRequest
from proxy.upstream.headers import ANTHROPIC_HOST, GOOGLE_HOST, Headers, find_header
from proxy.web.asgi import Scope, Send, send_json, with_write_timeout
from proxy.web.limits import BodyShare

log = logging.getLogger(__name__)

LIST_S: Final = 5.0
"""Seconds in which an upstream has to give its whole list. Open WebUI waits ten seconds for a list."""
MAX_LIST_BYTES: Final = 4 << 20
"""Bytes of one upstream's list. A list of 400 models with prices and descriptions has less than one megabyte."""
MAX_LIST_VALUES: Final = 50_000
"""JSON values of such a list, as `Reply.read_answer` counts them."""
_HOSTS: Final = {
    ANTHROPIC_HOST: "anthropic", GOOGLE_HOST: "gemini", "api.openai.com": "openai_alone",
}  # fmt: skip
"""Hosts whose provider is known, whatever `strategy` says."""
_OWN_FORMS: Final[dict[str, ListForm]] = {"anthropic": "messages", "gemini": "gemini"}
"""The form of a provider's list, by strategy. All others are asked in the client's form."""
_SERVED_FORMS: Final = {
    "anthropic": ("messages", "completions"), "gemini": ("gemini", "completions"), "gemini_gca": (),
    "openai_alone": ("completions",),
}  # fmt: skip
"""The forms of the clients that a provider can serve, by strategy. All others may serve every form."""
_OWN_PATHS: Final[dict[ListForm, str]] = {"messages": "/v1/models", "gemini": "/v1beta/models"}
_OWN_QUERIES: Final[dict[ListForm, bytes]] = {"messages": b"limit=1000", "gemini": b"pageSize=1000"}
"""The queries that get as many models as fit on one page."""
_ANTHROPIC_VERSION: Final = (b"anthropic-version", b"2023-06-01")
_PAGE_FIELDS: Final = (b"limit", b"after_id", b"before_id", b"pageSize", b"pageToken")


class _Answer(msgspec.Struct, frozen=True):
    """The answer of one upstream, or the error in its place."""

    target: Target
    status: int = 0
    headers: Headers = []
    body: bytes = b""
    error: ProxyError | None = None

    @property
    def is_success(self) -> bool:
        return self.error is None and self.status in SUCCESS_STATUSES


def select_asked(client: UpstreamClient, form: ListForm) -> list[Target]:
    """Return the upstreams that are asked for one list. None of them, if chat requests go to a single upstream, or if
    no upstream serves clients of this form: the request is then passed on."""
    routed = [target for n, target in enumerate(client.targets) if target.models or not n]
    if len(routed) == 1:
        return []
    return [target for target in routed if form in _SERVED_FORMS.get(_find_strategy(target), (form,))]


def is_translated(target: Target, form: ListForm, path: str) -> bool:
    """True if this upstream tells of a model in another form than the client's, or below another path, and serves such
    clients. path: the client's. Google's stable paths may lead to its models in OpenAI's form."""
    strategy = _find_strategy(target)
    own = _OWN_FORMS.get(strategy, form)
    is_other = own != form or (own == "gemini" and strategy == "gemini" and not path.startswith("/v1beta"))
    return is_other and form in _SERVED_FORMS.get(strategy, ())


def _find_strategy(target: Target) -> str:
    return _HOSTS.get(urlsplit(target.base_url).hostname or "", target.strategy)


async def serve_model_list(
    scope: Scope,
    send: Send,
    client: UpstreamClient,
    metrics: Metrics,
    asked: Sequence[Target],
    form: ListForm,
    *,
    path: str,
    share: BodyShare | None = None,
) -> None:
    """Answer with one list in this form. path: percent-encoded, as received. asked: the upstreams (`select_asked`).

    If no upstream gives a list, the first one's answer is passed on, or its error raised.
    """
    credited = select_credited(client, form)
    answers = await asyncio.gather(
        *[_ask(client, one, _make_request(scope, one, form, path, is_credited=one is credited)) for one in asked]
    )
    if share is not None:
        share.reserve(sum(len(answer.body) for answer in answers))
    found: list[tuple[str, ListedModel]] = []
    is_listed = False
    for answer in answers:
        models = read_model_list(answer.body) if answer.is_success else None
        if models is None:
            _report_left_out(metrics, answer)
            continue
        is_listed = True
        is_routed = partial(_is_routed, client, answer.target)
        found += [(answer.target.name, model) for model in select_routed(models, is_routed)]
    if is_listed:
        await send_json(send, write_model_list(form, found), [], client.idle_s)
    else:
        await _pass_on(send, client, answers[0])


async def serve_model(
    scope: Scope, send: Send, client: UpstreamClient, target: Target, form: ListForm, model: str
) -> None:
    """Answer with one model of an upstream whose form is not the client's (`is_translated`)."""
    own = _OWN_FORMS[_find_strategy(target)]
    path = f"{_OWN_PATHS[own]}/{quote(model, safe='')}"
    is_credited = target is select_credited(client, form)
    request = _make_request(scope, target, form, path, is_credited=is_credited)
    answer = await _ask(client, target, msgspec.structs.replace(request, path=path, query=b""))
    listed = read_model(answer.body, own) if answer.is_success else None
    if listed is None:
        await _pass_on(send, client, answer)
    else:
        await send_json(send, write_model(form, target.name, listed), [], client.idle_s)


def _is_routed(client: UpstreamClient, target: Target, model: str) -> bool:
    return client.select_target(model) is target


def select_credited(client: UpstreamClient, form: ListForm) -> Target:
    """Return the one upstream that gets the headers of a client whose request names no model. No pattern tells whose
    credentials came with it: they are for the first provider of the client's own wire format."""
    own = [one for one in client.targets if _OWN_FORMS.get(_find_strategy(one), "completions") == form]
    return own[0] if own else client.targets[0]


def _make_request(scope: Scope, target: Target, form: ListForm, path: str, *, is_credited: bool) -> UpstreamRequest:
    """Return the request for one upstream's list. is_credited: it gets the headers and the query of the client."""
    strategy = _find_strategy(target)
    own = _OWN_FORMS.get(strategy, form)
    received: Headers = list(scope["headers"])
    if is_credited:
        headers, queries = received, [_remove_page(scope.get("query_string", b""))]
    else:
        agent = find_header(received, b"user-agent").encode("latin-1")
        headers, queries = [(b"accept", b"application/json"), (b"user-agent", agent or b"context-proxy")], []
    if own == "messages" and not find_header(headers, b"anthropic-version"):
        headers = [*headers, _ANTHROPIC_VERSION]
    if own in _OWN_QUERIES:
        queries.append(_OWN_QUERIES[own])
    path = _OWN_PATHS[own] if strategy in _OWN_FORMS else path
    return UpstreamRequest("GET", path, b"&".join(filter(None, queries)), headers, None)


def _remove_page(query: bytes) -> bytes:
    """Return a query without the fields that choose a page: the answer is always the whole list."""
    return b"&".join(pair for pair in query.split(b"&") if pair.partition(b"=")[0] not in _PAGE_FIELDS)


async def _ask(client: UpstreamClient, target: Target, request: UpstreamRequest) -> _Answer:
    """Return an upstream's answer, which came in time, or the error in its place."""
    try:
        async with asyncio.timeout(LIST_S):
            reply = await client.send(target, request)
            try:
                body = await reply.read_answer(MAX_LIST_BYTES, MAX_LIST_VALUES)
            finally:
                await reply.close()
    except TimeoutError:
        return _Answer(target, error=UpstreamTimeout(f"upstream {target.name!r} gave no list in {LIST_S:g} s"))
    except ProxyError as error:
        return _Answer(target, error=error)
    return _Answer(target, reply.status, reply.headers, body)


def _report_left_out(metrics: Metrics, answer: _Answer) -> None:
    """Count and log an upstream without a list. A refusal is no failure: some have none, or want the client's key."""
    metrics.model_lists_left_out_total.labels(answer.target.name).inc()
    is_refusal = 400 <= answer.status < 500 and answer.status != TOO_MANY_REQUESTS
    reason = "its answer is no list" if answer.is_success else f"status {answer.status}"
    if answer.error is not None:
        reason = answer.error.code
    log.log(
        logging.INFO if is_refusal else logging.WARNING,
        "upstream %s is left out of the list of models: %s", answer.target.name, reason,
    )  # fmt: skip


async def _pass_on(send: Send, client: UpstreamClient, answer: _Answer) -> None:
    """Send an upstream's answer as it is. Raises the error in its place."""
    if answer.error is not None:
        raise answer.error
    send = with_write_timeout(send, client.idle_s)
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
