"""Every operator with an input of its own: what a plain loop says of its outputs, and of its state.

A pipeline's ledger says which events each epoch held and which watermark they met; the models take
just that, and share no code with the operators. Those of the outputs are the unit tests'; those of
the state say what has to be left after the last epoch, in the words of the documentation.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.e2e import shopper
from tests.unit.pipeline.operators import models, shop
from tests.unit.pipeline.operators.streams import Epochs

WAIT_MS = 10_000
"""What `InTownSoon` waits for its row."""


@dataclass
class Kept:
    """What a state log holds of one key, as plain values."""

    state: Mapping[str, Any]
    timers: Mapping[str, int]
    fields: Mapping[str, Sequence[tuple[Any, Any]]]
    """By field: the entries of a list or map state."""
    values: Mapping[str, Any]
    """By field: what a value state holds."""
    ids: frozenset[str] = frozenset()
    """Of the events that it has seen, those of one of several inputs behind its name."""


State = Mapping[str, Kept]
"""By key."""


@dataclass
class Seen:
    """What went in, as the ledger tells it."""

    epochs: Callable[[int], Epochs]
    """Of the first stage, and with the watermarks that a later one met."""
    rows: Sequence[Mapping[str, str]] = field(default_factory=list)
    """Of the table of shops, as it was in each epoch."""


@dataclass(frozen=True)
class Case:
    """One pipeline: its functions, its input, and what plain loops say of it."""

    functions: tuple[str, ...]
    types: tuple[Any, ...]
    """The events' class by input."""
    draw: Callable[[random.Random, str, str, int], Any]
    outputs: Callable[[Seen], Iterable[Any]]
    left: Callable[[Seen], Any]
    """What the state must be after the last epoch."""
    found: Callable[[Sequence[State]], Any]
    """The same from the stages' states."""
    ids: Callable[[Seen], Iterable[tuple[str, str]]]
    """By key: the events that the first stage has to know."""
    bad: tuple[str, str]
    """What to write instead of what, to make a version that gives other outputs."""
    source: Any = shop
    has_table: bool = False


def accepted(epochs: Epochs, open_until: Callable[[Any], int] = lambda e: e.at) -> Epochs:
    """Of each epoch the events that are neither late nor known."""
    seen: set[tuple[type, str]] = set()
    kept: Epochs = []
    for watermark, events in epochs:
        fresh = []
        for e in events:
            if open_until(e) >= watermark and (type(e), e.id) not in seen:
                seen.add((type(e), e.id))
                fresh.append(e)
        kept.append((watermark, fresh))
    return kept


def flat(epochs: Epochs) -> Iterator[Any]:
    return (e for _, events in epochs for e in events)


def ids_of(epochs: Epochs, name: Callable[[Any], str] = lambda e: e.id) -> set[tuple[str, str]]:
    return {(e.user, name(e)) for e in flat(epochs)}


# Windows of fixed size: those that still take late events, each with its pages and ids.


def until_dropped(windowed: Any) -> Callable[[Any], int]:
    """The last watermark at which an event of this time still has a window."""
    window, lateness = windowed.window, int(windowed.allowed_lateness[:-1]) * 1000
    every, offset = window.every_ms, window.offset_ms

    def until(e: Any) -> int:
        last = (e.at - offset) // every * every + offset
        return int(last + window.size_ms + lateness - 1)

    return until


def windows_left(windowed: Any, epochs: Epochs) -> dict[tuple[str, int], Any]:
    window, lateness = windowed.window, int(windowed.allowed_lateness[:-1]) * 1000
    size, every = window.size_ms, window.every_ms
    content: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for watermark, events in accepted(epochs, until_dropped(windowed)):
        for e in events:
            starts = range(window.offset_ms - 10 * size, e.at + every, every)
            for start in (s for s in starts if s <= e.at < s + size):
                if start + size + lateness > watermark:
                    content[e.user, start].append(e)
    open_ones = {k: held for k, held in content.items() if k[1] + size + lateness > epochs[-1][0]}
    return {key: summed(held) for key, held in open_ones.items()}


def summed(held: Sequence[Any]) -> tuple[int, list[str]]:
    return sum(e.pages for e in held), sorted(e.id for e in held)


def windows_found(state: State) -> dict[tuple[str, int], Any]:
    found = {}
    for user, kept in state.items():
        accs = [*kept.state["accs"].items(), *kept.fields.get("ended_accs", ())]
        for start, acc in accs:
            found[user, start] = acc["pages"], sorted(acc["ids"])
    return found


def windowed(name: str) -> Case:
    function = getattr(shop, name)
    return Case(
        (name,), (shop.Visit,), visit,
        outputs=lambda seen: models.in_fixed_windows(function, seen.epochs(0))[0],
        left=lambda seen: windows_left(function, seen.epochs(0)),
        found=lambda states: windows_found(states[0]),
        ids=lambda seen: ids_of(accepted(seen.epochs(0), until_dropped(function))),
        bad=BAD_COUNT,
    )  # fmt: skip


BAD_COUNT = ("acc.ids.append(e.id)", 'acc.ids.append(e.id + "!")')


# Sessions: those that still take events.

GAP_MS, SESSION_LATE_MS = 4_000, 15_000


def until_session_dropped(e: Any) -> int:
    return int(e.at) + GAP_MS + SESSION_LATE_MS - 1


def sessions_left(epochs: Epochs) -> dict[tuple[str, int], Any]:
    open_ones: list[list[Any]] = []
    for watermark, events in accepted(epochs, until_session_dropped):
        ends = [max(e.at for e in held) + GAP_MS + SESSION_LATE_MS for held in open_ones]
        open_ones = [h for h, end in zip(open_ones, ends, strict=True) if end > watermark]
        for e in events:
            of_user = [held for held in open_ones if held[0].user == e.user]
            near = [held for held in of_user if any(abs(x.at - e.at) < GAP_MS for x in held)]
            open_ones = [held for held in open_ones if held not in near]
            open_ones.append([*(x for held in near for x in held), e])
    return {(held[0].user, min(e.at for e in held)): summed(held) for held in open_ones}


# Joins: the events that may still be matched, and whether they were.

BEFORE_MS, AFTER_MS = 3_000, 10_000


def side_of(e: Any) -> str:
    return "orders" if isinstance(e, shop.Order) else "payments"


def waiting_left(epochs: Epochs) -> set[tuple[str, str, bool]]:
    taken = list(flat(accepted(epochs)))
    orders = [e for e in taken if isinstance(e, shop.Order)]
    payments = [e for e in taken if isinstance(e, shop.Payment)]
    matched = {
        id(e)
        for o in orders
        for p in payments
        if (o.user, o.cents) == (p.user, p.cents) and -BEFORE_MS <= p.at - o.at <= AFTER_MS
        for e in (o, p)
    }
    until = epochs[-1][0]
    last = {"orders": AFTER_MS, "payments": BEFORE_MS}
    waiting = [e for e in taken if e.at + last[side_of(e)] >= until]
    return {(side_of(e), e.id, id(e) in matched) for e in waiting}


def waiting_found(state: State) -> set[tuple[str, str, bool]]:
    found = set()
    for kept in state.values():
        for side, input in (("left", "orders"), ("right", "payments")):
            events = dict(kept.fields.get(f"{side}_events", ()))
            assert len(events) == len(kept.state[side]), "an entry for each that waits"
            found |= {(input, events[n]["id"], matched) for _, n, matched in kept.state[side]}
    return found


# Tables: the events whose row is not there yet.


def waiting_sales(seen: Seen) -> set[str]:
    """The ids of sales that wait, by a loop like that of the outputs."""
    waiting: list[Any] = []
    before = -1
    epochs = accepted(seen.epochs(0))
    for (watermark, events), towns in zip(epochs, seen.rows, strict=True):
        if watermark > before:
            waiting = [e for e in waiting if e.shop not in towns and e.at + WAIT_MS > watermark]
        before = watermark
        waiting += [e for e in events if e.shop not in towns and e.at + WAIT_MS > watermark]
    return {e.id for e in waiting}


# Patterns: the partial matches.


def partials_left(epochs: Epochs) -> Counter[tuple[str, int, str]]:
    waiting: dict[str, list[Any]] = defaultdict(list)
    for watermark, events in accepted(epochs):
        for user, started in waiting.items():
            waiting[user] = [a for a in started if a.at + 10_000 > watermark]
        for e in events:
            reached = [a for a in waiting[e.user] if e.at < a.at + 10_000]
            if e.text == "a":
                waiting[e.user].append(e)
            elif e.text == "x":
                waiting[e.user] = [a for a in waiting[e.user] if a not in reached]
            elif e.text == "b" and reached:
                waiting[e.user] = []
    return Counter((a.user, a.at, a.id) for started in waiting.values() for a in started)


def partials_found(state: State) -> Counter[tuple[str, int, str]]:
    return Counter(
        (user, partial["started"], event["id"])
        for user, kept in state.items()
        for partial in kept.state["partials"]
        for _, event in partial["events"]
    )


# A function that is no operator.


@dataclass
class Account:
    """What a plain loop keeps of one shopper."""

    visits: int = 0
    recent: list[str] = field(default_factory=list)
    by_pages: Counter[int] = field(default_factory=Counter)
    last: int = 0
    quiet_at: int | None = None


def shoppers(epochs: Epochs) -> tuple[list[Any], dict[str, Account]]:
    """All outputs, and what is known of everybody at the end."""
    accounts: dict[str, Account] = defaultdict(Account)
    told: list[Any] = []
    for watermark, events in accepted(epochs):
        for user, known in accounts.items():
            at = known.quiet_at
            if at is not None and at <= watermark:
                known.quiet_at = None
                quiet = f"quiet-{user}-{at}"
                told.append(shopper.Told(quiet, user, known.visits, "", known.last))
        for e in events:
            known = accounts[e.user]
            known.visits += 1
            known.recent = [*known.recent, e.id][-shopper.RECENT :]
            known.by_pages[e.pages] += 1
            known.last, known.quiet_at = e.at, e.at + shopper.QUIET_MS
            recent = " ".join(known.recent)
            told.append(shopper.Told(e.id, e.user, known.visits, recent, known.by_pages[e.pages]))
    return told, dict(accounts)


def shoppers_found(state: State) -> dict[str, Account]:
    return {
        user: Account(
            kept.state["visits"],
            [id for _, id in sorted(kept.fields["recent"])],
            Counter(dict(kept.fields["by_pages"])),
            kept.values["last"],
            kept.timers.get("quiet"),
        )
        for user, kept in state.items()
    }


# What they are fed with.


def visit(draw: random.Random, user: str, id: str, at: int) -> Any:
    return shop.Visit(user, id, at, draw.randrange(5))


def letter(draw: random.Random, user: str, id: str, at: int) -> Any:
    return shop.Letter(user, id, at, draw.choice("aaabbxcd"))


def order_or_payment(draw: random.Random, user: str, id: str, at: int) -> Any:
    return draw.choice((shop.Order, shop.Payment))(user, id, at, draw.randrange(2))


def sale(draw: random.Random, user: str, id: str, at: int) -> Any:
    return shop.Sale(user, id, at, f"s{draw.randrange(9)}")


def passed(seen: Seen) -> Epochs:
    """What the second function of the chain got, with the watermarks that it met."""
    of_first = accepted(seen.epochs(0))
    met = [watermark for watermark, _ in seen.epochs(1)]
    return [(at, events) for at, (_, events) in zip(met, of_first, strict=True)]


CASES: dict[str, Case] = {
    "tumbling": windowed("Tumbling"),
    "sliding": windowed("Sliding"),
    "session": Case(
        ("Session",), (shop.Visit,), visit,
        outputs=lambda seen: models.in_sessions(seen.epochs(0))[0],
        left=lambda seen: sessions_left(seen.epochs(0)),
        found=lambda states: windows_found(states[0]),
        ids=lambda seen: ids_of(accepted(seen.epochs(0), until_session_dropped)),
        bad=BAD_COUNT,
    ),
    "join": Case(
        ("PaidOrNot",), (shop.Order, shop.Payment), order_or_payment,
        outputs=lambda seen: models.all_pairs(seen.epochs(0), BEFORE_MS, AFTER_MS, "outer"),
        left=lambda seen: waiting_left(seen.epochs(0)),
        found=lambda states: waiting_found(states[0]),
        ids=lambda seen: ids_of(accepted(seen.epochs(0)), lambda e: f"{side_of(e)}\0{e.id}"),
        bad=("yield Pair(left.id, right.id)", 'yield Pair(left.id + "!", right.id)'),
    ),
    "table": Case(
        ("InTownSoon",), (shop.Sale,), sale,
        outputs=lambda seen: models.in_town(seen.epochs(0), [*seen.rows], WAIT_MS, "emit"),
        left=waiting_sales,
        found=lambda states: {
            e["id"] for kept in states[0].values() for _, e in kept.fields.get("events", ())
        },
        ids=lambda seen: ids_of(accepted(seen.epochs(0))),
        bad=('row.town if row else "?"', '"!"'),
        has_table=True,
    ),
    "distinct": Case(
        ("Once",), (shop.Visit,), visit,
        outputs=lambda seen: models.once(seen.epochs(0)),
        left=lambda seen: {e.user for e in flat(accepted(seen.epochs(0)))},
        found=lambda states: {*states[0]},
        ids=lambda seen: ids_of(accepted(seen.epochs(0))),
        bad=(
            "class Once(Distinct[Visit]):\n    pass",
            "class Once(Distinct[Visit]):\n"
            "    def on_event(self, e: Visit, s: Any, ctx: Context) -> Out[Visit]:\n"
            "        yield Visit(e.user, e.id, e.at, -1)",
        ),
    ),
    "pattern": Case(
        ("AThenB",), (shop.Letter,), letter,
        outputs=lambda seen: models.a_then_b(seen.epochs(0)),
        left=lambda seen: partials_left(seen.epochs(0)),
        found=lambda states: partials_found(states[0]),
        ids=lambda seen: ids_of(accepted(seen.epochs(0))),
        bad=('"".join(e.text for e in found), True)', '"!", True)'),
    ),
    "function": Case(
        ("Shoppers",), (shopper.Visit,), visit,
        outputs=lambda seen: shoppers(seen.epochs(0))[0],
        left=lambda seen: shoppers(seen.epochs(0))[1],
        found=lambda states: shoppers_found(states[0]),
        ids=lambda seen: ids_of(accepted(seen.epochs(0))),
        bad=('" ".join(s.recent)', '"!"'),
        source=shopper,
    ),
    "chain": Case(
        ("Once", "Tumbling"), (shop.Visit,), visit,
        outputs=lambda seen: models.in_fixed_windows(shop.Tumbling, passed(seen))[0],
        left=lambda seen: windows_left(shop.Tumbling, passed(seen)),
        found=lambda states: windows_found(states[1]),
        ids=lambda seen: ids_of(accepted(seen.epochs(0))),
        bad=BAD_COUNT,
    ),
}  # fmt: skip
