"""`context-proxy report`: the table for people, and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _pytest.capture import CaptureFixture

from proxy.cli.experiment import _print_report
from proxy.operator.compare_arms import compare_arms, describe_verdict
from proxy.operator.experiment_report import find_losses
from proxy.settings.load import load_settings
from tests.operator.simulated_sessions import draw_experiment, draw_pool


def test_the_report_is_one_sentence_a_table_and_the_sessions_that_cost_money(capsys: CaptureFixture[str]) -> None:
    import msgspec  # noqa: PLC0415

    control, managed = draw_experiment(draw_pool(2, 300), 1, 1.2, number=200)
    figures = compare_arms(control, managed)
    found: dict[str, Any] = msgspec.to_builtins(
        {
            "verdict": describe_verdict(figures[0]), "share": 0.25, "mixed": 1, "unpriced": 2,
            "control_sessions": len(control), "managed_sessions": len(managed), "figures": figures,
            "pings": 3, "pings_dollars": 0.5,
            "predictions": {"managed": {"predicted": 1.0, "reported": 1.25}}, "losses": find_losses(managed)[:1],
        }
    )  # fmt: skip
    _print_report(found)
    out = capsys.readouterr().out
    assert "more for the same prompts" in out
    assert "control arm has 25% of new sessions" in out
    assert "1 in both and not counted" in out
    assert "dollars a request" in out
    assert "+2" in out.split("dollars for the same prompts")[1].splitlines()[0] or "+1" in out
    assert "1.0000 dollars predicted, 1.2500 reported" in out
    assert " without the proxy" in out
    assert "3 pings kept the cache of managed sessions warm (0.5000 dollars, which are in the figures)" in out


def test_without_sessions_to_compare_it_says_what_to_set_and_where(capsys: CaptureFixture[str], tmp_path: Path) -> None:
    found: dict[str, Any] = {"verdict": "Not known.", "share": 0.0, "control_sessions": 0, "managed_sessions": 0}
    _print_report(found)
    out = capsys.readouterr().out
    assert "serve --config FILE" in out
    assert "[95 %]" not in out, "no table of dashes"
    lines = out.splitlines()
    first = lines.index("[experiment]")
    file = tmp_path / "config.toml"
    file.write_text("\n".join(lines[first : first + 2]))
    assert load_settings(file).experiment.control == 0.1
    _print_report({**found, "share": 0.25})
    out = capsys.readouterr().out
    assert "25% of the sessions that begin from now on" in " ".join(out.split())
    assert "[95 %]" not in out
