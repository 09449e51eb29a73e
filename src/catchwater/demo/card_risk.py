"""The demo's function: a card tested with a small payment and then emptied with a large one.

Relies on nothing but the function API, so the harness runs it without Spark. Promises one alert
for every payment above 500 that follows one below 1 on the same card within a minute, once per
payment however often it was sent.
"""

from dataclasses import dataclass, field

from catchwater import Context, Keyed, Out, function


@dataclass
class Txn:
    """One card payment; `at` is its event time in milliseconds since the Unix epoch."""

    card: str
    id: str
    at: int
    amount: float


@dataclass
class Alert:
    """A payment that looks like theft, and the rule that says so."""

    card: str
    id: str
    rule: str


@dataclass
class Risk:
    """What is remembered of a card: when it was last tested with a small payment, 0 for never."""

    small_at: int = 0
    spent: dict[str, float] = field(default_factory=dict)


@function(
    name="card-risk",
    version=2,
    key="card",
    event_time="at",
    watermark="30s",
    dedup="id",
    dedup_ttl="1d",
    state_ttl="30d",
    output_id=("card", "id", "rule"),
    needs_history="7d",
    max_restore="10m",
)
class CardRisk(Keyed[Txn, Risk, Alert]):
    """Small, then large, on one card within a minute."""

    def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
        """Alert on a large payment soon after a small one; remember a small one for a minute."""
        if e.amount > 500 and s.small_at and e.at - s.small_at < 60_000:
            yield Alert(e.card, e.id, "small-then-large")
        if e.amount < 1:
            s.small_at = e.at
            ctx.timer("forget", e.at + 60_000)
        return None

    def on_timer(self, name: str, at: int, s: Risk, ctx: Context) -> Out[Alert]:
        """The minute is over: forget the small payment."""
        s.small_at = 0
        return ()
