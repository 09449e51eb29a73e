"""Seeded card payments that carry what real input carries: repeats, disorder, stragglers, theft.

Pure: the same `Recipe` gives the same payments, in arrival order. Promises, for any batching of
the arrivals into epochs of at most `epoch_events`:

- a payment that is merely out of order is never later than the watermark;
- a straggler always is, so whether it counts never depends on where an epoch happened to end;
- a repeat is byte for byte the payment it repeats, and comes soon after it.

So there is exactly one right set of alerts, and a plain loop can find it.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from catchwater.clock import Clock
from catchwater.demo.card_risk import Txn

START_MS = 1_767_225_600_000
"""Event time of the first payment: 2026-01-01T00:00:00Z."""

SPACING_MS = 1
"""One payment a millisecond. The closer they are, the less an uneven batch shifts in event time."""

WATERMARK_MS = 30_000
"""What card-risk declares as its watermark delay."""

DISORDER_MS = 5_000
"""How far an out-of-order payment lies behind its neighbours; the rest of the watermark's delay
is left for partitions that are read unevenly."""

STRAGGLER_SLACK_MS = 20_000
"""How far beyond every possible watermark a straggler lies."""

_FATES = ("repeat", "theft", "straggler", "disorder", "plain")
_FATE_WEIGHTS = tuple(accumulate((0.03, 0.002, 0.001, 0.1, 0.867)))

CARDS = 20_000
ZIPF_EXPONENT = 1.05


@dataclass(frozen=True)
class Recipe:
    """How many payments, from which seed, and how many an epoch may hold at most."""

    events: int = 400_000
    seed: int = 1
    epoch_events: int = 25_000


def payments(recipe: Recipe) -> Iterator[Txn]:
    """Exactly `recipe.events` payments in arrival order."""
    clock = Clock(recipe.seed)
    cards = _zipf_cards(clock)
    straggler_ms = WATERMARK_MS + STRAGGLER_SLACK_MS + 2 * recipe.epoch_events * SPACING_MS
    due: list[tuple[int, int, Txn]] = []  # (arrival, tie-break, payment), a heap
    for arrival in range(recipe.events):
        if due and due[0][0] <= arrival:
            yield heapq.heappop(due)[2]
            continue
        now_ms = START_MS + arrival * SPACING_MS
        payment = Txn(next(cards), f"p{arrival:08d}", now_ms, _amount(clock))
        match _fate(clock):
            case "repeat":
                heapq.heappush(due, (arrival + clock.random.randint(1, 200), arrival, payment))
            case "theft":
                payment, large = _theft(payment, clock)
                later = (large.at - payment.at) // SPACING_MS
                heapq.heappush(due, (arrival + later, arrival, large))
            case "straggler" if arrival >= 3 * recipe.epoch_events:
                payment = replace(payment, at=now_ms - straggler_ms)
            case "disorder":
                payment = replace(payment, at=now_ms - clock.random.randint(1, DISORDER_MS))
        yield payment


def _fate(clock: Clock) -> str:
    """What becomes of the next payment."""
    return clock.random.choices(_FATES, cum_weights=_FATE_WEIGHTS)[0]


def _theft(first: Txn, clock: Clock) -> tuple[Txn, Txn]:
    """A small payment and the large one after it on the same card.

    One large payment in four comes after the minute that the rule allows.
    """
    random = clock.random
    in_time = random.random() < 0.75
    gap_ms = random.randint(500, 45_000) if in_time else random.randint(61_000, 90_000)
    small = replace(first, amount=round(random.uniform(0.01, 0.99), 2))
    large = replace(
        first, id=first.id + "x", at=first.at + gap_ms, amount=round(random.uniform(501, 2000), 2)
    )
    return small, large


def _amount(clock: Clock) -> float:
    """Mostly a few tens; now and then below 1 or above 500, so that the rule has near misses."""
    return round(clock.random.lognormvariate(3.3, 1.1), 2)


def _zipf_cards(clock: Clock) -> Iterator[str]:
    """Card numbers for ever; the n-th most used has a share proportional to 1 / n^1.05."""
    names = [f"c{number:05d}" for number in range(CARDS)]
    weights = list(accumulate(rank**-ZIPF_EXPONENT for rank in range(1, CARDS + 1)))
    while True:
        yield from clock.random.choices(names, cum_weights=weights, k=1_000)
