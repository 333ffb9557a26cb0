"""The signature of a tool call: its name and its arguments in one form, so that equal calls compare equal."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.chat.message import Call

CallSignature = tuple[str, str]
"""(name, normalized arguments)"""


def sign_call(call: Call) -> CallSignature:
    return call.name, normalize_arguments(call.arguments)


def normalize_arguments(arguments: str) -> str:
    """Return the arguments of a call in one form: members in order, white space as one blank, paths without `./`."""
    try:
        return msgspec.json.encode(_normalize(msgspec.json.decode(arguments)), order="sorted").decode()
    except (ValueError, RecursionError):
        return " ".join(arguments.split())


def _normalize(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split()).removeprefix("./")
    if isinstance(value, list):
        return [_normalize(one) for one in value]
    return {name: _normalize(one) for name, one in value.items()} if isinstance(value, dict) else value
