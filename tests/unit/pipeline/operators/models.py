"""What operators must give, as plain loops from the words of the documentation.

Each takes epochs, the events and the watermark they met, and shares no code with the operator.
"""

from collections import defaultdict
from typing import Any

from tests.unit.pipeline.operators.shop import (
    Letter,
    Order,
    Pair,
    Payment,
    Sale,
    Sold,
    Total,
    Visit,
    Word,
)
from tests.unit.pipeline.operators.streams import Epochs, fresh


def in_fixed_windows(windowed: Any, epochs: Epochs) -> tuple[list[Total], int]:
    """All results and the number of late events, from the words of the documentation."""
    size, every = windowed.window.size_ms, windowed.window.every_ms
    offset, lateness = windowed.window.offset_ms, int(windowed.allowed_lateness[:-1]) * 1000
    content: dict[tuple[str, int], list[Visit]] = defaultdict(list)
    given: list[Total] = []
    late, before, is_new = 0, 0, fresh(set())

    def total(user: str, start: int) -> Total:
        held = content[user, start]
        return Total(
            user, start, start + size, sum(e.pages for e in held), sorted(e.id for e in held)
        )

    for watermark, events in epochs:
        ending = [key for key in content if before < key[1] + size <= watermark]
        given += [total(*key) for key in ending]
        before = watermark
        for e in events:
            all_of_time = range(offset - 10 * size, e.at + every, every)
            starts = [start for start in all_of_time if start <= e.at < start + size]
            taking = [start for start in starts if start + size + lateness > watermark]
            if not taking:
                late += 1
            elif is_new(e):
                for start in taking:
                    content[e.user, start].append(e)
                    if start + size <= watermark:
                        given.append(total(e.user, start))
    return given, late


def in_sessions(epochs: Epochs) -> tuple[list[Total], int]:
    gap, lateness = 4_000, 15_000
    open_ones: list[list[Visit]] = []
    given: list[Total] = []
    late, before, is_new = 0, 0, fresh(set())

    def end(held: list[Visit]) -> int:
        return max(e.at for e in held) + gap

    def total(held: list[Visit]) -> Total:
        start, pages = min(e.at for e in held), sum(e.pages for e in held)
        return Total(held[0].user, start, end(held), pages, sorted(e.id for e in held))

    for watermark, events in epochs:
        given += [total(held) for held in open_ones if before < end(held) <= watermark]
        open_ones = [held for held in open_ones if end(held) + lateness > watermark]
        before = watermark
        for e in events:
            if e.at + gap + lateness <= watermark:
                late += 1
            elif is_new(e):
                near = [
                    h
                    for h in open_ones
                    if any(x.user == e.user and abs(x.at - e.at) < gap for x in h)
                ]
                open_ones = [held for held in open_ones if held not in near]
                open_ones.append([*(x for held in near for x in held), e])
                if end(open_ones[-1]) <= watermark:
                    given.append(total(open_ones[-1]))
    return given, late


def a_then_b(epochs: Epochs) -> list[Word]:
    """`a`, no `x`, then `b`, within ten seconds: each `a` waits on its own."""
    waiting: dict[str, list[Letter]] = {}
    given, is_new = [], fresh(set())
    for watermark, events in epochs:
        for key, started in waiting.items():
            over = [a for a in started if a.at + 10_000 <= watermark]
            given += [Word(key, "a", False) for _ in over]
            waiting[key] = [a for a in started if a not in over]
        for e in events:
            if e.at < watermark or not is_new(e):
                continue
            started = waiting.setdefault(e.user, [])
            reached = [a for a in started if e.at < a.at + 10_000]
            if e.text == "a":
                started.append(e)
            elif e.text == "x":
                waiting[e.user] = [a for a in started if a not in reached]
            elif e.text == "b" and reached:
                given.append(Word(e.user, "ab", True))
                waiting[e.user] = []
    return given


def all_pairs(epochs: Epochs, before: int, after: int, how: str) -> list[Pair]:
    is_new = {Order: fresh(set()), Payment: fresh(set())}
    taken = [
        e for watermark, events in epochs for e in events
        if e.at >= watermark and is_new[type(e)](e)
    ]  # fmt: skip
    orders = [e for e in taken if isinstance(e, Order)]
    payments = [e for e in taken if isinstance(e, Payment)]
    pairs = [
        (o, p)
        for o in orders
        for p in payments
        if (o.user, o.cents) == (p.user, p.cents) and -before <= p.at - o.at <= after
    ]
    given = [Pair(o.id, p.id) for o, p in pairs]
    until = epochs[-1][0]
    lonely_orders = [o for o in orders if o not in (pair[0] for pair in pairs)]
    lonely_payments = [p for p in payments if p not in (pair[1] for pair in pairs)]
    if how in ("left", "outer"):
        given += [Pair(o.id, "") for o in lonely_orders if o.at + after < until]
    if how in ("right", "outer"):
        given += [Pair("", p.id) for p in lonely_payments if p.at + before < until]
    return given


def in_town(epochs: Epochs, rows: list[dict[str, str]], wait_ms: int, missing: str) -> list[Sold]:
    """With the rows that the table had in each of the epochs."""
    given: list[Sold] = []
    waiting: list[Sale] = []
    before, is_new = -1, fresh(set())

    def is_done(sale: Sale, watermark: int, row: str | None) -> bool:
        if row is None and sale.at + wait_ms > watermark and wait_ms:
            return False
        if row is not None or missing == "emit":
            given.append(Sold(sale.id, row or "?"))
        return True

    for (watermark, events), towns in zip(epochs, rows, strict=True):
        if watermark > before:
            waiting = [s for s in waiting if not is_done(s, watermark, towns.get(s.shop))]
        before = watermark
        taken = [e for e in events if e.at >= watermark and is_new(e)]
        waiting += [e for e in taken if not is_done(e, watermark, towns.get(e.shop))]
    return given


def once(epochs: Epochs) -> list[Visit]:
    """The first of every id that is not late."""
    is_new = fresh(set())
    return [e for watermark, events in epochs for e in events if e.at >= watermark and is_new(e)]
