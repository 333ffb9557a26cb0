from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store import texts


@given(st.text(st.characters()) | st.text(st.characters(categories=["Cs"])))
def test_any_text_survives_storage_unchanged(text: str) -> None:
    assert texts.to_text(texts.to_bytes(text)) == text


@pytest.mark.parametrize(
    ("label", "stored"), [("gpt-5", "gpt-5"), ("é😀", "é😀"), ("a\x00b", "a?b"), ("a\ud800é", "a?é")]
)
def test_a_label_loses_only_what_no_text_column_takes(label: str, stored: str) -> None:
    assert texts.sanitize_label(label) == stored
