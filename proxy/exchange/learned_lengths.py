"""The lengths of earlier conversations, read from the store at the start, so that a new process knows them.

Nothing is stored for it: the stored answers are counted, and the last request shows which agent it was. An imported
conversation counts as any other.
"""

from __future__ import annotations

import logging

import msgspec

from proxy.dialects.completions.request import read_request
from proxy.errors import NotManaged, StoreUnavailable
from proxy.exchange.exchange_rows import MessageForms
from proxy.exchange.rebuild_prompt import insert_messages
from proxy.exchange.services import Services
from proxy.store.branch_positions import BranchLength
from proxy.store.session_lists import SessionItem

log = logging.getLogger(__name__)

MAX_CONVERSATIONS = 200
"""Limit on the conversations that are read, used last, of all tenants together. Each takes two reads or more."""
_NO_SYSTEM_MESSAGE = b'{"role":"user","content":""}'
"""Stands for the messages of a conversation without a system prompt."""


async def load_lengths(services: Services) -> None:
    """Read the lengths of the last conversations, if any policy uses them. Without the store they are learned again."""
    if not any(policy.predicted_rent for policy in services.policies.values()):
        return
    try:
        for item in reversed(await services.store.list_sessions(None, limit=MAX_CONVERSATIONS)):
            for branch in await services.store.read_branch_lengths(item.tenant, item.session):
                await _note_length(services, item, branch)
    except StoreUnavailable as problem:
        services.metrics.internal_errors_total.labels(where="learned_lengths").inc()
        log.warning("the lengths of earlier conversations cannot be read, and are learned anew: %s", problem)


async def _note_length(services: Services, item: SessionItem, branch: BranchLength) -> None:
    forms = dict(msgspec.json.decode(branch.forms, type=MessageForms).system)
    first = await services.store.read_form(item.tenant, item.session, bytes.fromhex(forms[0])) if 0 in forms else None
    try:
        request = read_request(insert_messages(branch.envelope, b"[%s]" % (first or _NO_SYSTEM_MESSAGE)))
    except NotManaged:
        return  # what was erased of it has left no request
    services.known_agents.find(item.tenant, request).note_length(item.session, branch.answers)
