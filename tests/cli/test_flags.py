from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.check import read_settings
from proxy.errors import ConfigError
from proxy.settings.load import Settings


def test_flags_that_are_not_given_change_nothing() -> None:
    assert read_settings(None, host=None, port=None) == Settings()
    assert read_settings(None, port=1234).port == 1234


def test_a_policy_that_cannot_be_read_is_refused_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nschedule = "someday"\n')
    with pytest.raises(ConfigError, match="someday") as caught:
        read_settings(None, policies_dir=str(tmp_path))
    assert caught.value.source == str(file)


def test_a_model_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("[models.mine]\nwindows = 5\n")
    with pytest.raises(ConfigError, match="windows"):
        read_settings(None, models_file=str(file))
