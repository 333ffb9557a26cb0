"""An agent that speaks Gemini as real ones do: it resends all it has, and adds what came."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.dialect_agents import Json, RunTool
from tests.proxy_server import RawAnswer, RunningProxy


@dataclass
class GeminiAgent:
    """An agent in the form of Gemini CLI: it gives a call an id where the model gave none, and joins what came.

    stream: "" for one body, "events", or "list" for a stream that is a list. in_chunks: each chunk is kept as a content
    of its own, as the chats of the SDKs keep them.
    """

    proxy: RunningProxy
    run_tool: RunTool
    stream: str = ""
    in_chunks: bool = False
    lines: tuple[bytes, ...] = ()
    more: Json = field(default_factory=dict)
    contents: list[Json] = field(default_factory=list)
    answers: list[Json] = field(default_factory=list)
    heard: list[RawAnswer] = field(default_factory=list)
    path: str = "/v1beta/models/gemini-3-pro"
    make_id: Callable[[str, int], str] = "{}_{}_0".format
    """The id of a call to which the model gave none, from the function's name and a number."""

    async def ask(self) -> Json:
        """One request; the answer is kept as the client has it: its parts, its usage, its ids."""
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        declared = [{"name": "read", "description": "Read a file.", "parametersJsonSchema": schema}]
        body: Json = {
            "contents": self.contents,
            "systemInstruction": {"parts": [{"text": "You are a careful engineer."}]},
            "tools": [{"functionDeclarations": declared}],
            "generationConfig": {"temperature": 1, "thinkingConfig": {"includeThoughts": True}},
            **self.more,
        }
        method = ":streamGenerateContent" if self.stream else ":generateContent"
        query = "?alt=sse" if self.stream == "events" else ""
        found = await self.proxy.post(
            body, b"x-goog-api-key: sk-one", *self.lines, path=f"{self.path}{method}{query}", key=""
        )
        self.heard.append(found)
        assert found.status == 200, found.body
        chunks = read_gemini_chunks(found) if self.stream else [found.json()]
        answer = join_gemini_chunks(chunks)
        parts = [self._name_call(part) for part in answer["parts"] if not part.get("thought")]
        answer["parts"] = [part for part in parts if part != {"text": ""}]
        self.answers.append(answer)
        if answer["parts"]:
            groups = [[part] for part in answer["parts"]] if self.in_chunks else [answer["parts"]]
            self.contents += [{"role": "model", "parts": group} for group in groups]
        return answer

    def _name_call(self, part: Json) -> Json:
        call = part.get("functionCall")
        if call is None or "id" in call or self.in_chunks:
            return part
        return {**part, "functionCall": {"id": self.make_id(call["name"], 1795390834000 + len(self.heard)), **call}}

    def bring(self, answer: Json) -> bool:
        """Answer the calls of an answer; False if it has none."""
        calls = [part["functionCall"] for part in answer["parts"] if "functionCall" in part]
        results = []
        for one in calls:
            named = {"id": one["id"]} if "id" in one else {}
            said = {"output": self.run_tool(one["name"], one["args"])}
            results.append({"functionResponse": {**named, "name": one["name"], "response": said}})
        self.contents += [{"role": "user", "parts": results}] if calls else []
        return bool(calls)

    async def work(self, prompt: str, most: int = 100) -> str:
        """Work on a prompt until the model calls no tool any more. Return its last text."""
        self.contents.append({"role": "user", "parts": [{"text": prompt}]})
        for _ in range(most):
            answer = await self.ask()
            if not self.bring(answer):
                return "".join(part.get("text", "") for part in answer["parts"])
        raise AssertionError("the model calls tools for ever")


def read_gemini_chunks(found: RawAnswer) -> list[Json]:
    """The chunks of a stream, as the readers of Google's SDKs take them: a comment is an error."""
    if found.body[:1] == b"[":
        chunks: list[Json] = json.loads(found.body)
        return chunks
    made = []
    for piece in found.body.replace(b"\r\n", b"\n").split(b"\n\n"):
        if piece.strip():
            assert piece.strip().startswith(b"data: "), piece
            made.append(json.loads(piece.strip()[6:]))
    return made


def join_gemini_chunks(chunks: list[Json]) -> Json:
    """The answer of a stream: its parts, with texts that follow each other joined; its newest usage; its ids."""
    answer: Json = {"parts": [], "usage": {}, "ids": set()}
    reasons: list[str] = []
    for chunk in chunks:
        assert "error" not in chunk, chunk
        assert not reasons, "nothing follows the end"
        candidate = chunk["candidates"][0]
        reasons += [candidate["finishReason"]] if "finishReason" in candidate else []
        answer["usage"] = chunk.get("usageMetadata") or answer["usage"]
        answer["ids"].add((chunk["responseId"], chunk["modelVersion"]))
        for part in (candidate.get("content") or {}).get("parts") or ():
            last = answer["parts"][-1] if answer["parts"] else {}
            if set(part) == set(last) and set(part) <= {"text", "thought"}:
                last["text"] += part["text"]
            else:
                answer["parts"].append(dict(part))
    assert reasons == ["STOP"]
    assert len(answer["ids"]) == 1, "one answer has one id"
    return answer
