"""Five small jobs: a word count, events once, sessions, a join, an enrichment.

docs/small-jobs.md shows each beside the same job in Quix Streams and in Bytewax.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from catchwater import Context, Kafka, Out, Pipeline, Topic, function
from catchwater.operators import (
    Aggregated,
    Distinct,
    Enriched,
    Joined,
    count,
    flat_map,
    session,
    tumbling,
)


@dataclass
class Line:
    """A line of text; `at` is its time in milliseconds since 1970, as in all of these."""

    text: str
    at: int


@dataclass
class Word:
    """One of its words."""

    word: str
    at: int


@dataclass
class Click:
    """What a user looked at."""

    user: str
    at: int
    page: str


@dataclass
class Order:
    """An order."""

    order: str
    at: int
    customer: str


@dataclass
class Payment:
    """What was paid for an order, and by whom."""

    order: str
    id: str
    at: int
    customer: str
    cents: int


@dataclass
class Customer:
    """A row of the table of customers."""

    name: str


@dataclass
class Paid:
    """An order that was paid, and how long that took."""

    order: str
    after_ms: int


@dataclass
class Named:
    """A payment with its customer's name."""

    id: str
    cents: int
    name: str


BROKER = "localhost:9092"
PAYMENTS = Kafka(BROKER, "payments")


# Word count: how often each word was written, by the hour.


@flat_map(key="text", event_time="at")
def words(e: Line) -> Iterator[Word]:
    yield from (Word(word, e.at) for word in e.text.split())


@function(name="counts", key="word", event_time="at")
class Counts(Aggregated[Word]):
    window = tumbling("1h")
    n = count()


counted = Pipeline("words", words, Counts, source=Kafka(BROKER, "lines"), sinks=[Topic("counts")])


# Events once: a payment that is sent again within a day is dropped.


@function(name="once", key="order", event_time="at", dedup="id", dedup_ttl="1d")
class Once(Distinct[Payment]):
    pass


once = Pipeline("once", Once, source=PAYMENTS, sinks=[Topic("payments-once")])


# Sessions: how many pages a user saw with no half an hour between them.


@function(name="visits", key="user", event_time="at")
class Visits(Aggregated[Click]):
    window = session("30m")
    pages = count()


visits = Pipeline("visits", Visits, source=Kafka(BROKER, "clicks"), sinks=[Topic("visits")])


# A join: orders with the payments that came within ten minutes of them.


@function(name="paid", inputs={"orders": Order, "paid": Payment}, key="order", event_time="at")
class PaidOrders(Joined[Order, Payment, Paid]):
    within = "10m"

    def match(self, left: Order, right: Payment, ctx: Context) -> Out[Paid]:
        yield Paid(left.order, right.at - left.at)


BOTH = Kafka(BROKER, inputs={"orders": "orders", "paid": "payments"})
paid = Pipeline("paid", PaidOrders, source=BOTH, sinks=[Topic("paid")])


# An enrichment: payments with their customers' names, from a compacted topic.


@function(name="named", key="customer", event_time="at", tables={"customers": Customer})
class NamedPayments(Enriched[Payment, Customer, Named]):
    table = "customers"

    def enrich(self, e: Payment, row: Customer | None, ctx: Context) -> Out[Named]:
        yield Named(e.id, e.cents, row.name if row else "")


named = Pipeline(
    "named", NamedPayments, source=PAYMENTS, sinks=[Topic("named")],
    tables={"customers": "customers"},
)  # fmt: skip
