"""The beginning of a history that was written before: which elements of it are final."""

from __future__ import annotations

import pytest

from proxy.dialects.spans import apply_replacements
from proxy.dialects.written_history import (
    OutgoingMessage,
    WrittenElement,
    WrittenHistory,
    count_equal,
    view_array,
    write_array,
)

BODY = b'{"h": [1, 22, 333] }'
SPAN = (6, 18)
PLACES = ((7, 8), (10, 12), (14, 17))
OUTGOING: list[OutgoingMessage] = [(0, b"a"), (None, b"x"), (1, b"b"), (1, b"b2"), (2, b"c")]


def make_history(*elements: tuple[int, int | None], stable: int = 3) -> WrittenHistory:
    """Elements by their first messages and places; each is one byte long."""
    made = [WrittenElement(first, place, n + 2) for n, (first, place) in enumerate(elements)]
    return WrittenHistory(memoryview(b"[" + b"e" * len(made)), OUTGOING, made, stable)


def test_an_element_is_final_where_the_next_one_begins_with_the_same_message() -> None:
    history = make_history((0, 0), (2, 1), (4, 2))
    found = history.find_beginning([*OUTGOING, (3, b"new")])
    assert found is not None
    assert (bytes(found.array), found.outgoing, found.newest_source) == (b"[ee", OUTGOING[:4], 1)
    shorter = history.find_beginning([*OUTGOING[:3], (1, b"other")])
    assert shorter is not None
    assert (len(shorter.elements), shorter.outgoing) == (1, OUTGOING[:2])
    assert history.find_beginning([OUTGOING[0], (None, b"joins the first")]) is None
    assert history.find_beginning([]) is None


def test_elements_that_the_client_may_change_are_not_final() -> None:
    history = make_history((0, 0), (1, None), (2, 1), (4, 2), stable=1)
    found = history.find_beginning(OUTGOING)
    assert found is not None
    assert [one.place for one in found.elements] == [0, None]
    assert history.limit_stable(5) is history
    assert history.limit_stable(0).find_beginning(OUTGOING) is None


def test_the_elements_of_one_message_stay_together() -> None:
    history = make_history((0, 0), (2, 1), (2, 2), (4, None))
    found = history.find_beginning(OUTGOING[:4])
    assert found is not None
    assert len(found.elements) == 1


def test_an_array_is_written_from_its_known_beginning_on() -> None:
    items = [(0, 0, b"1"), (2, 1, b"two"), (3, None, b"own"), (4, 2, b"333")]
    whole, elements = write_array(BODY, SPAN, PLACES, items, None)
    assert whole == b"[1, two,own,333]"
    assert [whole[: one.end] for one in elements] == [b"[1", b"[1, two", b"[1, two,own", whole[:-1]]
    for count in (1, 2, 3):
        known = WrittenHistory(memoryview(whole)[: elements[count - 1].end], (), elements[:count], 3)
        assert write_array(BODY, SPAN, PLACES, items[count:], known) == (whole, elements)
    assert write_array(b'{"h":"text"}', (5, 11), (), [(0, None, b"1")], None)[0] == b"[1]"
    with pytest.raises(ValueError, match="nothing of the history"):
        write_array(BODY, SPAN, PLACES, [], None)


def test_the_array_is_found_where_it_was_written() -> None:
    array, elements = write_array(BODY, SPAN, PLACES, [(0, 1, b"two")], None)
    replacements = [(0, 1, b'{"more": 1, '), (*SPAN, array), (19, 19, b',"tools":[]')]
    written = apply_replacements(BODY, replacements)
    assert bytes(view_array(written, SPAN, replacements, elements)) == b"[two"


def test_messages_are_the_same_up_to_the_first_other_one() -> None:
    assert count_equal(OUTGOING, OUTGOING[:2]) == 2
    assert count_equal(OUTGOING, [(0, b"a"), (1, b"x")]) == 1
    assert count_equal([], OUTGOING) == 0
