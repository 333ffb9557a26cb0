"""Entry point of the installed command. It answers `--version` at once; all other commands load what they need."""

from __future__ import annotations

import sys

from proxy.version import VERSION


def run() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(VERSION + "\n")
        return
    from proxy.cli import main  # noqa: PLC0415  # it loads the whole proxy, for more than a second

    main.run()
