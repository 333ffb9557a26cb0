from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from typer.testing import CliRunner

from proxy.cli import doctor
from proxy.cli.agents import FIRST_PARTY, TOOL_SEARCH, AgentSurroundings
from proxy.cli.doctor import Finding
from proxy.cli.main import app
from proxy.context.models import Model
from proxy.errors import StoreRefused
from proxy.settings.load import Settings, UpstreamSettings
from proxy.store.schema import LATEST_VERSION
from proxy.store.sqlite_files import FileLock
from proxy.web.app import make_policies
from tests.postgres import drop_database, execute, new_database, new_store_database, replace_database, server
from tests.proxy_server import make_key, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, send_reply
from tests.store.test_maintenance import damage_page, make_old_store
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages


def run(folder: Path, *words: str, **environment: str | None) -> tuple[int, Any]:
    none = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"), "")
    env: dict[str, str | None] = {
        "HOME": str(folder),
        "PATH": str(folder / "bin"),
        "CONTEXT_PROXY_URL": "http://127.0.0.1:9",
        **none,
    }
    env |= environment
    done = CliRunner().invoke(app, ["doctor", "--db", str(folder / "a.sqlite3"), *words, "--json"], env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def by_name(found: Any) -> dict[str, Any]:
    return {one["about"]: one for one in found["findings"]}


async def to_thread(folder: Path, *words: str, **environment: str) -> tuple[int, dict[str, Any]]:
    code, found = await asyncio.to_thread(run, folder, *words, **environment)
    return code, by_name(found)


async def test_an_upstream_that_works_is_good_and_the_request_tells_its_cost(tmp_path: Path) -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        address = f"http://127.0.0.1:{upstream.port}/v1"
        code, found = await to_thread(
            tmp_path, "--upstream", address, "--proxy", f"http://127.0.0.1:{proxy.port}", "--model", "gpt-5",
            OPENAI_API_KEY="sk-one",
        )  # fmt: skip
        assert (code, [one for one in found.values() if one["status"] == "fault"]) == (0, [])
        assert found["upstream default"]["text"].endswith("takes the key in OPENAI_API_KEY")
        assert "window of 272,000" in found["model of default"]["text"]
        assert "thrifty edits when they pay" in found["edits for default"]["text"]
        assert "policy passthrough" in found["running proxy"]["text"]
        code, found = await to_thread(tmp_path, "--upstream", address, "--model", "gpt-5", "--send")
        told = found["request to default"]["text"]
        assert code == 0
        assert "11 and 3 tokens, $0.0000; cached tokens are not reported" in told


async def test_a_named_proxy_that_is_away_is_a_fault_and_one_with_keys_is_asked_with_a_key(tmp_path: Path) -> None:
    code, found = await to_thread(tmp_path)
    assert (code, found["running proxy"]["status"]) == (0, "unknown")
    code, found = await to_thread(tmp_path, "--proxy", "http://127.0.0.1:9")
    assert (code, found["running proxy"]["status"]) == (1, "fault")
    assert "cannot be reached" in found["running proxy"]["text"]
    async with run_proxy("demo", keys=[make_key("cp-read", "acme", "read")]) as proxy:
        words = ("--proxy", f"http://127.0.0.1:{proxy.port}")
        code, found = await to_thread(tmp_path, *words)
        assert (code, found["running proxy"]["status"]) == (0, "unknown")
        assert "$CONTEXT_PROXY_KEY" in found["running proxy"]["remedy"]
        code, found = await to_thread(tmp_path, *words, CONTEXT_PROXY_KEY="cp-read")
        assert (code, found["running proxy"]["status"]) == (0, "good")


async def test_the_proxy_is_looked_for_on_the_port_of_the_settings(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("CONTEXT_PROXY_URL", raising=False)
    async with run_proxy("demo") as proxy:
        env = {"CONTEXT_PROXY_URL": "", "CONTEXT_PROXY_PORT": str(proxy.port)}
        code, found = await to_thread(tmp_path, **env)
        assert (code, found["running proxy"]["status"]) == (0, "good")
        assert f"127.0.0.1:{proxy.port}" in found["running proxy"]["text"]


async def answers_404(request: Any, there: Any) -> None:
    await send_reply(there, b"404 Not Found", b'{"error": {"message": "no such path"}}')


async def test_a_path_that_is_not_there_is_looked_for_in_the_base_url(tmp_path: Path) -> None:
    async with run_upstream(ScriptedModel(answers_404)) as upstream:
        code, found = await to_thread(tmp_path, "--upstream", f"http://127.0.0.1:{upstream.port}/nope", "--send")
    assert (code, found["request to default"]["status"]) == (1, "fault")
    assert found["request to default"]["remedy"].startswith("Check base_url")
    assert found["upstream default"]["status"] == "unknown", "an upstream without a list of models says the same"
    assert "404" in found["upstream default"]["text"]
    assert "check its path" in found["upstream default"]["remedy"]


async def test_each_of_several_upstreams_is_looked_at_by_a_model_that_is_routed_there(tmp_path: Path) -> None:
    model, key = StrictMessages(), {"ANTHROPIC_API_KEY": "sk-ant-one"}

    async def claude(request: Any, there: Any) -> None:
        await (answers_404 if request.line.startswith(b"GET") else model)(request, there)

    async with run_upstream(ScriptedModel()) as one, run_upstream(claude) as two:
        config = tmp_path / "config.toml"

        def write(first: str) -> tuple[str, str]:
            config.write_text(
                f'[upstreams.gpt]\nbase_url = "http://127.0.0.1:{one.port}/v1"\n{first}\n'
                f'[upstreams.claude]\nbase_url = "http://127.0.0.1:{two.port}/v1"\nstrategy = "anthropic"\n'
                'models = ["claude-opus-*"]\n[upstreams.helper]\nbase_url = "demo"\nmodels = []\n'
            )
            return "--config", str(config)

        code, found = await to_thread(tmp_path, *write('models = ["gpt-*"]'), "--send", **key)
        assert code == 0
        assert "gpt-5-mini has" in found["model of gpt"]["text"]
        assert found["model of claude"]["text"].startswith("claude-opus-")
        assert {name for name in found if name.endswith(" helper")} == {"upstream helper"}
        code, found = await to_thread(
            tmp_path, *write('models = ["gpt-*"]'), "--send", "--model", "claude-opus-5-5", **key
        )
        assert code == 0
        assert "claude-opus-5-5 answered" in found["request to claude"]["text"]
        assert "model of gpt" not in found
        code, found = await to_thread(tmp_path, *write(""))
        assert (code, found["routing to claude"]["status"]) == (1, "fault")
        assert "gpt comes first" in found["routing to claude"]["text"]
        assert "upstreams.gpt.models" in found["routing to claude"]["remedy"]
    assert all(b"claude" not in request.body for request in one.requests)


async def test_nothing_is_sent_that_costs_unless_it_is_asked_for(tmp_path: Path) -> None:
    model = ScriptedModel()
    async with run_upstream(model) as upstream:
        address = f"http://127.0.0.1:{upstream.port}/v1"
        await to_thread(tmp_path, "--upstream", address)
        assert [one.line for one in model.received] == [b"GET /v1/models HTTP/1.1"]
        await to_thread(tmp_path, "--upstream", address, "--send")
        assert model.received[-1].line == b"POST /v1/chat/completions HTTP/1.1"


async def test_an_upstream_of_messages_is_asked_in_its_own_form() -> None:
    model = StrictMessages()
    async with run_upstream(model) as upstream:
        target = UpstreamSettings(
            base_url=f"http://127.0.0.1:{upstream.port}", strategy="anthropic", api_key_env="HOME"
        )
        facts = Model(input=1.0, output=5.0)
        found = await asyncio.to_thread(doctor.send_request, "a", target, "claude-opus-5-5", facts)
        assert (found.status, model.refusals) == ("good", [])


async def test_an_upstream_of_gemini_is_asked_in_its_own_form_and_by_its_own_key(tmp_path: Path) -> None:
    model = StrictGemini("OK.")
    (tmp_path / "config.toml").write_text('policy = "thrifty"\n[upstreams.google]\nstrategy = "gemini"\n')
    async with run_upstream(model) as upstream:
        with (tmp_path / "config.toml").open("a") as file:
            file.write(f'base_url = "http://127.0.0.1:{upstream.port}"\n')
        code, found = await to_thread(
            tmp_path, "--config", str(tmp_path / "config.toml"), "--send", GEMINI_API_KEY="k", OPENAI_API_KEY="sk-other"
        )
    assert model.refusals == ["not found: GET /v1beta/models HTTP/1.1"], "the list is not scripted"
    assert [one.all(b"x-goog-api-key") for one in model.received] == [[b"k"], [b"k"]]
    assert "sk-other" not in str([one.headers for one in model.received]), "no provider gets another one's key"
    assert code == 0
    assert "gemini-2.5-flash answered" in found["request to google"]["text"]
    assert "thrifty edits when they pay" in found["edits for google"]["text"]


async def refuses_in_googles_form(request: Any, there: Any) -> None:
    error = {"code": 400, "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}
    await send_reply(there, b"400 Bad Request", json.dumps({"error": error}).encode())


def test_where_the_proxy_signs_the_credentials_are_looked_for(tmp_path: Path) -> None:
    pytest.importorskip("botocore", reason="botocore is not installed")
    config = tmp_path / "config.toml"
    config.write_text('[upstreams.b]\nbase_url = "https://bedrock-runtime.eu-west-1.amazonaws.com"\nauth = "aws"\n')
    none = dict.fromkeys(("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
    own = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": str(tmp_path / "none"),
           "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), **none}  # fmt: skip
    code, found = run(tmp_path, "--config", str(config), "--send", **own)
    assert (code, by_name(found)["upstream b"]["status"]) == (1, "fault")
    assert "no AWS credentials" in by_name(found)["upstream b"]["text"]
    code, found = run(tmp_path, "--config", str(config), "--send",
                      **{**own, "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s"})  # fmt: skip
    assert by_name(found)["upstream b"]["text"].endswith("are signed with AWS credentials (env)")
    assert by_name(found)["request to b"]["status"] == "unknown"


async def test_google_refuses_a_key_with_400() -> None:
    async with run_upstream(ScriptedModel(refuses_in_googles_form)) as upstream:
        target = UpstreamSettings(base_url=f"http://127.0.0.1:{upstream.port}", strategy="gemini", api_key_env="HOME")
        found = await asyncio.to_thread(doctor.check_upstream, "a", target)
    assert (found.status, found.text) == ("fault", "it refuses the key in HOME: 400")


async def refuses(request: Any, there: Any) -> None:
    await send_reply(there, b"401 Unauthorized", b'{"error": {"message": "no such key"}}')


async def breaks(request: Any, there: Any) -> None:
    await send_reply(there, b"503 Service Unavailable", b"{}")


async def test_faults_of_an_upstream_end_with_1_and_are_named(tmp_path: Path) -> None:
    async with run_upstream(ScriptedModel(refuses)) as refusing, run_upstream(ScriptedModel(breaks)) as broken:
        at = [f"http://127.0.0.1:{port}/v1" for port in (refusing.port, broken.port)]
        code, found = await to_thread(tmp_path, "--upstream", at[0], "--send", OPENAI_API_KEY="sk-wrong")
        assert (code, found["upstream default"]["text"]) == (1, "it refuses the key in OPENAI_API_KEY: 401")
        assert "no such key" in found["request to default"]["text"]
        code, found = await to_thread(tmp_path, "--upstream", at[0])
        assert (code, found["upstream default"]["status"]) == (0, "good"), "clients bring keys of their own"
        code, found = await to_thread(tmp_path, "--upstream", at[1])
        assert (code, found["upstream default"]["text"]) == (1, f"{at[1]} answers with 503")
    code, found = await to_thread(tmp_path, "--upstream", at[1])
    assert (code, "cannot be reached" in found["upstream default"]["text"]) == (1, True)


def test_a_configuration_that_cannot_be_read_is_the_only_finding(tmp_path: Path) -> None:
    code, found = run(tmp_path, "--policy", "nonesuch")
    assert (code, [one["about"] for one in found["findings"]]) == (1, ["configuration"])


def test_a_policy_that_never_edits_is_a_fault_and_a_model_without_facts_a_loss(tmp_path: Path) -> None:
    code, found = run(tmp_path, "--policy", "passthrough", "--model", "homemade")
    named = by_name(found)
    assert code == 1
    assert named["edits for default"]["text"] == "the policy passthrough never edits (mode passthrough)"
    assert named["model of default"]["status"] == "loss"
    assert "models_file" in named["model of default"]["remedy"]


def test_edits_depend_on_policy_and_window() -> None:
    policies = make_policies(Settings())
    known, unknown = Model("m", window=1000), Model("m")
    told = [
        doctor.check_edits("x", policies[policy], model).status
        for policy, model in (("thrifty", known), ("thrifty", unknown), ("observe", known))
    ]
    assert told == ["good", "loss", "fault"]
    for policy in policies.values():
        assert doctor.check_edits("x", policy, known).text


def test_the_store_is_looked_at_and_left_alone(tmp_path: Path) -> None:
    def look(db: object) -> Finding:
        return doctor.check_store(Settings(db=str(db)))

    file = tmp_path / "a.sqlite3"
    assert (look(file).status, look(":memory:").status) == ("good", "loss")
    assert not file.exists()
    file.write_bytes(b"no database at all, but long enough to look like one" * 100)
    assert look(file).status == "fault"
    file.unlink()
    damage_page(make_old_store(tmp_path))  # a start would refuse it
    assert (look(file).status, "damaged" in look(file).text) == ("fault", True)
    file.unlink()
    lock = FileLock(file)
    lock.acquire()
    file.touch()
    assert (look(file).text, look(file).status) == (f"{file} is in use, as it is while a proxy runs", "good")
    with pytest.raises(StoreRefused, match=rf"the database {file} is in use"):
        FileLock(file).acquire()
    lock.release()
    assert look("postgresql://u:secret@127.0.0.1:9/db").status == "fault"
    assert "secret" not in look("postgresql://u:secret@127.0.0.1:9/db").text


def look_at(db: str) -> tuple[str, str]:
    found = doctor.check_store(Settings(db=db))
    return found.status, found.text


def test_a_postgresql_database_is_judged_by_a_login(postgres: str) -> None:
    empty, ready = (asyncio.run(make(postgres)) for make in (new_database, new_store_database))
    try:
        assert look_at(empty)[0] == "good"
        assert "will be made" in look_at(empty)[1]
        assert f"schema {LATEST_VERSION} of {LATEST_VERSION}" in look_at(ready)[1]
        assert look_at(replace_database(postgres, "nowhere"))[0] == "fault"
        asyncio.run(execute(ready, "UPDATE context_proxy_schema SET version = version + 1"))
        assert look_at(ready) == ("fault", look_at(empty)[1].partition(";")[0] + " was written by a newer version")
        asyncio.run(execute(empty, "REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
        asyncio.run(execute(empty, "CREATE ROLE doctor_guest LOGIN"))
        guest = urlsplit(empty)
        found = look_at(guest._replace(netloc=f"doctor_guest@{guest.hostname}:{guest.port}").geturl())
        assert (found[0], "does not let the proxy create" in found[1]) == ("fault", True)
    finally:
        for one in (empty, ready):
            asyncio.run(drop_database(one))
        asyncio.run(execute(postgres, "DROP ROLE IF EXISTS doctor_guest"))


@pytest.mark.slow
def test_a_server_that_hangs_and_a_standby_are_faults() -> None:
    with server() as own:
        process = psutil.Process(own.process.pid)  # the one that accepts connections
        process.suspend()
        try:
            assert look_at(own.url) == ("fault", "the PostgreSQL database cannot be opened: no answer in time.")
        finally:
            process.resume()
        own.stop()
        (own.folder / "data" / "standby.signal").touch()
        own.start()
        found = look_at(own.url)
        assert (found[0], "is a standby" in found[1]) == ("fault", True)


def test_a_full_disk_is_a_fault_and_little_room_hides_no_damage(tmp_path: Path, monkeypatch: Any) -> None:
    def look(free: int) -> Finding:
        monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=free))
        return doctor.check_store(Settings(db=str(tmp_path / "a.sqlite3")))

    assert (look(0).status, look(0).remedy) == ("fault", "Make room.")
    assert (look(200 << 20).status, look(2 << 30).status) == ("loss", "good")
    damage_page(make_old_store(tmp_path))
    assert "damaged" in look(200 << 20).text


async def test_what_claude_loses_behind_a_foreign_address_is_said_with_the_settings(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for agent in ("claude", "copilot"):
        (tmp_path / "bin" / agent).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / agent).chmod(0o755)
    here: dict[str, str] = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}

    def look(**more: str) -> list[Finding]:
        return list(doctor.check_agents(AgentSurroundings({**here, **more}, tmp_path)))

    plain = look()
    assert [(one.about, one.status) for one in plain] == [
        ("claude", "good"), ("claude's key", "unknown"), ("copilot", "loss"),
    ]  # fmt: skip
    assert plain[0].remedy == "context-proxy wrap claude"
    behind = look(ANTHROPIC_BASE_URL="http://127.0.0.1:9", ANTHROPIC_API_KEY="k")
    assert [one.status for one in behind[:2]] == ["loss", "loss"]
    assert [TOOL_SEARCH in behind[0].remedy, FIRST_PARTY in behind[1].remedy] == [True, True]
    mended = look(ANTHROPIC_BASE_URL="http://127.0.0.1:9", **{TOOL_SEARCH: "true", FIRST_PARTY: "1"})
    assert mended[0].status == "good"


def test_people_get_a_table_that_is_whole_and_a_sentence(tmp_path: Path) -> None:
    env = {
        "HOME": str(tmp_path),
        "PATH": "",
        "COLUMNS": "70",
        "TERM": "dumb",
        "CONTEXT_PROXY_URL": "http://127.0.0.1:9",
    }
    words = ["--db", str(tmp_path / "a.sqlite3"), "--upstream", "demo"]
    done = CliRunner().invoke(app, ["doctor", *words], env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "…" not in done.stdout
    title, *lines = done.stdout.split("Edits can happen")[0].splitlines()
    assert title.split() == ["about", "state", *["what", "was", "found,", "and", "what", "mends", "it"]]
    told = json.loads(CliRunner().invoke(app, ["doctor", *words, "--json"], env=env).stdout)["findings"]
    wanted = [(one["about"], f"{one['text']} -> {one['remedy']}" if one["remedy"] else one["text"]) for one in told]
    # Into a pipe each finding is one line, however long: grep finds the remedy beside what it mends.
    assert all(line.startswith(a) and line.endswith(text) for line, (a, text) in zip(lines, wanted, strict=True))
    shown = CliRunner().invoke(app, ["doctor", *words], env={**env, "TTY_COMPATIBLE": "1"}).stdout
    assert "…" not in shown
    assert max(map(len, shown.split("Edits can happen")[0].splitlines())) <= 80, "the width of a dumb terminal"
    assert "Edits can happen. No fault was found." in done.stdout
    assert "--send sends a small one" in done.stdout
