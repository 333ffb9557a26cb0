"""Passthrough of everything that is not managed: any method, any path, bytes unchanged in both directions.

Half of the requests that agents send go to paths that no proxy knows, so this code does not read their content. The one
exception is the `model` of a JSON body, if several upstreams must be distinguished. The upload is not held in memory
and has no separate limit. A request that works without the proxy works through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.chat.json_spans import decode_model_name
from proxy.dialects.cloud_paths import read_path_model
from proxy.errors import UpstreamError
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
    """Send one request to the upstream of its model, which the path names or the body. Else send it to the first one.
    Return its answer.

    `path` is percent-encoded, as received. Raises the errors of `UpstreamClient.send` before anything is sent to the
    client. Raises UpstreamBroken and UpstreamTimeout after that too; then the connection must be broken off. Raises
    ClientGone. share: the part of the budget that a kept body holds. rules: the paths that are allowed with a key of
    the operator; others raise Forbidden. on_allowed: called once that is clear.
    """
    body: bytes | None = None
    if len(client.targets) > 1 and _is_small_json(scope):
        if share is None:
            body = await read_body(receive, PEEK_BYTES)
        else:
            body = await share.give_way_during(read_body(receive, PEEK_BYTES, on_bytes=share.reserve))
    named = read_path_model(path) if len(client.targets) > 1 else None
    target = client.select_target(named, None if body is None else decode_model_name(body))
    if rules is not None and target.key is not None:
        rules.check(scope["method"], path)
    on_allowed()
    upload = Upload(receive, scope.get(DISCONNECT_KEY)) if body is None and has_body(scope) else None
    content = upload.read_pieces() if upload is not None else body
    request = UpstreamRequest(scope["method"], path, scope["query_string"], scope["headers"], content)
    relay = _relay(send, client, metrics, target, request)
    if upload is not None:
        await upload.run_while_connected(relay)
    else:
        await run_while_connected(scope, receive, relay)


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
