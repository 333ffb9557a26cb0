"""Address of a session in a path of the admin API.

A session is addressed by its name under the caller's tenant. A name may hold any text that a client wrote into a
header. A name that a path cannot carry unchanged (a slash, a space) is addressed as `~` and its base64url.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from proxy.errors import BadRequest

PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*")
"""Names that are in a path unchanged."""


def write_address(session: str) -> str:
    """Return the form of a session's name in a path."""
    if PLAIN_NAME.fullmatch(session):
        return session
    return "~" + base64.urlsafe_b64encode(session.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def read_address(address_text: str) -> str:
    """Return the session's name that an address stands for. Raises BadRequest."""
    if not address_text.startswith("~"):
        return address_text
    try:
        raw = base64.b64decode(address_text[1:] + "=" * (-len(address_text[1:]) % 4), b"-_", validate=True)
        name = raw.decode()
    except (binascii.Error, ValueError) as error:
        raise BadRequest("what follows ~ in a session's address is not base64url of a text") from error
    if "\0" in name:
        raise BadRequest("a NUL in a session's name: none is called so")
    return name
