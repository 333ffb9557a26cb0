"""An upstream that speaks Responses and refuses what OpenAI refuses, rule by rule (R1 to R17), on a real socket.

Reasoning comes with a token that signs the model, the tools, everything in front of it, the reasoning before it and its
own text. When the token comes back, the prefix is computed again: reasoning behind another prefix is left out and told
in `input_transformations`. The prompt cache is one too: tokens of the longest prefix that was sent before are cached.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.raw_upstream import STREAM, Connection, RawRequest, Script
from tests.response_events import Json, custom_call, events, message, response, thinking, tool_call, web_search
from tests.scripted_model import send_reply

KEY = b"the provider's own"
PARAMETERS = {
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "include",
    "store", "previous_response_id", "conversation", "prompt", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "context_management", "truncation", "max_output_tokens", "max_tool_calls", "metadata",
    "safety_identifier", "user", "service_tier", "stream", "stream_options", "background", "background_options",
    "access_programs", "image", "moderation", "temperature", "top_p", "top_logprobs", "client_metadata",
}  # fmt: skip
TYPES = {
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "shell_call", "shell_call_output", "local_shell_call", "local_shell_call_output", "apply_patch_call",
    "apply_patch_call_output", "computer_call", "computer_call_output", "tool_search_call", "tool_search_output",
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call",
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "additional_tools", "configuration_update",
    "item_reference", "compaction", "compaction_trigger", "program", "program_output", "agent_message",
}  # fmt: skip
REQUIRED = {
    "message": ("role", "content"),
    "reasoning": ("summary",),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "item_reference": ("id",),
}
PREFIXES = {"reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
UNBOUND = {
    "id", "status", "annotations", "logprobs", "prompt_cache_breakpoint",
    "internal_chat_message_metadata_passthrough",  # Codex adds it to items that came without it
}  # fmt: skip
KINDS = {"function_call_output": "function call", "custom_tool_call_output": "custom tool call"}
CALLS = {"function_call": "function call", "custom_tool_call": "custom tool call"}
OUTPUTS = ("_output", "_response")


@dataclass(frozen=True)
class Say:
    """A message."""

    text: str


@dataclass(frozen=True)
class Think:
    """Reasoning, with a summary if there is a text."""

    text: str = ""


@dataclass(frozen=True)
class Ask:
    """A call of a tool; of a custom tool if `arguments` is a text."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """A search that the provider runs itself."""


Piece = Say | Think | Ask | Search
Answer = str | Sequence[Piece] | Script


class Refused(Exception):
    """A request that the provider refuses. rule: a name for the broken rule, for tests."""

    def __init__(self, rule: str, text: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(text)
        self.rule, self.param, self.code, self.status = rule, param, code, status

    def body(self) -> bytes:
        error = {"message": str(self), "type": "invalid_request_error", "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


class StrictResponses:
    """Gives its answers one after the other, the last one for ever.

    received: the bodies that came. counted, compacted: those of counts and of compactions. refused: the rules that were
    broken, with the texts. dropped: (id, reason) of the reasoning that was left out. size: characters of a delta.
    binds: the model checks the prefix (GPT-6.2 and later). conversations: the items of conversation objects, by id.
    known: the responses that are stored, by id. usages: tokens of each prompt, and those of them that were
    cached. encrypts: the model makes encrypted reasoning. Where it does not, it refuses those who ask for it.
    """

    def __init__(self, *answers: Answer, binds: bool = True, size: int = 7, encrypts: bool = True) -> None:
        self.answers = list(answers) or ["Well."]
        self.binds = binds
        self.encrypts = encrypts
        self.size = size
        self.received: list[Json] = []
        self.raw: list[bytes] = []
        self.refused: list[tuple[str, str]] = []
        self.dropped: list[tuple[str, str]] = []
        self.counted: list[Json] = []
        self.compacted: list[Json] = []
        self.conversations: dict[str, list[Json]] = {}
        self.known: dict[str, Json] = {}
        self.usages: list[Json] = []
        self._stored: dict[str, Json] = {}
        self._responses: dict[str, list[Json]] = {}
        self._partners: dict[str, str] = {}
        self._prefixes: list[list[str]] = []
        self._made = 0
        self._count = 0
        self._told: list[Json] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        if b"/responses" not in request.line:
            await send_reply(connection, b"404 Not Found", b"{}", b"content-type: application/json")
            return
        if request.all(b"sec-websocket-key"):
            await send_reply(connection, b"426 Upgrade Required", b"{}", b"content-type: application/json")
            return
        if b"/responses/resp_" in request.line:
            await self._retrieve(request, connection)
            return
        is_count, is_compaction = b"/input_tokens" in request.line, b"/compact" in request.line
        if not (is_count or is_compaction):
            self.raw.append(request.body)
        try:
            asked = json.loads(request.body) if is_count or is_compaction else self._read(request.body)
            if is_count and "stream" in asked:
                raise Refused("R2", "Unknown parameter: 'stream'.", "stream", "unknown_parameter")
            items = self._judge(asked, binds=not is_compaction)
        except Refused as refused:
            self.refused.append((refused.rule, str(refused)))
            status = b"404 Not Found" if refused.status == 404 else b"400 Bad Request"
            await send_reply(connection, status, refused.body(), b"content-type: application/json")
            return
        if is_count or is_compaction:
            (self.counted if is_count else self.compacted).append(asked)
            made = self._compact(items) if is_compaction else _count(request.body)
            await send_reply(connection, b"200 OK", json.dumps(made).encode(), b"content-type: application/json")
            return
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            await answer(request, connection)
            return
        made = self._make(answer, asked, items)
        if asked.get("background") is True and not asked.get("stream"):
            made = made | {"status": "queued", "output": [], "usage": None}
        if asked.get("stream") is True:
            await connection.send(STREAM)
            for one in events(made, self.size):
                await connection.chunk(one)
            await connection.chunk(b"")
        else:
            await send_reply(connection, b"200 OK", json.dumps(made).encode(), b"content-type: application/json")

    async def _retrieve(self, request: RawRequest, connection: Connection) -> None:
        """Answer GET, DELETE and cancel of a stored response."""
        method, path, _ = request.line.decode().split(" ")
        name, _, rest = path.partition("/responses/")[2].partition("/")
        found = self.known.get(name)
        made: Json = found or {}
        if found is None or rest == "cancel":
            text = "Cannot cancel a synchronous response." if found else f"Response with id '{name}' not found."
            refused = Refused("R8", text, status=404)
            status = b"400 Bad Request" if found else b"404 Not Found"
            await send_reply(connection, status, refused.body(), b"content-type: application/json")
            return
        if method == "DELETE":
            del self.known[name], self._responses[name]
            made = {"id": name, "object": "response", "deleted": True}
        await send_reply(connection, b"200 OK", json.dumps(made).encode(), b"content-type: application/json")

    def _compact(self, items: list[Json]) -> Json:
        """All messages of the user, and one item for the rest."""
        kept = [one for one in items if one["type"] == "message" and one["role"] == "user"]
        seal = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}
        return {"id": "resp_c", "object": "response.compaction", "output": [*kept, seal], "usage": {"total_tokens": 1}}

    def respond(self, body: bytes) -> Json:
        """The response to a body, without a socket. Raises Refused."""
        asked = self._read(body)
        try:
            items = self._judge(asked)
        except Refused as refused:
            self.refused.append((refused.rule, str(refused)))
            raise
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        assert not callable(answer)
        return self._make(answer, asked, items)

    def _make(self, answer: str | Sequence[Piece], asked: Json, items: list[Json]) -> Json:
        return self._answer([Say(answer)] if isinstance(answer, str) else answer, asked, items)

    def _read(self, body: bytes) -> Json:
        try:
            asked = json.loads(body)
        except ValueError:
            raise Refused("R1", "We could not parse the JSON body of your request.") from None
        self.received.append(asked)
        return dict(asked)

    def _judge(self, asked: Json, *, binds: bool = True) -> list[Json]:
        """The whole input. binds: reasoning behind another prompt is left out of it. Raises Refused."""
        check_parameters(asked)
        if not self.encrypts and "reasoning.encrypted_content" in (asked.get("include") or ()):
            raise Refused("R2", "Encrypted content is not supported with this model.", "include")
        items = self._history(asked) + list_items(asked)
        for n, item in enumerate(items):
            check_item(n, item, len(items))
        check_marks(items)
        self._check_ids(items, is_stored=asked.get("store", True))
        check_pairs(items)
        self._check_reasoning(items)
        return self._check_tokens(items, asked) if binds else items

    def _history(self, asked: Json) -> list[Json]:
        before, conversation = asked.get("previous_response_id"), asked.get("conversation")
        if conversation is not None:
            name = conversation["id"] if isinstance(conversation, dict) else conversation
            if name not in self.conversations:
                raise Refused("R10", f"Conversation with id '{name}' not found.", "conversation", status=404)
            return list(self.conversations[name])
        if before is None:
            return []
        if before not in self._responses:
            text = f"Previous response with id '{before}' not found."
            raise Refused("R10", text, "previous_response_id", "previous_response_not_found")
        return self._responses[before]

    def _check_ids(self, items: list[Json], *, is_stored: bool) -> None:
        seen: set[str] = set()
        for n, item in enumerate(items):
            own = item.get("id")
            if item["type"] == "item_reference" or (
                item["type"] == "reasoning" and own and not item.get("encrypted_content")
            ):
                if own not in self._stored:
                    text = f"Item with id '{own}' not found."
                    if not is_stored:
                        text += " Items are not persisted when `store` is set to false. Try again with `store` set to"
                        text += " true, or remove this item from your input."
                    raise Refused("R8", text, "input", status=404)
                items[n] = self._stored[str(own)]
            if own and own in seen and item["type"] != "local_shell_call_output":
                text = f"Duplicate item found with id {own}. Remove duplicate items from your input and try again."
                raise Refused("R11", text, "input")
            seen.add(str(own))

    def _check_reasoning(self, items: list[Json]) -> None:
        led_by: list[str] = []
        for n, item in enumerate(items):
            own = item.get("id")
            if not is_made_by_model(item):
                led_by = []
            elif item["type"] == "reasoning":
                led_by.append(str(own))
                follower = items[n + 1] if n + 1 < len(items) else None
                if follower is None or not is_made_by_model(follower) or follower["type"] == "reasoning":
                    text = f"Item '{own}' of type 'reasoning' was provided without its required following item."
                    raise Refused("R6", text, "input")
            elif own and self._partners.get(own, own) not in (*led_by, own):
                text = f"Item '{own}' of type '{item['type']}' was provided without its required 'reasoning' item: "
                raise Refused("R7", text + f"'{self._partners[own]}'.", "input")

    def _check_tokens(self, items: list[Json], asked: Json) -> list[Json]:
        """The input without reasoning that was made behind another prefix."""
        kept: list[Json] = []
        self._told = []
        after = ""
        for item in items:
            token = item.get("encrypted_content") if item["type"] == "reasoning" else None
            if not token:
                kept.append(item)
                continue
            signed = read_token(token, item)
            reason = ""
            if signed["model"] != asked["model"]:
                reason = "model_mismatch"
            elif self.binds and (
                signed["prefix"] != sign_prefix(asked, kept) or after[-24:] not in ("", signed["after"])
            ):
                reason = "prefix_mismatch"
            if reason:
                self.dropped.append((str(item.get("id")), reason))
                self._told.append({"id": item.get("id"), "type": "reasoning", "action": "removed", "reason": reason})
                continue
            after = token
            kept.append(item)
        return kept

    def _answer(self, pieces: Sequence[Piece], asked: Json, items: list[Json]) -> Json:
        self._count += 1
        output: list[Json] = []
        reasoning = ""
        tokens = [
            one["encrypted_content"] for one in items if one["type"] == "reasoning" and one.get("encrypted_content")
        ]
        after = tokens[-1] if tokens else ""
        for piece in pieces:
            self._made += 1
            item = make_item(piece, self._made)
            if item["type"] == "reasoning":
                token = make_token(item, asked, [*items, *output], after)
                wanted = "reasoning.encrypted_content" in (asked.get("include") or ())
                item["encrypted_content"] = after = token
                if self.encrypts or asked.get("store", True):
                    self._stored[item["id"]] = dict(item)
                if not self.encrypts or (not wanted and asked.get("store", True)):
                    item["encrypted_content"] = None
                reasoning = item["id"]
            else:
                if reasoning:
                    self._partners[item["id"]] = reasoning
                if asked.get("store", True):
                    self._stored[item["id"]] = item
            output.append(item)
        made = response(*output, number=self._count, model=asked["model"], usage=self._usage(asked, items, output))
        made |= {"instructions": asked.get("instructions"), "tools": asked.get("tools") or []}
        made |= {"previous_response_id": asked.get("previous_response_id"), "store": asked.get("store", True)}
        made["service_tier"] = asked.get("service_tier", "default")
        if self._told:
            made["input_transformations"] = self._told
        if asked.get("store", True):
            self._responses[made["id"]] = [*items, *output]
            self.known[made["id"]] = made
        conversation = asked.get("conversation")
        if conversation is not None:
            name = conversation["id"] if isinstance(conversation, dict) else conversation
            self.conversations[name] = [*items, *output]
        return made

    def _usage(self, asked: Json, items: list[Json], output: list[Json]) -> Json:
        prompt = [json.dumps(asked.get("tools") or [])]
        prompt += [] if self.binds else [asked.get("instructions") or ""]
        prompt += [json.dumps(item, sort_keys=True) for item in items]
        sizes = [len(one) // 4 for one in prompt]
        shared = 0
        for before in self._prefixes:
            same = next(
                (n for n, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b),
                min(len(before), len(prompt)),
            )
            shared = max(shared, sum(sizes[:same]))
        self._prefixes.append(prompt)
        thought = sum(20 for one in output if one["type"] == "reasoning")
        wrote = len(json.dumps(output)) // 4
        self.usages.append({"input": sum(sizes), "cached": shared // 128 * 128})
        return {
            "input_tokens": sum(sizes),
            "input_tokens_details": {"cached_tokens": shared // 128 * 128, "cache_write_tokens": 0},
            "output_tokens": wrote,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": sum(sizes) + wrote,
        }


def _count(body: bytes) -> Json:
    return {"object": "response.input_tokens", "input_tokens": len(body) // 4}


def make_item(piece: Piece, number: int) -> Json:
    if isinstance(piece, Say):
        return message(number, piece.text)
    if isinstance(piece, Think):
        return thinking(number, *([piece.text] if piece.text else []))
    if isinstance(piece, Search):
        return web_search(number)
    if isinstance(piece.arguments, str):
        return custom_call(number, piece.name, piece.arguments)
    return tool_call(number, piece.name, json.dumps(dict(piece.arguments)))


def list_items(asked: Json) -> list[Json]:
    given = asked.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    items = [dict(item) for item in given or ()]
    for item in items:
        item.setdefault("type", "message" if "role" in item else "item_reference")
    return items


def is_made_by_model(item: Json) -> bool:
    if item["type"] == "message":
        return bool(item["role"] == "assistant")
    if item["type"] in ("additional_tools", "configuration_update"):
        return False
    return item["type"] == "program_output" or not item["type"].endswith(OUTPUTS) or item.get("call_id", "") is None


def check_parameters(asked: Json) -> None:
    if not isinstance(asked.get("model"), str):
        text = "Missing required parameter: 'model'."
        raise Refused("R1", text, "model", "missing_required_parameter")
    if not any(asked.get(name) for name in ("input", "previous_response_id", "prompt", "conversation")):
        names = "\"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id'"
        raise Refused("R1", f"One of {names} must be provided.", "input", "missing_required_parameter")
    for name in asked:
        if name not in PARAMETERS:
            raise Refused("R2", f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    if "temperature" in asked and asked["model"] >= "gpt-6":
        text = "Unsupported parameter: 'temperature' is not supported with this model."
        raise Refused("R2", text, "temperature", "unsupported_parameter")
    if asked.get("stream_options") and not asked.get("stream"):
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise Refused("R2", text, "stream_options")
    known = {tool.get("name") for tool in asked.get("tools") or ()}
    choice = asked.get("tool_choice")
    if isinstance(choice, dict) and choice.get("name") and choice["name"] not in known:
        raise Refused("R2", f"Tool choice '{choice['name']}' not found in 'tools' parameter.", "tool_choice")
    if asked.get("previous_response_id") and asked.get("conversation"):
        text = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
        raise Refused("R10", text, None, "mutually_exclusive_parameters")


def check_item(n: int, item: Json, count: int) -> None:
    kind = item["type"]
    if kind not in TYPES:
        text = f"Invalid value: '{kind}'. Supported values are: 'message', 'reasoning', 'function_call', ..."
        raise Refused("R3", text, f"input[{n}].type", "invalid_value")
    for name in REQUIRED.get(kind, ()):
        if name not in item:
            at = f"input[{n}].{name}"
            raise Refused("R3", f"Missing required parameter: '{at}'.", at, "missing_required_parameter")
    own = item.get("id")
    wanted = "msg" if kind == "message" and item["role"] == "assistant" else PREFIXES.get(kind)
    if own and wanted and not own.startswith(wanted):
        text = f"Invalid 'input[{n}].id': '{own}'. Expected an ID that begins with '{wanted}'."
        raise Refused("R12", text, f"input[{n}].id", "invalid_value")
    call_id = item.get("call_id") or ""
    if len(call_id) > 64:
        text = (
            f"Invalid 'input[{n}].call_id': string too long. Expected a string with maximum length 64, but got a string"
        )
        raise Refused(
            "R13", f"{text} with length {len(call_id)} instead.", f"input[{n}].call_id", "string_above_max_length"
        )
    content = item.get("content")
    for part in content if kind == "message" and isinstance(content, list) else ():
        is_output = part["type"] in ("output_text", "refusal")
        if is_output != (item["role"] == "assistant"):
            wanted = (
                "'output_text' and 'refusal'" if item["role"] == "assistant" else "'input_text', 'input_image', ..."
            )
            text = f"Invalid value: '{part['type']}'. Supported values are: {wanted}."
            raise Refused("R14", text, f"input[{n}].content", "invalid_value")
        if part["type"] == "input_text" and not part["text"]:
            raise Refused("empty", "a text of ours may not be empty", f"input[{n}].content")
    if kind == "compaction_trigger" and n + 1 < count:
        raise Refused("R15", "'compaction_trigger' must be the last input item.", f"input[{n}]")


def check_marks(items: list[Json]) -> None:
    found = 0
    for item in items:
        for name in ("content", "output"):
            parts = item.get(name)
            found += sum("prompt_cache_breakpoint" in part for part in parts) if isinstance(parts, list) else 0
    if found > 4:
        raise Refused("R16", f"A maximum of 4 prompt cache breakpoints may be provided. Found {found}.", "input")


def check_pairs(items: list[Json]) -> None:
    asked: dict[str, str] = {}
    answered: set[str] = set()
    for item in items:
        kind, call_id = item["type"], item.get("call_id")
        if kind in KINDS:
            if asked.get(str(call_id)) != KINDS[kind] or call_id in answered:
                text = f"No tool call found for {KINDS[kind]} output with call_id {call_id}."
                raise Refused("R5", text, "input")
            answered.add(str(call_id))
        elif kind in CALLS:
            asked[str(call_id)] = CALLS[kind]
    for call_id, name in asked.items():
        if call_id not in answered:
            raise Refused("R4", f"No tool output found for {name} {call_id}.", "input")


def sign_prefix(asked: Json, items: list[Json]) -> str:
    """The digest of everything that a model from GPT-6.2 on sees in front of its reasoning, values alone."""
    text, reasoning = asked.get("text") or {}, asked.get("reasoning") or {}
    seen = [asked.get("tools") or [], text.get("format"), reasoning.get("effort")]
    seen += [plain(item) for item in items if item["type"] != "reasoning"]
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:32]


def plain(value: Any) -> Any:
    """The values of an item: without ids, states, and members that SDKs add."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {k: plain(v) for k, v in value.items() if v is not None and k not in UNBOUND}
    if made.get("type") == "message" and isinstance(made.get("content"), str):
        kind = "output_text" if made["role"] == "assistant" else "input_text"
        made["content"] = [{"type": kind, "text": made["content"]}]
    return made


def make_token(item: Json, asked: Json, before: list[Json], after: str) -> str:
    signed = {"model": asked["model"], "prefix": sign_prefix(asked, before), "after": after[-24:]}
    signed["text"] = _digest(item)
    raw = json.dumps(signed).encode()
    mark = hmac.new(KEY, raw, "sha256").digest()[:16]
    return "gAAAA" + base64.urlsafe_b64encode(mark + raw).decode()


def _digest(item: Json) -> str:
    return hashlib.sha256(json.dumps(item.get("summary"), sort_keys=True).encode()).hexdigest()[:16]


def read_token(token: str, item: Json) -> Json:
    """The signed facts of a token. Raises Refused if it is no token of ours, or stands on another item."""
    try:
        raw = base64.urlsafe_b64decode(token.removeprefix("gAAAA"))
        mark, raw = raw[:16], raw[16:]
        signed = json.loads(raw) if hmac.compare_digest(mark, hmac.new(KEY, raw, "sha256").digest()[:16]) else None
    except ValueError:
        signed = None
    if signed is None or signed["text"] != _digest(item):
        short = f"{token[:7]}...{token[-4:]}"
        text = (
            f"The encrypted content {short} could not be verified. Reason: Encrypted content could not be decrypted or"
        )
        raise Refused("R9", f"{text} parsed.", None, "invalid_encrypted_content")
    return dict(signed)
