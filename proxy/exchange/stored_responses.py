"""Responses that the provider does not know, since the proxy has taken their chain over (`responses.takeover`).

The provider was asked to store nothing. A client that asks for such a response, for its input, or for its deletion gets
the answer from the store, in OpenAI's form. So does a client that asks for one to whose prompt the proxy has added
something: the provider's copy has the STATE block, and repeats the proxy's tools. Every other response is the
provider's to answer for. A deleted name is kept without its exchange: no replica finds anything under it. The messages
stay in their session.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from proxy.chat import json_spans
from proxy.chat.message import Request
from proxy.dialects.responses import chained
from proxy.dialects.responses import items as responses_items
from proxy.errors import BadRequest, StoreUnavailable, Unavailable
from proxy.exchange.chains import find_tenant, run_in_worker
from proxy.exchange.exchange_rows import SentTexts
from proxy.exchange.item_references import ITEM_PREFIX
from proxy.exchange.rebuild_prompt import rebuild_request
from proxy.exchange.services import Headers, Services
from proxy.store.base import ExchangeRecord
from proxy.store.response_names import ResponseNameRow
from proxy.stream.responses_echo import ResponseEcho

STORED_PATH: Final = re.compile(r"(?:/v1)?/responses/(?P<name>[^/]+)(?P<part>/cancel|/input_items)?/?")
"""Paths about one stored response."""
QUESTIONS: Final = frozenset({("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")})
"""The methods of these paths."""
PAGE_ITEMS: Final = 20
MAX_PAGE_ITEMS: Final = 100
"""Items of one page of the input, where the client names no number, and at most."""
_PREFIXES: Final = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
}  # fmt: skip
"""Beginnings of ids by the type of the item."""
_WITH_STATUS: Final = frozenset({"message", "function_call_output"})
_FINISHES: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of an incomplete response, by the reason for which the answer ended."""


@dataclass(frozen=True, slots=True)
class ResponseQuestion:
    """A request about a stored response."""

    method: str
    name: str
    """The name of the response."""
    part: str
    """The end of the path: `/cancel`, `/input_items`, or "" for the response itself."""
    parameters: Mapping[str, Sequence[str]]
    """The query."""

    @property
    def shows_tokens(self) -> bool:
        """True if the client asks for encrypted reasoning."""
        asked = [*self.parameters.get("include", ()), *self.parameters.get("include[]", ())]
        return chained.ENCRYPTED in asked

    def read(self, name: str) -> str:
        """Return the last value of a parameter; "" if there is none."""
        return self.parameters.get(name, ("",))[-1]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as the client has it, which the provider does not know or has in another form."""

    row: ResponseNameRow
    exchange: ExchangeRecord
    answer: bytes
    """The canonical message of the answer."""


def read_question(method: str, path: str, query: bytes) -> ResponseQuestion | None:
    """Return a request's question about a stored response, or None. path: decoded, without the session."""
    match = STORED_PATH.fullmatch(path)
    part = (match["part"] or "") if match else ""
    if match is None or (method, part) not in QUESTIONS or match["name"].startswith(ITEM_PREFIX):
        return None
    return ResponseQuestion(method, match["name"], part, parse_qs(query.decode("latin-1")))


async def find_stored_response(
    services: Services, headers: Headers, tenant: str | None, question: ResponseQuestion
) -> StoredResponse | None:
    """Return the response; None if the provider has to answer. tenant: that of the client's key. Raises Unavailable if
    the response is not in the store yet."""
    owner = find_tenant(services, headers, tenant)
    try:
        row = await services.store.read_response_name(owner, question.name)
        held = services.histories.get(owner, question.name)
        if row is None and held is not None and not held.at_provider:
            raise Unavailable("the response is not stored yet", hint="Ask again.")
        if row is None or not row.exchange:
            return None
        if row.at_provider and question.method != "GET":
            if question.method == "DELETE":  # the provider deletes it too
                await _delete(services, row, ())
            return None
        exchange = await services.store.read_exchange(owner, row.session, row.exchange)
        if exchange is None or exchange.answer is None:
            return None
        if row.at_provider and not _shows_proxy(row, exchange, question):
            return None
        messages = await services.store.read_chain(owner, row.session, exchange.answer)
    except StoreUnavailable:
        services.metrics.internal_errors_total.labels(where="chain").inc()
        return None
    return StoredResponse(row, exchange, messages[-1].body) if messages else None


def _shows_proxy(row: ResponseNameRow, exchange: ExchangeRecord, question: ResponseQuestion) -> bool:
    """True if the provider's answer would show changes of the proxy, and the store has all that the client asks for."""
    sent = msgspec.json.decode(exchange.inserts, type=SentTexts)
    if question.part:
        return row.is_whole and not sent.is_unchanged
    return row.is_known and bool(sent.inserts or sent.tools or sent.rounds)  # edits change the input alone


async def answer_question(services: Services, stored: StoredResponse, question: ResponseQuestion) -> bytes:
    """Return the body of the answer. Raises BadRequest for what OpenAI refuses too, and StoreUnavailable."""
    if question.part == "/cancel":
        raise BadRequest("Cannot cancel a synchronous response.")
    if question.method == "DELETE":
        await _delete(services, stored.row, responses_items.make_items(stored.answer, {}))
        return msgspec.json.encode({"id": question.name, "object": "response", "deleted": True})
    if question.read("stream") == "true":
        raise BadRequest("Only a response that was made in the background can be streamed again.")
    request, keys = await rebuild_request(services.store, stored.exchange, services.message_cache.get_message)
    echo = ResponseEcho({}, hides_tokens=not question.shows_tokens)
    begin = 1 if stored.row.has_instructions else 0
    if question.part:
        messages = [message.raw for message in request.messages][begin:]
        limit, order = _read_page(question)
        items = await run_in_worker(services, len(request.body), lambda: list_input(messages, keys[begin:]))
        return make_page(list(map(echo.hide_token, items)), limit, question.read("after"), is_reversed=order == "desc")
    return echo.rewrite_body(make_response(stored, request))


async def _delete(services: Services, row: ResponseNameRow, items: Sequence[bytes]) -> None:
    """Forget the name of a response, and those of its items, once that is durable."""
    # The clock of the replica that stored the answer may be ahead of this one's: an older row would not replace it.
    now = max(services.now(), row.created_at)
    gone = msgspec.structs.replace(row, exchange="", is_known=False, is_whole=False, created_at=now)
    names = [item["id"] for item in map(msgspec.json.decode, items) if isinstance(item.get("id"), str)]
    rows = [msgspec.structs.replace(gone, name=ITEM_PREFIX + name) for name in names]
    await services.store.put([gone, *rows])
    services.histories.forget(row.tenant, row.name)
    for name in names:
        services.items.forget(row.tenant, name)


def make_response(stored: StoredResponse, request: Request) -> bytes:
    """Return the response object, with all that the store has of it. Members that it does not have are left out."""
    exchange = stored.exchange
    reason = _FINISHES.get(exchange.finish or "")
    response: dict[str, Any] = {
        "id": stored.row.name,
        "object": "response",
        "created_at": int(exchange.started_at),
        "status": "incomplete" if reason else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "model": exchange.model,
        "output": msgspec.Raw(b"[" + b",".join(responses_items.make_items(stored.answer, {})) + b"]"),
        "parallel_tool_calls": True,
        "store": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _make_usage(exchange),
    }
    if exchange.ended_at is not None and not reason:
        response["completed_at"] = int(exchange.ended_at)
    if stored.row.has_instructions:
        response["instructions"] = msgspec.json.decode(request.messages[0].raw)["content"]
    asked = {"tools": "tools", "tool_choice": "tool_choice", "max_completion_tokens": "max_output_tokens"}
    for name, own in asked.items():
        raw = json_spans.read_value(request.body, name)
        if raw is not None:
            value = msgspec.json.decode(raw)
            tools = [responses_items.make_tool(tool) for tool in value] if name == "tools" else []
            response[own] = tools or (responses_items.make_tool(value) if isinstance(value, dict) else value)
    return msgspec.json.encode(response)


def _make_usage(exchange: ExchangeRecord) -> dict[str, Any] | None:
    if exchange.prompt_tokens is None or exchange.completion_tokens is None:
        return None
    return {
        "input_tokens": exchange.prompt_tokens,
        "input_tokens_details": {"cached_tokens": exchange.cached_tokens or 0},
        "output_tokens": exchange.completion_tokens,
        "total_tokens": exchange.prompt_tokens + exchange.completion_tokens,
    }


def list_input(messages: Sequence[bytes], keys: Sequence[bytes]) -> list[bytes]:
    """Return the items of canonical messages, each with an id. An item that came without one has an id made from the
    chain key of its message, which is the same in every later response. Raises ValueError if a message cannot be
    written as items."""
    items_with_ids: list[bytes] = []
    call_types: dict[str, str] = {}
    for raw, key in zip(messages, keys, strict=True):
        items = chained.restore_items([raw], call_types)
        for n, item in enumerate(items):
            value = msgspec.json.decode(item, type=dict[str, Any])
            if isinstance(value.get("id"), str):
                items_with_ids.append(item)
                continue
            value.pop("id", None)
            kind = responses_items.find_type(value)
            name = hashlib.blake2b(key + b"%d" % n, digest_size=24).hexdigest()
            members: dict[str, Any] = {"status": "completed"} if kind in _WITH_STATUS else {}
            if kind == "message" and isinstance(value.get("content"), str):
                part = "output_text" if value.get("role") == "assistant" else "input_text"
                members["content"] = [{"type": part, "text": value["content"]}]
            items_with_ids.append(
                msgspec.json.encode({"id": f"{_PREFIXES.get(kind, 'item')}_{name}", **value, **members})
            )
    return items_with_ids


def _read_page(question: ResponseQuestion) -> tuple[int, str]:
    """Return (the number of items of a page, their order). Raises BadRequest."""
    limit, order = question.read("limit") or str(PAGE_ITEMS), question.read("order") or "desc"
    if not re.fullmatch(r"0*[0-9]{1,3}", limit, re.ASCII) or not 1 <= int(limit[-3:]) <= MAX_PAGE_ITEMS:
        raise BadRequest(f"Invalid 'limit': expected a number from 1 to {MAX_PAGE_ITEMS}.")
    if order not in ("asc", "desc"):
        raise BadRequest("Invalid 'order': expected 'asc' or 'desc'.")
    return int(limit[-3:]), order


def make_page(items: Sequence[bytes], limit: int, after: str, *, is_reversed: bool) -> bytes:
    """Return one page of a list. after: the id of the last item of the page before; "" for the first page. Raises
    BadRequest if no item has this id."""
    names = [str(msgspec.json.decode(item)["id"]) for item in items]
    pairs = list(zip(names, items, strict=True))
    pairs = pairs[::-1] if is_reversed else pairs
    if after:
        places = [n for n, (name, _) in enumerate(pairs) if name == after]
        if not places:
            raise BadRequest("Invalid 'after': the input has no item with this id.")
        pairs = pairs[places[0] + 1 :]
    page = pairs[:limit]
    fields = {"first_id": page[0][0] if page else None, "last_id": page[-1][0] if page else None}
    data = msgspec.Raw(b"[" + b",".join(item for _, item in page) + b"]")
    return msgspec.json.encode({"object": "list", "data": data, **fields, "has_more": len(pairs) > limit})
