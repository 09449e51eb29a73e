"""Zones: near, evenly spread, and only the lost broker's partitions move."""

from collections import Counter

import pytest

from catchwater.broker.placement import candidates, coordinator, leader, zone_of
from catchwater.catalog.rows import BrokerRow

TOPIC = bytes(range(16))


def row(broker_id: int, zone: str = "", state="live") -> BrokerRow:
    return BrokerRow(broker_id, 1, zone, "h", 9092, "", "object", True, state, 0)


THREE = [row(1, "a"), row(2, "b"), row(3, "c")]


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        (None, ""),
        ("app", ""),
        ("zone=a", "a"),
        ("app,zone=eu-1b,x=y", "eu-1b"),
        ("my zone=a", "a"),
        ("timezone=a", ""),
    ],
)
def test_a_client_id_may_name_a_zone(client_id, zone) -> None:
    assert zone_of(client_id) == zone


def test_a_client_is_sent_to_its_own_zone_and_elsewhere_when_that_is_gone() -> None:
    assert candidates(THREE, "b") == [THREE[1]]
    assert candidates([THREE[0], THREE[2]], "b") == [THREE[0], THREE[2]]
    assert candidates(THREE) == THREE


def test_nobody_is_sent_to_a_draining_broker_unless_there_is_no_other() -> None:
    leaving = row(2, "b", "draining")
    assert candidates([THREE[0], leaving], "b") == [THREE[0]]
    assert candidates([leaving], "b") == [leaving]


def test_partitions_are_spread_evenly_and_only_those_of_a_lost_broker_move() -> None:
    keys = [(TOPIC, index) for index in range(3000)]
    before = {key: leader(THREE, key).id for key in keys}
    assert all(900 < count < 1100 for count in Counter(before.values()).values())
    after = {key: leader(THREE[:2], key).id for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != 3)


def test_a_group_has_one_coordinator_for_clients_of_every_zone() -> None:
    assert len({coordinator(THREE, "g").id, coordinator(list(reversed(THREE)), "g").id}) == 1
    assert {coordinator(THREE, f"g{n}").id for n in range(50)} == {1, 2, 3}
