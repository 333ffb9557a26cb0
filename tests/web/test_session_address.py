from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.web.session_address import read_address, write_address


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=100))
def test_every_session_name_has_an_address_that_fits_in_a_path(name: str) -> None:
    written = write_address(name)
    assert read_address(written) == name
    assert not set(written) & set("/?#% \\")
    assert written not in (".", "..")


@pytest.mark.parametrize("wrong", ["~", "~!", "~_", "~/", "~AAAAA", "~AA", "~7aCA"])
def test_an_invalid_address_is_refused(wrong: str) -> None:
    if wrong == "~":
        assert read_address(wrong) == ""
        return
    with pytest.raises(BadRequest):
        read_address(wrong)
