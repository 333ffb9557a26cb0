"""Every error that is raised on purpose, with the HTTP status and code a client would see.

    ProxyError
    ├── ConfigError            the start is refused: a setting is wrong
    ├── RequestError           the client's request breaks one of our own few limits
    │   ├── BadRequest         400
    │   ├── Unauthorized       401   no key, or one that we do not know
    │   ├── Forbidden          403   a key for something else, or a page of another site
    │   ├── NotFound           404   admin API: no such session, message, ...
    │   ├── Conflict           409   admin API: the name stands for more than one, or it cannot be done now
    │   ├── TooLarge           413
    │   ├── WrongType          415   admin API: the body is not JSON
    │   ├── WrongHost          421   a name that is not ours, where no keys protect us
    │   ├── Unprocessable      422   admin API: the body is JSON and says what cannot be
    │   ├── TooMany            429   admin API: as much of this as may run at once is running
    │   ├── HeadersTooLarge    431
    │   └── Unavailable        503   we are draining, overloaded, or storage is required and away
    ├── ClientGone             the client left; nobody is there to be told
    ├── UpstreamError
    │   ├── UpstreamUnreachable  502   no connection, or reset before the headers
    │   ├── UpstreamTimeout      504   connect, idle or total time ran out
    │   ├── UpstreamBroken       502   the answer broke off in the middle
    │   └── AnswerTooLong        502   the answer is larger than we hold; it can still be passed on as it comes
    ├── StoreError
    │   ├── StoreUnavailable   a read or write failed, or the spool is full
    │   └── StoreRefused       the file cannot be opened safely: locked, newer schema, wrong rights
    ├── ToolRefused            a call of one of our own tools that cannot be done; the model is told why
    ├── NotManaged             a request that we do not understand well enough to rewrite; it goes on as it is
    └── RuleBroken             a plan that a strict upstream would refuse; the original goes out

One tree, because every error has to be answered in one of three ways: told to the client in OpenAI's
shape, answered by sending the client's original bytes, or told to the operator at the start.
"""

from __future__ import annotations


class ProxyError(Exception):
    """Something that we detected ourselves. `hint` says what to do about it."""

    status = 500
    code = "proxy_error"
    type = "proxy_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ConfigError(ProxyError):
    """A setting that cannot be used: names its key, its value, what is allowed and, if known, its line."""

    code = "config_error"

    def __init__(self, key: str, value: object, allowed: str, *, line: int | None = None, source: str = "") -> None:
        where = source + (f":{line}" if line is not None else "")
        super().__init__(f"{where + ': ' if where else ''}{key} = {value!r} is not usable; allowed: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed
        self.line = line
        self.source = source


class RequestError(ProxyError):
    """The client's request breaks a limit of ours; upstream is not asked."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class BadRequest(RequestError):
    """400: the request cannot be read, and cannot be passed on as it is either."""


class Unauthorized(RequestError):
    """401: no key, or one that we do not know."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class Forbidden(RequestError):
    """403: the key is for something else, or a page of another site asks."""

    status = 403
    code = "forbidden"
    type = "permission_error"


class NotFound(RequestError):
    """404: the admin API has no such thing, or it belongs to another tenant, which is told in the same words."""

    status = 404
    code = "not_found"


class Conflict(RequestError):
    """409: the name stands for more than one thing, or it cannot be done as things are."""

    status = 409
    code = "conflict"


class TooLarge(RequestError):
    """413: the body is over `limits.body_mb`."""

    status = 413
    code = "request_too_large"


class WrongType(RequestError):
    """415: a state-changing call of the admin API whose body is not said to be JSON."""

    status = 415
    code = "unsupported_media_type"


class WrongHost(RequestError):
    """421: the Host header names a machine that we are not known to be."""

    status = 421
    code = "misdirected_request"


class Unprocessable(RequestError):
    """422: the request can be read, and says what cannot be."""

    status = 422
    code = "unprocessable"


class TooMany(RequestError):
    """429: as much of this as may run at once is running."""

    status = 429
    code = "too_many_requests"


class HeadersTooLarge(RequestError):
    """431: the header block is over `limits.header_kb`."""

    status = 431
    code = "headers_too_large"


class Unavailable(RequestError):
    """503: shutting down, overloaded, or `store.persist = "required"` and the store is away."""

    status = 503
    code = "unavailable"
    type = "proxy_error"


class ClientGone(ProxyError):
    """The client closed its side; the upstream call is ended and the exchange recorded."""

    status = 499
    code = "client_gone"


class UpstreamError(ProxyError):
    """The upstream could not be asked, or its answer broke."""

    status = 502
    code = "upstream_error"
    type = "upstream_error"


class UpstreamUnreachable(UpstreamError):
    """502: refused, unresolvable, TLS failed, or reset before the headers came."""

    code = "upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    """504: the connect, idle or total time ran out."""

    status = 504
    code = "upstream_timeout"


class UpstreamBroken(UpstreamError):
    """The answer ended before it was complete."""

    code = "upstream_broken"


class AnswerTooLong(UpstreamError):
    """The answer is larger than is read at once: whoever asked passes it on piece by piece, not understood."""

    code = "answer_too_long"


class StoreError(ProxyError):
    """What is remembered could not be read or written."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """A read or write failed or took too long, or the spool is full: chat goes on without it."""

    code = "store_unavailable"


class StoreRefused(StoreError):
    """The store cannot be opened safely; the start is refused."""

    code = "store_refused"


class ToolRefused(ProxyError):
    """A call of one of our own tools that cannot be done as it was made. Its text is the model's result. `limited`: it
    would have been too much, in time or size."""

    code = "tool_refused"

    def __init__(self, message: str, *, hint: str = "", limited: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.limited = limited


class NotManaged(ProxyError):
    """The request goes to upstream as the bytes that came; `reason` is one of a few fixed words for the counter."""

    code = "not_managed"

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class RuleBroken(ProxyError):
    """A plan breaks a rule of the wire (`rule` is its id, W1 to W14); the original goes out instead."""

    code = "rule_broken"

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
