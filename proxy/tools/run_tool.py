"""Run one call of a tool and always return a result: an error is a result too, for the model to read.

Nothing that a model writes may end a request, so every fault ends here. The one exception is a cancelled
request, because nobody is left to read.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from proxy.chat.unicode_text import replace_surrogates
from proxy.errors import StoreError, ToolRefused
from proxy.tools.registry import TOOLS
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

log = logging.getLogger(__name__)


class ToolCall(Protocol):
    """A call as the model made it."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> str: ...


async def run_tool_call(call: ToolCall, context: ToolContext, tools: Mapping[str, Tool[Any]] = TOOLS) -> str:
    """Return the result for the model: at most `tools.result_chars` characters; {"error": ...} if there is none. tools:
    those that may be called, by name."""
    tool = tools.get(call.name)
    if tool is None or (context.offered_tools is not None and call.name not in context.offered_tools):
        return make_error_result("there is no such tool here.")
    began = time.perf_counter()
    outcome = "refused"
    try:
        async with asyncio.timeout(context.settings.tools.seconds):
            text = await tool.call(call.arguments, context)
        outcome = "done"
    except ToolRefused as reason:
        outcome = "limited" if reason.limited else "refused"
        text = make_error_result(str(reason))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as wrong:
        text = make_error_result(
            f"the arguments of {call.name} cannot be used: {wrong}. They are: {_describe_parameters(tool)}."
        )
    except TimeoutError:
        outcome = "limited"
        text = make_error_result(f"{call.name} took too long and was ended. Go on without it.")
    except StoreError:
        outcome = "failed"
        text = make_error_result("what is stored cannot be read or written at the moment. Go on without it.")
    except Exception as fault:  # noqa: BLE001  a fault of the proxy is a result that says so, never a failed request
        outcome = "failed"
        log.warning("%s failed: %s", call.name, type(fault).__name__)
        context.metrics.internal_errors_total.labels("tool").inc()
        text = make_error_result(f"{call.name} failed. Go on without it.")
    context.metrics.tools_total.labels(tool.name, outcome).inc()
    context.metrics.tool_seconds.labels(tool.name).observe(time.perf_counter() - began)
    return truncate_result(text, context.settings.tools.result_chars)


def make_error_result(message: str) -> str:
    """Return a result that reports an error."""
    return json.dumps({"error": message}, ensure_ascii=False)


def is_error_result(text: str) -> bool:
    """True for a result that reports an error, also one that was cut."""
    return text.startswith('{"error": ')


def truncate_result(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters that any encoder accepts: the last guard behind each tool's own."""
    text = replace_surrogates(text)
    if len(text) <= max_chars:
        return text
    end = f"\n[cut here: {len(text)} characters in all; ask for less at a time]"
    return text[: max_chars - len(end)] + end


def _describe_parameters(tool: Tool[Any]) -> str:
    return (
        ", ".join(
            f"{key} ({schema.get('type', 'any')}{'' if key in tool.required else ', optional'})"
            for key, schema in tool.parameters.items()
        )
        or "none"
    )
