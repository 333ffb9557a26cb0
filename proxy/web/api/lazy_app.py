"""The admin API, imported and built in a worker thread when a path of it is first requested.

FastAPI, and the models of the admin API's routes, take half of the processor time of a start and a third of an idle
process's memory. No client of a model needs them. A worker thread builds them, so that streams go on meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from proxy.exchange.services import Services
from proxy.web.asgi import App, Receive, Scope, Send

if TYPE_CHECKING:
    from fastapi import FastAPI


class LazyAdminApp:
    """The ASGI application under /api. It is built once, by `load` or `app`."""

    def __init__(self, services: Services, body_limit: int) -> None:
        """body_limit: bytes of a request's body."""
        self._services = services
        self._body_limit = body_limit
        self._lock = threading.Lock()
        self._built: FastAPI | None = None
        self._limited: App | None = None
        """The application behind the limit on bodies."""
        self._building: asyncio.Future[FastAPI] | None = None
        self.on_built: Callable[[], None] = lambda: None
        """Called in the thread that has built the application."""

    @property
    def app(self) -> FastAPI:
        """The application; built now, in this thread, if it is not there yet."""
        with self._lock:
            if self._built is None:
                # It imports FastAPI: see the head of this module.
                from proxy.web.api.admin_app import create_api, limit_bodies  # noqa: PLC0415

                self._built = create_api(self._services)
                settings = self._services.settings
                self._limited = limit_bodies(
                    self._built, self._body_limit, settings.limits.values, settings.timeouts.idle_s
                )
                self.on_built()
            return self._built

    async def load(self) -> Sequence[Any]:
        """Return the routes, which are FastAPI's; build the application in a thread if it is not there yet."""
        if self._built is None:
            if self._building is None or self._building.done():
                self._building = asyncio.ensure_future(asyncio.to_thread(lambda: self.app))
            await asyncio.shield(self._building)  # a client that leaves does not end it for the others
        return self.app.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.load()
        assert self._limited is not None  # noqa: S101  # it was built
        await self._limited(scope, receive, send)
