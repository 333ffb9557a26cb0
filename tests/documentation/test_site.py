"""docs/ builds into a site without a warning, which has all pages and asks no other host for anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def build(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=120, env={**os.environ, "CI": "true"}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site of a copy of this checkout's docs."""
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, root / "docs")
    shutil.copy(ROOT / "zensical.toml", root)
    done = build(root)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "build" / "docs"


def in_navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from in_navigation(value)


def test_every_page_is_in_the_navigation_once() -> None:
    nav = list(in_navigation(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert sorted(nav) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_every_page_is_built(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(DOCS)).with_suffix(".html").is_file()


def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|source|link)[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    for page in site.rglob("*.html"):
        assert loads.findall(page.read_text("utf-8")) == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", sheet.read_text("utf-8"))


def test_no_page_has_what_the_theme_would_fetch_a_script_for() -> None:
    """The theme's script loads mermaid and others from the network where a page has a block of theirs."""
    for page in PAGES:
        assert not re.search(r"```\s*(?:mermaid|pyodide|\{)", page.read_text("utf-8"))


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    text = (tmp_path / "zensical.toml").read_text()
    (tmp_path / "zensical.toml").write_text(re.sub(r"(?m)^nav = \[\n.*?^\]\n", "", text, flags=re.DOTALL))
    (tmp_path / "docs" / "index.md").write_text("# Title\n\n[gone](gone.md)\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "page does not exist" in done.stdout + done.stderr


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_links_to_are_there(page: Path) -> None:
    """The build sees to pages; here are pictures, and files outside of docs/."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_headings_that_the_readme_links_to_are_there() -> None:
    """The build sees to those of docs/."""
    found = re.findall(r"\]\((docs/[^)#\s]+)#([^)\s]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert found
    for page, heading in found:
        titles = re.findall(r"(?m)^#+ (.*)$", (ROOT / page).read_text("utf-8"))
        assert heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_the_readme_has_two_pictures_and_all_pictures_are_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert len(shown) == 2
    for picture in [*DOCS.rglob("*.png"), *DOCS.rglob("*.svg")]:
        assert picture.stat().st_size < 50_000, picture
