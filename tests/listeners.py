"""A Kafka listener as a broker's settings would make it."""

from typing import Any

from catchwater.kafka_listeners import Address, Listener


def listener(**given: Any) -> Listener:
    """PLAINTEXT, unless the fields that are given say otherwise."""
    protocol = given.pop("protocol", "PLAINTEXT")
    return Listener(given.pop("name", protocol), protocol, Address("127.0.0.1", 0), **given)
