"""What a pin is worth: whether it holds, holds back, or has been lost. Pure.

The states are those of PostgreSQL's replication slots (`pg_replication_slots.wal_status`):

- *reserved*: the topic's own retention keeps what the pin holds;
- *extended*: retention would delete some of it, and is held back;
- *unreserved*: it holds back more than its `max_bytes`; from the next pass on it holds nothing;
- *lost*: some of it is gone. It stays lost until it is replaced or released.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from catchwater.catalog.rows import Pin, PinState

Place = tuple[str, int]
"""A topic's name and a partition."""


def in_force(pins: Iterable[Pin], now_ms: int) -> list[Pin]:
    """The pins that promise something: not lost, and their lease, if they have one, not over."""
    return [
        pin
        for pin in pins
        if pin.state != "lost" and (pin.lease_until_ms is None or pin.lease_until_ms > now_ms)
    ]


def lapsed(pins: Iterable[Pin], now_ms: int) -> list[Pin]:
    """The pins whose lease is over: they are removed without a word in the log."""
    return [pin for pin in pins if pin.lease_until_ms is not None and pin.lease_until_ms <= now_ms]


def lowest(pins: Iterable[Pin]) -> dict[Place, int]:
    """The lowest offset that these pins hold at each place."""
    floors: dict[Place, int] = {}
    for pin in pins:
        for place, offset in pin.positions.items():
            floors[place] = min(offset, floors.get(place, offset))
    return floors


def judged(pin: Pin, log_starts: Mapping[Place, int], held_bytes: int) -> PinState:
    """The pin's state; `log_starts` lacks places that do not exist (any more).

    `held_bytes` is what retention would delete but for this pin, over all its places.
    """
    if pin.state == "lost" or lost_offsets(pin, log_starts):
        return "lost"
    if held_bytes == 0:
        return "reserved"
    is_over = pin.max_bytes is not None and held_bytes > pin.max_bytes
    return "unreserved" if is_over else "extended"


def holding(pins: Iterable[Pin], states: Mapping[str, PinState]) -> list[Pin]:
    """The pins that deletion stops at: all that are not lost, or over their cap twice running.

    The pins come as they were found; `states` is what they are judged to be now.
    """
    return [
        pin
        for pin in pins
        if states[pin.id] != "lost" and not pin.state == states[pin.id] == "unreserved"
    ]


def lost_offsets(pin: Pin, log_starts: Mapping[Place, int]) -> dict[Place, tuple[int, int | None]]:
    """Place -> first offset promised and not there, and the log start; None: no such place."""
    return {
        place: (offset, log_starts.get(place))
        for place, offset in sorted(pin.positions.items())
        if place not in log_starts or log_starts[place] > offset
    }


def sentence(pin: Pin, log_starts: Mapping[Place, int], held_bytes: int) -> str:
    """What an operator should know of a pin whose state is new."""
    name = f"The pin {pin.id} of {pin.owner}"
    if pin.state == "lost":
        gone = ", ".join(
            f"{topic}-{partition} is gone"
            if start is None
            else f"{topic}-{partition} offsets {offset} to {start - 1} are gone"
            for (topic, partition), (offset, start) in lost_offsets(pin, log_starts).items()
        )
        return f"{name} is lost: {gone}. What it was set for cannot be restored."
    if pin.state == "unreserved":
        return (
            f"{name} holds back {held_bytes} bytes, more than its max_bytes {pin.max_bytes}: "
            "unless it is released or moved on, the next pass deletes what it holds."
        )
    if pin.state == "extended":
        return f"{name} holds back {held_bytes} bytes that retention would delete."
    return f"{name} holds nothing back any more."


def with_states(pins: Collection[Pin], states: Mapping[str, PinState]) -> list[Pin]:
    """The pins whose state is another than they had, with the new one."""
    return [
        replace(pin, state=states[pin.id]) for pin in pins if states.get(pin.id) not in
        (None, pin.state)
    ]  # fmt: skip
