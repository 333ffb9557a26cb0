"""The tree of errors: drawn as it is, and each with what a client would see."""

from __future__ import annotations

import errno
import inspect
import re

import pytest

from proxy import errors
from proxy.errors import ConfigError, ProxyError, describe_cause

EVERY = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, ProxyError)]


@pytest.mark.parametrize("kind", EVERY)
def test_every_error_has_a_code_a_status_and_a_place_in_the_drawing(kind: type[ProxyError]) -> None:
    assert 400 <= kind.status <= 599
    assert re.fullmatch("[a-z_]+", kind.code)
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")


def test_codes_tell_errors_apart() -> None:
    codes = [c.code for c in EVERY if "code" in vars(c)]
    assert len(codes) == len(set(codes))


def test_a_hint_follows_the_message() -> None:
    assert str(ProxyError("It broke.", hint="Mend it.")) == "It broke. Mend it."
    assert str(ProxyError("It broke.")) == "It broke."


def test_a_config_error_says_where_what_and_what_is_allowed() -> None:
    error = ConfigError("port", "x", "a number", line=3, source="my.toml")
    assert str(error) == "my.toml:3: port = 'x' is not usable; allowed: a number"
    assert (error.key, error.value, error.allowed, error.line) == ("port", "x", "a number", 3)


def test_a_cause_is_reported_in_words() -> None:
    assert describe_cause(FileNotFoundError(2, "No such file or directory", "x")) == "No such file or directory"
    assert describe_cause(ConnectionError("[Errno 111] Connection refused.")) == "Connection refused"
    assert describe_cause(TimeoutError(110, "timed out")) == "no answer in time"
    assert describe_cause(OSError()) == "OSError"
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)")
    unreachable = OSError(errno.ENETUNREACH, "Connect call failed ('::1', 9, 0, 0)")
    assert describe_cause(refused) == "Connection refused"
    several = OSError(f"Multiple exceptions: {unreachable}, {refused}, {refused}")
    assert describe_cause(several) == "Connection refused"
    assert describe_cause(unreachable) == "Connect call failed ('::1', 9, 0, 0)"
