"""Functions under test, one or more of each operator; real Spark runs this very file, too."""

from dataclasses import dataclass, field
from typing import Any

from catchwater import Context, Out, function
from catchwater.operators import (
    Distinct,
    Enriched,
    Joined,
    Match,
    Pattern,
    Window,
    Windowed,
    begin,
    session,
    sliding,
    tumbling,
)

KEYED = {"key": "user", "event_time": "at", "watermark": "5s", "dedup": "id"}
"""What all declare."""


@dataclass
class Visit:
    user: str
    id: str
    at: int
    pages: int = 1


@dataclass
class Count:
    pages: int = 0
    ids: list[str] = field(default_factory=list)


@dataclass(order=True)
class Total:
    user: str
    start: int
    end: int
    pages: int
    ids: list[str]


class Counting(Windowed[Visit, Count, Total]):
    def add(self, e: Visit, acc: Count, ctx: Context) -> None:
        acc.pages += e.pages
        acc.ids.append(e.id)

    def result(self, window: Window, acc: Count, ctx: Context) -> Out[Total]:
        yield Total(ctx.key, window.start, window.end, acc.pages, sorted(acc.ids))

    def merge(self, a: Count, b: Count) -> Count:
        return Count(a.pages + b.pages, a.ids + b.ids)


@function(name="tumbling", **KEYED)
class Tumbling(Counting):
    window = tumbling("10s", offset="3s")
    allowed_lateness = "20s"


@function(name="sliding", **KEYED)
class Sliding(Counting):
    window = sliding("10s", every="4s")
    allowed_lateness = "5s"


@function(name="strict", **KEYED)
class Strict(Counting):
    window = tumbling("10s")


@function(name="session", **KEYED)
class Session(Counting):
    window = session("4s")
    allowed_lateness = "15s"


@function(name="once", dedup_ttl="1h", **KEYED)
class Once(Distinct[Visit]):
    pass


@dataclass
class Letter:
    user: str
    id: str
    at: int
    text: str


@dataclass(order=True)
class Word:
    user: str
    text: str
    complete: bool


def is_(text: str) -> Any:
    return lambda e, found: e.text == text


class Words(Pattern[Letter, Word]):
    within = "10s"

    def match(self, found: Match[Letter], ctx: Context) -> Out[Word]:
        yield Word(ctx.key, "".join(e.text for e in found), True)

    def timed_out(self, found: Match[Letter], ctx: Context) -> Out[Word]:
        yield Word(ctx.key, "".join(e.text for e in found), False)


@function(name="a-then-b", **KEYED)
class AThenB(Words):
    steps = begin("a", is_("a")).unless(is_("x")).then("b", is_("b"))


@dataclass
class Order:
    user: str
    id: str
    at: int
    cents: int = 0


@dataclass
class Payment:
    user: str
    id: str
    at: int
    cents: int = 0


@dataclass(order=True)
class Pair:
    order: str
    payment: str


class Paid(Joined[Order, Payment, Pair]):
    def match(self, left: Order, right: Payment, ctx: Context) -> Out[Pair]:
        if left.cents == right.cents:
            yield Pair(left.id, right.id)

    def unmatched(self, e: Order | Payment, ctx: Context) -> Out[Pair]:
        yield Pair(e.id, "") if isinstance(e, Order) else Pair("", e.id)


@function(name="paid", inputs={"orders": Order, "payments": Payment}, **KEYED)
class PaidOrNot(Paid):
    before = "3s"
    after = "10s"
    how = "outer"


@dataclass
class Sale:
    user: str
    id: str
    at: int
    shop: str


@dataclass
class Shop:
    town: str


@dataclass(order=True)
class Sold:
    id: str
    town: str


class InTown(Enriched[Sale, Shop, Sold]):
    table = "shops"

    def row_key(self, e: Sale, ctx: Context) -> str:
        return e.shop

    def enrich(self, e: Sale, row: Shop | None, ctx: Context) -> Out[Sold]:
        yield Sold(e.id, row.town if row else "?")


@function(name="in-town", tables={"shops": Shop}, **KEYED)
class InTownSoon(InTown):
    wait = "10s"
