"""Routing of a request to what it asks for and the keys that open it, by `scope["path"]` and the method alone.

The access check and the dispatch use the same result. No spelling of a path can therefore pass the check as one thing
and be served as another. The default is closed: a path of the proxy without a route needs an admin's key even for the
answer that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

RouteKind = Literal["health", "metrics", "api", "pages", "data"]

PLANE_KEY: Final = "x-plane"
"""Key in a route's OpenAPI entry that names the keys that open it in addition to an admin's."""
READ: Final[dict[str, Any]] = {PLANE_KEY: "read"}
"""For routes that a read key opens: `openapi_extra=READ`. Without it a route is for admins."""


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a path. planes: the keys that open it; empty: no key is needed. path: the route's, `""` if there is
    none."""

    kind: RouteKind
    planes: frozenset[str]
    path: str = ""


DATA: Final = Route("data", frozenset({"data"}))
HEALTH: Final = Route("health", frozenset())
METRICS: Final = Route("metrics", frozenset({"metrics", "admin"}), "/metrics")
PAGES: Final = Route("pages", frozenset())
"""The dashboard's own files: they hold no data, which their scripts fetch from /api with a key."""
ADMIN: Final = Route("api", frozenset({"admin"}))


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """A route of the admin API: its method, its template and the pattern by which it is dispatched."""

    method: str
    path: str
    pattern: re.Pattern[str]
    planes: frozenset[str]


class RouteTable:
    """The table of everything that a request can ask for."""

    def __init__(self, routes: Iterable[Any]) -> None:
        """Read the routes. routes: those of the admin API, as FastAPI has them."""
        self.admin_routes = tuple(
            AdminRoute(method, route.path, route.path_regex, _planes(route, method))
            for route in routes
            for method in sorted(route.methods or ())
        )

    def find_route(self, method: str, path: str) -> Route:
        """Return the target of a method and a path."""
        if path in ("/healthz", "/readyz"):
            return HEALTH
        if path == "/metrics":
            return METRICS
        if path == "/dashboard" or path.startswith("/dashboard/"):
            return PAGES
        if path == "/api" or path.startswith("/api/"):
            for way in self.admin_routes:
                if way.method == method and way.pattern.match(path):
                    return Route("api", way.planes, way.path)
            return ADMIN
        if path.startswith(("/healthz/", "/readyz/", "/metrics/")):
            return ADMIN
        return DATA


def _planes(route: Any, method: str) -> frozenset[str]:
    extra = getattr(route, "openapi_extra", None) or {}
    reads = extra.get(PLANE_KEY) == "read" and method in ("GET", "HEAD")
    return frozenset({"admin", "read"}) if reads else frozenset({"admin"})
