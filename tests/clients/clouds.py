"""Strict upstreams at the addresses of clouds: Claude on Vertex AI, Responses on Azure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.raw_upstream import Connection, RawRequest
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses

VERTEX_LINE = re.compile(
    rb"POST (?:/v1)?/projects/team/locations/us-east5/publishers/anthropic/models/(claude-opus-5-5|count-tokens):"
    rb"(rawPredict|streamRawPredict)(?:\?beta=true)? HTTP/1.1"
)
AZURE_LINE = b"POST /openai/responses?api-version=2025-04-01-preview HTTP/1.1"


class VertexModel(StrictMessages):
    """Claude on Vertex AI: the path names the model, the body has a version of its own and no model."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        found = VERTEX_LINE.fullmatch(request.line)
        assert found, request.line
        body = json.loads(request.body)
        is_count = found[1] == b"count-tokens"
        assert body.pop("anthropic_version")
        assert ("model" in body) == is_count
        assert is_count or (found[2] == b"streamRawPredict") == body.get("stream", False)
        line = b"POST /v1/messages%b HTTP/1.1" % (b"/count_tokens" if is_count else b"")
        named = json.dumps({"model": found[1].decode(), **body}).encode()
        headers = [(b"x-api-key", b"k"), (b"anthropic-version", b"2023-06-01"), *request.headers]
        await super().__call__(replace(request, line=line, headers=headers, body=named), connection)


class AzureModel(StrictResponses):
    """Responses on Azure: an address of its own, with the version in the query and the key in its own header."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        assert request.line == AZURE_LINE, request.line
        assert request.all(b"api-key") == [b"azure-key"]
        headers = [(b"authorization", b"Bearer sk-any"), *request.headers]
        await super().__call__(replace(request, line=b"POST /v1/responses HTTP/1.1", headers=headers), connection)


def on(cloud: type[Any], make_model: Callable[[], Any]) -> Callable[[], Any]:
    """Return a maker of the same model with the addresses of a cloud."""
    return lambda: cloud(*make_model().answers)
