"""Questions about a stored response that the proxy answers: `GET`, `DELETE`, `/cancel` and `/input_items`."""

from __future__ import annotations

from proxy.exchange.services import Services
from proxy.exchange.stored_responses import ResponseQuestion, StoredResponse, answer_question
from proxy.web.asgi import Send, send_json


async def serve_stored_response(
    send: Send, services: Services, stored: StoredResponse, question: ResponseQuestion
) -> None:
    """Answer one question from the store."""
    body = await answer_question(services, stored, question)
    session = stored.row.session.encode("utf-8", "replace")
    headers = [(b"x-context-session", session), (b"x-context-chain", b"taken over")]
    await send_json(send, body, headers, services.settings.timeouts.idle_s)
