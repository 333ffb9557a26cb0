from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.tools.rig import desk_on, in_memory


async def test_nobody_can_make_it_another_sessions_desk() -> None:
    async with in_memory() as store:
        desk = desk_on(store)
        with pytest.raises(FrozenInstanceError):
            desk.session = "s2"  # type: ignore[misc]
        assert (desk.offered_tools, desk.prompt) == (None, ())
