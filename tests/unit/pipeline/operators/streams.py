"""Input for operators and their models: some late, some twice, cut into epochs anyhow.

A model is a plain loop over the same epochs, each with the watermark that the harness had when it
was sent; what is late or comes twice is for the model to find out.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from catchwater.testing import Harness

SEEDS = 6
"""Streams tried with each operator."""
END = 10**9
"""Event time after everything."""

Epochs = list[tuple[int, Sequence[Any]]]
"""The watermark that an epoch ran at, and its events."""


def shuffled(draw: random.Random, events: Sequence[Any]) -> list[Any]:
    """Events in the order they arrive: a little out of order, 5 % late, 10 % a second time."""
    arriving = []
    for event in events:
        late = draw.random() < 0.05
        arriving.append(
            (event.at + draw.randrange(*((20_000, 60_000) if late else (0, 4_000))), event)
        )
        if draw.random() < 0.1:
            arriving.append((event.at + draw.randrange(0, 9_000), replace(event)))
    return [event for _, event in sorted(arriving, key=lambda pair: pair[0])]


def cut(draw: random.Random, events: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The events in epochs of any size from 1 to 40."""
    start = 0
    while start < len(events):
        size = draw.choice((1, 3, 10, 40))
        yield events[start : start + size]
        start += size


def play(harness: Harness, draw: random.Random, events: Sequence[Any]) -> tuple[Epochs, list[Any]]:
    """Send the events in epochs, then let time pass; the epochs, and all outputs in order.

    On the way it crashes, is restored and replays; at the end every replay must give the same.
    """
    epochs: Epochs = []
    outputs = []
    for part in cut(draw, events):
        epochs.append((harness.watermark, part))
        outputs += harness.send(*part)
        if draw.random() < 0.05:
            sent = sum(len(events) for _, events in epochs)
            harness.crash_and_restore(event=draw.randrange(sent))
    epochs += [(harness.watermark, []), (END, [])]
    outputs += harness.advance_watermark(END)
    harness.crash_and_restore(at=draw.randrange(len(epochs)))
    harness.check_replay(orders=2, seed=draw.randrange(10**6))
    return epochs, outputs


def fresh(seen: set[str]) -> Callable[[Any], bool]:
    """Whether an event's id is new; it is not from then on."""

    def is_new(event: Any) -> bool:
        known = event.id in seen
        seen.add(event.id)
        return not known

    return is_new


def is_empty(harness: Harness) -> bool:
    """Whether nothing at all is left of the state."""
    harness.advance_watermark(2 * END)
    return not any(harness._entries.tables)
