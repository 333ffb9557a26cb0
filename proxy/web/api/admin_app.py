"""The admin API as one application: its routes, its OpenAPI description, and the limit on request bodies."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response

from proxy.chat.json_spans import has_more_values
from proxy.errors import BadRequest, ProxyError, TooLarge
from proxy.exchange.services import Services
from proxy.operator.experiment_report import make_measure_cache
from proxy.operator.timeline import make_timeline_cache
from proxy.web.api import (
    context,
    events,
    experiment,
    figures,
    messages,
    operator_actions,
    overview,
    replay,
    search_sessions,
    sessions,
    tool_calls,
    transfer,
)
from proxy.web.api.answer_pieces import AnswerPieces
from proxy.web.api.json_answers import register_error_handlers
from proxy.web.asgi import App, Message, Receive, Scope, Send, read_body, read_content_length
from proxy.web.error_responses import send_error
from proxy.web.limits import BODY_SHARE_KEY, BodyShare
from proxy.web.routes import READ

ROUTERS: Final[tuple[APIRouter, ...]] = (
    sessions.router, operator_actions.router, replay.router, transfer.router, messages.router, sessions.records_router,
    messages.exchanges_router, context.router, overview.router, figures.router, search_sessions.router,
    experiment.router, events.router, tool_calls.router,
)  # fmt: skip

DESCRIPTION: Final = (
    "What an operator, the dashboard and the command line ask of the proxy. A key goes into `x-context-key` or, as a "
    "bearer token, into `Authorization`; on loopback without configured keys none is needed. Lists come in pages: "
    "`next` of one page is the `cursor` of the following one, and null on the last."
)


def create_api(services: Services) -> FastAPI:
    """Return the application with every route under /api."""
    app = FastAPI(
        title="context-proxy",
        version="1",
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.state.services = services
    app.state.replaying = asyncio.Lock()
    app.state.timeline_cache = make_timeline_cache()
    app.state.reporting = asyncio.Lock()
    app.state.measure_cache = make_measure_cache()
    for router in ROUTERS:
        # The routes themselves, not a nested router: the access check reads their patterns.
        app.router.routes.extend(router.routes)
    register_error_handlers(app)
    app.get("/api/openapi.json", openapi_extra=READ, include_in_schema=False)(_serve_openapi)
    return app


async def _serve_openapi(request: Request) -> Response:
    app: FastAPI = request.app  # not in a closure, which the framework would keep, and with it all objects of the app
    # The first description takes half a second: in a thread, so that streams go on.
    return Response(await asyncio.to_thread(_describe, app), media_type="application/json")


def _describe(app: FastAPI) -> bytes:
    return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()


def limit_bodies(api: App, limit: int, max_values: int, idle_s: float) -> App:
    """Return `api` for bodies of at most `limit` bytes that a strict JSON reader accepts, with at most `max_values`
    JSON values. Other bodies get the error. idle_s: the longest time for which a client may take nothing of its
    answer."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if "\0" in scope["path"] or b"%00" in scope["query_string"] or b"\0" in scope["query_string"]:
                raise BadRequest("a NUL in the path or the query: nothing is called so")  # no database stores it
            share: BodyShare = scope[BODY_SHARE_KEY]
            body = await share.give_way_during(read_body(receive, limit, read_content_length(scope), share.reserve))
            if body:
                _check_json(scope, body, max_values)
        except ProxyError as problem:
            await send_error(send, problem, receive=receive, separate_hint=True)
            return
        given = False

        async def receive_again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await api(scope, receive_again, AnswerPieces(send, share, idle_s))

    return read


def _check_json(scope: Scope, body: bytes, max_values: int) -> None:
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    try:
        if b"application/json" in kind.lower():
            if has_more_values(body, max_values):
                raise TooLarge(f"the body has more than {max_values} JSON values", hint="See limits.values.")
            msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadRequest("the body is not JSON", hint=str(error)) from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
