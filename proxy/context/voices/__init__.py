"""What the proxy itself says in a prompt, each kind in a file: inserts that are no part of the history."""

from __future__ import annotations

BUILT_IN: dict[str, type] = {}
"""Every voice of ours by its name in policy files."""
