from __future__ import annotations

from typing import get_args

import pytest

from proxy.store import base
from proxy.store.in_memory import InMemoryStore
from proxy.store.postgres import PostgresStore
from proxy.store.reads import Store
from proxy.store.sqlite import SqliteStore
from tests.store.conftest import RowFactory


def test_every_backend_is_a_store(tmp_path: object) -> None:
    assert isinstance(InMemoryStore(), Store)
    assert isinstance(SqliteStore(f"{tmp_path}/db"), Store)
    assert isinstance(PostgresStore("postgresql://host/db"), Store)


def test_rows_start_with_tenant_and_session_and_cannot_be_changed() -> None:
    for row in get_args(base.Row):
        assert row.__struct_fields__[:2] == ("tenant", "session")
    with pytest.raises(AttributeError):
        RowFactory().form(b"x").body = b"y"  # type: ignore[misc]


def test_each_record_class_extends_its_row_class() -> None:
    assert issubclass(base.BranchRecord, base.BranchRow)
    assert issubclass(base.MessageRecord, base.MessageRow)
    assert issubclass(base.ExchangeRecord, base.ExchangeRow)
    assert issubclass(base.SessionRecord, base.SessionRow)
