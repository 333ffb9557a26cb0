"""Export and import of conversations, one a line, in the form that `context-proxy replay` reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from proxy.chat import chain, json_spans
from proxy.errors import BadRequest, TooLarge, Unprocessable
from proxy.exchange import import_conversations
from proxy.exchange.import_conversations import ImportedConversation
from proxy.exchange.services import Services
from proxy.replay import stored
from proxy.replay.read import RecordedConversation as Recorded
from proxy.replay.stored import StoredSession as Stored
from proxy.sessions import locate
from proxy.web.api.admin_context import AdminContextDep, SessionContextDep, find_tenant, require_tenant
from proxy.web.api.json_answers import ERROR_RESPONSES

router = APIRouter(prefix="/api", tags=["transfer"], responses=ERROR_RESPONSES)

NDJSON_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/x-ndjson": {}}, "description": "One JSON object a line."}
}
MAX_CONVERSATIONS: Final = 10_000
"""Conversations in one import."""
MAX_VALUES: Final = 1_000_000
"""JSON values in one import. Each costs 200 bytes while it is read; 64 MB of conversations have half as many."""


class ImportResult(BaseModel):
    """The result of an import."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"conversations": 2, "messages": 240, "sessions": ["fix-the-build"]}]}
    )

    conversations: int
    messages: int
    sessions: list[str]


@router.get("/sessions/{session}/export", response_class=StreamingResponse, responses=NDJSON_RESPONSES)
async def export_session(context: SessionContextDep) -> StreamingResponse:
    """Export every branch of a session, with all its messages as the client sent them."""
    lines = _export_lines(context.services, (context.tenant, context.session))
    return StreamingResponse(lines, media_type="application/x-ndjson")


@router.get("/export", response_class=StreamingResponse, responses=NDJSON_RESPONSES)
async def export_all(admin: AdminContextDep) -> StreamingResponse:
    """Export every session of a tenant, the one used last first."""
    tenant, services = await require_tenant(admin), admin.services

    async def render_sessions() -> AsyncIterator[bytes]:
        after = None
        while page := await services.store.list_sessions(tenant, after, 50):
            for session in page:
                async for line in _export_lines(services, (tenant, session.session)):
                    yield line
            after = page[-1].cursor

    return StreamingResponse(render_sessions(), media_type="application/x-ndjson")


async def _export_lines(services: Services, place: Stored) -> AsyncIterator[bytes]:
    branches = stored.read_branches(services.store, place, "store")
    while line := await _export_next(services, branches, place):
        yield line


async def _export_next(services: Services, branches: AsyncIterator[Recorded], place: Stored) -> bytes:
    """Return the line of the next branch, b"" after the last. No turn is held while the client takes the line."""
    async with services.read_slots.hold(place[0]):
        one = await anext(branches, None)
        return b"" if one is None else await asyncio.to_thread(_export_line, one, place[1])


def _export_line(recorded: Recorded, session: str) -> bytes:
    head = msgspec.json.encode({"id": recorded.id, "session": session, "model": recorded.model})[:-1]
    tools = b',"tools":' + recorded.tools if recorded.tools else b""
    times = b',"times":' + msgspec.json.encode(recorded.times)
    # A message of several lines is still one line here: JSON's own line ends mean nothing between values.
    raws = b",".join(raw.replace(b"\r", b" ").replace(b"\n", b" ") for raw in recorded.messages)
    return b'%b,"messages":[%b]%b%b}\n' % (head, raws, tools.replace(b"\n", b" ").replace(b"\r", b" "), times)


@router.post(
    "/import",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/x-ndjson": {
                    "schema": {"type": "string"},
                    "example": '{"id": "talk", "messages": [{"role": "user", "content": "Hello"}]}\n',
                }
            },
        }
    },
)
async def import_lines(
    admin: AdminContextDep,
    request: Request,
    first_line: Annotated[
        int, Query(ge=1, description="The number of the first line in its file, for errors and for names.")
    ] = 1,
) -> ImportResult:
    """Store conversations, one JSON object a line: `{"id", "messages", "tools"?, "session"?, "model"?}`. Messages have
    the form of chat completions or of Gemini, and the time of the import. All lines are read before the first is
    stored. An existing conversation stays unchanged and gives 409."""
    tenant = await find_tenant(admin)
    body = await request.body()
    conversations = await asyncio.to_thread(lambda: list(_read_conversations(body, admin, first_line)))
    if not conversations:
        raise BadRequest("there is no line to import")
    messages = 0
    for conversation in conversations:
        messages += await import_conversations.import_conversation(admin.services, tenant, conversation)
    return ImportResult(
        conversations=len(conversations),
        messages=messages,
        sessions=list(dict.fromkeys(one.session for one in conversations)),
    )


def _read_conversations(body: bytes, admin: AdminContextDep, first_line: int) -> Iterable[ImportedConversation]:
    lines = [(n, line) for n, line in enumerate(body.split(b"\n"), first_line) if line.strip()]
    if len(lines) > MAX_CONVERSATIONS:
        raise Unprocessable(f"{len(lines)} conversations, {MAX_CONVERSATIONS} are allowed at once")
    if json_spans.has_more_values(body, MAX_VALUES):
        raise TooLarge(f"more than {MAX_VALUES} JSON values are not imported at once", hint="Send fewer lines at once.")
    for number, line in lines:
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except (ValueError, RecursionError):
            raise BadRequest(f"line {number}: this is not a JSON object") from None
        given, tools = bytes(fields.get("messages", b"")), bytes(fields.get("tools", b""))
        spans = json_spans.find_elements(given)
        if spans is None or (tools not in (b"", b"null", b"[]") and json_spans.find_elements(tools) is None):
            raise Unprocessable(f"line {number}: `messages` is to be a list, and so is `tools` where it is there")
        own_name = (
            f"imported-{number}-{chain.compute_form(given).hex()[:8]}"  # the same line of another file is another
        )
        name = _decode_text(fields, "session") or _decode_text(fields, "id") or own_name
        session = locate.find_session_name(name, {}, None, admin.services.settings.identity) or own_name
        raws = [given[start:end] for start, end in spans]
        try:
            yield import_conversations.read_conversation(
                session,
                raws,
                None if tools in (b"", b"null", b"[]") else tools,
                _decode_text(fields, "model") or import_conversations.MODEL,
            )
        except Unprocessable as problem:
            raise Unprocessable(f"line {number}: {problem.message}") from None


def _decode_text(fields: dict[str, msgspec.Raw], name: str) -> str:
    raw = fields.get(name)
    try:
        return msgspec.json.decode(raw, type=str) if raw is not None else ""
    except ValueError:
        return ""
