"""The command `context-proxy` with a probe on its event loop.

    python tests/benchmarks/serve_with_probe.py FILE serve ...

FILE: the file into which the probe writes.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from proxy.cli import serve
from proxy.cli.main import run
from tests.benchmarks.event_loop_probe import EventLoopProbe

FILE = Path(sys.argv.pop(1))


class ProbedServer(serve.AnnouncingServer):
    """The server, with a probe on its event loop."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        EventLoopProbe(FILE).start()
        await super().startup(sockets)


if __name__ == "__main__":
    serve.AnnouncingServer = ProbedServer  # type: ignore[misc]
    run()
