"""Every code block of docs/ and the README does what the page says it does."""

from __future__ import annotations

import hmac
import json
import runpy
import shutil
import sqlite3
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from proxy.cli.main import app
from proxy.context.plan import Insert
from proxy.notes import state_block
from proxy.settings.load import load_settings
from proxy.web.app import make_policies
from tests.conversations import PLAIN_MODEL, Json, assistant, build_view, user
from tests.documentation.blocks import ALL, PAGES, ROOT, Block, blocks, name, rows, ticked, titled
from tests.documentation.commands import ADDRESS, Place, ask, chat, lines, run
from tests.proxy_server import run_proxy_in_thread

LANGUAGES = {"sh", "python", "toml", "json", "yaml", "html", "text"}
WITH_COMMANDS = [page for page in PAGES if any(block.language == "sh" for block in blocks(page))]
LONG = "agents.md"
"""A page whose commands start several programs, which takes some seconds."""


def list_blocks(language: str, *, title: bool | None = None) -> list[Block]:
    return [one for one in ALL if one.language == language and title in (None, bool(one.title))]


def name_block(block: Block) -> str:
    return str(block)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A running proxy with a session, what an operator would have beside it, and the files that pages show."""
    tmp_path = tmp_path_factory.mktemp("place")
    db = tmp_path / "data" / "context-proxy.sqlite3"
    db.parent.mkdir(mode=0o700)
    with run_proxy_in_thread("demo", db=str(db), commands={"in_band": True}) as proxy:
        made = Place(tmp_path, f"127.0.0.1:{proxy.port}", db)
        chat(made, "my-session", ["Hello!", "What is in README.md?", "Thank you."])
        chat(made, "fix-the-build", ["Fix the build."])
        (tmp_path / "policies").mkdir()
        for block in ALL:
            if block.title.startswith("policies/"):
                (tmp_path / block.title).write_text(block.text)
        (tmp_path / "conversations.jsonl").write_text("")
        ask(made, "export", "my-session", "--out", "runs.jsonl")
        with (
            closing(sqlite3.connect(tmp_path / "backup.sqlite3")) as copied,
            closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as source,
        ):
            source.backup(copied)
        yield made


@pytest.mark.parametrize("block", ALL, ids=name_block)
def test_a_block_has_a_language_for_which_there_is_a_test(block: Block) -> None:
    assert block.language in LANGUAGES


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_code_is_indented_in_place_of_fenced(page: Path) -> None:
    """It would be run by nobody."""
    before = ""
    for line in page.read_text("utf-8").split("```")[0::2]:
        for one in line.splitlines():
            assert not (one.startswith("    ") and not before.strip()), one
            before = one


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name(page), marks=[pytest.mark.slow] * (page.name == LONG)) for page in WITH_COMMANDS],
)
def test_commands_of_a_page_run_one_after_the_other(page: Path, place: Place) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not there")
    for block in blocks(page):
        if block.language == "sh":
            for line in lines(block.text):
                run(line, place)


def test_commands_in_tables_of_the_readme_are_among_those_that_are_tried() -> None:
    shown = [code for row in rows((ROOT / "README.md").read_text("utf-8"), "Client") for code in ticked(row[1])]
    lines_to_copy = [code for code in shown if ADDRESS in code]
    assert len(lines_to_copy) >= 7
    for code in lines_to_copy:
        assert any(code in block.text for block in ALL if block.page != "README.md"), code


@pytest.mark.clients
@pytest.mark.parametrize("block", list_blocks("python", title=False), ids=name_block)
def test_a_python_client_gets_its_answer(block: Block, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if "langchain" in block.text:
        pytest.importorskip("langchain_openai")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    file = place.folder / "example.py"
    file.write_text(block.text.replace(ADDRESS, place.address))
    runpy.run_path(str(file))
    assert sessions(place) >= 3


def sessions(place: Place) -> int:
    return len(json.loads(ask(place, "sessions", "list", "--json")))


def test_the_backup_holds_the_sessions_and_serves(place: Place) -> None:
    (place.folder / "backup.sqlite3").unlink(missing_ok=True)
    run("context-proxy backup backup.sqlite3", place)
    with run_proxy_in_thread("demo", db=str(place.folder / "backup.sqlite3")) as restored:
        there = Place(place.folder, f"127.0.0.1:{restored.port}", place.folder / "backup.sqlite3")
        assert sessions(there) == sessions(place)


def test_a_receiver_takes_a_genuine_delivery_and_no_other() -> None:
    space: dict[str, Callable[..., bool]] = {}
    exec(titled("receiver.py").text, space)
    at, body = int(time.time()), b'{"id": 1}'
    made = hmac.new(b"secret", b"%d.%s" % (at, body), sha256).hexdigest()
    genuine = space["is_genuine"]
    assert genuine(f"t={at},v1={made}", body, "secret")
    assert not genuine(f"t={at},v1={made}", body + b" ", "secret")
    assert not genuine(f"t={at - 900},v1={made}", body, "secret")


def policies(folder: Path) -> dict[str, object]:
    """The policies that pages show, with the files beside them that they name."""
    for block in ALL:
        if block.title.startswith("policies/"):
            (folder / Path(block.title).name).write_text(block.text)
    return dict(make_policies(load_settings(None, {"policies_dir": str(folder), "policy": "mine"})))


def test_the_policy_and_the_stage_of_ones_own_work(tmp_path: Path) -> None:
    policy = policies(tmp_path)["mine"]
    values: list[Json] = [
        user("a"),
        assistant("Let me think about it."),
        *[user("b"), assistant("Well.")] * 5,
        user("c"),
    ]
    (proposal,) = policy.stages[0](build_view(values))  # type: ignore[attr-defined]  # a Policy
    assert (proposal.index, proposal.action) == (1, "gone")
    assert policy.stages[1].big == 500  # type: ignore[attr-defined]  # the setting of the stage that we ship


def test_the_injection_of_ones_own_works(tmp_path: Path) -> None:
    policy = policies(tmp_path)["talkative"]
    injection = policy.injections[0]  # type: ignore[attr-defined]  # a Policy
    model = replace(PLAIN_MODEL, window=1000)
    assert list(injection(build_view([user("a")], model=model))) == []
    (told,) = injection(build_view([user("a" * 300)], model=model))
    assert isinstance(told, Insert)
    assert told.text.endswith("of 800 tokens.]")


@pytest.mark.parametrize(
    "block", [one for one in list_blocks("toml") if not one.title.startswith("policies/")], ids=name_block
)
def test_a_config_file_is_accepted(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert block.title, "a TOML block says which file it is"
    if block.title == "~/.codex/config.toml" and "mcp_servers" in block.text:
        check_mcp_server(tomllib.loads(block.text)["mcp_servers"]["context-proxy"])
        return
    if block.title == "~/.codex/config.toml":  # Codex adds `/responses`
        assert tomllib.loads(block.text) == {"openai_base_url": f"http://{ADDRESS}/v1"}
        return
    if block.title == "~/.kimi-code/config.toml":
        assert tomllib.loads(block.text)["providers"]["proxy"]["base_url"] == f"http://{ADDRESS}/v1"
        return
    if block.title == "~/.vibe/config.toml":
        assert tomllib.loads(block.text)["providers"][0]["api_base"] == f"http://{ADDRESS}/v1"
        return
    file = tmp_path / block.title
    file.write_text(block.text)
    for variable in ("CONTEXT_WEBHOOK_SECRET", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, "a secret")
    if block.title == "models.toml":
        assert [model.name for model in load_settings(None, {"models_file": str(file)}).load_models()][:2] == [
            "gpt-5*",
            "my-finetune",
        ]
        return
    settings = load_settings(file)
    make_policies(settings)
    taken = False
    for upstream in settings.upstreams.values():  # the first whose models match gets the request
        assert not (taken and upstream.models), "no request reaches this upstream"
        taken = taken or "*" in upstream.models


def check_mcp_server(server: dict[str, Any]) -> None:
    """An entry of an agent's configuration that starts the MCP server."""
    command, options = server["args"][0], server["args"][1:]
    assert (server["command"], command) == ("context-proxy", "mcp")
    known = {option for one in get_command(app).commands["mcp"].params for option in one.opts}  # type: ignore[attr-defined]
    assert set(options[0::2]) <= known
    assert options[1::2] == [f"http://{ADDRESS}"]


@pytest.mark.parametrize("block", list_blocks("json"), ids=name_block)
def test_json_points_to_the_proxy(block: Block) -> None:
    if block.title == ".mcp.json":
        check_mcp_server(json.loads(block.text)["mcpServers"]["context-proxy"])
        return
    if block.title == "~/.pi/agent/models.json":
        assert json.loads(block.text)["providers"]["proxy"]["baseUrl"] == f"http://{ADDRESS}/v1"
        return
    if block.title == "~/.openclaw/openclaw.json":
        assert json.loads(block.text)["models"]["providers"]["proxy"]["baseUrl"] == f"http://{ADDRESS}/v1"
        return
    if block.title == "~/.nanobot/config.json":
        assert json.loads(block.text)["providers"]["custom"]["apiBase"] == f"http://{ADDRESS}/v1"
        return
    if block.title == "agents.config.json":
        assert json.loads(block.text)["nanocoder"]["providers"][0]["baseUrl"] == f"http://{ADDRESS}/v1"
        return
    if block.title == "~/.factory/settings.json":
        assert json.loads(block.text)["customModels"][0]["baseUrl"] == f"http://{ADDRESS}/v1"
        return
    [(_, provider)] = json.loads(block.text)["provider"].items()
    assert provider["options"]["baseURL"] == f"http://{ADDRESS}/v1"


@pytest.mark.parametrize("block", list_blocks("yaml"), ids=name_block)
def test_yaml_examples_point_to_the_proxy(block: Block) -> None:
    told = yaml.safe_load(block.text)
    if block.title == "prometheus.yml":
        shipped = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text())
        assert told["scrape_configs"] == shipped["scrape_configs"]
    elif block.title == "litellm.yaml":
        assert told["guardrails"][0]["litellm_params"]["api_base"] == f"http://{ADDRESS}"
    elif block.title == "litellm.yaml, LiteLLM in front":
        bases = [one["litellm_params"]["api_base"] for one in told["model_list"]]
        assert bases == [f"http://{ADDRESS}/v1", f"http://{ADDRESS}"]
    elif "cn --config" in block.title:
        assert told["models"][0]["apiBase"] == f"http://{ADDRESS}/v1"
    elif "hermes" in block.title:
        assert told["model"]["base_url"] == f"http://{ADDRESS}/v1"
    else:
        assert told["model"]["model_kwargs"]["api_base"] == f"http://{ADDRESS}/v1"


@pytest.mark.parametrize("block", list_blocks("html"), ids=name_block)
def test_the_widget_of_a_page_is_served(block: Block) -> None:
    script = ROOT / "proxy" / "web" / "dashboard" / "static" / "widget.js"
    assert "/dashboard/widget.js" in block.text
    assert "context-manager-widget" in script.read_text()
    assert "<context-manager-widget " in block.text


@pytest.mark.parametrize("block", list_blocks("text"), ids=name_block)
def test_shown_output_is_the_real_output(block: Block, place: Place) -> None:
    """A table of replay has the columns that a run prints; a STATE block is the one that is asked for."""
    if block.text.startswith(state_block.HEADING):
        assert block.text.strip() in state_block.build_prompt()
        return
    told = ask(place, "replay", "runs.jsonl", "--jobs", "1")
    for line in block.text.splitlines():
        if line.strip().startswith(("policy", "eff.", "Effective cost")):
            assert " ".join(line.split()) in [" ".join(one.split()) for one in told.splitlines()]
