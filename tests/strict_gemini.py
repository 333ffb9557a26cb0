"""An upstream that speaks Gemini's generateContent and refuses what Google refuses (see `refuse`).

Signatures are real: each covers the model and the part that bears it, and is computed again when it comes back. So a
signature that was moved, changed or left out is seen. Nothing of the proxy is used here, so a mistake of the proxy's
own rules does not hide itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from tests.raw_upstream import STREAM, Connection, RawRequest, Script
from tests.scripted_model import send_reply

Json = dict[str, Any]
Answer = str | Sequence[Json] | Script
"""A text, parts (calls get signatures here where `signs`), or a script that speaks for itself."""

SKIP = "skip_thought_signature_validator"
_PATH = re.compile(
    rb"POST /v1(?:beta)?/models/([\w.-]+):(generateContent|streamGenerateContent|countTokens)(?:\?(\S*))? "
)
_FIELDS = {
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
}
_PARTS = {"text", "thought", "thoughtSignature", "functionCall", "functionResponse", "inlineData", "fileData"}
_KEY = b"a key that no client knows"


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: str, code: int = 400, status: str = "INVALID_ARGUMENT") -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def sign(model: str, part: Mapping[str, Any]) -> str:
    """The signature of a part of this model's. The id of a call is not covered: clients make some of their own."""
    plain = {name: value for name, value in part.items() if name != "thoughtSignature"}
    if "functionCall" in plain:
        plain["functionCall"] = {name: plain["functionCall"].get(name) for name in ("name", "args")}
    made = hmac.new(_KEY, json.dumps([model, plain], sort_keys=True).encode(), hashlib.sha256).digest()
    return base64.b64encode(made).decode()


class StrictGemini:
    """Gives its answers one after the other, the last one for ever; streamed where that is asked for.

    signs: the model signs the first call of each answer and wants it back, as Gemini 3 does. with_ids: calls have ids.
    received: every request. bodies: the bodies that were answered. counted: those that were counted. refusals: the
    texts of the errors.
    """

    def __init__(self, *answers: Answer, signs: bool = True, with_ids: bool = False) -> None:
        self.answers = list(answers) or ["Well."]
        self.signs = signs
        self.with_ids = with_ids
        self.received: list[RawRequest] = []
        self.bodies: list[Json] = []
        self.counted: list[Json] = []
        self.refusals: list[str] = []
        self._count = 0

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.received.append(request)
        try:
            model, method, query, body = self._judge(request)
        except Refused as refused:
            self.refusals.append(str(refused))
            error = {"error": {"code": refused.code, "message": str(refused), "status": refused.status}}
            await _send_json(connection, error, b"%d Refused" % refused.code)
            return
        if method == "countTokens":
            self.counted.append(body)
            await _send_json(connection, {"totalTokens": len(request.body) // 4})
            return
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(request, connection)
            return
        whole = self.make_response(body, answer, model)
        chunks = split_response(whole)
        if method == "generateContent":
            await _send_json(connection, whole)
        elif query.get("alt") == ["sse"]:
            await connection.send(STREAM)
            for chunk in chunks:
                await connection.chunk(b"data: " + json.dumps(chunk).encode() + b"\r\n\r\n")
            await connection.chunk(b"")
        else:
            await _send_json(connection, chunks)

    def make_response(self, body: Mapping[str, Any], answer: str | Sequence[Json], model: str = "gemini-3-pro") -> Json:
        """The response to this body, with its signatures."""
        self._count += 1
        parts = [{"text": answer}] if isinstance(answer, str) else [dict(part) for part in answer]
        if self.with_ids:
            for n, part in enumerate(parts):
                if "functionCall" in part:
                    part["functionCall"] = {"id": f"fc{self._count}{n}", **part["functionCall"]}
        first = next((part for part in parts if "functionCall" in part), None)
        if self.signs and first is not None:
            first["thoughtSignature"] = sign(model, first)
        said = len(json.dumps(parts)) // 4
        prompt = len(json.dumps(body)) // 4
        usage = {"promptTokenCount": prompt, "candidatesTokenCount": said, "totalTokenCount": prompt + said}
        return {
            "candidates": [{"content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
            "modelVersion": model,
            "responseId": f"r{self._count}",
        }

    def _judge(self, request: RawRequest) -> tuple[str, str, dict[str, list[str]], Json]:
        """(the model, the method, the query, the body). Raises Refused."""
        found = _PATH.match(request.line + b" ")
        if found is None:
            raise Refused(f"not found: {request.line.decode()}", 404, "NOT_FOUND")
        query = parse_qs((found[3] or b"").decode())
        if not request.all(b"x-goog-api-key") and "key" not in query:
            raise Refused("Method doesn't allow unregistered callers", 403, "PERMISSION_DENIED")
        body = json.loads(request.body)
        inner = body.get("generateContentRequest", body)
        for problem in refuse(inner, found[1].decode(), signs=self.signs):
            raise Refused(problem)
        return found[1].decode(), found[2].decode(), query, body


async def _send_json(connection: Connection, value: Any, status: bytes = b"200 OK") -> None:
    await send_reply(connection, status, json.dumps(value).encode(), b"content-type: application/json")


def split_response(response: Json) -> list[Json]:
    """The chunks of a stream: texts in pieces, a part in each chunk, and the end with an empty text."""
    candidate = response["candidates"][0]
    pieces: list[Json] = []
    for part in candidate["content"]["parts"]:
        if set(part) <= {"text", "thought"} and len(part["text"]) > 9:
            more = {"thought": True} if part.get("thought") else {}
            pieces += [{"text": part["text"][at : at + 9], **more} for at in range(0, len(part["text"]), 9)]
        else:
            pieces.append(part)
    rest = {name: response[name] for name in ("modelVersion", "responseId")}
    usage = response["usageMetadata"]
    started = {"promptTokenCount": usage["promptTokenCount"], "totalTokenCount": usage["promptTokenCount"]}
    made = [
        {"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}], "usageMetadata": started, **rest}
        for part in pieces
    ]
    made[-1]["candidates"][0]["finishReason"] = candidate["finishReason"]
    made[-1]["usageMetadata"] = usage
    return made


def refuse(body: Any, model: str = "gemini-3-pro", *, signs: bool = True) -> Iterator[str]:
    """The texts of the errors for this body, in the order in which they are judged."""
    for name in body:
        if name not in _FIELDS and name != "model":
            yield f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
    contents = body.get("contents") or []
    if not contents:
        yield "* GenerateContentRequest.contents: contents is not specified"
        return
    for n, content in enumerate(contents):
        if content.get("role", "user") not in ("user", "model"):
            yield "Please use a valid role: user, model."
        if not content.get("parts"):
            yield f"* GenerateContentRequest.contents[{n}].parts: contents.parts must not be empty."
        for k, part in enumerate(content.get("parts") or ()):
            if not set(part) - {"thought", "thoughtSignature"}:
                place = f"contents[{n}].parts[{k}]"
                problem = "required oneof field 'data' must have one initialized field"
                yield f"* GenerateContentRequest.{place}.data: {problem}"
            for name in set(part) - _PARTS:
                yield f'Invalid JSON payload received. Unknown name "{name}" at contents[{n}].parts[{k}]'
    names = [one["name"] for tool in body.get("tools") or () for one in tool.get("functionDeclarations") or ()]
    for name in {name for name in names if names.count(name) > 1}:
        yield f"Duplicate function declaration found: {name}"
    yield from _refuse_pairs(contents)
    if signs:
        yield from _refuse_signatures(contents, model)


def _merge(contents: Sequence[Json]) -> list[tuple[str, list[Json]]]:
    """Contents of one role that follow each other, joined."""
    made: list[tuple[str, list[Json]]] = []
    for content in contents:
        role = content.get("role", "user")
        if not made or made[-1][0] != role:
            made.append((role, []))
        made[-1][1].extend(content["parts"])
    return made


def _refuse_pairs(contents: Sequence[Json]) -> Iterator[str]:
    turns = _merge(contents)
    for n, (role, parts) in enumerate(turns):
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        before = [one["functionCall"] for one in turns[n - 1][1] if "functionCall" in one] if n else []
        if calls and (not n or role != "model"):
            yield (
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        if results and not before:
            yield "Please ensure that function response turn comes immediately after a function call turn."
        if before and len(results) != len(before):
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        elif [one["name"] for one in results] != [one["name"] for one in before] and len(
            {one.get("id") for one in (*results, *before)}
        ) <= len(results):
            yield "Function responses must be in the order of their function calls."
        for one in results:
            if not isinstance(one.get("response"), dict):
                yield "function_response.response: must be an object"


def _refuse_signatures(contents: Sequence[Json], model: str) -> Iterator[str]:
    turns = _merge(contents)
    newest = max(
        (n for n, (role, parts) in enumerate(turns) if role == "user" and any("text" in p for p in parts)), default=0
    )
    for n, (_, parts) in enumerate(turns):
        first = next((part for part in parts if "functionCall" in part), None)
        if n > newest and first is not None and not first.get("thoughtSignature"):
            yield (
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                f"work correctly. Additional data, function call `{first['functionCall']['name']}`, position {n}."
            )
        for part in parts:
            # Bytes in JSON: the SDK writes them in the alphabet for URLs.
            token = str(part.get("thoughtSignature") or "").replace("-", "+")
            token = token if token == SKIP else token.replace("_", "/")
            if token and token not in (SKIP, sign(model, part)):
                yield "Corrupted thought signature."
