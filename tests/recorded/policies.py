"""Policies for a replay: those of the package, and `rolling` under each schedule, which is no setting of the server."""

from __future__ import annotations

from pathlib import Path

from proxy.settings import shipped

SCHEDULES = ("always", "over_budget", "when_it_pays")
ROLLING = tuple(f"rolling-{schedule}" for schedule in SCHEDULES)
ALL = ("thrifty", *ROLLING)


def write(folder: Path) -> str:
    """Put `rolling` under each schedule into a folder; the folder, as `policies_dir` takes it."""
    text = (shipped("policies") / "rolling.toml").read_text()
    assert 'schedule = "always"' in text
    for schedule, name in zip(SCHEDULES, ROLLING, strict=True):
        own = text.replace('name = "rolling"', f'name = "{name}"').replace('"always"', f'"{schedule}"', 1)
        (folder / f"{name}.toml").write_text(own)
    return str(folder)
