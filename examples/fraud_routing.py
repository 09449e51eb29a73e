"""Payments scored by card, and the suspicious ones routed to the team of their country.

Two functions in a chain: the first knows the card, the second the team. Every score goes to one
topic, the cases go to another, and a payment that cannot be one goes to the dead letters.
"""

from dataclasses import dataclass, field

from catchwater import Context, Keyed, Out, function

SUSPICIOUS = 60
CASES_AN_HOUR = 20
HOUR_MS = 3_600_000


@dataclass
class Payment:
    """One card payment; `at` is its time in milliseconds since 1970."""

    card: str
    id: str
    at: int
    country: str
    cents: int

    def __post_init__(self) -> None:
        if self.cents <= 0:
            raise ValueError(f"a payment of {self.cents} cents is none")


@dataclass
class Score:
    """How suspicious a payment is, from 0 to 100."""

    card: str
    id: str
    at: int
    country: str
    cents: int
    score: int


@dataclass
class Card:
    """What is remembered of a card: its countries, and its largest payment."""

    countries: list[str] = field(default_factory=list)
    largest: int = 0


@function(
    name="card-score", key="card", event_time="at", dedup="id", state_ttl="90d", output_id="id",
    poison="dead-letter", poison_limit=1_000,
)  # fmt: skip
class CardScore(Keyed[Payment, Card, Score]):
    """A new country is suspicious, and so is far more money than ever before."""

    def on_event(self, e: Payment, s: Card, ctx: Context) -> Out[Score]:
        """Score the payment against what the card did before it."""
        score = 40 * (bool(s.countries) and e.country not in s.countries)
        score += 60 * (0 < 3 * s.largest < e.cents)
        s.largest = max(s.largest, e.cents)
        s.countries = [*(c for c in s.countries if c != e.country), e.country][-5:]
        return [Score(e.card, e.id, e.at, e.country, e.cents, score)]


@dataclass
class Case:
    """Work for a team: to look at a payment, or to see that it was declined for want of time."""

    country: str
    id: str
    at: int
    score: int
    declined: bool


@dataclass
class Desk:
    """How many cases a team was given in its present hour."""

    hour: int = 0
    cases: int = 0


@function(name="review-desk", key="country", event_time="at", state_ttl="1d", output_id="id")
class ReviewDesk(Keyed[Score, Desk, Case]):
    """A team looks at so many payments an hour; what is beyond that is declined unseen."""

    def on_event(self, e: Score, s: Desk, ctx: Context) -> Out[Case]:
        """Give a suspicious payment to the team, if it has time."""
        if e.score < SUSPICIOUS:
            return []
        if e.at // HOUR_MS > s.hour:
            s.hour, s.cases = e.at // HOUR_MS, 0
        s.cases += 1
        return [Case(e.country, e.id, e.at, e.score, declined=s.cases > CASES_AN_HOUR)]
