"""The two paths that gateways call: `POST /v1/compress` and `GET /v1/retrieve/{hash}`.

They are behind the same key, limits and body budget as chat. An answer is one body, made before anything is sent.
"""

from __future__ import annotations

from proxy.exchange.compress_rows import compress_rows, retrieve_original
from proxy.exchange.services import Services
from proxy.web.asgi import Receive, Scope, Send, run_while_connected, send_json
from proxy.web.chat import read_incoming
from proxy.web.limits import BodyShare
from proxy.web.routes import GATEWAY_PATH, SessionPath


async def serve_gateway(
    scope: Scope, receive: Receive, send: Send, services: Services, place: SessionPath, share: BodyShare
) -> None:
    """Answer one request of a gateway. The arguments are those of `serve_chat`."""
    incoming = await read_incoming(scope, receive, services, place, share, "compress")
    found = GATEWAY_PATH.fullmatch(place.path)
    name = found["hash"] if found is not None else None
    work = compress_rows(services, incoming) if name is None else retrieve_original(services, incoming, name)
    answer = await run_while_connected(scope, receive, work)
    await send_json(send, answer.body, answer.headers, services.settings.timeouts.idle_s)
