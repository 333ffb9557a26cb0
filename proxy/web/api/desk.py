"""Context of an admin API route: the caller, the proxy's services, and the session that the path names.

A session is addressed by its name under the caller's tenant. A name may hold any text that a client wrote into a
header. A name that a path cannot carry unchanged (a slash, a space) is addressed as `~` and its base64url.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Path, Query, Request

from proxy.errors import BadRequest, Conflict, Forbidden, NotFound
from proxy.exchange.parts import Parts
from proxy.store.base import SessionRecord, Store, ThreadRecord
from proxy.web.gate import CALLER
from proxy.web.keys import Caller

PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*")
"""Names that stand in a path unchanged."""
NEWEST: Final = 16
"""Threads, newest first, that are searched for the one used last."""
LAST: Final = chr(0x10FFFF)
"""Sorts behind the name of every session."""


@dataclass(frozen=True, slots=True)
class Desk:
    """The caller and the services of one request. tenant: the caller's, or the one named by a caller who sees all
    tenants. None stands for every tenant."""

    parts: Parts
    caller: Caller
    tenant: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """One session."""

    desk: Desk
    tenant: str
    session: str
    record: SessionRecord

    @property
    def parts(self) -> Parts:
        return self.desk.parts


def address(session: str) -> str:
    """Return the form of a session's name in a path."""
    if PLAIN.fullmatch(session):
        return session
    return "~" + base64.urlsafe_b64encode(session.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def named(written: str) -> str:
    """Return the session's name that an address stands for. Raises BadRequest."""
    if not written.startswith("~"):
        return written
    try:
        raw = base64.b64decode(written[1:] + "=" * (-len(written[1:]) % 4), b"-_", validate=True)
        name = raw.decode()
    except (binascii.Error, ValueError) as error:
        raise BadRequest("what follows ~ in a session's address is not base64url of a text") from error
    if "\0" in name:
        raise BadRequest("a NUL in a session's name: none is called so")
    return name


async def _desk(
    request: Request,
    tenant: Annotated[
        str | None,
        Query(max_length=128, description="For a key that sees every tenant (`*`): the one that is meant."),
    ] = None,
) -> Desk:
    caller: Caller = request.scope[CALLER]
    own = caller.one_tenant
    if own is not None and tenant not in (None, own):
        raise Forbidden("the key is another tenant's", hint="Leave ?tenant= out.")
    return Desk(request.app.state.parts, caller, own if own is not None else tenant)


AtDesk = Annotated[Desk, Depends(_desk)]


async def one_tenant(desk: Desk) -> str:
    """Return the tenant of a request that needs exactly one; the only tenant if there is one. Raises Conflict."""
    if desk.tenant is not None:
        return desk.tenant
    found = await tenants(desk.parts.store, "", 2)
    if len(found) == 1:
        return found[0]
    raise Conflict("the key sees every tenant, and this is about one", hint="Say which with ?tenant=.")


async def tenants(store: Store, after: str, limit: int) -> list[str]:
    """Return the tenants with sessions, in order, after `after`. One row is read for each, however many sessions they
    have."""
    found: list[str] = []
    while len(found) < limit:
        rows = await store.sessions((found[-1] if found else after, LAST), 1)
        if not rows:
            break
        found.append(rows[0][0])
    return found


async def _place(
    desk: AtDesk, session: Annotated[str, Path(description="The session's name, or its address from the list.")]
) -> Place:
    name = named(session)
    tenant = desk.tenant if desk.tenant is not None else await _tenant_of(desk, name)
    record = await desk.parts.store.session(tenant, name)
    if record is None:
        raise NotFound("there is no such session", hint="GET /api/sessions lists them.")
    return Place(desk, tenant, name, record)


async def _tenant_of(desk: Desk, session: str) -> str:
    """Return the one tenant that has a session of this name. Raises NotFound and Conflict."""
    owners = await desk.parts.store.owners(session)
    if not owners:
        raise NotFound("there is no such session", hint="GET /api/sessions lists them.")
    if len(owners) > 1:
        raise Conflict("several tenants have a session of this name", hint="Say which with ?tenant=.")
    return owners[0]


async def newest_thread(place: Place) -> ThreadRecord:
    """Return the thread that was used last; side calls count only if there is no other. Raises NotFound."""
    known = place.record.threads
    candidates = [row for row in known if row.kind != "side"] or known
    best: ThreadRecord | None = None
    for row in candidates[-NEWEST:]:
        found = await place.parts.store.thread(place.tenant, place.session, row.thread)
        if found is not None and (best is None or found.last_at >= best.last_at):
            best = found
    if best is None:
        raise NotFound("the session has no thread yet")
    return best


AtPlace = Annotated[Place, Depends(_place)]
