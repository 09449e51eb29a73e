"""What a demo runs: its input, its function, and the plain loop that knows the right answer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from catchwater.demo import reference
from catchwater.demo.card_risk import CardRisk
from catchwater.demo.online_retail import read_rows
from catchwater.demo.reference import Expected
from catchwater.demo.retail import RetailReturns
from catchwater.drill.feeder import Event
from catchwater.drill.workload import Recipe, payments
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import FunctionSpec

MAX_EPOCH_EVENTS = 25_000
LEAST_EPOCHS = 16
"""Enough epochs for a kill in the middle to leave work on both sides of it."""


@dataclass(frozen=True)
class Scenario:
    """An input that can be read again and again, and what to make of it."""

    function: str
    """`module:Class`, as a pipeline file names it."""
    spec: FunctionSpec
    topic: str
    output_topic: str
    alert_rule: str
    """The value of an output's `rule` that makes it an alert."""
    epoch_events: int
    events: Callable[[], Iterator[Event]]
    expected: Expected


def card_payments(events: int, seed: int) -> Scenario:
    """Generated card payments through card-risk."""
    recipe = Recipe(events, seed, _epoch_events(events))

    def stream() -> Iterator[Event]:
        encode = msgspec.json.Encoder().encode
        for payment in payments(recipe):
            yield Event(payment.card.encode(), encode(payment), payment.at)

    return Scenario(
        function=f"{CardRisk.__module__}:{CardRisk.__name__}",
        spec=spec_of(CardRisk),
        topic="payments",
        output_topic="alerts",
        alert_rule="small-then-large",
        epoch_events=recipe.epoch_events,
        events=stream,
        expected=reference.card_risk(payments(recipe)),
    )


def online_retail(path: Path) -> Scenario:
    """The rows of a CSV file through the retail function. Raises `BadCsv`."""
    expected = reference.retail(path)

    def stream() -> Iterator[Event]:
        encode = msgspec.json.Encoder().encode
        for _, line in read_rows(path):
            yield Event(line.customer.encode(), encode(line), line.at)

    return Scenario(
        function=f"{RetailReturns.__module__}:{RetailReturns.__name__}",
        spec=spec_of(RetailReturns),
        topic="invoice-lines",
        output_topic="cancellations",
        alert_rule="returned-more-than-bought",
        epoch_events=_epoch_events(expected.events),
        events=stream,
        expected=expected,
    )


def _epoch_events(events: int) -> int:
    return max(1, min(MAX_EPOCH_EVENTS, events // LEAST_EPOCHS))
