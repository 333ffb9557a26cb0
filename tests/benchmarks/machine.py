"""Describe the machine of a measurement in a sentence: its kind, never its name."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("fastapi", "httpx", "uvicorn", "uvloop")


def describe_machine() -> str:
    """Name the cores, the processor, the system, Python, and the libraries of the bare pass-through."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    kind = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "processor")
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    cores = len(os.sched_getaffinity(0))
    return (
        f"Measured on {cores} shared cores ({kind}, a virtual machine that other work runs on), {platform.system()}, "
        f"Python {platform.python_version()}; the bare pass-through is {libraries} with sniffio."
    )
