"""Streams of Gemini for tests: made here, cut anywhere, and read as a client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from proxy.stream.gemini_relay import GeminiRelay
from tests.stream.round_relays import relay_rounds

Json = dict[str, Any]
HIDDEN = frozenset({"recall"})


def text(value: str, **more: Any) -> Json:
    return {"text": value, **more}


def think(value: str = "Let me see.") -> Json:
    return {"text": value, "thought": True}


def call(call_id: str, name: str = "read", **more: Any) -> Json:
    made: Json = {"name": name, "args": {"of": call_id}}
    return {"functionCall": {**made, **({"id": call_id} if call_id[:1] != "-" else {})}, **more}


def own_call(call_id: str, **more: Any) -> Json:
    return call(call_id, "recall", **more)


def chunks(
    *parts: Json, reason: str = "STOP", number: int = 1, together: bool = False, said: int = 10, thoughts: int = 3
) -> list[Json]:
    """The responses of one answer: one for each part, or one for all, the last with the finish reason."""
    groups: list[Sequence[Json]] = [list(parts)] if together else [[part] for part in parts]
    made: list[Json] = []
    for n, group in enumerate(groups):
        candidate: Json = {"content": {"parts": list(group), "role": "model"}, "index": 0}
        usage = {"promptTokenCount": 100 * number, "cachedContentTokenCount": 50}
        if n == len(groups) - 1:
            candidate |= {"finishReason": reason} if reason else {}
            usage |= {"candidatesTokenCount": said, "thoughtsTokenCount": thoughts}
        usage["totalTokenCount"] = usage["promptTokenCount"] + usage.get("candidatesTokenCount", 0)
        usage["totalTokenCount"] += usage.get("thoughtsTokenCount", 0)
        ids = {"modelVersion": f"gemini-{number}", "responseId": f"r{number}"}
        made.append({"candidates": [candidate], "usageMetadata": usage, **ids})
    return made


def to_events(responses: Iterable[Json]) -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in responses)


def stream(*parts: Json, **more: Any) -> bytes:
    return to_events(chunks(*parts, **more))


run = partial(relay_rounds, GeminiRelay)


def read(data: bytes) -> Json:
    """The answer as an SDK adds it up: parts, finish reason, newest usage, ids. Fails where an SDK would."""
    made: Json = {"parts": [], "reasons": [], "usage": {}, "ids": []}
    for piece in data.replace(b"\r\n", b"\n").split(b"\n\n"):
        if not piece.strip():
            continue
        assert piece.startswith(b"data: "), piece  # a comment stops the reader of Gemini CLI
        response = json.loads(piece[6:])
        made["ids"].append((response.get("responseId"), response.get("modelVersion")))
        made["usage"] = response.get("usageMetadata") or made["usage"]
        for candidate in response.get("candidates", ()):
            assert not made["reasons"], "nothing follows the end"
            made["parts"] += (candidate.get("content") or {}).get("parts") or []
            made["reasons"] += [candidate["finishReason"]] if "finishReason" in candidate else []
    return made


def shapes(answer: Json) -> list[str]:
    """Each part in a word: its text, or the argument of its call; texts that follow each other are one."""
    found: list[str] = []
    was_text = False
    for part in answer["parts"]:
        is_text = "text" in part and not part.get("thought")
        word = part["text"] if "text" in part else part["functionCall"]["args"]["of"]
        if is_text and was_text:
            found[-1] += word
        else:
            found.append(word)
        was_text = is_text
    return [word for word in found if word]
