"""Who calls, by the key that came with the request.

A key is looked up by its SHA-256 and compared as bytes in constant time. What comes out is a Caller with a name and a
tenant or an error: there is no empty one that a failed check could fall back to. Keys of ours are taken out of the
request here, before anything that forwards, stores or logs has seen it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from proxy.errors import Forbidden, Unauthorized
from proxy.sections import ALL_TENANTS
from proxy.settings import DEMO, Key, Settings
from proxy.web.listen import Scope

OURS: Final = b"x-context-key"
"""The header that is for keys of ours alone."""
BORROWED: Final = frozenset({b"authorization", b"api-key", b"x-api-key"})
"""Headers for the upstream's keys, in which one of ours may stand as well."""
ANY: Final = "any"
"""The plane of whoever reaches this machine's own address while no keys are configured."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, once that is certain. name: the key's. tenant: whose sessions; `*` for everybody's. plane: what the key
    is for, or `any`."""

    name: str
    tenant: str
    plane: str

    def __post_init__(self) -> None:
        if not (self.name and self.tenant and self.plane):
            raise ValueError("a caller is somebody")

    @property
    def one_tenant(self) -> str | None:
        """The tenant, None where the caller is bound to none."""
        return None if self.tenant == ALL_TENANTS else self.tenant


LOCAL: Final = Caller("loopback", ALL_TENANTS, ANY)
"""Who calls where no keys are configured."""


class Keys:
    """The configured keys, by their hash."""

    def __init__(self, settings: Settings) -> None:
        self._by_digest = {bytes.fromhex(key.sha256): key for key in settings.keys}
        self.lends = any(target.api_key_env or target.base_url == DEMO for target in settings.targets.values())
        """Whether what goes to an upstream may be another credential than the one that came."""

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def find(self, presented: bytes) -> Key | None:
        """The key that this is."""
        digest = sha256(presented).digest()
        found = self._by_digest.get(digest)
        # By the hash alone somebody would be let in who can make dictionaries lie; it costs nothing to be sure.
        if found is None or not compare_digest(digest, bytes.fromhex(found.sha256)):
            return None
        return found

    def admit(self, scope: Scope, planes: frozenset[str], *, borrowed: bool = True) -> Caller:
        """Who asks for what is open to these planes. borrowed: whether Authorization may hold our key; for chat only
        where an upstream has a key of its own, else it is the client's credential there.

        Takes our keys out of the request's headers. Raises Unauthorized and Forbidden.
        """
        if not self._by_digest:
            return LOCAL
        presented, lent = self._take(scope)
        if presented is None and (borrowed or self.lends):
            presented = lent
        if presented is None and lent is not None:
            raise Unauthorized(
                "a key of this proxy came in Authorization, which is for the upstream's key",
                hint="Send it as x-context-key.",
            )
        if presented is None:
            raise Unauthorized("no key of this proxy came with the request", hint="Send it as x-context-key.")
        key = self.find(presented)
        if key is None:
            raise Unauthorized("the key is not one of this proxy's", hint="`context-proxy key` makes one.")
        if key.plane not in planes:
            wanted = " or ".join(sorted(planes))
            raise Forbidden(f"the key {key.name} is for {key.plane}", hint=f"This needs one for {wanted}.")
        return Caller(key.name, key.tenant, key.plane)

    def _take(self, scope: Scope) -> tuple[bytes | None, bytes | None]:
        """(the key in x-context-key, one of ours in another header), both taken out of the headers."""
        own: bytes | None = None
        lent: bytes | None = None
        kept: list[tuple[bytes, bytes]] = []
        for name, value in scope["headers"]:
            if name == OURS:
                # Two that differ are none: which of them counts must not depend on who reads first.
                own = value.strip() if own is None or own == value.strip() else b""
                continue
            ours = next((v for v in _readings(value) if self.find(v)), None) if name in BORROWED else None
            if ours is None:
                kept.append((name, value))
            else:
                lent = ours
        scope["headers"] = kept
        return own, lent


def _readings(value: bytes) -> Iterable[bytes]:
    """What a credential header may mean: all of it, or what follows its scheme."""
    value = value.strip()
    yield value
    _, space, rest = value.partition(b" ")
    if space:
        yield rest.strip()
