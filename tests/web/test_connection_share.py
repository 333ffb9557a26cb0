from __future__ import annotations

from proxy.web.connection_share import PROBE_PLACES, ConnectionLimit


def taken(shares: ConnectionLimit, address: str, most: int) -> int:
    """How many places of so many this address gets."""
    count = 0
    while count < most and shares.has_room(address):
        shares.add(address)
        count += 1
    return count


def test_nobody_is_refused_while_there_is_room() -> None:
    shares = ConnectionLimit(100, 0.5)
    assert taken(shares, "a", 200) == 88, "seven eighths, rounded up"
    assert taken(shares, "b", 200) == 12
    assert not shares.has_room("c")
    for _ in range(40):
        shares.remove("a")
    assert taken(shares, "a", 200) == 28, "nearly full again"
    assert taken(shares, "c", 200) == 12


def test_a_share_may_be_all_and_no_address_has_none() -> None:
    assert taken(ConnectionLimit(100, 1.0), "a", 200) == 100
    assert taken(ConnectionLimit(100, 0.5), "", 200) == 100
    assert taken(ConnectionLimit(1, 0.1), "a", 200) == 1


def test_probes_have_places_of_their_own() -> None:
    shares = ConnectionLimit(4, 0.5)
    taken(shares, "", 10)
    for _ in range(PROBE_PLACES):
        assert shares.has_room_for_probe()
        shares.add("a")
    assert not shares.has_room_for_probe()
    shares.remove("a")
    assert shares.has_room_for_probe()
