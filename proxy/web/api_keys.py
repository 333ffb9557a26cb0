"""Identification of the caller by the key that came with the request.

A key is looked up by its SHA-256 and compared as bytes in constant time. The result is a Caller with a name and a
tenant, or an error. There is no empty Caller that a failed check could fall back to. The proxy's keys are removed from
the request here, before any code forwards, stores or logs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from proxy.errors import Forbidden, Unauthorized
from proxy.settings.load import DEMO, ApiKeySettings, Settings
from proxy.settings.model import ALL_TENANTS
from proxy.web.asgi import Scope

KEY_HEADER: Final = b"x-context-key"
"""The header that is only for keys of the proxy."""
CREDENTIAL_HEADERS: Final = frozenset({b"authorization", b"api-key", b"x-api-key"})
"""Headers for the upstream's keys, which may also hold a key of the proxy."""
ANY_PLANE: Final = "any"
"""The plane of a caller on this machine's own address while no keys are configured."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An identified caller. name: the key's. tenant: the tenant of its sessions; `*` for every tenant. plane: the
    purpose of the key, or `any`."""

    name: str
    tenant: str
    plane: str

    def __post_init__(self) -> None:
        if not (self.name and self.tenant and self.plane):
            raise ValueError("a caller is somebody")

    @property
    def one_tenant(self) -> str | None:
        """The tenant; None if the caller is bound to none."""
        return None if self.tenant == ALL_TENANTS else self.tenant


LOCAL_CALLER: Final = Caller("loopback", ALL_TENANTS, ANY_PLANE)
"""The caller if no keys are configured."""


class ApiKeys:
    """The configured keys, by their hash."""

    def __init__(self, settings: Settings) -> None:
        self._by_digest = {bytes.fromhex(key.sha256): key for key in settings.keys}
        self.lends_credentials = any(
            target.api_key_env or target.base_url == DEMO for target in settings.active_upstreams.values()
        )
        """True if a request to an upstream may carry another credential than the one that came."""

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def find_key(self, presented: bytes) -> ApiKeySettings | None:
        """Return the configured key that was presented; None if it is none."""
        digest = sha256(presented).digest()
        found = self._by_digest.get(digest)
        # A lookup by the hash alone would admit an attacker who can make dictionaries lie. The second check costs
        # nothing.
        if found is None or not compare_digest(digest, bytes.fromhex(found.sha256)):
            return None
        return found

    def admit_caller(self, scope: Scope, planes: frozenset[str], *, from_authorization: bool = True) -> Caller:
        """Return the caller of something that is open to these planes. from_authorization: True if Authorization may
        hold a key of the proxy. For chat that holds only if an upstream has its own key; else it is the client's
        credential there.

        Removes the proxy's keys from the request's headers. Raises Unauthorized and Forbidden.
        """
        if not self._by_digest:
            return LOCAL_CALLER
        presented, lent = self._take(scope)
        if presented is None and (from_authorization or self.lends_credentials):
            presented = lent
        if presented is None and lent is not None:
            raise Unauthorized(
                "a key of this proxy came in Authorization, which is for the upstream's key",
                hint="Send it as x-context-key.",
            )
        if presented is None:
            raise Unauthorized("no key of this proxy came with the request", hint="Send it as x-context-key.")
        key = self.find_key(presented)
        if key is None:
            raise Unauthorized("the key is not one of this proxy's", hint="`context-proxy key` makes one.")
        if key.plane not in planes:
            wanted = " or ".join(sorted(planes))
            raise Forbidden(f"the key {key.name} is for {key.plane}", hint=f"This needs one for {wanted}.")
        return Caller(key.name, key.tenant, key.plane)

    def _take(self, scope: Scope) -> tuple[bytes | None, bytes | None]:
        """Return (the key in x-context-key, a proxy key in another header), both removed from the headers."""
        own: bytes | None = None
        lent: bytes | None = None
        kept: list[tuple[bytes, bytes]] = []
        for name, value in scope["headers"]:
            if name == KEY_HEADER:
                # Two different keys count as none: the choice must not depend on the order of reading.
                own = value.strip() if own is None or own == value.strip() else b""
                continue
            ours = next((v for v in _readings(value) if self.find_key(v)), None) if name in CREDENTIAL_HEADERS else None
            if ours is None:
                kept.append((name, value))
            else:
                lent = ours
        scope["headers"] = kept
        return own, lent


def _readings(value: bytes) -> Iterable[bytes]:
    """Yield the possible keys in a credential header: the whole value, and the part after its scheme."""
    value = value.strip()
    yield value
    _, space, rest = value.partition(b" ")
    if space:
        yield rest.strip()
