"""What it was measured on, in a sentence: the kind of machine, never its name."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("fastapi", "httpx", "uvicorn", "uvloop")


def described() -> str:
    """Cores, processor, system, Python, and what the bare pass-through is made of."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    kind = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    cores = len(os.sched_getaffinity(0))
    return (
        f"Measured on {cores} shared cores ({kind}, a virtual machine that other work runs on), {platform.system()}, "
        f"Python {platform.python_version()}; the bare pass-through is {libraries} with sniffio."
    )
