"""The google-genai SDK in loops of 25 steps: a loop of the client's own, and the SDK's own loop in a chat."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clouds import VertexGemini, on
from tests.clients.loops import POLICIES, PROMPT, FileTool, Run, check_client, make_gemini_model, make_path

# Any, where the package is not installed as well: then the tests are skipped with this reason.
genai: Any = pytest.importorskip("google.genai", reason="the google-genai SDK is not installed")
types: Any = import_module("google.genai.types")
oauth2: Any = import_module("google.oauth2.credentials")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning"),  # the SDK derives from aiohttp's session
]

MODEL = "gemini-3-pro-preview"
SYSTEM = "You are a careful engineer."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def make_client(base: str, *, on_vertex: bool = False) -> Any:
    options = types.HttpOptions(base_url=base)
    if not on_vertex:
        return genai.Client(api_key="any", http_options=options).aio
    token = oauth2.Credentials("ya29.token")
    return genai.Client(vertexai=True, project="team", location="us-east5", credentials=token, http_options=options).aio


def make_config(tool: Any, **more: Any) -> Any:
    thinking = types.ThinkingConfig(include_thoughts=True)
    return types.GenerateContentConfig(system_instruction=SYSTEM, tools=[tool], thinking_config=thinking, **more)


async def run_models(base: str, stream: bool, *, on_vertex: bool = False) -> Run:
    """`models.generate_content` and its stream, each content sent back as the SDK gives it."""
    file_tool, contents = FileTool(), [types.Content(role="user", parts=[types.Part(text=PROMPT)])]
    declared = types.FunctionDeclaration(name="read", description="Read a file.", parameters_json_schema=SCHEMA)
    config = make_config(types.Tool(function_declarations=[declared]))
    async with make_client(base, on_vertex=on_vertex) as client:
        while True:
            asked = {"model": MODEL, "contents": contents, "config": config}
            if stream:
                chunks = [chunk async for chunk in await client.models.generate_content_stream(**asked)]
            else:
                chunks = [await client.models.generate_content(**asked)]
            parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
            contents.append(types.Content(role="model", parts=parts))
            calls = [part.function_call for part in parts if part.function_call]
            if not calls:
                text = "".join(part.text for part in parts if part.text and not part.thought)
                return Run(text, [one.model_dump(mode="json", exclude_none=True) for one in contents], file_tool)
            results = [
                types.Part.from_function_response(name=one.name, response={"output": file_tool.read(**one.args)})
                for one in calls
            ]
            contents.append(types.Content(role="user", parts=results))


async def run_chat(base: str, stream: bool) -> Run:
    """A chat, in which the SDK runs the tool itself."""
    file_tool = FileTool()

    def read(path: str) -> str:
        """Read a file."""
        return file_tool.read(path)

    limit = types.AutomaticFunctionCallingConfig(maximum_remote_calls=100)
    async with make_client(base) as client:
        chat = client.chats.create(model=MODEL, config=make_config(read, automatic_function_calling=limit))
        if stream:
            text = "".join([chunk.text or "" async for chunk in await chat.send_message_stream(PROMPT)])
            text = text.rpartition("Step 24.")[2]
        else:
            text = (await chat.send_message(PROMPT)).text
        return Run(text, [one.model_dump(mode="json", exclude_none=True) for one in chat.get_history()], file_tool)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_models, partial(make_gemini_model, "read", make_path), POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_on_vertex_ai_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    client = partial(run_models, on_vertex=True)
    make_model = on(VertexGemini, partial(make_gemini_model, "read", make_path))
    await check_client(client, make_model, POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_sdk_s_own_loop_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_chat, partial(make_gemini_model, "read", make_path), "thrifty", tmp_path, stream=stream)
