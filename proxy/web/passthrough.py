"""Passthrough of everything that is not managed: any method, any path, bytes unchanged in both directions.

Half of the requests that agents send go to paths that no proxy knows, so this code does not read their content. The
exceptions are for several upstreams: the `model` of a JSON body chooses one, and their lists of models are one list.
The upload is not held in memory and has no separate limit. A request that works without the proxy works through it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final
from urllib.parse import unquote

from proxy.chat.json_spans import decode_model_name
from proxy.dialects.cloud_paths import read_path_model
from proxy.errors import Forbidden, UpstreamError
from proxy.metrics import Metrics
from proxy.upstream.client import Target, UpstreamClient, UpstreamRequest
from proxy.upstream.headers import find_header
from proxy.web.asgi import (
    DISCONNECT_KEY,
    Receive,
    Scope,
    Send,
    Upload,
    has_body,
    read_body,
    read_content_length,
    run_while_connected,
    with_write_timeout,
)
from proxy.web.limits import BodyShare
from proxy.web.routes import PathRules

PEEK_BYTES: Final = 4 << 20
"""Bytes of a JSON body that are read whole to find its model; longer bodies go to the first upstream."""


async def serve_passthrough(
    scope: Scope,
    receive: Receive,
    send: Send,
    client: UpstreamClient,
    metrics: Metrics,
    *,
    path: str,
    share: BodyShare | None = None,
    rules: PathRules | None = None,
    on_allowed: Callable[[], None] = lambda: None,
) -> None:
    """Send one request to one upstream (`select_passthrough_target`), and return its answer. A request for the list of
    models goes to all of them.

    `path` is percent-encoded, as received. Raises the errors of `UpstreamClient.send` before anything is sent to the
    client. Raises UpstreamBroken and UpstreamTimeout after that too; then the connection must be broken off. Raises
    ClientGone. share: the part of the budget that a kept body holds. rules: the paths that are allowed with a key of
    the operator; others raise Forbidden. on_allowed: called once that is clear.
    """
    if len(client.targets) > 1 and scope["method"] == "GET":
        answering = _answer_models_question(
            scope, send, client, metrics, path=path, share=share, rules=rules, on_allowed=on_allowed
        )
        if answering is not None:
            await run_while_connected(scope, receive, answering)
            return
    body: bytes | None = None
    if len(client.targets) > 1 and _is_small_json(scope):
        if share is None:
            body = await read_body(receive, PEEK_BYTES)
        else:
            body = await share.give_way_during(read_body(receive, PEEK_BYTES, on_bytes=share.reserve))
    target = select_passthrough_target(client, path, scope["headers"], decode_model_name(body) if body else None)
    _select_allowed(rules, scope["method"], path, [target])
    on_allowed()
    upload = Upload(receive, scope.get(DISCONNECT_KEY)) if body is None and has_body(scope) else None
    content = upload.read_pieces() if upload is not None else body
    request = UpstreamRequest(scope["method"], path, scope["query_string"], scope["headers"], content)
    relay = _relay(send, client, metrics, target, request)
    if upload is not None:
        await upload.run_while_connected(relay)
    else:
        await run_while_connected(scope, receive, relay)


def select_passthrough_target(
    client: UpstreamClient, path: str, headers: Iterable[tuple[bytes, bytes]], model: str | None
) -> Target:
    """Return the upstream of the model that the path names, or the body. A request without a model goes to the first
    upstream of its wire format, with the credentials of that provider. path: percent-encoded."""
    if len(client.targets) == 1:
        return client.targets[0]
    # A proxy with one upstream does not need these.
    from proxy.dialects.model_lists import find_client_form  # noqa: PLC0415
    from proxy.web.list_models import select_credited  # noqa: PLC0415

    named = read_path_model(path)
    if named or model:
        return client.select_target(named, model)
    form = find_client_form(unquote(path), headers)
    return client.targets[0] if form == "completions" else select_credited(client, form)


def _answer_models_question(
    scope: Scope,
    send: Send,
    client: UpstreamClient,
    metrics: Metrics,
    *,
    path: str,
    share: BodyShare | None,
    rules: PathRules | None,
    on_allowed: Callable[[], None],
) -> Coroutine[Any, Any, None] | None:
    """Return the work that answers a request for the list of models of several upstreams, or for one of their models.
    None for another request. The arguments are those of `serve_passthrough`."""
    # A start does not need these: many clients list no models.
    from proxy.dialects.model_lists import read_models_question  # noqa: PLC0415
    from proxy.web import list_models  # noqa: PLC0415

    method = scope["method"]
    question = read_models_question(method, unquote(path), scope["headers"])
    if question is None:
        return None
    if not question.model:
        asked = list_models.select_asked(client, question.form)
        if not asked:
            return None
        asked = _select_allowed(rules, method, path, asked)
        on_allowed()
        return list_models.serve_model_list(scope, send, client, metrics, asked, question.form, path=path, share=share)
    [target] = _select_allowed(rules, method, path, [client.select_target(question.model)])
    on_allowed()
    if list_models.is_translated(target, question.form, path):
        return list_models.serve_model(scope, send, client, target, question.form, question.model)
    request = UpstreamRequest(method, path, scope["query_string"], scope["headers"], None)
    return _relay(send, client, metrics, target, request)


def _select_allowed(rules: PathRules | None, method: str, path: str, targets: list[Target]) -> list[Target]:
    """Return the upstreams that a client may ask this. Raises Forbidden if there is none: with a key of the operator
    only the paths of `rules` are allowed."""
    keyless = [target for target in targets if target.key is None]
    if rules is not None and len(keyless) < len(targets):
        try:
            rules.check(method, path)
        except Forbidden:
            if not keyless:
                raise
            return keyless
    return targets


def _is_small_json(scope: Scope) -> bool:
    length = read_content_length(scope)
    kind = find_header(scope["headers"], b"content-type").lower()
    return length is not None and 0 < length <= PEEK_BYTES and "json" in kind


async def _relay(
    send: Send, client: UpstreamClient, metrics: Metrics, target: Target, request: UpstreamRequest
) -> None:
    reply = await client.send(target, request, identity=False)
    send = with_write_timeout(send, client.idle_s)
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        async for part in reply.iter_bytes():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except UpstreamError:
        metrics.upstream_truncated_total.inc()
        raise
    finally:
        await reply.close()
