"""A password for Prometheus' own pages, and the web configuration that asks for it.

Prometheus takes bcrypt alone, which Python has not; the C library's crypt has it. The password is 256 random bits, so
that the cheapest of its costs that Prometheus takes is enough: nobody can try all of them.
"""

from __future__ import annotations

import ctypes
import secrets
from ctypes.util import find_library
from typing import Final

from proxy.errors import ConfigError

USER: Final = "prometheus"
COST: Final = 5
_ALPHABET: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""Of bcrypt's salts."""


def make_password() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def web_config(password: str) -> str:
    """Prometheus' `web.config.file`: this password is asked for. Raises ConfigError where it cannot be hashed."""
    return f"basic_auth_users:\n  {USER}: {hashed(password)}\n"


def hashed(password: str) -> str:
    """bcrypt's hash. Raises ConfigError where the C library has none."""
    # The last of 22 characters carries two bits: only four of them are a salt's.
    salt = "".join(secrets.choice(_ALPHABET) for _ in range(21)) + secrets.choice(".Oeu")
    try:
        crypt = ctypes.CDLL(find_library("crypt") or "libcrypt.so.1").crypt
    except (OSError, AttributeError) as error:
        raise ConfigError("folder", "prometheus.password", f"a system with libcrypt ({error})") from None
    crypt.restype, crypt.argtypes = ctypes.c_char_p, (ctypes.c_char_p, ctypes.c_char_p)
    found: bytes | None = crypt(password.encode(), f"$2b${COST:02}${salt}".encode())
    if found is None or not found.startswith(b"$2b$"):
        raise ConfigError("folder", "prometheus.password", "a libcrypt with bcrypt")
    return found.decode()
