"""Card payments, completed with what is known of the merchant.

The merchants are a compacted topic, of which every shard holds the whole table. A payment at a
merchant that opened this morning may come before the merchant does: it waits five minutes for the
row, then it goes on without.
"""

from dataclasses import dataclass

from catchwater import Context, Out, function
from catchwater.operators import Enriched


@dataclass
class Payment:
    """One card payment; `at` is its time in milliseconds since 1970."""

    card: str
    id: str
    at: int
    merchant: str
    cents: int


@dataclass
class Merchant:
    """A row of the table, by merchant number."""

    name: str
    category: str
    country: str


@dataclass
class CompletePayment:
    """A payment that says where it was made; all three empty if nobody knows."""

    card: str
    id: str
    at: int
    cents: int
    merchant: str
    name: str
    category: str
    country: str


@function(
    name="complete-payments",
    key="card",
    event_time="at",
    dedup="id",
    tables={"merchants": Merchant},
    output_id="id",
)
class CompletePayments(Enriched[Payment, Merchant, CompletePayment]):
    """Every payment once, with its merchant's row."""

    table = "merchants"
    wait = "5m"

    def row_key(self, e: Payment, ctx: Context) -> str:
        """The merchant's number, not the card's."""
        return e.merchant

    def enrich(self, e: Payment, row: Merchant | None, ctx: Context) -> Out[CompletePayment]:
        """Put the two together."""
        known = row or Merchant("", "", "")
        yield CompletePayment(
            e.card, e.id, e.at, e.cents, e.merchant, known.name, known.category, known.country
        )
