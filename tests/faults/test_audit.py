"""S15: what CI makes of a report on known vulnerabilities. `.ci/audit` itself asks a database, and is run by CI."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

CI = Path(__file__).parents[2] / ".ci"
BAD = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": [], "description": "bad"}


@pytest.fixture(scope="module")
def audit() -> Any:
    loader = SourceFileLoader("audit", str(CI / "audit"))
    spec = importlib.util.spec_from_loader("audit", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def report(*found: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": list(found), "fixes": []}


FINE = {"name": "a", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1.0)"}


def test_s15_a_known_vulnerability_fails(audit: Any) -> None:
    code, told = audit.verdict(report(FINE, UNKNOWN, {"name": "c", "version": "1.0", "vulns": [BAD]}))
    assert (code, told) == (1, "KNOWN VULNERABILITIES\nc 1.0: PYSEC-1, mended in 2.0")


@pytest.mark.parametrize("found", [None, report(UNKNOWN), report(UNKNOWN, UNKNOWN)])
def test_s15_an_audit_that_reaches_no_database_says_that_nothing_was_audited(audit: Any, found: Any) -> None:
    code, told = audit.verdict(found)
    assert code == 0
    assert "nothing was audited" in told


def test_s15_the_verdict_says_how_many_packages_were_audited(audit: Any) -> None:
    assert audit.verdict(report(FINE, FINE)) == (0, "2 packages audited, no vulnerability is known")
    assert audit.verdict(report(FINE, UNKNOWN))[1].endswith("; not known to the database: b")


def test_s15_ci_runs_the_vulnerability_audit() -> None:
    (asked,) = [line for line in (CI / "run").read_text().splitlines() if line.startswith("make -j")]
    assert "audit" in asked.split()
    assert ".ci/audit" in (CI.parent / "Makefile").read_text().partition("\naudit:")[2].partition("\n\n")[0]
