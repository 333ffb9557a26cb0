"""Policies for a replay: each file of the package under each schedule, which is no setting of the server."""

from __future__ import annotations

import re
from pathlib import Path

from proxy.settings.load import find_shipped_file

SCHEDULES = ("always", "over_budget", "when_it_pays")
FILES = tuple(sorted(path.stem for path in find_shipped_file("policies").glob("*.toml")))
ROLLING = tuple(f"rolling-{schedule}" for schedule in SCHEDULES)
ALL = ("thrifty", *ROLLING)
MATRIX = tuple(f"{name}-{schedule}" for name in FILES if name != "thrifty-bold" for schedule in SCHEDULES)
"""Without `thrifty-bold`, which has the stages of `thrifty` with other numbers: it is played under its own schedule."""
MODEL = "replay"
"""The name of the scorer's model."""


def write(folder: Path) -> str:
    """Put each policy under each schedule into a folder, as NAME-SCHEDULE; the folder, as `policies_dir` takes it."""
    for name in FILES:
        text = (find_shipped_file("policies") / f"{name}.toml").read_text()
        head = re.search(r'^name = "(.*)"$', text, re.MULTILINE)
        assert head is not None
        assert head[1] == name
        rest = re.sub(r"^schedule = .*\n", "", text[head.end() :], count=1, flags=re.MULTILINE)
        for schedule in SCHEDULES:
            own = f'name = "{name}-{schedule}"\nschedule = "{schedule}"'
            (folder / f"{name}-{schedule}.toml").write_text(text[: head.start()] + own + rest)
    return str(folder)


def window(folder: Path, tokens: int) -> str:
    """A file in which the scorer's model has this window, as `models_file` takes it: `over_budget` needs one to act."""
    path = folder / "models" / "window.toml"  # not beside the policies, each file of which is one
    path.parent.mkdir()
    path.write_text(f"[models.{MODEL}]\nwindow = {tokens}\n")
    return str(path)
