"""Stands for the coding agents: reads its address where the agent of its name does, and works through a task.

It is started by a link that has the agent's name. Its last line on stdout says what it was given. It runs without the
project's packages.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

STEPS = 8
RESULT = "a line of the log that says nothing new\n" * 150


def argument(name: str) -> str:
    at = sys.argv.index(name)
    return sys.argv[at + 1]


def address(agent: str) -> tuple[str, str]:
    """(URL of the requests, their format), as the agent of that name finds it."""
    env = os.environ
    if agent == "claude":
        return env["ANTHROPIC_BASE_URL"] + "/v1/messages", "messages"
    if agent == "codex":
        return json.loads(argument("-c").partition("=")[2]) + "/responses", "responses"
    if agent == "gemini":
        return env["GOOGLE_GEMINI_BASE_URL"] + "/v1beta/models/gemini-2.5-flash:generateContent", "gemini"
    if agent == "opencode":
        options = json.loads(env["OPENCODE_CONFIG_CONTENT"])["provider"]["openai"]["options"]
        return options["baseURL"] + "/responses", "responses"
    if agent == "qwen":
        return argument("--openai-base-url") + "/chat/completions", "chat"
    if agent == "aider":
        return env["AIDER_OPENAI_API_BASE"] + "/chat/completions", "chat"
    return env["COPILOT_PROVIDER_BASE_URL"] + "/chat/completions", "chat"


def ask(url: str, body: Any) -> Any:
    headers = {
        "content-type": "application/json",
        "authorization": "Bearer sk-one",
        "x-api-key": "sk-one",
        "x-goog-api-key": "sk-one",
        "anthropic-version": "2023-06-01",
    }
    # Not by way of a proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.loads(answer.read())


def work(url: str, form: str) -> None:
    """Each step asks, and shows a long file in the next message."""
    history: list[Any] = []
    for step in range(STEPS):
        asked = f"Step {step}: what does this say?\n{RESULT}"
        if form == "gemini":
            history.append({"role": "user", "parts": [{"text": asked}]})
            history.append(ask(url, {"contents": history})["candidates"][0]["content"])
            continue
        history.append({"role": "user", "content": asked})
        if form == "messages":
            made = ask(url, {"model": "claude-opus-5-5", "max_tokens": 100, "system": "Careful.", "messages": history})
            history.append({"role": "assistant", "content": made["content"]})
        elif form == "responses":
            made = ask(url, {"model": "gpt-5", "store": False, "input": history})
            history += made["output"]
        else:
            made = ask(url, {"model": "gpt-5", "messages": history})
            history.append(made["choices"][0]["message"])


if __name__ == "__main__":
    name = Path(sys.argv[0]).name
    place, form = address(name)
    if "--idle" not in sys.argv:
        work(place, form)
    print(json.dumps({"url": place, "arguments": sys.argv[1:], "environment": dict(os.environ)}))
    sys.exit(7)
