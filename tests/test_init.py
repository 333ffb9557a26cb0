from __future__ import annotations

import subprocess
import sys

import pytest

import proxy


def test_importing_the_package_loads_no_settings() -> None:
    code = "import sys, proxy; assert 'pydantic' not in sys.modules and 'toktok' not in sys.modules; proxy.compress"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        _ = proxy.nothing
