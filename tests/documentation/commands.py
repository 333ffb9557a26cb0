"""Lines of the shell that docs/ shows, run as they stand there.

What needs a program, a registry or a cluster that a test has not is held to the files that it names. A line that nobody
knows how to run is an error, so that no page can show one that is not tested.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from typer.testing import CliRunner

from proxy.cli.agents import AgentSurroundings, read_agent
from proxy.cli.main import app
from tests.cli.test_decision_replay import record
from tests.documentation.blocks import ALL, ROOT

ADDRESS = "127.0.0.1:8080"
POSTGRES_LINES = (
    'pg_dump --format=custom --file=backup.dump "$CONTEXT_PROXY_DB"',
    'pg_restore --no-owner --dbname="$CONTEXT_PROXY_DB" backup.dump',
)
"""Lines that `tests/store/test_backup.py` runs against a server."""


@dataclass(frozen=True)
class Place:
    """The place in which lines are run: a folder, the address of a running proxy, and its store."""

    folder: Path
    address: str
    db: Path

    def environment(self, **more: str) -> dict[str, str]:
        mine = {key: value for key, value in os.environ.items() if not key.startswith(("CONTEXT_", "OPENAI_"))}
        ours = {
            "CONTEXT_PROXY_URL": f"http://{self.address}", "CONTEXT_PROXY_DB": str(self.db), "CONTEXT_KEY": "none",
            "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "dumb",
        }  # fmt: skip
        return {**mine, **ours, **more}


def lines(text: str) -> list[str]:
    """The commands of a block: without comments, and with continued lines joined."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def run(line: str, place: Place) -> None:
    """Run one command, or hold it to what it names. AssertionError where it does not work."""
    words = shlex.split(os.path.expandvars(line.replace("$CONTEXT_KEY", "none")), comments=True)
    given = {}
    while re.match(r"[A-Z_]+=", words[0]):
        key, _, value = words.pop(0).partition("=")
        given[key] = value
    assert words[0] in RUNNERS, f"nobody knows how to run {line!r}"
    RUNNERS[words[0]](words, place, given)


def called(command: list[str], place: Place, given: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=place.folder, env=place.environment(**given), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def ask(place: Place, *words: str, **given: str) -> str:
    """A command of context-proxy, in this process: what it prints."""
    env = place.environment(**given)
    with contextlib.chdir(place.folder):
        done = CliRunner().invoke(app, list(words), env=env)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, f"{words}: {done.output[-2000:]}"
    return done.stdout


def ours(words: list[str], place: Place, given: dict[str, str]) -> None:
    """context-proxy. What would serve for ever is checked in place of that: `check` takes the same options."""
    action = [*words[1:]]
    if action[0] == "wrap":
        wrap(action, place, given)
        return
    if action[0] == "doctor":  # no test asks a provider
        given = {**given, "CONTEXT_PROXY_UPSTREAM": "demo", "HOME": str(place.folder)}
    if action[0] == "serve":
        action = ["check", *(word for word in action[1:] if word != "--sample")]
        if action[-1].startswith("postgresql://"):
            action[-1] = action[-1].replace("context@", "context:word@")
    if action[0] in ("migrate", "vacuum"):  # while no proxy uses the store
        given = {**given, "CONTEXT_PROXY_DB": str(place.folder / "backup.sqlite3")}
    if action[0] == "backup":
        (place.folder / action[1]).unlink(missing_ok=True)
    if action[0] == "restore":
        given = {**given, "CONTEXT_PROXY_DB": str(place.folder / "restored.sqlite3")}
    if action[0] == "replay":
        action += ["--jobs", "1"]
    if "--ask" in action:  # no test asks a provider: nothing may be spent, so no question is sent
        action[action.index("--dollars") + 1] = "0"
        action.append(str(record(place.folder / "edited.jsonl")))
    ask(place, *action, **given)


def wrap(action: list[str], place: Place, given: dict[str, str]) -> None:
    """A program of the agent's name ends at once. Its upstream is the demo model, as no test asks a provider."""
    program = place.folder / "bin" / action[-1]
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    given = {"XDG_DATA_HOME": str(place.folder), "HOME": str(place.folder), "CONTEXT_PROXY_URL": "", **given}
    given |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "CONTEXT_PROXY_UPSTREAM": "demo"}
    given |= {"CONTEXT_PROXY_DB": str(place.folder / "wrapped.sqlite3")}
    called([sys.executable, "-m", "proxy.cli.main", *action], place, given)


def curl(words: list[str], place: Place, given: dict[str, str]) -> None:
    """A stream that would go on for ever is listened to for a second."""
    address = [word.replace(ADDRESS, place.address) for word in words[1:]]
    endless = ["--max-time", "1"] if "-N" in words else []
    done = subprocess.run(
        ["curl", "-sS", "-f", "--noproxy", "*", *endless, *address], capture_output=True, text=True, timeout=30
    )
    assert done.returncode in ((28,) if endless else (0,)), done.stderr


def make(words: list[str], place: Place, given: dict[str, str]) -> None:
    assert {word for word in words[1:] if "=" not in word} <= list_targets()
    if "run" in words:
        given_args = [word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")]
        ours(["context-proxy", "serve", *shlex.split(" ".join(given_args))], place, given)


def list_targets() -> set[str]:
    """The targets of the Makefile that a person calls."""
    return set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())


def docker(words: list[str], place: Place, given: dict[str, str]) -> None:
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    if words[1] == "compose":
        profiles = {profile for service in composed["services"].values() for profile in service.get("profiles", [])}
        rest = words[2:]
        if rest[0] == "--profile":
            assert rest[1] in profiles
            rest = rest[2:]
        assert rest == ["up"] or (rest[0] == "exec" and rest[1] in composed["services"])
        if rest[0] == "exec":
            assert "/keys/data.key" in rest
        return
    text = (ROOT / "Dockerfile").read_text()
    if words[1] == "run":
        assert "VOLUME /data" in text
        assert "EXPOSE 8080" in text
        assert words[-1] == "context-proxy"  # tests/docker/test_run.py runs what the image runs then
        for mounted in (word.split(":")[1] for word in words if word.endswith(":ro")):
            assert f"CONTEXT_PROXY_CONFIG={mounted}" in words
    else:
        assert words[1:] == ["build", "-t", "context-proxy", "."]


def kubectl(words: list[str], place: Place, given: dict[str, str]) -> None:
    if words[1:4] == ["create", "secret", "generic"]:
        folder = place.folder / words[-1].removeprefix("--from-file=")
        assert {"keys.toml", "metrics.key", "data.key"} <= {file.name for file in folder.iterdir()}
        return
    kinds = {
        "sidecar.yml": {"Deployment", "PersistentVolumeClaim"}, "servicemonitor.yml": {"Service", "ServiceMonitor"},
        "prometheusrule.yml": {"PrometheusRule"},
    }  # fmt: skip
    assert words[1:3] == ["apply", "-f"]
    documents = list(yaml.safe_load_all((ROOT / words[-1]).read_text()))
    assert {document["kind"] for document in documents} == kinds[Path(words[-1]).name]


def helm(words: list[str], place: Place, given: dict[str, str]) -> None:
    """An installation is rendered in place of done, where Helm is; where not, its values are held to the chart's."""
    chart = ROOT / words[3]
    sets = [word.partition("=") for n, word in enumerate(words) if words[n - 1] == "--set"]
    values = yaml.safe_load((chart / "values.yaml").read_text())
    for name, _, value in sets:
        found = values
        for part in name.split("."):
            found = found[part]
        assert isinstance(value, type(found))
    if find_helm():
        called([find_helm(), "template", words[2], str(chart), *words[4:]], place, {})


@cache
def find_helm() -> str:
    """Helm's program, if it runs here; "" if not. `make helm` gets it."""
    program = shutil.which("helm") or str(ROOT / ".venvs" / "helm" / "helm")
    try:
        return program if subprocess.run([program, "version"], capture_output=True).returncode == 0 else ""
    except OSError:
        return ""


def pip(words: list[str], place: Place, given: dict[str, str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for what in words[2:]:
        named = re.fullmatch(r"([a-z-]+)\[([a-z]+)\]", what)
        if named:
            assert named[1] == project["name"]
            assert named[2] in project["optional-dependencies"]
        else:
            assert what == "."


def postgres(words: list[str], place: Place, given: dict[str, str]) -> None:
    """These lines are run against a server elsewhere, as they stand there."""
    shown = "\n".join(block.text for block in ALL)
    assert any(words[0] == shlex.split(line)[0] for line in POSTGRES_LINES if line in shown)


def uvx(words: list[str], place: Place, given: dict[str, str]) -> None:
    """Stand-in for the tool that uv would make and run: `tests/cli/test_wheel.py` makes and serves the same wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[1:3] == ["--from", "."]
    assert words[3] in project["scripts"]
    ours(words[3:], place, given)


def aider(words: list[str], place: Place, given: dict[str, str]) -> None:
    assert words[words.index("--openai-api-base") + 1] == f"http://{ADDRESS}/v1"


def cline(words: list[str], place: Place, given: dict[str, str]) -> None:
    """The address is given once; the task then names the provider alone."""
    if words[1] == "auth":
        assert words[words.index("-b") + 1] == f"http://{ADDRESS}/v1"
    assert words[words.index("-p" if words[1] == "auth" else "-P") + 1] == "openai-compatible"


def qwen(words: list[str], place: Place, given: dict[str, str]) -> None:
    """The argument is the one that `wrap` gives."""
    setup = read_agent("qwen", AgentSurroundings({}, Path("/nowhere")))
    assert [one in words for one in setup.fill_arguments(f"http://{ADDRESS}")] == [True, True]


def copilot(words: list[str], place: Place, given: dict[str, str]) -> None:
    """The variable is the one that `wrap` sets."""
    setup = read_agent("copilot", AgentSurroundings(given, Path("/nowhere")))
    assert setup.fill_environment(f"http://{ADDRESS}").items() <= given.items()
    assert words[:2] == ["copilot", "-p"]


def gptme(words: list[str], place: Place, given: dict[str, str]) -> None:
    """A model of the provider `local` is asked at the address that the variable names."""
    assert given == {"OPENAI_BASE_URL": f"http://{ADDRESS}/v1"}
    assert words[words.index("-m") + 1].startswith("local/")


def grok(words: list[str], place: Place, given: dict[str, str]) -> None:
    assert words[words.index("-u") + 1] == f"http://{ADDRESS}/v1"


def gemini(words: list[str], place: Place, given: dict[str, str]) -> None:
    """Gemini CLI adds `/v1beta/models/...` itself."""
    assert (words, given) == (["gemini"], {"GOOGLE_GEMINI_BASE_URL": f"http://{ADDRESS}"})


def claude(words: list[str], place: Place, given: dict[str, str]) -> None:
    """Claude Code adds `/v1/messages` itself."""
    assert (words, given) == (["claude"], {"ANTHROPIC_BASE_URL": f"http://{ADDRESS}"})


def export(words: list[str], place: Place, given: dict[str, str]) -> None:
    """A variable that a client is said to read: the client is asked."""
    key, _, value = words[1].partition("=")
    told = "import openai; print(openai.OpenAI(api_key='none').base_url)"
    assert called([sys.executable, "-c", told], place, {key: value}).strip().rstrip("/") == value


def python(words: list[str], place: Place, given: dict[str, str]) -> None:
    """The test run that writes the table of promises, which takes long: what it names is there."""
    assert words[1:4] == ["-m", "pytest", "--promises"]
    assert "<!-- promises -->" in (ROOT / words[4]).read_text()
    assert '"--promises"' in (ROOT / "tests" / "conftest.py").read_text()


RUNNERS: dict[str, Callable[[list[str], Place, dict[str, str]], None]] = {
    "context-proxy": ours, "curl": curl, "make": make, "docker": docker, "kubectl": kubectl, "helm": helm, "pip": pip,
    "uvx": uvx, "aider": aider, "claude": claude, "cline": cline, "gemini": gemini, "export": export, "python": python,
    "qwen": qwen, "copilot": copilot, "gptme": gptme, "grok": grok,
    "pg_dump": postgres, "pg_restore": postgres,
}  # fmt: skip


def chat(place: Place, session: str, texts: list[str]) -> None:
    """A conversation with the demo model, some requests long."""
    messages: list[dict[str, object]] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        body = json.dumps({"model": "demo", "messages": messages})
        connection = http.client.HTTPConnection(place.address, timeout=30)
        head = {"content-type": "application/json"}
        connection.request("POST", f"/s/{session}/v1/chat/completions", body, head)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        messages.append(answer["choices"][0]["message"])
