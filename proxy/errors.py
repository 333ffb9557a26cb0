"""All errors that are raised on purpose, with the HTTP status and code that a client gets.

    ProxyError
    ├── ConfigError            the start is refused: a setting is wrong
    ├── RequestError           the client's request breaks one of the proxy's own limits
    │   ├── BadRequest         400
    │   ├── Unauthorized       401   no key, or an unknown key
    │   ├── Forbidden          403   a key for another plane, or a page of another site
    │   ├── NotFound           404   admin API: no such session, message, ...
    │   ├── TooSlow            408   the head or the body of a request did not come in time
    │   ├── Conflict           409   admin API: the name stands for more than one, or the action is not possible now
    │   ├── TooLarge           413
    │   ├── WrongType          415   admin API: the body is not JSON
    │   ├── WrongHost          421   a Host that is not the proxy's, if no keys are configured
    │   ├── Unprocessable      422   admin API: the body is JSON, but its values cannot be used
    │   ├── UpgradeRequired    426   a WebSocket that is not served here, or not by the upstream
    │   ├── TooMany            429   admin API: the maximum number of these is running
    │   ├── HeadersTooLarge    431
    │   └── Unavailable        503   the proxy drains or is overloaded, or storage is required and away
    ├── ClientGone             the client left; nobody receives an answer
    ├── UpstreamError
    │   ├── UpstreamUnreachable  502   no connection, or reset before the headers
    │   ├── UpstreamTimeout      504   connect, idle or total time ran out
    │   ├── UpstreamBroken       502   the answer broke off in the middle
    │   └── AnswerTooLong        502   the answer is larger than the proxy holds; it can still be passed on as it comes
    ├── StoreError
    │   ├── StoreUnavailable   a read or write failed, or the spool is full
    │   │   └── StoredPartMissing   a part of what is rebuilt was deleted, or never stored
    │   └── StoreRefused       the file cannot be opened safely: locked, newer schema, wrong rights
    ├── ToolRefused            a call of one of the proxy's own tools that cannot be done; the model gets the reason
    ├── NotManaged             a request that the proxy cannot parse well enough to rewrite; it goes on as it is
    └── RuleBroken             a plan that a strict upstream would refuse; the original goes out

All errors are one tree, because there are three ways to answer an error. The client gets it in OpenAI's shape, the
client's original bytes are sent, or the operator gets it at the start.
"""

from __future__ import annotations

import re


class ProxyError(Exception):
    """An error that the proxy itself detected. `hint` says what to do about it."""

    status = 500
    code = "proxy_error"
    type = "proxy_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """The message, and the hint as its own sentence: OpenAI's clients show one text."""
        if not self.hint:
            return self.message
        return f"{self.message}{'' if self.message.endswith(('.', '!', '?', ':')) else '.'} {self.hint}"


def describe_cause(error: BaseException) -> str:
    """Return the reason of an error for people: an OSError without its number, and a timeout in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    # asyncio has no reason there but a number, for each address of a host. Python knows the class of a number.
    numbers = re.findall(r"\[Errno (\d+)\] Connect call failed", str(error))
    if any(isinstance(OSError(int(number), ""), ConnectionRefusedError) for number in numbers):
        return "Connection refused"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return re.sub(r"\[Errno -?\d+\] ", "", reason).rstrip(".") or type(error).__name__


class ConfigError(ProxyError):
    """A setting that cannot be used. It names the key, the value, the allowed values and, if known, the line.
    is_unknown: True if there is no such key, so that its value does not matter. allowed: the known keys then."""

    code = "config_error"

    def __init__(
        self,
        key: str,
        value: object,
        allowed: str,
        *,
        line: int | None = None,
        source: str = "",
        is_unknown: bool = False,
    ) -> None:
        where = source + (f":{line}" if line is not None else "")
        wrong = f"{key} = {value!r} is not usable; allowed"
        if value is None:
            wrong = f"{key} is not given; needed"
        if is_unknown:
            wrong = f"there is no setting {key}; allowed"
        super().__init__(f"{where + ': ' if where else ''}{wrong}: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed
        self.line = line
        self.source = source


class RequestError(ProxyError):
    """The client's request breaks a limit of the proxy. The upstream is not asked."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class BadRequest(RequestError):
    """400: the request cannot be read, and cannot be passed on as it is either."""


class Unauthorized(RequestError):
    """401: no key, or an unknown key."""

    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class Forbidden(RequestError):
    """403: the key is for something else, or a page of another site asks."""

    status = 403
    code = "forbidden"
    type = "permission_error"


class NotFound(RequestError):
    """404: the admin API has no such thing. The message is the same if the thing belongs to another tenant."""

    status = 404
    code = "not_found"


class TooSlow(RequestError):
    """408: the head or the body of the request did not come in time (`timeouts.header_s`, `timeouts.body_s`)."""

    status = 408
    code = "request_timeout"


class Conflict(RequestError):
    """409: the name stands for more than one thing, or the action is not possible in the present state."""

    status = 409
    code = "conflict"


class TooLarge(RequestError):
    """413: the body is over `limits.body_mb`."""

    status = 413
    code = "request_too_large"


class WrongType(RequestError):
    """415: a state-changing call of the admin API whose content type is not JSON."""

    status = 415
    code = "unsupported_media_type"


class WrongHost(RequestError):
    """421: the Host header names a machine that is not known to be the proxy's."""

    status = 421
    code = "misdirected_request"


class Unprocessable(RequestError):
    """422: the request can be read, but its values cannot be used."""

    status = 422
    code = "unprocessable"


class UpgradeRequired(RequestError):
    """426: neither the proxy nor its upstream serves WebSocket on this path. Clients go to HTTP at once."""

    status = 426
    code = "upgrade_required"


class TooMany(RequestError):
    """429: the maximum number of these is running already."""

    status = 429
    code = "too_many_requests"


class HeadersTooLarge(RequestError):
    """431: the header block is over `limits.header_kb`."""

    status = 431
    code = "headers_too_large"


class Unavailable(RequestError):
    """503: the proxy is shutting down or overloaded, or `store.persist = "required"` and the store is away."""

    status = 503
    code = "unavailable"
    type = "proxy_error"


class ClientGone(ProxyError):
    """The client closed its side. The upstream call is ended, and the exchange is recorded."""

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
    """The answer is larger than the proxy reads at once. The caller passes it on in pieces, without parsing it."""

    code = "answer_too_long"


class StoreError(ProxyError):
    """Stored data could not be read or written."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """A read or write failed or took too long, or the spool is full. Chat goes on without it."""

    code = "store_unavailable"


class StoredPartMissing(StoreUnavailable):
    """A part of what is to be rebuilt is not in the store: it was deleted while it was used, or could not be stored."""


class StoreRefused(StoreError):
    """The store cannot be opened safely. The start is refused."""

    code = "store_refused"


class ToolRefused(ProxyError):
    """A call of one of the proxy's own tools that cannot be done as it was made. Its text is the model's result.
    limited: True if the call would have taken too much time or size."""

    code = "tool_refused"

    def __init__(self, message: str, *, hint: str = "", limited: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.limited = limited


class NotManaged(ProxyError):
    """The request goes to the upstream as the bytes received. `reason` is one of a few fixed words for the counter."""

    code = "not_managed"

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


class RuleBroken(ProxyError):
    """A plan breaks a rule of the wire (`rule` is its id in `context.validate`). The original goes out instead."""

    code = "rule_broken"

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
