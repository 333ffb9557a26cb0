"""Rules for paths that go upstream: no dot segments, and with a key of the operator's only the paths that are allowed.

An upstream may resolve `..` behind the check of a path, however it is written; and with the operator's key a client
reaches whatever that key opens: files, fine-tuned models and keys of the whole organization.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from proxy.errors import BadRequest, Forbidden
from proxy.web.listen import Scope

DECODINGS: Final = 4
"""How often a path may be percent-encoded, and is looked at decoded."""
_SEPARATORS: Final = re.compile(r"[/\\]")
_VERSION: Final = re.compile(r"/v1(?=/|$)")


def check_path(scope: Scope) -> None:
    """Raises BadRequest where a path has a dot segment in any way of writing it."""
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    if has_dot_segments(path):
        raise BadRequest("the path has a dot segment (. or ..)", hint="Send the path without it.")


def has_dot_segments(path: str) -> bool:
    """Whether a server might find `.` or `..` between two separators: percent-encoded once or often, with backslashes,
    or with parameters (`..;x`). One that is encoded more often than is looked at counts as well."""
    for _ in range(DECODINGS):
        if "." in path and any(part.partition(";")[0] in (".", "..") for part in _SEPARATORS.split(path)):
            return True
        decoded = unquote(path, "latin-1")
        if decoded == path:
            return False
        path = decoded
    return True


class PathRules:
    """What may be asked for with a key of the operator's."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """allowed: `METHOD /path`, as in the settings, with * for any characters; * alone for everything."""
        self._patterns = [re.compile(".*".join(map(re.escape, each.split("*")))) for each in allowed]

    def check(self, method: str, path: str) -> None:
        """Raises Forbidden where that is not allowed. path: percent-encoded, with or without /v1 in front."""
        decoded = "/" + unquote(path).lstrip("/")
        method = "GET" if method == "HEAD" else method
        whole = f"{method} {decoded if _VERSION.match(decoded) else '/v1' + decoded}"
        if not any(pattern.fullmatch(form) for form in (whole, f"{method} {decoded}") for pattern in self._patterns):
            raise Forbidden(
                f"{method} {decoded[:200]} is not passed on with the operator's key",
                hint=f'The operator can put "{method} {decoded[:200]}" into passthrough.paths.',
            )
