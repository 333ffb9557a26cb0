from __future__ import annotations

import json

from tests.clients.node import LOCKED


def test_the_lock_can_be_read_and_has_each_package_with_its_hash() -> None:
    """Clients whose packages cannot be had are skipped, so a lock that npm refuses would be seen by nobody."""
    wanted = json.loads((LOCKED / "package.json").read_text())
    lock = json.loads((LOCKED / "package-lock.json").read_text())
    names = {*wanted["dependencies"], *wanted.get("optionalDependencies", {})}
    own = lock["packages"].pop("")
    assert {*own["dependencies"], *own.get("optionalDependencies", {})} == names
    assert {f"node_modules/{name}" for name in names} <= lock["packages"].keys()
    assert all(one["integrity"].startswith("sha512-") for one in lock["packages"].values())
