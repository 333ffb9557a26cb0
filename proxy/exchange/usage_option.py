"""The option by which the proxy asks for the usage of a stream, where the client has not asked.

Some upstreams refuse the option; Mistral does it with a 422. The prompt then goes out without it, and so does every
later prompt of the tenant for the model. Such an upstream may tell the usage without being asked.
"""

from __future__ import annotations

from proxy.dialects.completions.request import remove_usage_option
from proxy.exchange.refusals import peek_refusal, remember_model
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.upstream.client import Reply


async def is_refusal(turn: Turn, reply: Reply) -> bool:
    """True if an error is about the option, which the proxy has added. The error can still be passed on."""
    if not turn.prompt.usage_added or turn.wire_request is not None:
        return False
    return b"stream_options" in await peek_refusal(reply)


def without_option(services: Services, turn: Turn) -> Turn:
    """The turn with the prompt without the option. The refusal is remembered."""
    remember_model(services.usage_refused, turn.model_key)
    sent = turn.prompt
    chat_body, outgoing, unmarked = (
        remove_usage_option(body) if body else body for body in (sent.chat_body, sent.outgoing, sent.unmarked)
    )
    return turn.with_prompt(chat_body=chat_body, outgoing=outgoing, unmarked=unmarked, usage_added=False)
