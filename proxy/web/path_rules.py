"""Rules for paths that go upstream: no dot segments, and only allowed paths with a key of the operator.

An upstream may resolve `..` behind the check of a path, in any spelling. With the operator's key a client can reach
everything that the key opens: files, fine-tuned models and keys of the whole organization.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from proxy.errors import BadRequest, Forbidden
from proxy.web.asgi import Scope

MAX_DECODINGS: Final = 4
"""Rounds of percent-decoding in which a path is checked."""
_SEPARATORS: Final = re.compile(r"[/\\]")
_PLAIN: Final = re.compile(r"(?!\.\.|\.\Z)[A-Za-z0-9._~:@-]+")
"""A segment that every server reads alike."""
_VERSION: Final = re.compile(r"/v1(?=/|$)")


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
    """The paths that are allowed with a key of the operator."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Compile the patterns. allowed: `METHOD /path`, as in the settings. `*` stands for characters of one segment,
        `**` for any number of segments, `*` alone for every method and path."""
        self._patterns = [_compile("**" if each == "*" else each) for each in allowed]

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


def _compile(allowed: str) -> re.Pattern[str]:
    """Compile a pattern. `**` matches everything, `*` all except the ends of a segment and of the method. A whole
    segment is never empty."""
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
