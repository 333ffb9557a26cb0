"""The scripted model's texts and tool calls: a pure function of the request.

It is made for a trial in somebody's real agent with real tools. It therefore calls at most two tools a prompt and then
answers from their results. Its arguments are harmless: a command is only `ls` or the `echo` that ends a run. A tool
that writes, or starts another agent, is called only if the prompt names it or a tool choice forces it. A reminder
that the agent itself puts into a user message is no prompt. It often says that a subagent has ended, and to start the
next one for it would never end.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

MAX_CALLS: Final = 2
"""Tool calls for one user prompt, at most."""

FINISH_MARK: Final = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""mini-swe-agent ends when a command prints this; it would ask a model that never does so without end."""

_ASKS: Final = re.compile(
    r"\b(use|using|call|look|find|search|fetch|get|read|list|show|run|check|open|query|explore|inspect|fix|solve|debug|"
    r"investigate|review|summari[sz]e)\b",
    re.IGNORECASE,
)
_SMALL_TALK: Final = re.compile(
    r"\s*(hi|hello|hey|thanks|thank you|good (morning|evening)|bye)\b[\s\S]{0,40}$", re.IGNORECASE
)
_WRITES: Final = re.compile(
    r"write|edit|delete|remove|create|patch|apply|update|move|rename|send|post|kill|install|push|commit|replace|save",
    re.IGNORECASE,
)
_STARTS: Final = re.compile(r"agent|task|workflow|schedule|cron|wake|monitor|background", re.IGNORECASE)
_REMINDER: Final = re.compile(r"<system-reminder>.*?(?:</system-reminder>\s*|$)", re.DOTALL)
"""Text of Claude Code that is in a user message, and that no user has said."""
_IN_TURN: Final = re.compile(r"\b(?:and then|then|after that|afterwards)\b", re.IGNORECASE)
_COMMAND: Final = re.compile(r"^(cmd|command|commands|bash|script|shell)$", re.IGNORECASE)
_PATHLIKE: Final = re.compile(r"(?:[\w.-]*/)*[\w-]+\.(?:[a-z]{1,4})\b|(?:\.{0,2}/)[\w./-]+", re.IGNORECASE)
_STOPWORDS: Final = frozenset({"the", "and", "for", "with", "from", "this", "that", "you", "your", "tool", "function"})


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call. `custom` tools take text rather than JSON."""

    name: str
    arguments: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """The model's turn: a text, or calls."""

    text: str
    calls: tuple[ScriptedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientTool:
    """One of the client's tools, reduced to the fields that the script needs."""

    name: str
    description: str
    schema: Json
    custom: bool


def take_turn(request: Json) -> ScriptedTurn:
    """Return the next turn of the assistant. `request` has a non-empty list of messages that are objects."""
    messages: list[Json] = request["messages"]
    prompt, since = _find_latest_prompt(messages)
    results = [read_message_text(message) for message in since if message.get("role") in ("tool", "function")]
    called = [name for message in since for name in _list_called_names(message)]
    schema = _read_response_schema(request)
    calls = _choose_calls(request, messages, prompt, called)
    if calls:
        return ScriptedTurn("", tuple(calls))
    if schema is not None:
        return ScriptedTurn(json.dumps(_make_json_answer(schema, prompt), ensure_ascii=False))
    text = _describe_results(prompt, called, results) if results else _describe_prompt(prompt, len(messages))
    if any("### STATE" in read_message_text(message) for message in messages):
        text += _write_state(prompt, called)
    return ScriptedTurn(text)


def read_message_text(message: Json) -> str:
    """Return a message's text, its parts joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _find_latest_prompt(messages: list[Json]) -> tuple[str, list[Json]]:
    """Return the last user message's text without reminders, and all messages after it."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            return _REMINDER.sub("", read_message_text(messages[index])), messages[index + 1 :]
    return "", messages


def _list_called_names(message: Json) -> list[str]:
    calls = message.get("tool_calls")
    out = []
    for call in calls if isinstance(calls, list) else []:
        named = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        if isinstance(named, dict) and isinstance(named.get("name"), str):
            out.append(named["name"])
    return out


# The choice of tools


def _read_tools(request: Json) -> list[ClientTool]:
    given = request.get("tools")
    out = []
    for tool in given if isinstance(given, list) else []:
        kind = tool.get("type") if isinstance(tool, dict) else None
        inner = tool.get(kind) if kind in ("function", "custom") else None
        if isinstance(inner, dict) and isinstance(inner.get("name"), str):
            schema = inner.get("parameters")
            description = str(inner.get("description") or "")
            out.append(
                ClientTool(inner["name"], description, schema if isinstance(schema, dict) else {}, kind == "custom")
            )
    return out


def _choose_calls(request: Json, messages: list[Json], prompt: str, called: list[str]) -> list[ScriptedCall]:
    tools = _read_tools(request)
    choice = request.get("tool_choice")
    if not tools or choice == "none":
        return []
    forced = choice == "required"
    if isinstance(choice, dict):
        tools, forced = _narrow_tools(tools, choice)
    finishing = _find_finish_call(tools, messages)
    if finishing is not None:
        return [finishing]
    if not forced and (len(called) >= MAX_CALLS or _SMALL_TALK.match(prompt)):
        return []
    steps = [prompt] if forced else _IN_TURN.split(prompt)[:MAX_CALLS]
    if called and not forced:
        if len(called) >= len(steps):
            return []
        steps = steps[len(called) :]
    step = steps[0]
    wanted = [tool for tool in tools if _is_named(tool, step)] or _choose_tool(tools, step, forced=forced)
    together = request.get("parallel_tool_calls") is not False and not forced and len(steps) == 1
    return [_make_call(tool, step) for tool in wanted[: MAX_CALLS if together else 1]]


def _narrow_tools(tools: list[ClientTool], choice: Json) -> tuple[list[ClientTool], bool]:
    """Return the tools that a tool_choice object leaves, and True if one of them must be called."""
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict):
        given = allowed.get("tools")
        names = {name for entry in (given if isinstance(given, list) else []) for name in _list_tool_names(entry)}
        return [tool for tool in tools if tool.name in names], allowed.get("mode") == "required"
    names = set(_list_tool_names(choice))
    return [tool for tool in tools if tool.name in names], True


def _list_tool_names(entry: Any) -> list[str]:
    inner = (entry.get("function") or entry.get("custom")) if isinstance(entry, dict) else None
    return [inner["name"]] if isinstance(inner, dict) and isinstance(inner.get("name"), str) else []


def _find_finish_call(tools: list[ClientTool], messages: list[Json]) -> ScriptedCall | None:
    """Return the command that tells an agent that the work is done; None before an answer, or if none is asked."""
    shell = next((tool for tool in tools if "command" in _read_properties(tool.schema)), None)
    if shell is None or not any(message.get("role") == "assistant" for message in messages):
        return None
    if not any(FINISH_MARK in read_message_text(message) for message in messages if message.get("role") != "assistant"):
        return None
    return ScriptedCall(shell.name, json.dumps({"command": f"echo {FINISH_MARK}"}))


def _is_named(tool: ClientTool, prompt: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", prompt, re.IGNORECASE) is not None


def _choose_tool(tools: list[ClientTool], prompt: str, *, forced: bool) -> list[ClientTool]:
    """Return the tool whose words fit the prompt best; the first if none does and the prompt asks for an action.

    A tool that changes things or starts an agent must be named in full, or forced. Its name counts more than its
    description, however long.
    """
    usable = tools if forced else [one for one in tools if not (_WRITES.search(one.name) or _STARTS.search(one.name))]
    if not usable:
        return []
    asked = _split_words(prompt)
    fit = {
        tool.name: 3 * len(asked & _split_words(tool.name)) + min(2, len(asked & _split_words(tool.description)))
        for tool in usable
    }
    best = max(usable, key=lambda tool: fit[tool.name])  # the first of equals
    return [best] if forced or fit[best.name] > 0 or _ASKS.search(prompt) else []


def _split_words(text: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ")
    return {word.rstrip("s") for word in re.findall(r"[^\W_]{3,}", spaced.lower())} - _STOPWORDS


# The arguments of the calls


def _make_call(tool: ClientTool, prompt: str) -> ScriptedCall:
    if tool.custom:
        return ScriptedCall(tool.name, _find_quoted_text(prompt) or _shorten_text(prompt, 80), custom=True)
    wanted = SchemaFiller(prompt, tool.schema, writes=bool(_WRITES.search(tool.name))).make_value(tool.schema, "", 0)
    return ScriptedCall(tool.name, json.dumps(wanted if isinstance(wanted, dict) else {}, ensure_ascii=False))


def _read_properties(schema: Json) -> Json:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


class SchemaFiller:
    """Fill a JSON schema's required members with values from the prompt, each number once."""

    def __init__(self, prompt: str, root: Json, *, writes: bool = False) -> None:
        self._prompt = prompt
        self._root = root
        self._writes = writes
        self._numbers = [float(number) for number in re.findall(r"(?<![\w.])-?\d{1,15}(?![\d])(?:\.\d+)?", prompt)]

    def make_value(self, schema: Any, name: str, depth: int) -> Any:
        """Return a value that fits. Below eight levels it is null, because schemas may be recursive."""
        schema = self._resolve_schema(schema)
        if depth > 8:
            return None
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            options = schema["enum"]
            return next((one for one in options if str(one).lower() in self._prompt.lower()), options[0])
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        if kind == "object" or "properties" in schema:
            properties = _read_properties(schema)
            required = schema.get("required")
            names = [one for one in required if isinstance(one, str)] if isinstance(required, list) else []
            return {one: self.make_value(properties.get(one, {}), one, depth + 1) for one in names}
        if kind == "array":
            least = schema.get("minItems")
            count = min(max(1, least), 20) if isinstance(least, int) else 1
            return [self.make_value(schema.get("items", {}), name, depth + 1)] * count
        if kind in ("integer", "number"):
            return self._make_number(schema, whole=kind == "integer")
        if kind == "boolean":
            return True
        return None if kind == "null" else self._make_text(schema, name)

    def _resolve_schema(self, schema: Any) -> Json:
        for _ in range(8):
            if not isinstance(schema, dict):
                return {}
            reference = schema.get("$ref")
            options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if isinstance(reference, str) and reference.startswith("#/"):
                found: Any = self._root
                for part in reference[2:].split("/"):
                    found = found.get(part, {}) if isinstance(found, dict) else {}
                schema = found
            elif isinstance(options, list) and options:
                schema = next((one for one in options if isinstance(one, dict) and one.get("type") != "null"), {})
            else:
                return schema
        return {}

    def _make_number(self, schema: Json, *, whole: bool) -> float | int:
        least = schema.get("minimum")
        number = self._numbers.pop(0) if self._numbers else 1.0
        if isinstance(least, int | float) and number < least < 1e15:
            number = float(least)
        return int(number) if whole or number.is_integer() else number

    def _make_text(self, schema: Json, name: str) -> str:
        lowered = name.lower()
        if _COMMAND.match(name):
            return "ls"
        if schema.get("format") in ("date", "date-time") or lowered == "date":
            return "2026-01-01T00:00:00Z" if schema.get("format") == "date-time" else "2026-01-01"
        if "url" in lowered or schema.get("format") == "uri":
            match = re.search(r"https?://[^\s\"'<>)\]]+", self._prompt)
            return match[0] if match else "https://example.com/"
        if "dir" in lowered or lowered in ("folder", "cwd"):
            return "."
        if "path" in lowered or "file" in lowered:
            match = _PATHLIKE.search(self._prompt)
            return "demo.txt" if self._writes else match[0] if match else "README.md"
        about = re.search(r"\b(?:in|of|for|about|named|called)\s+([^\n?!.:;]{2,60})", self._prompt)
        return (
            _find_quoted_text(self._prompt)
            or (about[1].strip() if about else _shorten_text(self._prompt, 80))
            or "demo"
        )


def _find_quoted_text(prompt: str) -> str:
    found = re.search(r"[\"“«「]([^\"”»」\n]{1,200})[\"”»」]|(?<!\w)'([^'\n]{1,200})'(?!\w)|`([^`\n]{1,200})`", prompt)
    return next((group for group in found.groups() if group), "") if found else ""


# The texts


def _read_response_schema(request: Json) -> Json | None:
    response_format = request.get("response_format")
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "json_object":
        return {}
    inner = response_format.get("json_schema") if kind == "json_schema" and isinstance(response_format, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else {} if kind == "json_schema" else None


def _make_json_answer(schema: Json, prompt: str) -> Any:
    if schema:
        return SchemaFiller(prompt, schema).make_value(schema, "", 0)
    keys = re.findall(r"[\"'`](\w{1,40})[\"'`]", prompt)
    if keys:
        return {key: f"{key} of the demo model" for key in dict.fromkeys(keys)}
    return {"answer": f"You asked: {_shorten_text(prompt, 120)}"}


def _describe_results(prompt: str, called: list[str], results: list[str]) -> str:
    parts = []
    for name, result in zip([*called, *["the tool"] * len(results)], results, strict=False):
        shown = _shorten_text(result, 400, lines=True)
        parts.append(f"`{name}` gave:\n\n" + "\n".join(f"> {line}" for line in shown.splitlines()))
    asked = f"You asked: “{_shorten_text(prompt, 160)}”\n\n" if prompt else ""
    separator = "\n\n"
    return f"{asked}{separator.join(parts)}\n\nThat is all the scripted demo model can make of it."


def _describe_prompt(prompt: str, messages: int) -> str:
    count = "1 message" if messages == 1 else f"{messages} messages"
    quoted = f"You said: “{_shorten_text(prompt, 160)}”\n\n" if prompt else ""
    return (
        f"{quoted}I am the scripted demo model: I need no key and no network, I call your tools, and I answer from "
        f"what they return. {count} reached me. Set an upstream to talk to a real one."
    )


def _write_state(prompt: str, called: list[str]) -> str:
    used = ", ".join(f"`{name}`" for name in called) or "none yet"
    return (
        f"\n\n### STATE\n**Goal**: {_shorten_text(prompt, 120) or 'not said yet'}\n"
        f"**Context**: a conversation with the scripted demo model\n"
        f"**Resolved**: the last prompt was answered\n**Technical Anchors**: tools called: {used}"
    )


def _shorten_text(text: str, limit: int, *, lines: bool = False) -> str:
    """Return the beginning of the text: its first paragraph on one line, or (`lines`) all of its lines."""
    text = text.strip()
    if not lines:
        text = re.sub(r"\s+", " ", text.split("\n\n")[0])
    return text if len(text) <= limit else text[:limit].rstrip() + "…"
