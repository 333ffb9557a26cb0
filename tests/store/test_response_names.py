"""The provider's names of answers, the same on each backend."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.store import encode
from proxy.store.reads import Store
from proxy.store.response_names import MAX_NAME_BYTES, ResponseNameRow, is_storable
from tests.store.conftest import RowFactory


def named(name: str, exchange: str = "x1", at: float = 1.0, session: str = "s1") -> ResponseNameRow:
    return ResponseNameRow("t1", session, name, "main", exchange, True, False, True, False, at)


def test_a_row_fills_the_placeholders_of_its_statement() -> None:
    ((text, args),) = encode.build_statements([named("resp_1")])
    assert {len(one) for one in args} == {text.count("$")}


async def test_a_name_is_found_in_every_session_of_its_tenant_and_in_no_other(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), named("resp_1"), named("resp_2", "x2")])
    assert await store.read_response_name("t1", "resp_1") == named("resp_1")
    assert await store.read_response_name("t1", "resp_2") == named("resp_2", "x2")
    assert await store.read_response_name("t2", "resp_1") is None
    assert await store.read_response_name("t1", "resp_3") is None
    assert await store.read_response_name("t1", "") is None
    assert await store.read_response_name("t1", "r" * (MAX_NAME_BYTES + 1)) is None


@pytest.mark.usefixtures("begun")
async def test_the_newest_row_of_a_name_counts(store: Store) -> None:
    later = replace(named("conv_1", "x3", 3.0), is_whole=True, at_provider=False)
    await store.put([named("conv_1", "x2", 2.0)])
    await store.put([later])
    await store.put([named("conv_1", "x1", 1.0)])
    assert await store.read_response_name("t1", "conv_1") == later
    await store.put([named("conv_1", "x9", 9.0, "s2")])
    found = await store.read_response_name("t1", "conv_1")
    assert found is not None
    assert (found.session, found.exchange) == ("s2", "x9")


async def test_a_name_goes_with_its_session(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), named("resp_1")])
    await store.delete_session("t1", "s1")
    assert await store.read_response_name("t1", "resp_1") is None


@pytest.mark.usefixtures("begun")
async def test_an_odd_name_is_stored_and_found(store: Store) -> None:
    await store.put([named("resp_\ud800\x00")])
    found = await store.read_response_name("t1", "resp_\ud800\x00")
    assert found is not None
    assert found.exchange == "x1"


@pytest.mark.usefixtures("begun")
async def test_the_long_name_of_a_gateway_is_stored_and_found(store: Store) -> None:
    """LiteLLM writes the provider, the model and the provider's own name into a name, in base64."""
    name = "resp_" + "bGl0ZWxsbTpjdXN0b21fbGxtX3Byb3ZpZGVyOm9w" * 7
    await store.put([named(name)])
    assert await store.read_response_name("t1", name) == named(name)
    assert not is_storable("\u65e5" * MAX_NAME_BYTES)
