"""Context of an admin API route: the caller, the proxy's services, and the session that the path names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Path, Query, Request

from proxy.errors import Conflict, Forbidden, NotFound
from proxy.exchange.services import Services
from proxy.sessions import locate
from proxy.store.base import BranchRecord, SessionRecord
from proxy.store.reads import Store
from proxy.web.auth import CALLER_KEY, LOCAL_CALLER, Caller
from proxy.web.session_address import read_address

MAX_SEARCHED_BRANCHES: Final = 16
"""Branches, newest first, that are searched for the one used last."""
AFTER_EVERY_NAME: Final = chr(0x10FFFF)
"""Sorts after the name of every session."""


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The caller and the services of one request. tenant: the caller's, or the one named by a caller who sees all
    tenants. None stands for every tenant."""

    services: Services
    caller: Caller
    tenant: str | None
    headers: Mapping[str, str]
    """The headers of the request."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """One session."""

    admin: AdminContext
    tenant: str
    session: str
    record: SessionRecord

    @property
    def services(self) -> Services:
        return self.admin.services


async def _make_admin_context(
    request: Request,
    tenant: Annotated[
        str | None,
        Query(max_length=128, description="For a key that sees every tenant (`*`): the one that is meant."),
    ] = None,
) -> AdminContext:
    caller: Caller = request.scope[CALLER_KEY]
    own = caller.one_tenant
    if own is not None and tenant not in (None, own):
        raise Forbidden("the key is another tenant's", hint="Leave ?tenant= out.")
    return AdminContext(request.app.state.services, caller, own if own is not None else tenant, request.headers)


AdminContextDep = Annotated[AdminContext, Depends(_make_admin_context)]


async def require_tenant(admin: AdminContext) -> str:
    """Return the tenant of a request that needs exactly one; the only tenant if there is one. Raises Conflict."""
    if admin.tenant is not None:
        return admin.tenant
    found = await read_tenants(admin.services.store, "", 2)
    if len(found) == 1:
        return found[0]
    if not found:
        raise Conflict("no tenant has a session yet", hint="Send a request first, or name the tenant with ?tenant=.")
    raise Conflict(
        "several tenants have sessions, and this is about one",
        hint=f"Say which with ?tenant=: {found[0]}, for example.",
    )


async def find_tenant(admin: AdminContext) -> str:
    """Return the tenant of a request that needs exactly one, also where the store has none yet. Without keys it is then
    the tenant of agents that send this request's credential, or none. Raises Conflict."""
    if admin.tenant is None and admin.caller is LOCAL_CALLER and not await read_tenants(admin.services.store, "", 1):
        return locate.find_tenant(admin.headers, None, admin.services.settings.identity)
    return await require_tenant(admin)


async def read_tenants(store: Store, after: str, limit: int) -> list[str]:
    """Return the tenants with sessions, in order, after `after`. One row is read for each, however many sessions they
    have."""
    found: list[str] = []
    while len(found) < limit:
        rows = await store.read_session_names((found[-1] if found else after, AFTER_EVERY_NAME), 1)
        if not rows:
            break
        found.append(rows[0][0])
    return found


async def _make_session_context(
    admin: AdminContextDep,
    session: Annotated[str, Path(description="The session's name, or its address from the list.")],
) -> SessionContext:
    name = read_address(session)
    tenant = admin.tenant if admin.tenant is not None else await _find_owner(admin, name)
    record = await admin.services.store.read_session(tenant, name)
    if record is None:
        raise NotFound("there is no such session", hint="GET /api/sessions lists them.")
    return SessionContext(admin, tenant, name, record)


async def _find_owner(admin: AdminContext, session: str) -> str:
    """Return the one tenant that has a session of this name. Raises NotFound and Conflict."""
    owners = await admin.services.store.read_session_tenants(session)
    if not owners:
        raise NotFound("there is no such session", hint="GET /api/sessions lists them.")
    if len(owners) > 1:
        raise Conflict("several tenants have a session of this name", hint="Say which with ?tenant=.")
    return owners[0]


async def find_newest_branch(context: SessionContext) -> BranchRecord:
    """Return the branch that was used last; side calls count only if there is no other. Raises NotFound."""
    known = context.record.branches
    candidates = [row for row in known if row.kind != "side"] or known
    best: BranchRecord | None = None
    for row in candidates[-MAX_SEARCHED_BRANCHES:]:
        found = await context.services.store.read_branch(context.tenant, context.session, row.branch)
        if found is not None and (best is None or found.last_at >= best.last_at):
            best = found
    if best is None:
        raise NotFound("the session has no branch yet")
    return best


SessionContextDep = Annotated[SessionContext, Depends(_make_session_context)]
