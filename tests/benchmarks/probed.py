"""The command `context-proxy`, with a probe on its event loop: python tests/benchmarks/probed.py FILE serve ..."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from proxy.cli import serve
from proxy.cli.main import run
from tests.benchmarks.probe import Probe

FILE = Path(sys.argv.pop(1))


class Probed(serve.AnnouncingServer):
    """The server, looked at from within."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        Probe(FILE).start()
        await super().startup(sockets)


if __name__ == "__main__":
    serve.AnnouncingServer = Probed  # type: ignore[misc]
    run()
