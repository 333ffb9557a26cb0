"""The hand-written pages are plain technical English: no sentence has more than 25 words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from proxy.cli.docs import render_table
from proxy.cli.main import app
from proxy.cli.settings_toml import read_fields, read_summary
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.policy import Policy
from proxy.context.stages import BUILT_IN_STAGES
from proxy.metrics import Metrics
from proxy.settings.load import Settings, UpstreamSettings, WebhookSettings
from proxy.settings.model import ApiKeySettings, SettingsSection
from tests.documentation.blocks import PAGES, ROOT, name, written

WORDS = 25
LINES = 200
"""Lines of the README."""


def pieces(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and cells of tables, each on one line, with links and code as single words."""
    text = re.sub(r"`[^`\n]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n", text):
        for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.) |\||#)", paragraph):
            if item.startswith("|"):
                yield from item.split("|")
            else:
                yield re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(item.split()))


def sentences(text: str) -> Iterator[str]:
    for piece in pieces(text):
        yield from re.split(r"(?<=[.!?])\*{0,2}\s+|;\s", piece)


def too_long(text: str) -> list[str]:
    return [one for one in sentences(text) if len(re.findall(r"[\w'%/,.*-]*\w[\w'%/,.*-]*", one)) > WORDS]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_sentence_is_long(page: Path) -> None:
    assert too_long(written(page)) == []


def test_generated_descriptions_have_short_sentences_and_begin_with_no_question() -> None:
    """The texts of settings, stages, policies, commands, routes and metrics, which stand as docstrings in the code."""
    for told in descriptions():
        assert too_long(told) == [], told
        assert not re.match(r"(?:What|Whether|Who|Whose|How) ", told), told


def descriptions() -> Iterator[str]:
    kinds: list[type] = [type(value) for _, value in Settings() if isinstance(value, SettingsSection)]
    kinds += [
        Settings,
        UpstreamSettings,
        ApiKeySettings,
        WebhookSettings,
        Policy,
        *BUILT_IN_STAGES.values(),
        *BUILT_IN_INJECTIONS.values(),
    ]
    for kind in kinds:
        yield from (told.text for told in read_fields(kind))
    yield from (read_summary(kind) for kind in (*BUILT_IN_STAGES.values(), *BUILT_IN_INJECTIONS.values()))
    yield from (described.description for described in Metrics().descriptions)
    commands = typer.main.get_command(app)
    for table_name, column in (("commands", 2), ("routes", 2), ("errors", 3)):
        for line in render_table(table_name, commands).splitlines()[2:]:
            yield re.split(r"(?<!\\)\|", line)[column + 1].strip()


def test_a_long_sentence_is_seen() -> None:
    long = "word " * WORDS + "end."
    assert too_long(f"Short.\n\n- {long} Short.\n") == [long]
    assert too_long(f"Text [a link to {long}](page.md).") != []
    assert too_long("| " + "word " * WORDS + " | cell |") == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_begins_with_its_title(page: Path) -> None:
    assert page.read_text("utf-8").startswith("# ")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= LINES
