"""Paths in the clouds' own forms: Azure OpenAI's chat completions and Responses, Claude's Messages on Vertex AI and
Bedrock.

Azure: https://learn.microsoft.com/azure/ai-foundry/openai/reference. A deployment stands for its model.
Vertex AI: https://docs.claude.com/en/api/claude-on-vertex-ai. The body is that of Messages, without its model.
Bedrock: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModelWithResponseStream.html. The
body is that of Messages, without its model and `stream`; other makers' models have bodies of their own.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec

from proxy.chat.message import Request
from proxy.dialects.gemini.request import SEGMENT, read_place

AZURE_PATH: Final = re.compile(
    rf"/openai(?:/v1|/deployments/(?P<model>{SEGMENT}))?"
    r"(?P<end>/chat/completions|/responses(?:/input_tokens|/compact)?)"
)
VERTEX_PATH: Final = re.compile(
    rf"(?:/v1\w*)?/projects/{SEGMENT}/locations/{SEGMENT}/publishers/anthropic/models/(?P<model>{SEGMENT}):"
    r"(?P<method>rawPredict|streamRawPredict)",
    re.ASCII,
)
BEDROCK_PREFIX: Final = "/model/"
"""The beginning of Bedrock's paths."""
BEDROCK_PATH: Final = re.compile(
    BEDROCK_PREFIX
    + r"(?P<model>(?:arn:[\w.:-]+:bedrock:[\w.:-]+/)?[\w.:-]+)/(?P<method>invoke(?:-with-response-stream)?)",
    re.ASCII,
)
"""A model's id, that of an inference profile, or the ARN of one of them, whose slash comes encoded."""
BEDROCK_STREAM: Final = "invoke-with-response-stream"
OTHER_PATH: Final = re.compile(
    r"/(?:models|tunedModels)/(?P<model>.+?)(?::[A-Za-z]\w*)?/?$"
    r"|/(?:deployments|model)/(?P<deployed>(?:arn:[^/]+/)?[^/]+)/"
)
"""The part of any other path that names its model: at OpenAI, Gemini and Vertex AI; on Azure and Bedrock."""
COUNT_MODEL: Final = "count-tokens"
"""The model in Vertex's path of a count; the body names the real one."""


class CloudPath(NamedTuple):
    """A path in a cloud's own form."""

    dialect: str
    """The name of its wire format."""
    model: str
    """The model that it names, "" for none."""
    template: str
    """The path without what differs from request to request."""
    plain: str
    """The path of the same request at the format's own provider."""
    is_stream: bool = False
    """True if the path asks for a stream, and not the body."""


def read_cloud_path(path: str) -> CloudPath | None:
    """Read a decoded path; None for any other than these."""
    if found := AZURE_PATH.fullmatch(path):
        model = found["model"] or ""
        dialect = "completions" if found["end"] == "/chat/completions" else "responses"
        template = "/openai/deployments/{deployment}" + found["end"] if model else path
        return CloudPath(dialect, model, template, "/v1" + found["end"])
    if found := VERTEX_PATH.fullmatch(path):
        is_count = found["model"] == COUNT_MODEL
        name, model = (COUNT_MODEL, "") if is_count else ("{model}", found["model"])
        template = f"/v1/publishers/anthropic/models/{name}:{found['method']}"
        return CloudPath("messages", model, template, "/v1/messages" + ("/count_tokens" if is_count else ""))
    if found := BEDROCK_PATH.fullmatch(path):
        template = f"/model/{{model}}/{found['method']}"
        return CloudPath("messages", found["model"], template, "/v1/messages", found["method"] == BEDROCK_STREAM)
    return None


def find_plain_path(target: str) -> str:
    """Return a path with its query, as its format's own provider has it; the same one if it is in no cloud's form."""
    path, _, query = target.partition("?")
    found = read_cloud_path(unquote(path))
    return target if found is None else f"{found.plain}?{query}"


def add_path_values(request: Request, path: str) -> Request:
    """Return a request without a model, with the model and the streaming that only its path names."""
    found = read_cloud_path(unquote(path))
    is_stream = request.stream or (found is not None and found.is_stream)
    return msgspec.structs.replace(request, model=read_path_model(path), stream=is_stream)


def read_path_model(path: str) -> str:
    """Return the model that a path names, in the form of a provider; "" for none. path: decoded or not."""
    if named := read_place(path).model:
        return named
    decoded = unquote(path)
    if (cloud_path := read_cloud_path(decoded)) is not None:
        return cloud_path.model
    found = OTHER_PATH.search(decoded)
    return found["model"] or found["deployed"] if found is not None else ""
