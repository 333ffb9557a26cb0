"""Import of conversations from elsewhere, stored as if the proxy had carried them.

An imported conversation is a session whose last request has been answered. Its agent can continue it through the proxy,
and it is shown, edited and replayed as any other. Messages in Gemini's form become chat messages, since the next
request will bring that form. They keep the mark of the format that they were made for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.chat import chain
from proxy.chat.message import CHAT_ROLES
from proxy.dialects.completions.request import read_message
from proxy.dialects.gemini import request as gemini
from proxy.errors import Conflict, NotManaged, Unprocessable
from proxy.exchange import exchange_rows, lookups, plan_request
from proxy.exchange.record_outcome import Outcome, record_outcome
from proxy.exchange.services import Services
from proxy.exchange.turn import Enriched, Turn
from proxy.sessions import locate
from proxy.sessions.hidden_rounds import SplicedRequest
from proxy.store.base import ExchangeStatus
from proxy.store.session_lists import IMPORTED_NOTE
from proxy.stream.completions_answer import AssembledAnswer

MODEL = "imported"
"""The model of a conversation that does not name one."""
POLICY = "passthrough"


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    session: str
    messages: tuple[bytes, ...]
    """The raw JSON of each message."""
    tools: bytes | None = None
    """The raw JSON of the tools array, None for none."""
    model: str = MODEL
    strategy: str = "openai"


def read_conversation(
    session: str, messages: Sequence[bytes], tools: bytes | None = None, model: str = MODEL
) -> ImportedConversation:
    """Make a conversation from chat messages or from Gemini's contents. Raises Unprocessable for any other input."""
    if not messages:
        raise Unprocessable("a conversation without a message")
    try:
        if _is_gemini(messages[0]):
            return ImportedConversation(session, tuple(_from_gemini(messages)), tools, model, "gemini")
        for raw in messages:
            role = read_message(raw).role
            if role not in CHAT_ROLES:
                raise Unprocessable(f"a message has the role {role[:40]!r}, and not one of {', '.join(CHAT_ROLES)}")
    except NotManaged as problem:
        raise Unprocessable(f"a message cannot be read: {problem.message}") from None
    return ImportedConversation(session, tuple(messages), tools, model)


def _is_gemini(raw: bytes) -> bool:
    try:
        return "parts" in msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False


def _from_gemini(contents: Sequence[bytes]) -> list[bytes]:
    """Convert Gemini's contents to chat messages. A result belongs to the oldest open call of its name."""
    waiting: dict[str, deque[str]] = defaultdict(deque)
    chat_messages: list[bytes] = []
    count = 0
    for raw in contents:
        message = gemini.read_message(raw)
        fields: dict[str, Any] = {"role": message.role, "content": message.text}
        calls = []
        for call in message.calls:
            count += 1
            waiting[call.name].append(name := f"call_{count}_{call.name}")
            calls.append({"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        if calls:
            fields["tool_calls"] = calls
        if message.role == "tool" and message.call_id is not None:
            known = waiting[message.call_id]
            fields["tool_call_id"] = known.popleft() if known else message.call_id
        chat_messages.append(msgspec.json.encode(fields))
    return chat_messages


async def import_conversation(services: Services, tenant: str, conversation: ImportedConversation) -> int:
    """Store a conversation; return the number of its messages. Raises Conflict if it is there already."""
    raws = list(conversation.messages)
    last = raws.pop() if read_message(raws[-1]).role == "assistant" and len(raws) > 1 else None
    body = b'{"model":%b,"messages":[%b]%b}' % (
        msgspec.json.encode(conversation.model),
        b",".join(raws),
        b',"tools":' + conversation.tools if conversation.tools else b"",
    )
    request, prefix_cache = services.message_cache.get_request(body)
    keys = chain.compute_keys(tenant, request.messages)
    query = locate.SessionQuery(tenant, conversation.session, request, keys)
    place = await locate.locate_request(services.live_sessions, query, retry=False)
    live_session = place.branch.live_session
    if place.known_until == len(keys) - 1:
        raise Conflict(f"the conversation {conversation.session!r} is there already")
    target = services.client.select_target(conversation.model)
    model = lookups.look_up_model(services, conversation.model)
    turn = Turn(
        id=locate.make_id(),
        tenant=tenant,
        located=place,
        request=request,
        keys=keys,
        model=model,
        upstream=target.name,
        strategy=conversation.strategy,
        token_counter=services.find_token_counter(model),
        started_at=services.now(),
        enriched=Enriched(services.policies[POLICY], SplicedRequest(request, keys)),
        prefix_cache=prefix_cache,
    )
    try:
        forms = exchange_rows.add_request_rows(services.live_sessions, turn, turn.started_at)
        turn = await plan_request.plan_request(services, turn)
        exchange_rows.add_exchange_rows(turn, forms, turn.started_at)
        answer = _make_answer(last) if last is not None else None
        status: ExchangeStatus = "complete" if answer is not None else "partial"
        rows = record_outcome(services, turn, Outcome(status, 200, answer, note=IMPORTED_NOTE))
        await services.store.put([*turn.pending.rows, *rows])
    finally:
        # Memory may hold more than the store has: the next request reads the session from the store.
        services.live_sessions.forget_session(live_session)
    return len(conversation.messages)


def _make_answer(raw: bytes) -> AssembledAnswer:
    return AssembledAnswer.from_body(b'{"choices":[{"index":0,"message":%b,"finish_reason":"stop"}]}' % raw)
