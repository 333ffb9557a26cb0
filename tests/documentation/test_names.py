"""Every name in docs/ and the README exists in the code: settings, metrics, commands, files, what tables list."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import yaml
from pydantic import BaseModel

from proxy.cli.main import app
from proxy.cli.reference import REQUEST_HEADERS, RESPONSE_HEADERS, WEBHOOK_HEADERS
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.models import NON_SETTING_FIELDS, Model
from proxy.context.plan import Action, Insert, RewriteInputs
from proxy.context.stage import Stage
from proxy.context.stages import BUILT_IN_STAGES
from proxy.context.view import View
from proxy.events.bus import EVENT_KINDS
from proxy.metrics import PROCESS_METRICS, Metrics
from proxy.operator import inband_commands
from proxy.operator.actions import ACTIONS
from proxy.sessions.locate import Relation
from proxy.settings.load import ENV_PREFIX, RESERVED_VARIABLES, Settings, UpstreamSettings, WebhookSettings
from proxy.settings.model import ApiKeySettings, Plane, SettingsSection
from proxy.tools.registry import TOOLS
from tests.documentation.blocks import PAGES, ROOT, name, rows, ticked, written
from tests.documentation.commands import list_targets
from tests.house import FLOORS, PURE

DEFAULTS = Settings()
SECTIONS = {key: type(getattr(DEFAULTS, key)) for key in Settings.model_fields}
KNOWN: dict[str, type[BaseModel]] = {
    **{key: kind for key, kind in SECTIONS.items() if issubclass(kind, SettingsSection)},
    "upstreams.NAME": UpstreamSettings,
    "keys[]": ApiKeySettings,
    "webhooks[]": WebhookSettings,
}
PATH = re.compile(
    r"(?:proxy|tests|config|docker|docs)/[\w./-]*|[\w-]+\.(?:yml|lock)|[A-Z][A-Za-z]+\.md|Dockerfile|Makefile"
)
FEATURES = 25
FOREIGN_NAMES = ("context_proxy_", "colocate_with", "malloc_trim")
"""Metrics, which have a test of their own, and names of other programs."""
CODE = "\n".join(
    file.read_text("utf-8")
    for folder in ("proxy", "tests", "config", "docker")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".toml", ".yml", ".js")
)


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_settings_named_in_docs_exist_in_the_code(page: Path) -> None:
    for code in ticked(written(page)):
        if code in ("models.toml", "mine.toml") or "/" in code or code.endswith((".toml", ".md", ".py")):
            continue
        section, _, key = code.partition(" ")[0].rpartition(".")
        if section in KNOWN:
            assert key in KNOWN[section].model_fields, code


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_environment_variables_named_in_docs_exist_in_the_code(page: Path) -> None:
    for found in re.findall(r"CONTEXT_PROXY_[A-Z_]*[A-Z]", page.read_text("utf-8")):
        path = found.removeprefix(ENV_PREFIX).lower().split("__")
        known: Any = DEFAULTS
        for key in path:
            assert found in RESERVED_VARIABLES or key in type(known).model_fields, found
            known = getattr(known, key, None)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_metrics_named_in_docs_exist_in_the_code(page: Path) -> None:
    known = {described.name for described in (*Metrics().descriptions, *PROCESS_METRICS)}
    assert set(re.findall(r"context_proxy_\w+", page.read_text("utf-8"))) <= known


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_headers_named_in_docs_exist_in_the_code(page: Path) -> None:
    tables = (*REQUEST_HEADERS, *RESPONSE_HEADERS, *WEBHOOK_HEADERS)
    known = {row[0].partition(":")[0] for row in tables}
    assert set(re.findall(r"x-context-[a-z-]*[a-z]", page.read_text("utf-8"))) <= known


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_named_in_docs_exist_in_the_code(page: Path) -> None:
    for code in ticked(written(page)):
        words = code.split()
        if words[0] == "make" and "|" not in words:
            assert {word for word in shlex.split(code)[1:] if "=" not in word} <= list_targets(), code
        if words[0] != "context-proxy" or len(words) < 2 or words[1].startswith("-"):
            continue
        command: Any = typer.main.get_command(app)
        for word in words[1:]:
            command = command.commands.get(word)
            assert command is not None, code
            if not hasattr(command, "commands"):
                break
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, code


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_routes_named_in_docs_exist_in_the_code(page: Path) -> None:
    """Those of the proxy's own; what is passed through has the upstream's."""
    known = {(row[0], row[1].strip("`")) for row in rows(text("docs/reference/routes.md"), "Method")}
    own = r"`(GET|POST|PUT|PATCH|DELETE) (/(?:api|metrics|healthz|readyz)[^`]*)`"
    for method, path in re.findall(own, written(page)):
        assert (method, path) in known or path == "/api/openapi.json"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_named_in_docs_exist_in_the_repository(page: Path) -> None:
    for code in ticked(written(page)):
        if PATH.fullmatch(code.partition("::")[0]):
            assert (ROOT / code.partition("::")[0]).exists(), code


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_identifiers_named_in_docs_exist_in_the_code(page: Path) -> None:
    """Functions, fields and classes: a name of several words in backticks stands in the code or in a settings file."""
    if page.name == "former-names.md":
        return
    for code in ticked(written(page)):
        if re.fullmatch(r"[a-z]+(?:_[a-z0-9]+)+|(?:[A-Z][a-z]+){2,}", code) and not code.startswith(FOREIGN_NAMES):
            assert re.search(rf"\b{code}\b", CODE), code


def test_the_policies_of_the_package_are_in_both_tables_and_no_others() -> None:
    shipped = {file.stem for file in (ROOT / "config" / "policies").glob("*.toml")}
    for page in ("README.md", "docs/guide/policies.md"):
        listed = {row[0].strip("`") for row in rows(text(page), "Policy")}
        assert listed == shipped, f"the table of policies in {page} has to list the files of config/policies"


def test_the_pages_for_extensions_name_fields_that_there_are() -> None:
    for page, table, kinds in (
        ("injection.md", "Field of an `Insert`", (Insert,)),
        ("stage.md", "Field of a `View`", (View,)),
        ("stage.md", "Method or property", (Stage,)),
    ):
        known = {name for kind in kinds for name in dir(kind)}
        for row in rows(text(f"docs/extend/{page}"), table):
            for code in ticked(row[0]):
                name, _, inner = code.partition("(")[0].partition(".")
                assert name in known, f"docs/extend/{page}: {code}"
                assert not inner or inner in RewriteInputs.__struct_fields__, f"docs/extend/{page}: {code}"
    assert {field.strip("`") for field, _ in rows(text("docs/extend/injection.md"), "Field of an `Insert`")} == {
        *Insert.__struct_fields__
    }
    actions = {row[0].strip("`") for row in rows(text("docs/extend/stage.md"), "Action of a `Proposal`")}
    assert actions == {*get_args(Action)} - {"arguments"}, "arguments: of shorten_arguments alone"


def test_every_field_of_a_model_is_explained_at_the_head_of_the_models() -> None:
    head = text("config/models.toml").partition("[models.")[0]
    for field in fields(Model):
        explained = field.name in NON_SETTING_FIELDS or re.search(rf"\b{field.name}\b", head)
        assert explained, f"config/models.toml: its head does not explain {field.name}"


def test_the_tables_of_the_guide_list_what_there_is() -> None:
    events = [row[0].strip("`") for row in rows(text("docs/guide/events.md"), "Kind")]
    assert set(events) == set(EVENT_KINDS)
    tools = " ".join(row[0] for row in rows(text("docs/guide/tools-and-memory.md"), "Tool"))
    assert set(re.findall(r"`(\w+)\(", tools)) == set(TOOLS)
    planes = [row[0].strip("`") for row in rows(text("docs/deploy/security.md"), "Plane")]
    assert planes == list(get_args(Plane))
    relations = [row[0].strip("`") for row in rows(text("docs/concepts/identity.md"), "Relation")]
    assert relations == list(get_args(Relation))


def test_the_commands_of_a_conversation_are_understood_and_all_are_listed() -> None:
    listed = [code for row in rows(text("docs/guide/operator.md"), "Command") for code in ticked(row[0])]
    parsed = {
        found.name
        for code in listed
        if (
            found := inband_commands.parse_command(
                re.sub(r"[\[\]]", "", code).replace("GID", "k2f0vd7cpa").replace("N", "3")
            )
        )
    }
    assert parsed == {action.name for action in ACTIONS if action.inband is not None}


def test_the_alerts_are_those_of_the_rules() -> None:
    rules = yaml.safe_load(text("docker/prometheus/alerts.yml"))
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert [row[0].strip("`") for row in rows(text("docs/deploy/grafana.md"), "Alert")] == alerts


def test_the_floors_are_those_that_are_enforced() -> None:
    page = text("docs/development/architecture-and-floors.md")
    assert [set(ticked(row[0])) for row in rows(page, "Floor")] == list(FLOORS)
    sentence = page.partition("## Pure floors")[2].partition(" are pure")[0]
    assert set(ticked(sentence)) == PURE


def test_the_glossary_names_what_is_there() -> None:
    code = "\n".join(file.read_text("utf-8") for file in (ROOT / "proxy").rglob("*.py"))
    made = set(re.findall(r"^ *(?:class|(?:async )?def) (\w+)|^ *(\w+): ", code, re.MULTILINE))
    known = {word for pair in made for word in pair}
    glossary = text("docs/development/glossary.md")
    tables = re.findall(r"\| Word \|.*?(?:\n\n|\Z)", glossary, re.DOTALL)
    assert len(tables) == 5
    for table in tables:
        for row in rows(table, "Word"):
            for written_as in ticked(row[2]):
                assert written_as in known or (ROOT / written_as).exists(), written_as


def test_a_feature_is_found_by_the_fields_word() -> None:
    found = rows(text("docs/development/glossary.md"), "Feature")
    assert len(found) == FEATURES == len({row[2] for row in found})
    assert all((ROOT / file.strip("`")).is_file() for *_, file in found)
    assert [feature for feature, word, file in found if word not in Path(file.strip("`")).stem] == ["deduplication"]


def test_former_names_lead_to_what_is_there() -> None:
    page = text("docs/development/former-names.md")
    code = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in (ROOT / "proxy").rglob("*.py")}
    for _, file in rows(page, "Module was"):
        assert (ROOT / file.strip("`")).exists(), file
    for _, new, file in rows(page, "Class was"):
        assert re.search(rf"^ *(class )?{new.strip('`')}\b", code[file.strip("`")], re.MULTILINE), new
    known = "\n".join(code.values())
    for _, new in (*rows(page, "Was"), *rows(page, "Setting was")):
        for word in ticked(new):
            assert re.search(rf"\b{re.findall(r'[a-zA-Z_]+', word)[-1]}\b", known), word


def test_stages_and_injections_that_pages_speak_of_exist() -> None:
    modules = {file.stem for file in (ROOT / "proxy").rglob("*.py")}
    known = {*BUILT_IN_STAGES, *BUILT_IN_INJECTIONS, *modules}
    for page in PAGES:
        for code in ticked(written(page)):
            if re.fullmatch(r"(?:\w+_)?(?:results|levels|window|repeats|ledger|loops|memos|progress)", code):
                assert code in known | set(TOOLS) or "_" not in code, code
