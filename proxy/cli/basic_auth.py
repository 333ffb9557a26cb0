"""A password for Prometheus' own pages, and the web configuration that asks for it.

Prometheus accepts only bcrypt. Python has no bcrypt, so the C library's crypt makes the hash. The password is 256
random bits. The lowest bcrypt cost that Prometheus accepts is therefore enough: nobody can try all passwords.
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
"""Characters of bcrypt's salts."""


def make_password() -> str:
    """Return a password of 256 random bits."""
    return secrets.token_urlsafe(32)


def make_web_config(password: str) -> str:
    """Return Prometheus' `web.config.file` that asks for this password. Raises ConfigError if it cannot be hashed."""
    return f"basic_auth_users:\n  {USER}: {hash_password(password)}\n"


def hash_password(password: str) -> str:
    """Return the bcrypt hash of a password. Raises ConfigError if the C library has no bcrypt."""
    # The last of the 22 characters carries two bits, so only four characters are allowed there.
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
