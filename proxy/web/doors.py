"""What a request asks for, and which keys open that: decided once, on `scope["path"]` and the method alone.

Whoever lets in and whoever dispatches use the same answer, so that no way of writing a path is let in as one thing and
served as another. Closed unless said otherwise: a path of ours that no route has needs an admin's key to be told so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["health", "metrics", "api", "pages", "data"]

PLANE: Final = "x-plane"
"""Where a route of the admin API says which keys open it beside an admin's, in its OpenAPI entry."""
READ: Final[dict[str, Any]] = {PLANE: "read"}
"""For routes that a read key opens: `openapi_extra=READ`. Without it a route is for admins."""


@dataclass(frozen=True, slots=True)
class Door:
    """What is behind a path. planes: the keys that open it; empty: nobody needs one. path: the route's, `""` where
    there is none."""

    kind: Kind
    planes: frozenset[str]
    path: str = ""


DATA: Final = Door("data", frozenset({"data"}))
HEALTH: Final = Door("health", frozenset())
METRICS: Final = Door("metrics", frozenset({"metrics", "admin"}), "/metrics")
PAGES: Final = Door("pages", frozenset())
"""The dashboard's own files: they hold no data, which their scripts fetch from /api with a key."""
ADMIN: Final = Door("api", frozenset({"admin"}))


@dataclass(frozen=True, slots=True)
class Way:
    """A route of the admin API: its method, its template and the pattern by which it is dispatched."""

    method: str
    path: str
    pattern: re.Pattern[str]
    planes: frozenset[str]


class Doors:
    """All that there is to ask for."""

    def __init__(self, routes: Iterable[Any]) -> None:
        """routes: those of the admin API, as FastAPI has them."""
        self.ways = tuple(
            Way(method, route.path, route.path_regex, _planes(route, method))
            for route in routes
            for method in sorted(route.methods or ())
        )

    def find(self, method: str, path: str) -> Door:
        """What this is."""
        if path in ("/healthz", "/readyz"):
            return HEALTH
        if path == "/metrics":
            return METRICS
        if path == "/dashboard" or path.startswith("/dashboard/"):
            return PAGES
        if path == "/api" or path.startswith("/api/"):
            for way in self.ways:
                if way.method == method and way.pattern.match(path):
                    return Door("api", way.planes, way.path)
            return ADMIN
        if path.startswith(("/healthz/", "/readyz/", "/metrics/")):
            return ADMIN
        return DATA


def _planes(route: Any, method: str) -> frozenset[str]:
    extra = getattr(route, "openapi_extra", None) or {}
    reads = extra.get(PLANE) == "read" and method in ("GET", "HEAD")
    return frozenset({"admin", "read"}) if reads else frozenset({"admin"})
