"""A running proxy's admin API, as the commands speak to it.

The standard library's HTTP client and not the project's own: that one is made for upstreams (pools, retries, rules on
where it may connect) and lives in an event loop, which a command that asks one thing has no use for. Nor urllib: it
follows redirects and the environment's proxies, and a key of ours goes to the address that was given and nowhere else.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from proxy.errors import ConfigError, ProxyError
from proxy.web.api.desk import address

WRONG_USE: Final = frozenset({400, 401, 413, 415, 421, 422})
"""Answers that the command line, its key or its address has to change for; others refuse what was asked."""
COMMANDS: Final = {
    "GET /api/sessions": "`context-proxy sessions list`",
    "GET /api/memos": "`context-proxy memos list`",
    "?tenant=": "--tenant",
}
"""What hints of the API are called here."""
PAGE: Final = 200
"""Lines that are asked for at once."""


class Refused(ProxyError):
    """The proxy answered, and not with what was asked for. exit_code: 1, or 2 where the command line was wrong."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.exit_code = 2 if status in WRONG_USE else 1


class Unreached(ProxyError):
    """Nobody answered, or somebody who is no proxy of ours, or the answer was cut off."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a proxy is and as whom it is asked. tenant: for a key that sees every tenant. seconds: until an answer."""

    url: str
    key: str = ""
    tenant: str = ""
    seconds: float = 120.0

    def ask(self, method: str, path: str, body: Any = None, **query: object) -> Any:
        """What is answered, as JSON. Raises Refused and Unreached."""
        raw = None if body is None else json.dumps(body).encode()
        return self.send(method, path, raw, "application/json", **query)

    def send(self, method: str, path: str, raw: bytes | None, kind: str, **query: object) -> Any:
        """The same, with a body of that media type."""
        with self._answer(method, path, raw, {"content-type": kind}, query) as answer:
            text = answer.read()
        try:
            return json.loads(text)
        except ValueError:
            raise Unreached(f"{self.url} does not answer as a context-proxy does.", hint="Check --url.") from None

    def lines(self, path: str, headers: dict[str, str], query: dict[str, object]) -> Iterator[bytes]:
        """The lines of an answer that has no end, or a far one, each with its line end."""
        with self._answer("GET", path, None, headers, query) as answer:
            while line := answer.readline():
                yield line

    def every(self, path: str, most: int | None = None, **query: object) -> Iterator[Any]:
        """The lines of a list, page by page. most: no more than so many."""
        left, cursor = most, None
        while left is None or left > 0:
            page = self.ask("GET", path, limit=min(PAGE, left or PAGE), cursor=cursor, **query)
            yield from page["items"]
            left = None if left is None else left - len(page["items"])
            cursor = page["next"]
            if cursor is None:
                return

    def session(self, name: str) -> str:
        """The path of a session; `-` stands for the one that was used last. Raises Refused."""
        if name != "-":
            # A name that begins with ~ is written as an address: what is given is a name, never one already.
            return f"/api/sessions/{quote(address(name), safe='~')}"
        newest = self.ask("GET", "/api/sessions", limit=1)["items"]
        if not newest:
            raise Refused(404, "there is no session yet.", "Send a request through the proxy first.")
        return f"/api/sessions/{quote(newest[0]['address'], safe='~')}"

    @contextmanager
    def _answer(
        self, method: str, path: str, raw: bytes | None, headers: dict[str, str], query: dict[str, object]
    ) -> Iterator[http.client.HTTPResponse]:
        given = {"tenant": self.tenant or None, **query}
        asked = {name: _written(value) for name, value in given.items() if value is not None}
        target = path + ("?" + urlencode(asked, doseq=True) if asked else "")
        sent = {"x-context-key": self.key, **headers} if self.key else headers
        connection = _connection(self.url, self.seconds)
        try:
            connection.request(method, target, raw, sent)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _refusal(self.url, answer.status, answer.read())
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise Unreached(
                f"{self.url} cannot be reached: {_reason(error)}.",
                hint="Start it with `context-proxy serve`, or say where it is with --url or $CONTEXT_PROXY_URL.",
            ) from error
        except UnicodeEncodeError:
            raise ConfigError("key", "***", "a key as `context-proxy key` makes them", source="--key") from None
        finally:
            connection.close()


def part(text: str) -> str:
    """An id as a part of a path, whatever it is made of."""
    return quote(text, safe="")


def _connection(url: str, seconds: float) -> http.client.HTTPConnection:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("http", "https") or not host or parts.path.rstrip("/") not in ("", "/v1"):
        raise ConfigError("url", url, "a proxy's address such as http://127.0.0.1:8080", source="--url")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=seconds)


def _written(value: object) -> str | list[str]:
    if isinstance(value, list):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(url: str, status: int, raw: bytes) -> ProxyError:
    try:
        error = json.loads(raw)["error"]
        message, hint = str(error["message"]), str(error.get("hint") or "")
    except (ValueError, TypeError, KeyError):
        return Unreached(f"{url} does not answer as a context-proxy does (status {status}).", hint="Check --url.")
    if status == 401:
        hint = "Give a key of the plane admin or read with --key or $CONTEXT_PROXY_KEY."
    for route, command in COMMANDS.items():
        hint = hint.replace(route, command)
    return Refused(status, _sentence(message), hint)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (said or type(error).__name__).rstrip(".")
