"""Payments judged with what a feature store knows of their cards.

Each epoch of a shard asks Redis one question for all its cards (MGET). The answers are written
down before a payment is judged, so that a replay judges by the same features though the store has
newer ones by then. A card that the store does not know has spent nothing yet.
"""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from catchwater import Call, Context, Keyed, Out, function

STORE = "FEATURE_STORE"
"""Of the environment: where Redis is; else this machine's."""


@dataclass
class Payment:
    """One card payment; `at` is its time in milliseconds since 1970."""

    card: str
    id: str
    at: int
    cents: int


@dataclass
class Features:
    """What the store has of a card, as JSON under `card:NUMBER`."""

    mean: float
    largest: int


@dataclass
class Seen:
    """What was seen of a card."""

    payments: int = 0


@dataclass
class Judged:
    """A payment, how many times its card's mean it is, and how many came before."""

    card: str
    id: str
    times_the_mean: float | None
    before: int


@function(
    name="judged-payments",
    key="card",
    event_time="at",
    dedup="id",
    output_id="id",
    calls={"features": Call(timeout="1s", attempts=3, batch=10_000)},
)
class JudgedPayments(Keyed[Payment, Seen, Judged]):
    """Every payment once, beside what its card usually spends."""

    def ask_features(self, e: Payment) -> str:
        """The features of the payment's card."""
        return e.card

    def call_features(self, cards: list[str]) -> list[Features | None]:
        """All cards of an epoch in one question."""
        found = _store().mget([f"card:{card}" for card in cards])
        return [msgspec.json.decode(each, type=Features) if each else None for each in found]

    def on_event(self, e: Payment, s: Seen, ctx: Context) -> Out[Judged]:
        """Judge a payment."""
        features = ctx.answer("features")
        times = round(e.cents / features.mean, 2) if features and features.mean else None
        yield Judged(e.card, e.id, times, s.payments)
        s.payments += 1


@cache
def _store() -> Any:
    import redis

    return redis.Redis.from_url(os.environ.get(STORE, "redis://127.0.0.1:6379"))
