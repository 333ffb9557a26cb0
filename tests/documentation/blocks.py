"""The pages of docs/ and the README, taken apart: code blocks, hand-written prose, tables, names in backticks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^```(?P<head>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- (\w+(?::\w+)?) -->.*?<!-- /\1 -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A code block. title: the file that it stands for, "" where it is none."""

    page: str
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.title or self.text.splitlines()[0][:40]}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    for found in FENCE.finditer(page.read_text("utf-8")):
        language, _, rest = found["head"].strip().partition(" ")
        title = re.search(r'title="([^"]*)"', rest)
        yield Block(name(page), language, title[1] if title else "", found["text"])


ALL = tuple(block for page in PAGES for block in blocks(page))


def titled(title: str) -> Block:
    """The one block that stands for that file."""
    [found] = [block for block in ALL if block.title == title]
    return found


def written(page: Path) -> str:
    """A page without code blocks and without what is generated."""
    return GENERATED.sub("", FENCE.sub("", page.read_text("utf-8")))


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table whose first title that is, without its head."""
    lines = iter(text.splitlines())
    found: list[list[str]] = []
    for line in lines:
        if line.startswith(f"| {title} |"):
            next(lines)
            for row in lines:
                if not row.startswith("|"):
                    break
                found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]])
            return found
    raise AssertionError(f"no table {title}")


def ticked(text: str) -> list[str]:
    """The texts in backticks."""
    return re.findall(r"`([^`\n]+)`", text)
