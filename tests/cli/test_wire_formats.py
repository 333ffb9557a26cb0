from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from proxy.cli.serve import make_examples
from proxy.cli.wire_formats import BEDROCK, COMPLETIONS, GEMINI, MESSAGES, find_plain_model, find_wire_format
from proxy.context.models import find_model
from proxy.settings.load import Settings, UpstreamSettings
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages


@pytest.mark.parametrize(
    ("upstream", "wire_format"),
    [
        ({"base_url": "https://api.openai.com/v1"}, COMPLETIONS),
        ({"base_url": "https://api.anthropic.com/v1"}, MESSAGES),
        ({"base_url": "http://127.0.0.1:9", "strategy": "anthropic"}, MESSAGES),
        ({"base_url": "https://generativelanguage.googleapis.com"}, GEMINI),
        ({"base_url": "https://generativelanguage.googleapis.com/v1beta/"}, GEMINI),
        ({"base_url": "https://generativelanguage.googleapis.com/v1beta/openai", "strategy": "gemini"}, COMPLETIONS),
        ({"base_url": "https://bedrock-runtime.us-east-1.amazonaws.com"}, BEDROCK),
        ({"base_url": "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1"}, COMPLETIONS),
    ],
)
def test_an_upstream_is_asked_in_its_own_format(upstream: dict[str, Any], wire_format: object) -> None:
    target = UpstreamSettings(**upstream)
    assert find_wire_format(target) is wire_format
    assert find_plain_model(target) == find_wire_format(target).model
    assert find_plain_model(UpstreamSettings(**upstream, models=("big-*", "mine"))) == "mine"


def test_the_small_models_have_prices() -> None:
    models = Settings().load_models()
    assert all(find_model(models, one.model).input is not None for one in (COMPLETIONS, MESSAGES, GEMINI, BEDROCK))


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.clients
@pytest.mark.parametrize(
    ("strategy", "model", "variable"),
    [
        ("openai", ScriptedModel("Hello!"), "OPENAI_API_KEY"),
        ("anthropic", StrictMessages("Hello!"), "ANTHROPIC_API_KEY"),
        ("gemini", StrictGemini("Hello!"), "GEMINI_API_KEY"),
    ],
)  # fmt: skip
async def test_the_examples_of_a_start_work_as_they_are(strategy: str, model: Any, variable: str) -> None:
    async with run_upstream(model) as upstream:
        tree = {"main": {"base_url": f"http://127.0.0.1:{upstream.port}", "strategy": strategy}}
        async with run_proxy(upstream.port, upstreams=tree) as proxy:
            settings = Settings.model_validate({"upstreams": tree})
            curl, client = (text for _, text in make_examples(settings, f"http://127.0.0.1:{proxy.port}/v1"))
            commands = [["sh", "-c", f"{curl} --fail --noproxy '*'"]]
            commands += [[sys.executable, "-c", client]] if "print(" in client else []
            for command in commands:
                done = await asyncio.create_subprocess_exec(
                    *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env={"PATH": os.environ["PATH"], variable: "sk-one"},
                )  # fmt: skip
                out, errors = await asyncio.wait_for(done.communicate(), 60)
                assert done.returncode == 0, errors
                assert b"Hello!" in out
