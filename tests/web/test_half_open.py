from __future__ import annotations

import pytest

from proxy.web.half_open import MAX_EVICTIONS, HalfOpenConnections, find_client_address


class Socket:
    def __init__(self) -> None:
        self.closed = False

    def evict(self) -> None:
        self.closed = True


def test_the_oldest_of_an_address_that_has_too_many_is_closed_once_it_is_not_fresh() -> None:
    held = HalfOpenConnections(3)
    sockets = [Socket() for _ in range(6)]
    for n, one in enumerate(sockets[:4]):
        held.add("a", one, n / 10)
    assert not any(one.closed for one in sockets), "a burst"
    held.add("b", Socket(), 9)
    assert not any(one.closed for one in sockets), "another address"
    held.add("a", sockets[4], 10)
    assert [one.closed for one in sockets] == [True, True, False, False, False, False]
    held.remove("a", sockets[2])
    held.add("a", sockets[5], 20)
    assert [one.closed for one in sockets[2:]] == [False] * 4, "it had brought its head"
    assert len(held) == 4


def test_what_is_closed_for_one_is_bounded() -> None:
    held = HalfOpenConnections(1)
    sockets = [Socket() for _ in range(3 * MAX_EVICTIONS)]
    for one in sockets:
        held.add("a", one, 0)
    held.add("a", Socket(), 5)
    assert sum(one.closed for one in sockets) == MAX_EVICTIONS


def test_room_is_made_by_the_address_that_has_most() -> None:
    held = HalfOpenConnections(10)
    assert not held.make_room()
    few, many = Socket(), [Socket() for _ in range(3)]
    held.add("few", few, 0)
    for one in many:
        held.add("many", one, 1)
        held.add("many", one, 2)
    assert held.make_room()
    assert (few.closed, [one.closed for one in many], len(held)) == (False, [True, False, False], 3)
    held.remove("many", many[0])
    held.remove("few", few)
    held.remove("few", few)
    assert len(held) == 2


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2"),
        ("2001:db8::1", "2001:db8"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80"),
        ("", ""),
    ],
)
def test_an_ipv6_host_is_its_network(host: str, address: str) -> None:
    assert find_client_address((host, 1)) == address
    assert find_client_address(None) == ""
