"""What a model wants to know of a card, kept fresh in a key-value store.

Every five minutes each active card gets the features of its last hour. The store holds one value a
card; a replay puts the same values again.
"""

from dataclasses import dataclass, field

from catchwater import Context, Out, function
from catchwater.operators import Window, Windowed, sliding


@dataclass
class Payment:
    """One card payment; `at` is its time in milliseconds since 1970."""

    card: str
    id: str
    at: int
    merchant: str
    cents: int


@dataclass
class Spending:
    """What an hour has come to so far."""

    payments: int = 0
    cents: int = 0
    largest: int = 0
    merchants: set[str] = field(default_factory=set)


@dataclass
class CardFeatures:
    """The features of the hour before `as_of`."""

    card: str
    as_of: int
    payments: int
    cents: int
    largest: int
    mean: float
    merchants: int


@function(
    name="card-features",
    key="card",
    event_time="at",
    watermark="10s",
    dedup="id",
    output_id="card",
)
class CardFeaturesOfTheHour(Windowed[Payment, Spending, CardFeatures]):
    """The last hour of each card, every five minutes."""

    window = sliding("1h", every="5m")

    def add(self, e: Payment, acc: Spending, ctx: Context) -> None:
        """Count a payment in."""
        acc.payments += 1
        acc.cents += e.cents
        acc.largest = max(acc.largest, e.cents)
        acc.merchants.add(e.merchant)

    def result(self, window: Window, acc: Spending, ctx: Context) -> Out[CardFeatures]:
        """The features, as of the hour's end."""
        yield CardFeatures(
            card=ctx.key,
            as_of=window.end,
            payments=acc.payments,
            cents=acc.cents,
            largest=acc.largest,
            mean=acc.cents / acc.payments,
            merchants=len(acc.merchants),
        )
