"""Routing of a request to its handler and the keys that open it, by `scope["path"]` and the method alone.

The access check and the dispatch use the same result. No spelling of a path can therefore pass the check as one thing
and be served as another. The default is closed: a path of the proxy without a route needs an admin's key even for the
answer that there is none.

Rules for paths that go upstream stand here too: no dot segments (`check_path`), and only allowed paths with a key of
the operator (`PathRules`). An upstream may resolve `..` after the check of a path, in any spelling.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote

from proxy.errors import BadRequest, Forbidden
from proxy.exchange.dialect import find_path_template
from proxy.upstream.headers import OLLAMA_PATH
from proxy.web.asgi import Scope

RouteKind = Literal["health", "metrics", "api", "pages", "data", "gateway"]

PLANE_KEY: Final = "x-plane"
"""Key in a route's OpenAPI entry that names the keys that open it in addition to an admin's."""
READ: Final[dict[str, Any]] = {PLANE_KEY: "read"}
"""For routes that a read key opens: `openapi_extra=READ`. Without it a route is for admins."""

MAX_DECODINGS: Final = 4
"""Rounds of percent-decoding in which a path is checked."""
_SEPARATORS: Final = re.compile(r"[/\\]")
_PLAIN: Final = re.compile(r"(?!\.\.|\.\Z)[A-Za-z0-9._~:@-]+")
"""A segment that every server reads alike."""
_VERSION: Final = re.compile(r"/v1(?=/|$)")

UNMANAGED_HEADER: Final = b"x-context-unmanaged"
"""The header that names the path."""
MAX_LOGGED_PATHS: Final = 100
"""Paths that are logged. There is a limit, because clients choose the paths."""
_CONVERSATIONAL: Final = re.compile(
    r"/(?:messages|responses|completions|complete|api/chat|api/generate|converse(?:-stream)?"
    r"|invoke(?:-with-response-stream)?|[^/]+:(?:(?:streamG|g)enerateContent|(?:streamR|r)awPredict))/?$"
)
"""Ends of paths: Anthropic, OpenAI, Ollama, Bedrock, Gemini, other publishers on Vertex AI."""
_OTHER: Final = re.compile(r"/threads/[^/]+/messages/?")
"""The end of a similar path that calls no model: OpenAI's assistants."""


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a path."""

    kind: RouteKind
    planes: frozenset[str]
    """The kinds of keys that open the route. Empty: no key is needed."""
    path: str = ""
    """The path of the route, `""` if there is none."""


DATA: Final = Route("data", frozenset({"data"}))
GATEWAY: Final = Route("gateway", frozenset({"data"}), "/v1/compress")
"""The two paths that gateways call: nothing of theirs goes to an upstream."""
GATEWAY_PATH: Final = re.compile(r"(?:/s/[^/]+)?/v1/(?:compress|retrieve/(?P<hash>[^/]+))")
ROOT: Final = Route("data", frozenset({"data"}), "/")
"""The upstream's `/`, by which some programs see whether a server is there. A browser is led to the pages."""
HEALTH: Final = Route("health", frozenset())
METRICS: Final = Route("metrics", frozenset({"metrics", "admin"}), "/metrics")
PAGES: Final = Route("pages", frozenset())
"""The dashboard's own files: they hold no data, which their scripts fetch from /api with a key."""
ADMIN: Final = Route("api", frozenset({"admin"}))
UNREAD: Final = Route("api", frozenset({"admin"}))
"""A path of the admin API, whose routes have not been read yet: `RouteTable.load`."""


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """A route of the admin API: its method, its template and the pattern by which it is dispatched."""

    method: str
    path: str
    pattern: re.Pattern[str]
    planes: frozenset[str]


class RouteTable:
    """The table of everything that a request can ask for."""

    def __init__(
        self,
        routes: Iterable[Any] | None = None,
        *,
        load_routes: Callable[[], Awaitable[Iterable[Any]]] | None = None,
        compress: bool = True,
        base_paths: Iterable[str] = (),
    ) -> None:
        """Read the routes. routes: those of the admin API, as FastAPI has them. load_routes: returns them when they are
        first needed, in place of `routes`. compress: the paths of gateways are answered here. base_paths: those of the
        upstreams, which a client may name before a path; some providers have theirs below `/api`."""
        self._compress = compress
        self._upstream_paths = tuple(f"{path}/" for path in base_paths if path.startswith("/api/"))
        self._load_routes = load_routes
        self.admin_routes = () if routes is None else _read_routes(routes)

    async def load(self) -> None:
        """Read the routes of the admin API. Call it where `find_route` returned UNREAD."""
        if self._load_routes is not None:
            self.admin_routes = _read_routes(await self._load_routes())
            self._load_routes = None

    def find_route(self, method: str, path: str) -> Route:
        """Return the target of a method and a path."""
        if path in ("/healthz", "/readyz"):
            return HEALTH
        if path == "/metrics":
            return METRICS
        if path == "/dashboard" or path.startswith("/dashboard/"):
            return PAGES
        if path.startswith(self._upstream_paths):
            return DATA
        if path == "/api" or (path.startswith("/api/") and not OLLAMA_PATH.fullmatch(path)):
            if self._load_routes is not None:
                return UNREAD
            for way in self.admin_routes:
                if way.method == method and way.pattern.match(path):
                    return Route("api", way.planes, way.path)
            return ADMIN
        if path.startswith(("/healthz/", "/readyz/", "/metrics/")):
            return ADMIN
        if path == "/" and method in ("GET", "HEAD"):
            return ROOT
        if self._compress and (found := GATEWAY_PATH.fullmatch(path)):
            return GATEWAY if method == ("GET" if found["hash"] else "POST") else DATA
        return DATA


def _read_routes(routes: Iterable[Any]) -> tuple[AdminRoute, ...]:
    return tuple(
        AdminRoute(method, route.path, route.path_regex, _find_planes(route, method))
        for route in routes
        for method in sorted(route.methods or ())
    )


def _find_planes(route: Any, method: str) -> frozenset[str]:
    extra = getattr(route, "openapi_extra", None) or {}
    reads = extra.get(PLANE_KEY) == "read" and method in ("GET", "HEAD")
    return frozenset({"admin", "read"}) if reads else frozenset({"admin"})


def find_route_name(path: str) -> str:
    """Return a path's route without what differs by request; `*` if it passes through. path: decoded."""
    if path.startswith("/s/") and path.count("/") >= 3:
        path = "/" + path.split("/", 3)[3]
    if found := GATEWAY_PATH.fullmatch(path):
        return "/v1/retrieve/{hash}" if found["hash"] else path
    return find_path_template(path) or "*"


def check_path(scope: Scope) -> None:
    """Raises BadRequest if a path has a dot segment in any spelling."""
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    if has_dot_segments(path):
        raise BadRequest("the path has a dot segment (. or ..)", hint="Send the path without it.")


def has_dot_segments(path: str) -> bool:
    """True if a server might find `.` or `..` between two separators: percent-encoded once or often, with backslashes,
    or with parameters (`..;x`). A path that is encoded more often than it is checked counts as well."""
    for _ in range(MAX_DECODINGS):
        if "." in path and any(part.partition(";")[0] in (".", "..") for part in _SEPARATORS.split(path)):
            return True
        decoded = unquote(path, "latin-1")
        if decoded == path:
            return False
        path = decoded
    return True


class PathRules:
    """The paths that are allowed with a key of the operator. With that key a client can reach everything that the key
    opens: files, fine-tuned models and keys of the whole organization."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Compile the patterns. allowed: `METHOD /path`, as in the settings. `*` stands for characters of one segment,
        `**` for any number of segments, `*` alone for every method and path."""
        self._patterns = [_compile_pattern("**" if each == "*" else each) for each in allowed]

    def check(self, method: str, path: str) -> None:
        """Raises Forbidden if the request is not allowed. path: percent-encoded, with or without /v1 in front.

        The path is decoded once. A result that is not plain is refused, whatever is allowed. An upstream that decodes
        more (twice, overlong UTF-8, full-width letters, up to a NUL) must not find another path in it.
        """
        decoded = "/" + unquote(path.lstrip("/"), "latin-1")
        if not _is_plain(decoded):
            raise Forbidden(
                "a segment of the path has characters that are not passed on with the operator's key",
                hint="Between two slashes stand letters, digits and - . _ ~ : @, and not two dots in front.",
            )
        method = "GET" if method == "HEAD" else method
        whole = f"{method} {decoded if _VERSION.match(decoded) else '/v1' + decoded}"
        if not any(pattern.fullmatch(form) for form in (whole, f"{method} {decoded}") for pattern in self._patterns):
            raise Forbidden(
                f"{method} {decoded[:200]} is not passed on with the operator's key",
                hint=f'The operator can put "{method} {decoded[:200]}" into passthrough.paths.',
            )


def _compile_pattern(allowed: str) -> re.Pattern[str]:
    """Compile a pattern. `**` matches all, `*` all within a segment or the method, which is never empty."""
    return re.compile(".*".join(_compile_segments(part) for part in allowed.split("**")))


def _compile_segments(allowed: str) -> str:
    whole = re.sub(r"(?<=/)\\\*(?=/|\Z)", "[^/ ]+", re.escape(allowed))
    return whole.replace(r"\*", "[^/ ]*")


def _is_plain(path: str) -> bool:
    """True if every segment consists of the plain characters; none is empty, except after a last slash."""
    segments = path[1:].split("/")
    if segments[-1] == "":
        segments.pop()
    return all(_PLAIN.fullmatch(segment) for segment in segments)


def is_conversational(method: str, path: str) -> bool:
    """True if a request to this path brings a conversation to a model. path: decoded, without the session's part.

    A client whose requests pass unmanaged on such a path keeps its whole history and pays for all of it, without a sign
    of that. The answer therefore says so in a header, and the log once for each path.
    """
    if method != "POST":
        return False
    return _CONVERSATIONAL.search(path) is not None and _OTHER.search(path) is None


class SessionPath(NamedTuple):
    """The path of a request without the session that it may name."""

    session: str | None
    path: str
    raw_path: str
    """The path, percent-encoded."""

    def without_base(self, base_paths: Iterable[str]) -> SessionPath:
        """Return the path with /v1 in place of an upstream's base path. A client that had the upstream's address may
        have changed the host alone."""
        for base in base_paths:
            if self.path.startswith(f"{base}/") and self.raw_path.startswith(f"{base}/"):
                cut = len(base)
                return SessionPath(self.session, f"/v1{self.path[cut:]}", f"/v1{self.raw_path[cut:]}")
        return self
