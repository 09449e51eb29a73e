"""Seeded card payments that carry what real input carries: repeats, disorder, stragglers, theft.

Pure: the same `Recipe` gives the same payments, in arrival order. Promises, for any batching of
the arrivals into epochs of at most `epoch_events`:

- a payment that is merely out of order is never later than the watermark;
- a straggler always is, so whether it counts never depends on where an epoch happened to end;
- a repeat is byte for byte the payment it repeats, and comes soon after it.

So there is exactly one right set of alerts, and a plain loop can find it.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from catchwater.clock import Clock
from catchwater.drill.rows import canonical

START_MS = 1_767_225_600_000
"""Event time of the first payment: 2026-01-01T00:00:00Z."""

SPACING_MS = 1
"""One payment a millisecond. The closer they are, the less an uneven batch shifts in event time."""

WATERMARK_MS = 30_000
"""What the functions that read payments declare as their watermark delay."""

DISORDER_MS = 5_000
"""How far an out-of-order payment lies behind its neighbours; the rest of the watermark's delay
is left for partitions that are read unevenly."""

STRAGGLER_SLACK_MS = 20_000
"""How far beyond every possible watermark a straggler lies."""

_FATES = ("repeat", "theft", "straggler", "disorder", "plain")
_REPEATS, _THEFTS, _DISORDER = 0.03, 0.002, 0.1


@dataclass
class Payment:
    """One card payment; `at` is its event time in milliseconds since the Unix epoch."""

    card: str
    id: str
    at: int
    amount: float


@dataclass(frozen=True)
class Recipe:
    """How many payments, from which seed, and how many an epoch may hold at most."""

    events: int = 400_000
    seed: int = 1
    epoch_events: int = 25_000
    cards: int = 20_000
    skew: float = 1.05
    """The n-th most used card has a share proportional to 1 / n^skew; 0: all have the same."""
    late: float = 0.001
    """The share of payments that come too late to count."""
    each_first: bool = False
    """The first payments are one of each card, so that all of the state is there soon."""


def payments(recipe: Recipe) -> Iterator[Payment]:
    """Exactly `recipe.events` payments in arrival order; fewer are their beginning."""
    clock = Clock(recipe.seed)
    cards = _zipf_cards(clock, recipe)
    weights = _fate_weights(recipe)
    straggler_ms = WATERMARK_MS + STRAGGLER_SLACK_MS + 2 * recipe.epoch_events * SPACING_MS
    due: list[tuple[int, int, Payment]] = []  # (arrival, tie-break, payment), a heap
    for arrival in range(recipe.events):
        if due and due[0][0] <= arrival:
            yield heapq.heappop(due)[2]
            continue
        now_ms = START_MS + arrival * SPACING_MS
        payment = Payment(next(cards), f"p{arrival:08d}", now_ms, _amount(clock))
        match _fate(clock, weights):
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


def _fate_weights(recipe: Recipe) -> tuple[float, ...]:
    plain = 1 - _REPEATS - _THEFTS - recipe.late - _DISORDER
    return tuple(accumulate((_REPEATS, _THEFTS, recipe.late, _DISORDER, plain)))


def _fate(clock: Clock, weights: tuple[float, ...]) -> str:
    """What becomes of the next payment."""
    return clock.random.choices(_FATES, cum_weights=weights)[0]


def _theft(first: Payment, clock: Clock) -> tuple[Payment, Payment]:
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


def _zipf_cards(clock: Clock, recipe: Recipe) -> Iterator[str]:
    """Card numbers for ever."""
    names = [f"c{number:05d}" for number in range(recipe.cards)]
    weights = list(accumulate(rank**-recipe.skew for rank in range(1, recipe.cards + 1)))
    if recipe.each_first:
        yield from names
    while True:
        yield from clock.random.choices(names, cum_weights=weights, k=1_000)


def totals(arrived: Iterable[Payment]) -> Counter[bytes]:
    """What `drill.job` has to put out for these payments: each one's number and sum on its card.

    A plain loop over them, with no pipeline in it. A payment more than 30 s older than the newest
    is too late to count, and a repeated id counts once.
    """
    rows: Counter[bytes] = Counter()
    newest, seen = 0, set[str]()
    held: dict[str, tuple[int, int]] = {}
    for payment in arrived:
        newest = max(newest, payment.at)
        if newest - payment.at > WATERMARK_MS or payment.id in seen:
            continue
        seen.add(payment.id)
        count, cents = held.get(payment.card, (0, 0))
        count, cents = count + 1, cents + round(payment.amount * 100)
        held[payment.card] = count, cents
        rows[canonical({"card": payment.card, "n": count, "cents": cents})] += 1
    return rows
