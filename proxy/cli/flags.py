"""Flags that set settings, and the reader of settings, policies and models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.policy import check_models, read_policy
from proxy.context.stages import BUILT_IN_STAGES
from proxy.settings.load import Settings, load_settings

Config = Annotated[Path | None, typer.Option(help="TOML file with settings.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0: any that is free.")]
Upstream = Annotated[
    str | None, typer.Option(help="The upstream: a base URL, or demo for the built-in scripted model.")
]
Db = Annotated[str | None, typer.Option(help="The store: a SQLite file or a postgresql:// URL.")]
PolicyName = Annotated[str | None, typer.Option(help="The policy by which prompts are rewritten.")]


def read_settings(config: Path | None, **flags: object) -> Settings:
    """Return the settings in force. Raises ConfigError if a setting, a policy or a model cannot be read."""
    settings = load_settings(config, flags)
    policies = {
        name: read_policy(settings.read_policy_table(name), BUILT_IN_STAGES, BUILT_IN_INJECTIONS, source=str(file))
        for name, file in settings.find_policy_files().items()
    }
    check_models(policies, settings.load_models())
    return settings
